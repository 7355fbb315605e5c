"""Variables: the ciphertext of each path, the lives that are over and not shredded, and the keeper's public keys.

A path that was deleted keeps its row, so that no incarnation is used twice: with a key store of before, one could read
what is encrypted for a life of before.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeVar

import msgspec

from schemas.variables import (
    KeyCreated,
    VariableDeleted,
    VariablePut,
    VariableRefused,
    VariablesShredded,
)
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Puts and deletes of a path that are remembered: a copy of one is recognised.
MARKS_KEPT = 10
#: Requests that were refused for good and are remembered, of all paths: copies come within seconds.
REFUSED_KEPT = 1_000
#: Of the others the sender may send the same request again.
_FINAL_CODES = frozenset({"conflict", "locked", "quota"})
#: One life of a path: path, incarnation.
LifeKey = tuple[str, int]
#: Path, request id.
RequestKey = tuple[str, str]
K = TypeVar("K", str, LifeKey, RequestKey)


class PutMark(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One put of a path."""

    request_id: str
    digest: str
    revision: int
    at_ns: int


class VariableRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One path; of a deleted one only the incarnation, the marks and `modify_seq` are left."""

    #: number of the present life, or of the last one.
    incarnation: int
    #: seq of the newest put; 0: it is deleted.
    revision: int = 0
    #: seq and log time of the first put of this life.
    create_seq: int = 0
    create_ns: int = 0
    #: of the newest put; of a deleted one `modify_seq` is that of the delete.
    modify_seq: int = 0
    modify_ns: int = 0
    cipher: bytes = b""
    digest: str = ""
    items: int = 0
    size: int = 0
    #: of all lives, newest last.
    puts: tuple[PutMark, ...] = ()
    #: request ids of the deletes of all lives, newest last.
    deletes: tuple[str, ...] = ()


class KeyRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A public key of the keeper."""

    public: bytes
    create_seq: int


class VariableTable(EventConsumer):
    """All paths that ever had a variable."""

    def __init__(self) -> None:
        self.by_path: dict[str, VariableRow] = {}
        #: lives that are over and not shredded: the seq of their end.
        self.ended: dict[LifeKey, int] = {}
        #: requests that were refused for good, oldest first: the seq of the refusal.
        self.refused: dict[RequestKey, int] = {}
        #: in the order of creation; the newest is in force.
        self.keys: dict[str, KeyRow] = {}
        #: paths that exist, sorted.
        self.live: list[str] = []
        #: bytes of the items of all of them.
        self.total_size = 0
        self._rows = EntryHashes[str]()
        self._ended = EntryHashes[LifeKey]()
        self._refused = EntryHashes[RequestKey]()
        self._keys = EntryHashes[str]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            VariablePut: self._put,
            VariableDeleted: self._delete,
            VariablesShredded: self._shred,
            VariableRefused: self._refuse,
            KeyCreated: self._create_key,
        }

    def find(self, path: str) -> VariableRow | None:
        """The variable of a path; None: it does not exist."""
        row = self.by_path.get(path)
        return row if row is not None and row.revision else None

    def incarnation_of_put(self, path: str, *, shred_old: bool = False) -> int:
        """The life for which the next put of a path must be encrypted."""
        row = self.by_path.get(path)
        if row is None:
            return 1
        return row.incarnation + 1 if shred_old or not row.revision else row.incarnation

    def paths(self, prefix: str = "") -> list[str]:
        """Paths that exist and begin with a prefix, sorted."""
        live = self.live
        first = bisect_left(live, prefix)
        # No path has a character behind all others.
        return live[first : bisect_left(live, prefix + "\U0010ffff", first)]

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        rows = self._rows.digest(lambda keys: encode_entries(_pairs(keys, self.by_path)))
        ended = self._ended.digest(lambda keys: encode_entries(_pairs(keys, self.ended)))
        known = self._keys.digest(lambda keys: encode_entries(_pairs(keys, self.keys)))
        refused = self._refused.digest(lambda keys: encode_entries(_pairs(keys, self.refused)))
        return blake2b(f"{rows}{ended}{known}{refused}".encode(), digest_size=8).hexdigest()

    def settle(self) -> None:
        """Make what is derived, of a table that was read from a snapshot."""
        self.live = sorted(path for path, row in self.by_path.items() if row.revision)
        self.total_size = sum(row.size for row in self.by_path.values())
        self._rows.touched.extend(self.by_path)
        self._ended.touched.extend(self.ended)
        self._keys.touched.extend(self.keys)
        self._refused.touched.extend(self.refused)

    def _put(self, event: VariablePut, seq: int) -> None:
        old = self.by_path.get(event.path)
        if old is None or not old.revision:
            insort(self.live, event.path)
        if old is None or not old.revision or old.incarnation != event.incarnation:
            create_seq, create_ns = seq, event.at_ns
        else:
            create_seq, create_ns = old.create_seq, old.create_ns
        mark = PutMark(event.request_id, event.digest, seq, event.at_ns)
        puts, deletes = ((), ()) if old is None else (old.puts, old.deletes)
        self.total_size += event.size - (0 if old is None else old.size)
        self._set(
            event.path,
            VariableRow(
                incarnation=event.incarnation,
                revision=seq,
                create_seq=create_seq,
                create_ns=create_ns,
                modify_seq=seq,
                modify_ns=event.at_ns,
                cipher=event.cipher,
                digest=event.digest,
                items=event.items,
                size=event.size,
                puts=(*puts, mark)[-MARKS_KEPT:],
                deletes=deletes,
            ),
        )

    def _delete(self, event: VariableDeleted, seq: int) -> None:
        old = self.by_path[event.path]
        self.total_size -= old.size
        del self.live[bisect_left(self.live, event.path)]
        self.ended[event.path, event.incarnation] = seq
        self._ended.touch((event.path, event.incarnation))
        self._set(
            event.path,
            VariableRow(
                incarnation=old.incarnation,
                modify_seq=seq,
                puts=old.puts,
                deletes=(*old.deletes, event.request_id)[-MARKS_KEPT:],
            ),
        )

    def _shred(self, event: VariablesShredded, seq: int) -> None:
        del seq
        for one in event.lives:
            if self.ended.pop((one.path, one.incarnation), None) is not None:
                self._ended.touch((one.path, one.incarnation))

    def _refuse(self, event: VariableRefused, seq: int) -> None:
        if event.code not in _FINAL_CODES:
            return
        key = (event.path, event.request_id)
        self.refused.pop(key, None)
        self.refused[key] = seq
        self._refused.touch(key)
        if len(self.refused) > REFUSED_KEPT:
            oldest = next(iter(self.refused))
            del self.refused[oldest]
            self._refused.touch(oldest)

    def _create_key(self, event: KeyCreated, seq: int) -> None:
        if event.key_id not in self.keys:
            self.keys[event.key_id] = KeyRow(event.public, seq)
            self._keys.touch(event.key_id)

    def _set(self, path: str, row: VariableRow) -> None:
        self.by_path[path] = row
        self._rows.touch(path)


def _pairs(keys: list[K], entries: Mapping[K, object]) -> list[object]:
    """What is hashed: entries with their keys; None for those that are gone."""
    return [(key, entries[key]) if key in entries else None for key in keys]
