"""One replica for all roles that only read, so that each record is applied once.

A reading role cannot tell a shared replica from its own, as long as the replica is where its own would be whenever it
reads. The cluster ensures this (`SimulatedCluster._spread`): intake, broker and heartbeat step on a record before the
next one is applied, and a worker's step begins with all visible records. The applier is ahead and has its own replica.
With `EngineSetup.shares = False` every role has its own; a test proves that the log is the same.
"""

from collections.abc import Callable

from schemas import envelope
from shared.core.runtime import messages
from shared.core.runtime.chain import RecordDecoder
from shared.core.runtime.replica import Replica
from shared.core.state.state import TABLES


class SharedReplica(Replica):
    """A replica for several readers: applying a record again returns it decoded."""

    def __init__(self, decode: RecordDecoder) -> None:
        super().__init__(TABLES, decode)
        #: by seq, until all readers have taken it.
        self._decoded: dict[int, envelope.LogRecord | None] = {}
        self._kept_from = 0

    def apply(
        self,
        record: messages.Record,
        before: Callable[[envelope.LogRecord], None] | None = None,
    ) -> envelope.LogRecord | None:
        """Apply a record; one that was applied is returned decoded."""
        assert before is None
        if record.seq < self.chain.next_seq:
            return self._decoded[record.seq]
        self._kept_from = self._kept_from or record.seq
        decoded = self._decoded[record.seq] = super().apply(record)
        return decoded

    def forget(self, below: int) -> None:
        """Drop the decoded records that all readers have taken."""
        for seq in range(self._kept_from, below):
            del self._decoded[seq]
        self._kept_from = max(self._kept_from, below)

    def begin_at(self, other: Replica) -> None:
        """Do nothing: a restored reader is given this very replica."""
        assert other is self
