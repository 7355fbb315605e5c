"""Encoding of values: raw little-endian columns, and msgpack for everything else.

Tables: `table_codecs.py`. Writing is cut into small pieces, each of at most `PIECE_BYTES` of a column or
`PIECE_ENTRIES` of a dict, so that the writer can do other work in between.
"""

import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.errors import SnapshotUnusable

COLUMN_CHUNK_BYTES = 1 << 20
DICT_CHUNK_ENTRIES = 4096
_ENCODER = msgspec.msgpack.Encoder(order="sorted")
_LENGTH = 8
_PLAIN, _EQUAL, _RISING = 0, 1, 2
_HEAD = 17
#: A piece has a few hundred entries of at most 256 KiB each, mostly of one.
_SQUEEZED_MAX = 2 << 30
#: Python's own note on an object of a generic class.
_GENERIC = "__orig_class__"


class ByteReader:
    """Reads a table's bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int) -> memoryview:
        """Take the next bytes. Raises ValueError where there are fewer."""
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) < size:
            msg = f"{size} bytes are expected at {self._at} of {len(self._data)}"
            raise ValueError(msg)
        self._at += size
        return found

    def blob(self) -> memoryview:
        """Take the next bytes that have their length before them. Raises ValueError."""
        return self.take(int.from_bytes(self.take(_LENGTH), "little"))

    @property
    def is_at_end(self) -> bool:
        """Tell whether everything was read."""
        return self._at == len(self._data)


class DeferredChunks:
    """Bytes made later, of immutable values: the state need not be held still for them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


#: Bytes, or what becomes bytes without the state.
SnapshotChunk = bytes | DeferredChunks


@runtime_checkable
class DeferringCodec(Protocol):
    """A codec of immutable values."""

    def taken(self, value: Any) -> Iterator[SnapshotChunk]:
        """What `pieces` makes, some of it later."""
        ...


class Codec(Protocol):
    """One way to write a value."""

    def pieces(self, value: Any, rows: int) -> Iterator[bytes]:
        """Cut a value into bytes; `rows`: how much of a column is in use, -1: all of it."""
        ...

    def read(self, cursor: ByteReader) -> Any:
        """Read a value again. Raises ValueError, msgspec errors."""
        ...

    def described(self) -> str:
        """Say all that a reader must agree on."""
        ...


def _blob(value: Any) -> bytes:
    return _sized(_ENCODER.encode(value))


def compress_chunk(data: bytes) -> bytes:
    """Compress a piece of texts, which are much alike: a tenth of the bytes for a few milliseconds a megabyte."""
    return _sized(zlib.compress(data, 1))


def decompress_chunk(cursor: ByteReader) -> bytes:
    """Read what `squeezed` wrote. Raises ValueError."""
    work = zlib.decompressobj()
    try:
        found = work.decompress(cursor.blob(), _SQUEEZED_MAX)
    except zlib.error as err:
        msg = f"texts cannot be read: {err}"
        raise ValueError(msg) from err
    if not work.eof:
        msg = f"texts end early, or are more than {_SQUEEZED_MAX} bytes"
        raise ValueError(msg)
    return found


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH, "little") + data


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Classes by the paths under which release 0.1.0 described them. A fingerprint stays when a class only moves.
_RECORDED_PATHS = {
    "shared.core.resources.ask_shape.AskShape": "shared.core.learned.Learned",
    "shared.core.resources.asks.ExtraAsks": "shared.core.resources.asks.Extras",
    "shared.core.state.tables.jobs.SubmissionRecord": "shared.core.tables.jobs.Submission",
    "shared.core.state.tables.": "shared.core.tables.",
}


def describe_type(of: Any) -> str:
    """Describe a type down to its fields, the same in every release that reads the same bytes."""
    # The default of a Raw shows where it lies in memory.
    text = _ADDRESS.sub("", repr(msgspec.inspect.type_info(of)))
    for path, recorded in _RECORDED_PATHS.items():
        text = text.replace(path, recorded)
    return text


