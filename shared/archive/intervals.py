"""Spans: what held resources, in which status, from which seq to which; the state at a seq is one pass over them.

Spans are cut at the end of a chunk (a segment of an export, or one batch of a database), whose rows never change. A
full chunk repeats every span that was open when it began, so that a query inside it reads no older chunk. A lean chunk,
with few changes, only lists the earlier spans that it closed.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.archive.table_buffers import StringDictionary, TableBuffer
from shared.core.columns import Rows, grown

#: A span that has not ended within its chunk.
OPEN_END = np.iinfo(np.int64).max
#: A chunk is full once so many times the spans that it would have to carry began or ended since the last full one.
FULL_CHUNK_RATIO = 0.25
_COLUMNS: dict[str, type[np.integer]] = {
    "key": np.int64,
    "seq": np.int64,
    "until": np.int64,
    "placed_ns": np.int64,
    "node_word": np.int32,
    "job_word": np.int32,
    "group_word": np.int32,
    "name_index": np.int32,
    "version": np.int32,
    "client": np.int8,
    "desired": np.int8,
    "row": np.int32,
}
Value = NDArray[np.integer] | int


class OpenIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """Spans that were open at the end of earlier chunks, by ascending key. Shapes: all (N,)."""

    keys: NDArray[np.int64]
    seqs: NDArray[np.int64]
    placed_ns: NDArray[np.int64]
    #: rows of the lean chunks since the last full one.
    since: int

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        """Positions of these keys. Raises KeyError where one is missing."""
        found = np.searchsorted(self.keys, keys)
        if len(keys) and (not len(self.keys) or (self.keys[found % len(self.keys)] != keys).any()):
            raise KeyError("an allocation in the state has no span")
        return found


class IntervalChunk:
    """The spans of one chunk. Texts are dictionary codes (table_buffers.py), allocations are rows of the state."""

    def __init__(self, since: int = -1) -> None:
        self._columns = {name: np.zeros(0, dtype=kind) for name, kind in _COLUMNS.items()}
        self._size = 0
        #: by row of the state: where its open span stands, or -1.
        self._where = np.zeros(0, dtype=np.int64)
        #: the first so many began before this chunk.
        self._carried = 0
        #: spans begun and ended since the last full chunk; negative: there was none.
        self._since = since

    def begin(self, rows: Rows, columns: Mapping[str, Value]) -> None:
        """Open a span for each of these rows; `columns` are all but `until` and `row`."""
        if not len(rows):
            return
        new = slice(self._size, self._size + len(rows))
        self._size = new.stop
        for name in _COLUMNS:
            column = self._columns[name] = grown(self._columns[name], new.stop)
            column[new] = columns.get(name, OPEN_END if name == "until" else rows)
        most = int(rows.max()) + 1
        if most > len(self._where):
            size = len(self._where)
            self._where = grown(self._where, most)
            self._where[size:] = -1
        self._where[rows] = np.arange(new.start, new.stop)

    def change(
        self,
        rows: Rows,
        seq: int,
        changes: Mapping[str, Value],
        ends: NDArray[np.bool_] | None = None,
    ) -> None:
        """Close the open spans of these rows; those that have not ended continue with `changes` (-1: unchanged)."""
        known = rows < len(self._where)
        where = np.full(len(rows), -1, dtype=np.int64)
        where[known] = self._where[rows[known]]
        is_open = where >= 0
        if not is_open.any():
            return
        rows, where = rows[is_open], where[is_open]
        self._columns["until"][where] = seq
        self._where[rows] = -1
        goes_on = np.ones(len(rows), dtype=np.bool_) if ends is None else ~ends[is_open]
        if not goes_on.any():
            return
        rows, where = rows[goes_on], where[goes_on]
        columns = {
            name: column[where]
            for name, column in self._columns.items()
            if name not in {"until", "row"}
        }
        for name, value in changes.items():
            of = value[is_open][goes_on] if isinstance(value, np.ndarray) else value
            columns[name] = np.where(np.asarray(of) >= 0, of, columns[name])
        columns["seq"] = np.full(len(rows), seq, dtype=np.int64)
        self.begin(rows, columns)

    def take(
        self, buffers: Mapping[str, TableBuffer], first_seq: int, words: StringDictionary
    ) -> bool:
        """Put the chunk that began at `first_seq` into the buffers, with the words it uses; True: it is a full one.

        A span that was closed by the record that began it is there too: no moment lies in it.
        """
        size, carried = self._size, self._carried
        columns = {name: column[:size] for name, column in self._columns.items()}
        ended = np.flatnonzero(columns["until"][:carried] != OPEN_END)
        self._since += (size - carried) + len(ended)
        is_full = self._since < 0 or self._since >= FULL_CHUNK_RATIO * carried
        start = 0 if is_full else carried
        # Views: the caller owns them, open spans are copied.
        shown = {name: columns[name][start:] for name in _COLUMNS if name != "row"}
        buffers["spans"].extend(size - start, segment=first_seq, **shown)
        if is_full:
            self._since = 0
        else:
            buffers["closes"].extend(
                len(ended),
                segment=first_seq,
                key=columns["key"][ended],
                from_seq=columns["seq"][ended],
                seq=columns["until"][ended],
            )
        used = [np.unique(shown[name]) for name in ("node_word", "job_word", "group_word")]
        codes = np.unique(np.concatenate(used))
        texts = np.array([words.texts[code] for code in codes.tolist()], dtype=object)
        buffers["words"].extend(len(codes), code=codes, text=texts)
        self.carry()
        return is_full

    def carry(self) -> None:
        """Begin a chunk with the open spans."""
        kept = np.flatnonzero(self._columns["until"][: self._size] == OPEN_END)
        self._columns = {name: column[kept] for name, column in self._columns.items()}
        self._size = self._carried = len(kept)
        self._where[self._columns["row"]] = np.arange(len(kept))
