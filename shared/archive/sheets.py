"""Sheets: rows of one table as they are found in the log, kept as columns until a database takes them.

Decides names and types of the tables of facts. A fact is never changed by a later one, so that segments of an export
can be written once; what it means over time (intervals, the latest word) is the views' matter (views.py). Knows no
database.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_NUMBERS = {"BIGINT": np.int64, "UBIGINT": np.uint64, "BOOLEAN": np.bool_}


def _typed(**names: str) -> dict[str, str]:
    """Columns by their types."""
    kinds = {"TEXTS": "VARCHAR[]"}
    return {
        name: kinds.get(kind, kind) for kind, listed in names.items() for name in listed.split()
    }


#: By table: its columns and their types in SQL. `n` counts the events of a record from 0.
FACTS: dict[str, dict[str, str]] = {
    "records": _typed(
        BIGINT="seq t_ns epoch events bytes", VARCHAR="kind core subject", BLOB="data"
    ),
    "events": _typed(BIGINT="seq n t_ns", VARCHAR="type job_id node_id body"),
    "jobs": _typed(
        BIGINT="seq n t_ns version priority",
        VARCHAR="what job_id type node_pool submission_id spec",
    ),
    "groups": _typed(
        BIGINT="seq version wanted cpu_mhz memory_mib disk_mib", VARCHAR="job_id group_name"
    ),
    "placements": _typed(
        BIGINT="seq n t_ns key version name_index reschedules",
        VARCHAR="job_id group_name node_id",
        UUID="id previous_id",
    ),
    # client, desired: codes of schemas.allocations, version: after an update in place; -1: as before.
    # is_end: from here on it holds no resources.
    "changes": _typed(
        BIGINT="seq n t_ns key client desired version", BOOLEAN="is_end", VARCHAR="reason"
    ),
    "tasks": _typed(BIGINT="seq n t_ns key", VARCHAR="tasks"),
    # what allocations of one group began (or ended, negative) to hold on a node.
    "usage": _typed(
        BIGINT="seq t_ns allocations cpu_mhz memory_mib disk_mib",
        VARCHAR="job_id group_name node_id",
    ),
    "nodes": _typed(
        BIGINT="seq n t_ns cpu_mhz memory_mib disk_mib",
        VARCHAR="node_id name datacenter node_pool node_class status reason attributes meta",
        BOOLEAN="eligible draining",
    ),
    "evaluations": _typed(
        BIGINT="seq n t_ns key priority wait_until_ns",
        VARCHAR="what status job_id triggered_by reason",
        UUID="id previous_id",
    ),
    "reasons": _typed(
        BIGINT="seq n t_ns key count",
        VARCHAR="job_id group_name class",
        TEXTS="reasons",
        UUID="eval_id",
    ),
    "decisions": _typed(
        BIGINT="seq n t_ns key number part parts snapshot_seq lane lanes placed cut stopped updated evicted",
        UBIGINT="seed",
        VARCHAR="outcome job_id worker policy core code reason",
        UUID="eval_id",
    ),
}

Column = NDArray[np.generic]


class Sheet:
    """Rows of one table, in the order in which they were added."""

    def __init__(self, types: dict[str, str]) -> None:
        self._types = types
        self._chunks: dict[str, list[Column]] = {name: [] for name in types}
        self._loose: dict[str, list[object]] = {name: [] for name in types}
        self.rows = 0

    def add(self, **values: object) -> None:
        """Add one row; every column must be named."""
        for name, loose in self._loose.items():
            loose.append(values[name])
        self.rows += 1

    def extend(self, count: int, **columns: object) -> None:
        """Add `count` rows: each column an array of that length, or one value for all of them."""
        if not count:
            return
        self._gather()
        for name, kind in self._types.items():
            value = columns[name]
            if isinstance(value, np.ndarray):
                assert len(value) == count, name
                chunk = value
            else:
                chunk = np.full(count, value, dtype=_NUMBERS.get(kind, object))
            self._chunks[name].append(chunk)
        self.rows += count

    def take(self) -> dict[str, Column]:
        """Return all rows as columns, and begin anew."""
        self._gather()
        columns = {
            name: np.concatenate(chunks)
            if chunks
            else np.empty(0, dtype=_NUMBERS.get(self._types[name], object))
            for name, chunks in self._chunks.items()
        }
        self._chunks = {name: [] for name in self._types}
        self.rows = 0
        return columns

    def _gather(self) -> None:
        if not self._loose[next(iter(self._types))]:
            return
        for name, kind in self._types.items():
            self._chunks[name].append(_column(self._loose[name], kind))
            self._loose[name] = []


def _column(values: Sequence[object], kind: str) -> Column:
    if kind in _NUMBERS:
        return np.array(values, dtype=_NUMBERS[kind])
    out = np.empty(len(values), dtype=object)
    # One by one: lists of equal length would become a second dimension.
    for at, value in enumerate(values):
        out[at] = value
    return out


def sheets() -> dict[str, Sheet]:
    """One empty sheet for each table of facts."""
    return {name: Sheet(types) for name, types in FACTS.items()}


def taken(of: dict[str, Sheet]) -> Iterator[tuple[str, int, dict[str, Column]]]:
    """Empty all sheets: name, number of rows and columns of each."""
    for name, sheet in of.items():
        rows = sheet.rows
        yield name, rows, sheet.take()