class MsgpackCodec:
    """A small value, as msgpack."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._decoder = msgspec.msgpack.Decoder(of)

    def pieces(self, value: Any, rows: int) -> Iterator[bytes]:
        """One piece."""
        del rows
        yield _blob(value)

    def read(self, cursor: ByteReader) -> Any:
        """Decode it. Raises ValueError, msgspec errors."""
        return self._decoder.decode(cursor.blob())

    def described(self) -> str:
        """The type, down to its fields."""
        return f"plain {describe_type(self._of)}"


def pack_column(values: NDArray[Any]) -> bytes:
    """Write values as runs of equal or of rising ones, where that is shorter: most columns of a cluster are such runs.

    Shape: (n,). How, n and the number of runs stand first, then where each run begins and how long it is.
    """
    best = _head(_PLAIN, len(values), 0) + values.tobytes()
    for way, step in ((_EQUAL, 0), (_RISING, 1)):
        if values.dtype.kind == "b" and step:
            continue
        breaks = values[1:] != (values[:-1] + values.dtype.type(1) if step else values[:-1])
        starts = np.flatnonzero(np.concatenate(([True], breaks)))
        if len(starts) * (values.itemsize + 4) < len(best) - _HEAD:
            lengths = np.diff(starts, append=len(values)).astype("<i4")
            head = _head(way, len(values), len(starts))
            best = head + values[starts].tobytes() + lengths.tobytes()
    return best


def unpack_column(cursor: ByteReader, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read what `packed` wrote. Raises ValueError."""
    way = cursor.take(1)[0]
    size, runs = (int.from_bytes(cursor.take(8), "little") for _ in range(2))
    if way == _PLAIN:
        return np.frombuffer(cursor.take(size * dtype.itemsize), dtype=dtype)
    values = np.frombuffer(cursor.take(runs * dtype.itemsize), dtype=dtype)
    lengths = np.frombuffer(cursor.take(runs * 4), dtype="<i4")
    if way not in (_EQUAL, _RISING) or int(lengths.sum()) != size or (lengths < 1).any():
        msg = f"{runs} runs are not {size} values"
        raise ValueError(msg)
    found = np.repeat(values, lengths)
    if way == _RISING:
        begun = np.repeat(np.cumsum(lengths) - lengths, lengths)
        found = found + (np.arange(size) - begun).astype(dtype)
    return found


def _head(way: int, size: int, runs: int) -> bytes:
    return bytes([way]) + size.to_bytes(8, "little") + runs.to_bytes(8, "little")


