"""Dirty rows: the fleet rows where the three held columns changed, so that readers need not compare all rows.

Code that writes the columns notes the rows. The list may name rows that did not change, but must not omit one that did.
score_cache.py reads it.
"""

from collections.abc import Iterable


class DirtyRows:
    """Rows in the order of their changes, since the columns were made or copied."""

    __slots__ = ("forked_at", "rows", "source")

    def __init__(self, source: "DirtyRows | None" = None) -> None:
        self.rows: list[int] = []
        #: the list this one was forked from, and its length then.
        self.source = source
        self.forked_at = 0 if source is None else len(source.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def note(self, row: int) -> None:
        """Note one changed row."""
        self.rows.append(row)

    def note_all(self, rows: Iterable[int]) -> None:
        """Note changed rows."""
        self.rows.extend(rows)

    def fork(self) -> "DirtyRows":
        """Start the list of a copy of the columns. A fork cannot be forked."""
        assert self.source is None, "a copy of a copy"
        return DirtyRows(self)

    def since(self, other: "DirtyRows", at: int) -> list[int] | None:
        """Rows that may differ since `other` had length `at`; None: unknown, the two are unrelated."""
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
