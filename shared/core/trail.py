"""Trails: on which fleet rows the three held columns changed, so that nobody has to compare all of them.

Decides which rows may differ between two moments of one use of the fleet, or of copies that were made of it. Must not
know what changed there nor why: whoever writes to the columns notes the rows. A trail may name rows that did not
change; it must not leave one out that did. Who reads it: `ranked.py`.
"""

from collections.abc import Iterable


class Trail:
    """Rows in the order of their changes, from the moment on at which the columns were made or copied."""

    __slots__ = ("forked_at", "rows", "source")

    def __init__(self, source: "Trail | None" = None) -> None:
        self.rows: list[int] = []
        #: of what this is a copy, and how far that had come by then.
        self.source = source
        self.forked_at = 0 if source is None else len(source.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def note(self, row: int) -> None:
        """One row changed."""
        self.rows.append(row)

    def note_all(self, rows: Iterable[int]) -> None:
        """These rows changed."""
        self.rows.extend(rows)

    def fork(self) -> "Trail":
        """Begin the trail of a copy that is made now. A copy is not copied again."""
        assert self.source is None, "a copy of a copy"
        return Trail(self)

    def since(self, other: "Trail", at: int) -> list[int] | None:
        """Rows that may differ from when `other` was `at` long; None: nobody knows, the two have nothing in common."""
        if self is other:
            return self.rows[at:]
        source = self if self.source is None else self.source
        if source is not (other if other.source is None else other.source):
            return None
        mine = len(source.rows) if source is self else self.forked_at
        theirs = at if source is other else other.forked_at
        found = source.rows[min(mine, theirs) : max(mine, theirs)]
        if source is not self:
            found += self.rows
        if source is not other:
            found += other.rows[:at]
        return found
