"""Table buffers: rows of one table found in the log, kept as columns until a database takes them.

Defines names and types of the fact tables. Facts never change, so segments can be written once; intervals and latest
values are views (`views.py`).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

#: A word is one of few texts that very many rows share: its number is kept, the database looks the text up.
DICTIONARY_CODE = "WORD"
_NUMBERS: dict[str, type[np.generic]] = {
    "BIGINT": np.int64,
    "INTEGER": np.int32,
    "TINYINT": np.int8,
    "UBIGINT": np.uint64,
    "BOOLEAN": np.bool_,
    DICTIONARY_CODE: np.int32,
}


def _typed(**names: str) -> dict[str, str]:
    """Columns by their types."""
    kinds = {"TEXTS": "VARCHAR[]"}
    return {
        name: kinds.get(kind, kind) for kind, listed in names.items() for name in listed.split()
    }


#: By table: its columns and their types in SQL. `n` counts the events of a record from 0.
FACT_TABLES: dict[str, dict[str, str]] = {
    "records": _typed(
        BIGINT="seq t_ns epoch events bytes", VARCHAR="kind core subject", BLOB="data"
    ),
    "events": _typed(BIGINT="seq n t_ns", VARCHAR="type job_id node_id body"),
    "jobs": _typed(
        BIGINT="seq n t_ns version priority",
        VARCHAR="what job_id type node_pool submission_id spec",
    ),
    "launches": _typed(
        BIGINT="seq n t_ns at_ns missed", BOOLEAN="forced", VARCHAR="parent child_id skipped"
    ),
    "groups": _typed(
        BIGINT="seq version wanted cpu_mhz memory_mib disk_mib", VARCHAR="job_id group_name"
    ),
    "placements": _typed(
        BIGINT="seq n t_ns key version name_index reschedules",
        WORD="job_id group_name node_id",
        UBIGINT="id_high id_low",
        UUID="previous_id",
    ),
    # client, desired: codes of schemas.allocations, version: after an update in place; -1: as before.
    # is_end: from here on it holds no resources.
    "changes": _typed(
        BIGINT="seq n t_ns key client desired version", BOOLEAN="is_end", VARCHAR="reason"
    ),
    # What held resources, from `seq` until `until`, by chunks that begin at `segment` (intervals.py); texts by number.
    "spans": _typed(
        BIGINT="segment key seq until placed_ns",
        INTEGER="name_index version job_word group_word node_word",
        TINYINT="client desired",
    ),
    "words": _typed(INTEGER="code", VARCHAR="text"),
    # Spans of earlier chunks, named by key and `from_seq`, that a lean chunk ended at `seq`.
    "closes": _typed(BIGINT="segment key from_seq seq"),
    "tasks": _typed(BIGINT="seq n t_ns key", VARCHAR="tasks"),
    # what allocations of one group began (or ended, negative) to hold on a node.
    "usage": _typed(
        BIGINT="seq t_ns allocations cpu_mhz memory_mib disk_mib",
        WORD="job_id group_name node_id",
    ),
    # What one allocation holds of a pool, from its placement to its end; amounts in 1/10,000.
    "shares": _typed(BIGINT="seq n t_ns key amount", WORD="pool instance"),
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
    # The first blocked job of a wait shape from `seq` on, by rank (minus its priority), age and id; without: none.
    "leads": _typed(BIGINT="seq n t_ns shape rank age", VARCHAR="job_id"),
    # An undecided job of a shape from `seq` on, parked while one before it leads; without groups: it is decided.
    "parked": _typed(
        BIGINT="seq n t_ns key shape rank age",
        VARCHAR="job_id",
        TEXTS="groups counts",
        UUID="eval_id",
    ),
    # One row an event and group; -1: as before.
    "deployments": _typed(
        BIGINT="seq n t_ns key version desired canaries healthy unhealthy reverted_to",
        VARCHAR="what status job_id group_name cause reason",
        UUID="id",
    ),
    # One row a member that starts, and one for the end.
    "rollouts": _typed(
        BIGINT="seq n t_ns key place version before",
        VARCHAR="what status name ordering job_id cause reason",
        UUID="id",
    ),
    # One row a put; one for the end of a life, one when it is shredded.
    "variables": _typed(BIGINT="seq n t_ns incarnation items size", VARCHAR="what path"),
    # One row a lock that is taken, given back or expires. free_ns: before it the path cannot be locked again.
    "variable_locks": _typed(BIGINT="seq n t_ns ttl_ns delay_ns free_ns", VARCHAR="what path"),
    "decisions": _typed(
        BIGINT="seq n t_ns key number part parts snapshot_seq lane lanes placed cut stopped updated evicted",
        UBIGINT="seed",
        VARCHAR="outcome job_id worker policy core code reason",
        UUID="eval_id",
    ),
}

ColumnArray = NDArray[np.generic]
#: seq of the record, position of the event in it, log time.
EventPosition = tuple[int, int, int]


class StringDictionary:
    """Texts by number, in the order in which they were met."""

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        """`known`: words of earlier chunks, which keep their numbers."""
        known = known or {}
        self.texts = [known.get(code, "") for code in range(max(known, default=-1) + 1)]
        self._codes = {text: code for code, text in sorted(known.items(), reverse=True)}

    def code(self, text: str) -> int:
        """Number of a text."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found

    def codes(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Numbers of texts. Shape: (len(texts),)."""
        code = self.code
        return np.array([code(text) for text in texts], dtype=np.int32)


class TableBuffer:
    """Rows of one table, in the order in which they were added."""

    def __init__(self, types: dict[str, str]) -> None:
        self._types = types
        self._required = {name for name, kind in types.items() if kind in _NUMBERS}
        #: by column: arrays, and single values with how often they repeat.
        self._chunks: dict[str, list[ColumnArray | tuple[object, int]]] = {
            name: [] for name in types
        }
        self._loose: dict[str, list[object]] = {name: [] for name in types}
        self._has_loose = False
        self.rows = 0

    def add(self, **values: object) -> None:
        """Add one row. Numbers must be named, other columns are NULL without a value."""
        for name, loose in self._loose.items():
            loose.append(values[name] if name in self._required else values.get(name))
        self._has_loose = True
        self.rows += 1

    def add_event(self, at: EventPosition, **values: object) -> None:
        """Add one row about the event at a position."""
        self.add(seq=at[0], n=at[1], t_ns=at[2], **values)

    def extend(self, count: int, **columns: object) -> None:
        """Add `count` rows: each column an array of that length, or one value for all of them."""
        if not count:
            return
        self._gather()
        for name, chunks in self._chunks.items():
            value = columns[name]
            if isinstance(value, np.ndarray):
                assert len(value) == count, name
                chunks.append(value)
            else:
                chunks.append((value, count))
        self.rows += count

    def take(self) -> dict[str, ColumnArray]:
        """Return all rows as columns, and begin again."""
        self._gather()
        columns = {
            name: _concatenate(chunks, _NUMBERS.get(self._types[name], object))
            for name, chunks in self._chunks.items()
        }
        self._chunks = {name: [] for name in self._types}
        self.rows = 0
        return columns

    def _gather(self) -> None:
        if not self._has_loose:
            return
        for name, kind in self._types.items():
            self._chunks[name].append(_column(self._loose[name], kind))
            self._loose[name] = []
        self._has_loose = False


def _concatenate(chunks: Sequence[ColumnArray | tuple[object, int]], kind: type) -> ColumnArray:
    """Put chunks together; single values that follow one another are repeated in one pass."""
    parts: list[ColumnArray] = []
    runs: list[tuple[object, int]] = []

    def end_runs() -> None:
        if runs:
            values = _to_array([value for value, _ in runs], kind)
            parts.append(np.repeat(values, [count for _, count in runs]))
            runs.clear()

    for chunk in chunks:
        if isinstance(chunk, tuple):
            runs.append(chunk)
        else:
            end_runs()
            parts.append(chunk)
    end_runs()
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def _column(values: Sequence[object], kind: str) -> ColumnArray:
    return _to_array(values, _NUMBERS.get(kind, object))


def _to_array(values: Sequence[object], kind: type) -> ColumnArray:
    if kind is not object:
        return np.array(values, dtype=kind)
    out = np.empty(len(values), dtype=object)
    # One by one: lists of equal length would become a second dimension.
    for at, value in enumerate(values):
        out[at] = value
    return out


def sql_type(kind: str) -> str:
    """Type of a column in the database."""
    return "VARCHAR" if kind == DICTIONARY_CODE else kind


def new_buffers() -> dict[str, TableBuffer]:
    """One empty buffer for each table of facts."""
    return {name: TableBuffer(types) for name, types in FACT_TABLES.items()}


def drain_buffers(of: dict[str, TableBuffer]) -> Iterator[tuple[str, int, dict[str, ColumnArray]]]:
    """Empty all buffers: name, number of rows and columns of each."""
    for name, buffer in of.items():
        rows = buffer.rows
        yield name, rows, buffer.take()
