"""A trial: what is held once a plan under way has come true, so that all of the plan sees what was placed before.

Decides when that is written down at all: what nobody looks at is not copied, and the plan of a small job ends with its
first placement. Must not know who places what, nor why.
"""

from typing import Final

from schemas.jobs import GroupSpec
from shared.core.heads import Placement
from shared.core.resources.held import Held
from shared.core.trail import Trail
from shared.core.waiting import ask_of

#: As many rows are written one by one: vectors have their price.
_FEW: Final = 8


class Trial:
    """A copy of what is held, made when somebody looks at it who may write to it, or behind a placement."""

    def __init__(self, held: Held, trail: Trail | None, size: int) -> None:
        #: without the plan. Not to be written to.
        self._before = held
        self._size = size
        #: where the three columns changed since they were made; None: nobody took note.
        self.trail = trail
        self._copy: Held | None = None
        self._late: list[tuple[GroupSpec, Placement]] = []

    def put(self, group: GroupSpec, placed: Placement) -> None:
        """Hold what a group asks for where it was placed."""
        self._late.append((group, placed))

    @property
    def held(self) -> Held:
        """What is held with the plan. Whoever changes its three columns forgets the trail."""
        if self._copy is None:
            self._copy = self._before.copy(self._size)
            self.trail = None if self.trail is None else self.trail.fork()
        for group, placed in self._late:
            ask, used = ask_of(group), self._copy.used
            if len(placed.rows) <= _FEW:
                for row, count in zip(placed.rows.tolist(), placed.counts.tolist(), strict=True):
                    used[row] += ask * count
            else:
                self._copy.add_counts(placed.rows, placed.counts, ask)
            if self.trail is not None:
                self.trail.note_all(placed.rows.tolist())
        self._late.clear()
        return self._copy

    def seen(self) -> Held:
        """The same, not to be written to."""
        return self._before if self._copy is None and not self._late else self.held
