"""Tentative usage: the resources held once the plan under way is applied, so that later placements see earlier ones.

Copies and writes lazily: columns that are not read are not copied, and the plan of a small job ends with its first
placement.
"""

from typing import Final

from schemas.jobs import GroupSpec
from shared.core.resources.held import HeldResources
from shared.core.scheduling.selection.candidates import Placement, ask_columns
from shared.core.scheduling.usage.dirty_rows import DirtyRows

#: Up to this many rows a loop beats NumPy.
_SMALL_COUNT_MAX: Final = 8


class TentativeUsage:
    """A copy of the held resources, made when they are written to, or read after a placement."""

    def __init__(self, held: HeldResources, dirty_rows: DirtyRows | None, size: int) -> None:
        #: without the plan; read-only.
        self._before = held
        self._size = size
        #: where the three columns changed since they were made; None: not tracked.
        self.dirty_rows = dirty_rows
        self._copy: HeldResources | None = None
        self._late: list[tuple[GroupSpec, Placement]] = []

    def put(self, group: GroupSpec, placed: Placement) -> None:
        """Hold what a group asks for where it was placed."""
        self._late.append((group, placed))

    @property
    def held(self) -> HeldResources:
        """The held resources, the plan included. A caller that changes the three columns must drop `dirty_rows`."""
        if self._copy is None:
            self._copy = self._before.copy(self._size)
            self.dirty_rows = None if self.dirty_rows is None else self.dirty_rows.fork()
        for group, placed in self._late:
            ask, used = ask_columns(group), self._copy.used
            if len(placed.rows) <= _SMALL_COUNT_MAX:
                for row, count in zip(placed.rows.tolist(), placed.counts.tolist(), strict=True):
                    used[row] += ask * count
            else:
                self._copy.add_counts(placed.rows, placed.counts, ask)
            if self.dirty_rows is not None:
                self.dirty_rows.note_all(placed.rows.tolist())
        self._late.clear()
        return self._copy

    def seen(self) -> HeldResources:
        """The same, read-only."""
        return self._before if self._copy is None and not self._late else self.held
