"""Snapshots of past states in memory, to begin a replay at: each table as the bytes that a stored snapshot has.

Decides how many are kept, and which one leaves. A table that did not change between two of them is kept once. The fleet
is kept as a table: most of it are values that never change, which it shares with every state that begins there.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from schemas.envelope import LeaseHeld
from shared.core.runtime.chain import Chain
from shared.core.runtime.replica import Replica
from shared.core.runtime.restored import Restored, SnapshotExtras
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.copies import copied
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.state import Table

SNAPSHOTS_MAX = 32
#: Decoding it would take longer than all else, and its copies share what is large.
_COPIED = "fleet"


class KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state. `seq`: of the last record; `state_seq`: of the last that had events; `indexes`: of its tables."""

    seq: int
    state_seq: int
    t_ns: int
    chain: Chain
    indexes: Mapping[str, int]
    #: bytes, or a table that nothing else has.
    tables: Mapping[str, bytes | Table]
    asides: SnapshotExtras
    lease: LeaseHeld
    #: CPU time of the replay from the one before.
    replay_s: float
    #: what its owner notes of the records that led to it.
    note: bytes = b""

    def restored(self) -> Restored:
        """A replica of its own in this state."""
        found = Replica(frozenset(self.tables))
        tables = {
            name: TABLE_CODECS[name].read(ByteReader(kept))
            if isinstance(kept, bytes)
            else copied(kept)
            for name, kept in self.tables.items()
        }
        found.stand_at(tables, self.state_seq, self.t_ns, self.chain)
        return Restored(found, self.asides, self.lease)


def take_snapshot(
    replica: Replica,
    indexes: Mapping[str, int],
    *,
    asides: SnapshotExtras,
    lease: LeaseHeld,
    replay_s: float,
    others: Sequence[KeptSnapshot] = (),
    note: bytes = b"",
) -> KeptSnapshot:
    """The present state of a replica; `indexes`: by table, of `ChangeIndex`; `others`: some of the same log."""
    kept: dict[str, bytes | Table] = {}
    for name, table in replica.state.tables().items():
        # Not by their hashes: a table holds what they leave out.
        equal = [one.tables[name] for one in others if one.indexes[name] == indexes[name]]
        if equal:
            kept[name] = equal[0]
        elif name == _COPIED:
            kept[name] = copied(table)
        else:
            # What was touched since must not be part of what is written.
            table.digest()
            kept[name] = b"".join(TABLE_CODECS[name].pieces(table))
    return KeptSnapshot(
        seq=replica.seq,
        state_seq=replica.state.seq,
        t_ns=replica.state.t_ns,
        chain=copy(replica.chain),
        indexes=indexes,
        tables=kept,
        asides=asides,
        lease=lease,
        replay_s=replay_s,
        note=note,
    )


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

    def count(self, after: int, last_seq: int) -> int:
        """How many are behind a seq and not behind another."""
        return max(bisect_right(self.seqs, last_seq) - bisect_right(self.seqs, after), 0)

    def around(self, seq: int) -> list[KeptSnapshot]:
        """The newest one not behind a seq and the one that follows, where there are some."""
        at = bisect_right(self.seqs, seq)
        return self._kept[max(at - 1, 0) : at + 1]

    def put(self, snapshot: KeptSnapshot) -> None:
        """Keep one more; where there are too many, the one leaves without which the longest replay is shortest."""
        kept, at = self._kept, bisect_right(self.seqs, snapshot.seq)
        if at and kept[at - 1].seq == snapshot.seq:
            return
        if at < len(kept):
            kept[at] = replace(kept[at], replay_s=max(kept[at].replay_s - snapshot.replay_s, 0.0))
        kept.insert(at, snapshot)
        if len(kept) > self._most:
            joined = [one.replay_s + later.replay_s for one, later in pairwise(kept)]
            nth = joined.index(min(joined))
            kept[nth + 1] = replace(kept[nth + 1], replay_s=joined[nth])
            del kept[nth]
