"""One state that several roles read: they see each record in the same tables, so that it is applied once.

A replica is a function of the records before it, and nobody but `apply` writes into it; so a role that only reads
cannot tell whether the tables are its own, as long as they stand where its own would whenever it looks. The engine
keeps that (`Cluster._spread`): intake, broker and heartbeat act on a record before the next one is applied, and a
worker's step begins, as ever, with all records that it may have seen. The applier runs ahead of all and has its own.
`Setup.shares = False` gives everybody their own: the log must be the same, and a test holds it.

Also: copies of a replica, for whoever goes on from a recorded state.
"""

from collections.abc import Callable
from copy import copy

from schemas import envelope
from shared.core import role
from shared.core.replica import Replica
from shared.core.snapshots.kinds import Cursor
from shared.core.snapshots.shapes import SHAPES
from shared.core.state import TABLES


class Shared(Replica):
    """A replica that answers a record once more, decoded, to everybody who reads it."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        #: by seq, as long as somebody may ask.
        self._decoded: dict[int, envelope.Record | None] = {}
        self._kept_from = 0

    def apply(
        self,
        record: role.Record,
        before: Callable[[envelope.Record], None] | None = None,
    ) -> envelope.Record | None:
        """Apply a record, or return it decoded where it was applied."""
        assert before is None
        if record.seq < self.chain.next_seq:
            return self._decoded[record.seq]
        self._kept_from = self._kept_from or record.seq
        decoded = self._decoded[record.seq] = super().apply(record)
        return decoded

    def forget(self, below: int) -> None:
        """Drop what is decoded of records that everybody took."""
        for seq in range(self._kept_from, below):
            del self._decoded[seq]
        self._kept_from = max(self._kept_from, below)

    def begin_at(self, other: Replica) -> None:
        """Stay as it is: who is told where to begin finds this very replica there already."""
        assert other is self


def copied(
    source: Replica, tables: frozenset[str] = TABLES, into: Replica | None = None
) -> Replica:
    """Make a replica that stands where `source` does and shares nothing with it. Raises SnapshotUnfit."""
    found = Replica(tables) if into is None else into
    source.state.hashes()
    ours = source.state.tables()
    for name in found.state.tables():
        shape = SHAPES[name]
        data = b"".join(shape.pieces(ours[name]))
        found.state.put(name, shape.read(Cursor(data)))
    found.state.seq, found.state.t_ns = source.state.seq, source.state.t_ns
    found.chain = copy(source.chain)
    return found