class ColumnCodec:
    """An array. With `whole` it is written to its end, whatever is in use of its owner's rows."""

    def __init__(self, dtype: str, *, whole: bool = False) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._whole = whole

    def pieces(self, value: Any, rows: int) -> Iterator[bytes]:
        """The shape, then the bytes, row by row."""
        used = value if self._whole or rows < 0 else value[:rows]
        yield _blob(used.shape)
        flat = used.reshape(-1)
        step = max(1, COLUMN_CHUNK_BYTES // self._dtype.itemsize)
        for at in range(0, len(flat), step):
            yield pack_column(np.ascontiguousarray(flat[at : at + step], dtype=self._dtype))

    def read(self, cursor: ByteReader) -> Any:
        """Copy it out: what was read may go. Raises ValueError, msgspec errors."""
        shape = msgspec.msgpack.decode(cursor.blob(), type=tuple[int, ...])
        flat = np.empty(int(np.prod(shape)), dtype=self._dtype.newbyteorder("="))
        at = 0
        while at < len(flat):
            part = unpack_column(cursor, self._dtype)
            if not len(part) or at + len(part) > len(flat):
                msg = f"{len(part)} values at {at} of {len(flat)}"
                raise ValueError(msg)
            flat[at : at + len(part)] = part
            at += len(part)
        return flat.reshape(shape)

    def described(self) -> str:
        """The type of its values."""
        return f"column of runs {self._dtype.str}"


class DictCodec:
    """A dict, in its order; `pack` and `unpack` translate values that have no typed form of their own.

    `frozen`: its values never change, they are only replaced. `piece_entries`: how many are written at once.
    """

    def __init__(
        self,
        key: Any,
        value: Any,
        *,
        pack: Callable[[Any], Any] | None = None,
        unpack: Callable[[Any], Any] | None = None,
        frozen: bool = False,
        piece_entries: int = DICT_CHUNK_ENTRIES,
    ) -> None:
        self._frozen, self._piece_entries = frozen, piece_entries
        self._of = list[tuple[key, value]]
        self._decoder = msgspec.msgpack.Decoder(self._of)
        self._pack, self._unpack = pack, unpack

    def pieces(self, value: Mapping[Hashable, Any], rows: int) -> Iterator[bytes]:
        """How many pieces, then each."""
        del rows
        yield from self._pieces(len(value), value.items())

    def taken(self, value: Mapping[Hashable, Any]) -> Iterator[SnapshotChunk]:
        """The same; later where values never change."""
        if self._frozen:
            found = zip(list(value), list(value.values()), strict=True)
            yield DeferredChunks(self._pieces(len(value), found))
        else:
            yield from self._pieces(len(value), value.items())

    def _pieces(self, size: int, value: Iterable[tuple[Hashable, Any]]) -> Iterator[bytes]:
        yield _blob(-(-size // self._piece_entries))
        entries = iter(value)
        while part := list(islice(entries, self._piece_entries)):
            pack = self._pack
            found = part if pack is None else [(key, pack(one)) for key, one in part]
            yield compress_chunk(_ENCODER.encode(found)) if self._frozen else _blob(found)

    def read(self, cursor: ByteReader) -> Any:
        """The dict. Raises ValueError, msgspec errors."""
        found: dict[Hashable, Any] = {}
        unpack = self._unpack
        for _ in range(msgspec.msgpack.decode(cursor.blob(), type=int)):
            data = decompress_chunk(cursor) if self._frozen else cursor.blob()
            part = self._decoder.decode(data)
            found.update(part if unpack is None else ((key, unpack(one)) for key, one in part))
        return found

    def described(self) -> str:
        """Its types."""
        return f"{'squeezed ' if self._frozen else ''}pairs {describe_type(self._of)}"


class RowRunsCodec:
    """A dict of rows: the keys, how many rows each has, and all rows one after the other."""

    def __init__(self, key: Any) -> None:
        self._keys = MsgpackCodec(list[key])
        self._counts, self._rows = ColumnCodec("i8", whole=True), ColumnCodec("i4", whole=True)

    def pieces(self, value: Mapping[Hashable, Any], rows: int) -> Iterator[bytes]:
        """Keys, counts, rows."""
        yield from self._keys.pieces(list(value), rows)
        # A row alone may stand for itself.
        parts = [np.atleast_1d(one) for one in value.values()]
        counts = np.fromiter((len(part) for part in parts), np.int64, len(parts))
        yield from self._counts.pieces(counts, rows)
        joined = np.concatenate(parts) if parts else np.empty(0, np.int32)
        yield from self._rows.pieces(joined, rows)

    def read(self, cursor: ByteReader) -> Any:
        """The dict; every value is an array of its own, or one row alone. Raises ValueError, msgspec errors."""
        keys, counts, rows = (
            self._keys.read(cursor),
            self._counts.read(cursor),
            self._rows.read(cursor),
        )
        if len(keys) != len(counts) or int(counts.sum()) != len(rows):
            msg = f"{len(keys)} keys, {len(counts)} counts and {len(rows)} rows do not agree"
            raise ValueError(msg)
        ends = np.cumsum(counts).tolist()
        return {
            key: rows[end - count : end].copy() if count != 1 else int(rows[end - 1])
            for key, count, end in zip(keys, counts.tolist(), ends, strict=True)
        }

    def described(self) -> str:
        """Its keys."""
        return f"runs {self._keys.described()}"


def set_dict_codec(key: Any) -> DictCodec:
    """A dict of sets of numbers."""
    return DictCodec(key, list[int], pack=sorted, unpack=set)


class ObjectCodec:
    """What an object consists of: `fields` are written, `derived` are as in a new one, or made again by `settle`.

    `rows` says how much of its columns is in use. An attribute that is neither written nor derived is an error.
    Fields in `shown` are not attributes: they are made to be written, and `settle` turns what was read into what is.
    Fields in `later` stand last; what an older release wrote ends before them, and they are as in a new object.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        fields: Mapping[str, Codec],
        *,
        derived: tuple[str, ...] = (),
        rows: Callable[[Any], int] | None = None,
        settle: Callable[[Any], None] | None = None,
        shown: Mapping[str, Callable[[Any], Any]] | None = None,
        later: tuple[str, ...] = (),
    ) -> None:
        self._make, self._fields, self._derived = make, fields, derived
        self._shown = shown or {}
        self._rows, self._settle, self._later = rows, settle, later

    def pieces(self, value: Any, rows: int = -1) -> Iterator[bytes]:
        """Every field. Raises SnapshotUnusable for an attribute that is neither written nor derived."""
        for one in self.taken(value, rows):
            yield from one if isinstance(one, DeferredChunks) else (one,)

    def taken(self, value: Any, rows: int = -1) -> Iterator[SnapshotChunk]:
        """Every field, some later. Raises SnapshotUnusable for an attribute neither written nor derived."""
        attributes = (self._fields.keys() - self._shown.keys()) | {*self._derived}
        unknown = (value.__dict__.keys() - {_GENERIC}) ^ attributes
        if unknown:
            raise SnapshotUnusable(
                f"{type(value).__name__}: {sorted(unknown)} are not in its shape"
            )
        rows = self._rows(value) if self._rows is not None else rows
        for name, kind in self._fields.items():
            of = self._shown[name](value) if name in self._shown else getattr(value, name)
            yield from kind.taken(of) if isinstance(kind, DeferringCodec) else kind.pieces(of, rows)

    def read(self, cursor: ByteReader) -> Any:
        """A new object. Raises ValueError, msgspec errors."""
        found = self._make()
        for name, kind in self._fields.items():
            if name in self._later and cursor.is_at_end:
                break
            found.__dict__[name] = kind.read(cursor)
        if self._settle is not None:
            self._settle(found)
        return found

    def described(self) -> str:
        """Every field's own words."""
        fields = ", ".join(f"{name}: {kind.described()}" for name, kind in self._fields.items())
        return f"({fields})"

    def fingerprint(self) -> str:
        """Hash of the description: equal where one may read what the other wrote."""
        return blake2b(self.described().encode(), digest_size=8).hexdigest()


class ObjectDictCodec:
    """A dict of objects of one shape."""

    def __init__(self, shape: ObjectCodec) -> None:
        self._shape = shape
        self._keys = MsgpackCodec(list[str])

    def pieces(self, value: Mapping[str, Any], rows: int) -> Iterator[bytes]:
        """The keys, then each object."""
        yield from self._keys.pieces(list(value), rows)
        for one in value.values():
            yield from self._shape.pieces(one)

    def read(self, cursor: ByteReader) -> Any:
        """The dict. Raises ValueError, msgspec errors."""
        return {key: self._shape.read(cursor) for key in self._keys.read(cursor)}

    def described(self) -> str:
        """The shape of each."""
        return f"each {self._shape.described()}"
