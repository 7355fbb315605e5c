"""Snapshots of past states in memory, to begin a replay at: each table as the bytes that a stored snapshot has.

Decides how many are kept, and which one leaves. A table that is the same in the snapshot before is kept once: nodes
change seldom, and are most of the bytes.
"""

from bisect import bisect_right
from collections.abc import Mapping
from copy import copy

import msgspec

from schemas.envelope import LeaseHeld
from shared.core.runtime.chain import Chain
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS

SNAPSHOTS_MAX = 32


class KeptSnapshot(msgspec.Struct, frozen=True):
    """A state as bytes. `seq`: of the last record; `state_seq`: of the last that had events; `digests`: by table."""

    seq: int
    state_seq: int
    t_ns: int
    chain: Chain
    digests: Mapping[str, str]
    tables: Mapping[str, bytes]
    asides: SnapshotExtras
    lease: LeaseHeld

    def restored(self) -> Restored:
        """A replica of its own in this state."""
        found = Replica(frozenset(self.tables))
        for name, data in self.tables.items():
            found.state.put(name, TABLE_CODECS[name].read(ByteReader(data)))
        found.state.seq, found.state.t_ns = self.state_seq, self.t_ns
        found.continue_chain(self.chain)
        return Restored(found, self.asides, self.lease)


def take_snapshot(
    replica: Replica, asides: SnapshotExtras, lease: LeaseHeld, before: KeptSnapshot | None = None
) -> KeptSnapshot:
    """The present state of a replica; `before`: one that may have equal tables."""
    tables, digests = replica.state.tables(), replica.state.hashes()
    data = {}
    for name, table in tables.items():
        if before is not None and before.digests[name] == digests[name]:
            data[name] = before.tables[name]
        else:
            data[name] = b"".join(TABLE_CODECS[name].pieces(table))
    state, chain = replica.state, copy(replica.chain)
    return KeptSnapshot(replica.seq, state.seq, state.t_ns, chain, digests, data, asides, lease)


class KeptSnapshots:
    """Snapshots of one log by seq."""

    def __init__(self, most: int = SNAPSHOTS_MAX) -> None:
        self._most = most
        self._kept: list[KeptSnapshot] = []

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
