"""One state that several roles read: they see each record at the same instant, so they may see it in the same tables.

Roles that only read, and whose step for a record happens before the next record is applied, cannot tell whether the
tables are their own: a replica is a function of the records before it, and nobody but `apply` writes. The engine keeps
that order (`Engine._spread`); the applier and the schedulers, who run behind or ahead of it, have their own.
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
    """A replica that answers a record it has just applied once more, to everybody who asks."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        self._last: envelope.Record | None = None

    def apply(
        self,
        record: role.Record,
        before: Callable[[envelope.Record], None] | None = None,
    ) -> envelope.Record | None:
        """Apply a record, or return it decoded where it is the newest one that was applied."""
        assert before is None
        if record.seq == self.chain.next_seq - 1:
            return self._last
        assert record.seq == self.chain.next_seq, (record.seq, self.chain.next_seq)
        self._last = super().apply(record)
        return self._last

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
