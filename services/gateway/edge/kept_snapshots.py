"""Snapshots of past states in memory, to begin a replay at: each field of each table as bytes.

Decides how many are kept, and which one leaves. A field that is the same in the snapshot before is kept once, and what
takes long to decode is decoded once: nodes change seldom, and are most of the bytes.
"""

from bisect import bisect_right
from collections.abc import Mapping
from copy import copy
from typing import Any

import msgspec

from schemas.envelope import LeaseHeld
from shared.core.runtime.chain import Chain
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.snapshots.codecs import ByteReader, ColumnCodec
from shared.core.state.snapshots.copies import copied
from shared.core.state.snapshots.table_codecs import TABLE_CODECS

SNAPSHOTS_MAX = 32
#: Bytes of a field whose value is kept decoded. A column is decoded as quickly as it is copied.
_LARGE = 1 << 16


class KeptSnapshot(msgspec.Struct, frozen=True):
    """A state as bytes by table and field. `seq`: of the last record; `state_seq`: of the last that had events."""

    seq: int
    state_seq: int
    t_ns: int
    chain: Chain
    #: hashes by table.
    digests: Mapping[str, str]
    tables: Mapping[str, Mapping[str, bytes]]
    asides: SnapshotExtras
    lease: LeaseHeld


def take_snapshot(
    replica: Replica, asides: SnapshotExtras, lease: LeaseHeld, before: KeptSnapshot | None = None
) -> KeptSnapshot:
    """The present state of a replica; `before`: one that may have equal fields."""
    tables, digests = replica.state.tables(), replica.state.hashes()
    data: dict[str, Mapping[str, bytes]] = {}
    for name, table in tables.items():
        known = {} if before is None else before.tables[name]
        if before is not None and before.digests[name] == digests[name]:
            data[name] = known
        else:
            made = TABLE_CODECS[name].written(table)
            data[name] = {
                field: same if (same := known.get(field)) == one else one
                for field, one in made.items()
            }
    state, chain = replica.state, copy(replica.chain)
    return KeptSnapshot(replica.seq, state.seq, state.t_ns, chain, digests, data, asides, lease)


class KeptSnapshots:
    """Snapshots of one log by seq."""

    def __init__(self, most: int = SNAPSHOTS_MAX) -> None:
        self._most = most
        self._kept: list[KeptSnapshot] = []
        #: by table and field: the bytes that were decoded last, and the value, which only copies of are given away.
        self._decoded: dict[tuple[str, str], tuple[bytes, Any]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def seqs(self) -> list[int]:
        """Seqs of all, in order."""
        return [one.seq for one in self._kept]

    def newest(self, last_seq: int) -> KeptSnapshot | None:
        """The newest one not behind a seq; None: there is none."""
        at = bisect_right(self.seqs, last_seq)
        return self._kept[at - 1] if at else None

    def count(self, after: int, last_seq: int) -> int:
        """How many are behind a seq and not behind another."""
        return max(bisect_right(self.seqs, last_seq) - bisect_right(self.seqs, after), 0)

    def restored(self, snapshot: KeptSnapshot) -> Restored:
        """A replica of its own in the state of a snapshot."""
        tables = {}
        for name, fields in snapshot.tables.items():
            found = {field: self._value(name, field, data) for field, data in fields.items()}
            tables[name] = TABLE_CODECS[name].joined(found)
        replica = Replica(frozenset(tables))
        replica.stand_at(tables, snapshot.state_seq, snapshot.t_ns, snapshot.chain)
        return Restored(replica, snapshot.asides, snapshot.lease)

    def _value(self, table: str, field: str, data: bytes) -> Any:
        codec = TABLE_CODECS[table].field(field)
        if len(data) < _LARGE or isinstance(codec, ColumnCodec):
            return codec.read(ByteReader(data))
        known = self._decoded.get((table, field))
        if known is None or known[0] is not data:
            known = self._decoded[table, field] = (data, codec.read(ByteReader(data)))
        return copied(known[1])

    def put(self, snapshot: KeptSnapshot) -> None:
        """Keep one more; where there are too many, the one leaves whose neighbours are nearest to each other."""
        at = bisect_right(self.seqs, snapshot.seq)
        if at and self._kept[at - 1].seq == snapshot.seq:
            return
        self._kept.insert(at, snapshot)
        if len(self._kept) > self._most:
            seqs = [0, *self.seqs]
            gaps = [seqs[nth + 2] - seqs[nth] for nth in range(len(seqs) - 2)]
            del self._kept[gaps.index(min(gaps))]
