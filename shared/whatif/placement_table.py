"""Allocations of a timeline as columns, found by row, by key and by lineage.

The lineage (job, group, index in the name, number of earlier allocations with that name) identifies an allocation
across timelines: it does not depend on seqs and rows.
"""

import numpy as np

from shared.core.columns import Int64s, Rows, grown
from shared.whatif.script import Lineage

#: Bits of a lineage's number.
_INDEX_BITS = 24
_ATTEMPT_BITS = 14
_COLUMNS = (
    *("group", "index", "attempt", "node", "seq"),
    #: requested, placed, running, stop ordered, ended: log times, 0: never.
    *("asked_ns", "placed_ns", "running_ns", "told_ns", "ended_ns"),
    #: why it was stopped; final client status; position + 1 of the allocation it replaces.
    *("told", "code", "previous"),
)


class NameTable:
    """Numbers of groups and nodes, shared by compared timelines."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, str]] = []
        self.nodes: list[str] = []
        self._group_of: dict[tuple[str, str], int] = {}
        self._node_of: dict[str, int] = {}

    def group(self, job_id: str, name: str) -> int:
        """Number of a job's group."""
        found = self._group_of.setdefault((job_id, name), len(self.groups))
        if found == len(self.groups):
            self.groups.append((job_id, name))
        return found

    def node(self, node_id: str) -> int:
        """Number of a node."""
        found = self._node_of.setdefault(node_id, len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(node_id)
        return found


class PlacementTable:
    """All allocations of a timeline, by position: in the order of placement."""

    def __init__(self, names: NameTable) -> None:
        self.names = names
        self.count = 0
        self._columns = {name: np.zeros(0, dtype=np.int64) for name in _COLUMNS}
        self._key = np.zeros(0, dtype=np.int64)
        self._of_row = np.zeros(0, dtype=np.int64)
        #: by group: number of allocations per index so far.
        self._seen: dict[int, Int64s] = {}
        self._by_key: dict[int, int] = {}

    def column(self, name: str) -> Int64s:
        """A column over all allocations, writable. Shape: (count,)."""
        return self._columns[name][: self.count]

    # ---- finding ----

    def lineages(self, at: Int64s | None = None) -> Int64s:
        """Lineage of each allocation as one number, or of some. Shapes: (count,) or that of `at`."""
        parts = [self.column(name) for name in ("group", "index", "attempt")]
        return _lineage(*(part if at is None else part[at] for part in parts))

    def positions_of_rows(self, rows: Rows) -> Int64s:
        """Positions of the allocations now in these rows. Shapes: (K,)."""
        found: Int64s = self._of_row[rows]
        return found

    def name_of(self, at: int) -> Lineage:
        """Lineage of one allocation."""
        job_id, group = self.names.groups[int(self.column("group")[at])]
        index, attempt = (int(self.column(name)[at]) for name in ("index", "attempt"))
        return Lineage(job_id, group, index, attempt)

    def key_of(self, one: Lineage) -> int:
        """Key of the allocation with this lineage; 0: none (yet)."""
        number = self.names.group(one.job_id, one.group)
        wanted = _lineage(*(np.asarray([part]) for part in (number, one.index, one.attempt)))
        found = np.flatnonzero(self.lineages() == wanted[0])
        return int(self._key[found[0]]) if len(found) else 0

    def by_key(self) -> dict[int, int]:
        """Positions by key, updated on call."""
        for at in range(len(self._by_key), self.count):
            self._by_key[int(self._key[at])] = at
        return self._by_key

    # ---- growing ----

    def add(self, group: int, index: Int64s, nodes: Int64s, *, keys: Int64s, rows: Rows) -> slice:
        """Add allocations of one group that are in these rows now; the rest of their columns is 0. Shapes: (K,)."""
        at = slice(self.count, self.count + len(index))
        self.count = at.stop
        if self.count > len(self._key):
            self._key = grown(self._key, self.count)
            self._columns = {name: grown(one, self.count) for name, one in self._columns.items()}
        self._key[at] = keys
        self._columns["group"][at] = group
        self._columns["index"][at] = index
        self._columns["attempt"][at] = self._attempts(group, index)
        self._columns["node"][at] = nodes
        if len(rows):
            self._of_row = grown(self._of_row, int(rows.max()) + 1)
        self._of_row[rows] = np.arange(at.start, at.stop)
        return at

    def _attempts(self, group: int, index: Int64s) -> Int64s:
        """Number of earlier allocations with each name."""
        if not len(index):
            return index
        seen = grown(self._seen.get(group, np.zeros(0, dtype=np.int64)), int(index.max()) + 1)
        self._seen[group] = seen
        found = seen[index]
        if len(index) < 2 or bool((np.diff(index) > 0).all()):
            seen[index] += 1
            return found
        np.add.at(seen, index, 1)
        # Several of one name are numbered in their order.
        before: dict[int, int] = {}
        for nth, one in enumerate(index.tolist()):
            found[nth] += before.get(one, 0)
            before[one] = before.get(one, 0) + 1
        return found

    # ---- copies ----

    def copied(self) -> "PlacementTable":
        """Return an independent copy."""
        found = PlacementTable(self.names)
        vars(found).update(
            count=self.count,
            _columns={name: one.copy() for name, one in self._columns.items()},
            _key=self._key.copy(),
            _of_row=self._of_row.copy(),
            _seen={group: one.copy() for group, one in self._seen.items()},
        )
        return found

    def until(self, t_ns: int) -> "PlacementTable":
        """Return the allocations placed by then, read-only."""
        found = PlacementTable(self.names)
        count = int(np.searchsorted(self.column("placed_ns"), t_ns, "right"))
        vars(found).update(count=count, _columns=self._columns, _key=self._key)
        return found

    def slim(self) -> "PlacementTable":
        """Return a copy with only the compared columns, for pickling."""
        found = PlacementTable(self.names)
        columns = {name: self.column(name).copy() for name in self._columns}
        vars(found).update(count=self.count, _columns=columns)
        return found


def _lineage(group: Int64s, index: Int64s, attempt: Int64s) -> Int64s:
    """Pack the three into one number; attempts beyond 16,383 are equal."""
    key = group << (_INDEX_BITS + _ATTEMPT_BITS)
    key |= index << _ATTEMPT_BITS
    key |= np.minimum(attempt, (1 << _ATTEMPT_BITS) - 1)
    return key
