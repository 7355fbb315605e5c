"""Entries of a table as their canonical texts: the very bytes whose hashes the log's checkpoint sums up.

An entry is decoded at its first access. A reader of a hundred thousand jobs is ready when their
bytes are hashed; most of them are not accessed for hours. JSON, as in the log: a text of one character that equals a
default is left out by an encoder only where it is the same object, which a decoder of another format would make it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import msgspec

from schemas.envelope import ENCODER
from shared.core.columns import EntryHashes, hash_texts
from shared.core.state.snapshots.codecs import (
    ByteReader,
    DeferredChunks,
    MsgpackCodec,
    SnapshotChunk,
    compress_chunk,
    decompress_chunk,
    describe_type,
)

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()
#: Made at once: a millisecond or two.
_PIECE = 512
_TEXTS = msgspec.msgpack.Encoder()
_READ = msgspec.msgpack.Decoder(list[bytes])


class LazyEntriesCodec:
    """A dict of Structs. `with_key`: the table's hash of an entry is that of (key, entry), else of the entry alone."""

    def __init__(self, key: Any, value: Any, *, with_key: bool) -> None:
        self._of = list[tuple[key, value]]
        self._keys = MsgpackCodec(list[key])
        self._with_key = with_key
        self._pair = msgspec.json.Decoder(tuple[key, value] if with_key else value)

    def pieces(self, value: Mapping[Any, Any], rows: int) -> Iterator[bytes]:
        """The keys, then the texts, some at a time."""
        del rows
        for one in self.taken(value):
            yield from one if isinstance(one, DeferredChunks) else (one,)

    def taken(self, value: Mapping[Any, Any]) -> Iterator[SnapshotChunk]:
        """The same; texts later, and texts without access as they were read."""
        yield from self._keys.pieces(list(value), -1)
        # Two lists: as many pairs would have the collector look at everything.
        found = value.texts() if isinstance(value, LazyDict) else value.values()
        yield DeferredChunks(self._late(list(value), list(found)))

    def _late(self, keys: list[Any], found: list[Any]) -> Iterator[bytes]:
        entries = zip(keys, found, strict=True)
        while part := list(islice(entries, _PIECE)):
            texts = [
                one
                if isinstance(one, bytes)
                else ENCODER.encode((key, one) if self._with_key else one)
                for key, one in part
            ]
            yield compress_chunk(_TEXTS.encode(texts))

    def read(self, cursor: ByteReader) -> "LazyDict[Any, Any]":
        """The entries, none of them decoded. Raises ValueError, msgspec errors."""
        keys = self._keys.read(cursor)
        texts: list[bytes] = []
        while len(texts) < len(keys):
            part = _READ.decode(decompress_chunk(cursor))
            if not part:
                msg = f"{len(texts)} texts for {len(keys)} keys"
                raise ValueError(msg)
            texts += part
        return LazyDict(zip(keys, texts, strict=True), self._decode)

    def described(self) -> str:
        """Its types."""
        return f"squeezed entries {describe_type(self._of)}"

    def _decode(self, text: bytes) -> Any:
        found = self._pair.decode(text)
        return found[1] if self._with_key else found


class LazyDict(dict[K, V], Generic[K, V]):
    """A dict whose values are decoded at their first access; in every other way a dict."""

    def __init__(self, texts: Iterable[tuple[K, bytes]], decode: Callable[[bytes], V]) -> None:
        super().__init__(texts)  # type: ignore[arg-type]
        self._decode = decode

    def hashes(self) -> EntryHashes[K]:
        """Hash every text, as a table does that has just encoded its entries. Only before the first access."""
        found: EntryHashes[K] = EntryHashes()
        hashes = hash_texts(cast("list[bytes]", list(super().values())))
        found._of = dict(zip(self, hashes, strict=True))  # noqa: SLF001
        found._sum = sum(hashes) & 0xFFFFFFFFFFFFFFFF  # noqa: SLF001
        return found

    def texts(self) -> Iterable[V | bytes]:
        """Values as they are: texts where there was no access."""
        return super().values()

    def copied(self) -> "LazyDict[K, V]":
        """The same entries, none of them decoded for it."""
        return LazyDict(zip(self, super().values(), strict=True), self._decode)  # type: ignore[arg-type]

    def __getitem__(self, key: K) -> V:
        found = super().__getitem__(key)
        return found if type(found) is not bytes else self._look(key, cast("bytes", found))

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        found = super().get(key, default)
        return found if type(found) is not bytes else self._look(key, found)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """As of a dict."""
        found = super().pop(key) if default is _MISSING else super().pop(key, default)
        return found if type(found) is not bytes else self._decode(found)

    def __iter__(self) -> Iterator[K]:
        # It is there so that `{**this}` and `dict(this)` ask for each value.
        return super().__iter__()

    def values(self) -> Any:
        """Every value; decodes all of them."""
        self._look_at_all()
        return super().values()

    def items(self) -> Any:
        """Every entry; decodes all of them."""
        self._look_at_all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._look_at_all()
        return super().__eq__(other)

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)

    def _look(self, key: K, text: bytes) -> V:
        found = self._decode(text)
        super().__setitem__(key, found)
        return found

    def _look_at_all(self) -> None:
        for key, found in list(super().items()):
            if type(found) is bytes:
                self._look(key, cast("bytes", found))
