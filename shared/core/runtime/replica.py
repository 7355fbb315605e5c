"""Following the log: from records to state, with proof.

Every role owns one replica and hands it each Record input. It checks the chain, applies what counts, and compares its
tables with every checkpoint: a replica that differs stops its role instead of deciding on wrong state.
"""

from collections.abc import Callable, Mapping
from copy import copy

from schemas import envelope
from shared.core.runtime import messages
from shared.core.runtime.chain import Chain, RecordDecoder, decode_record
from shared.core.runtime.log_capacity import LogCapacity
from shared.core.state.snapshots.copies import copied
from shared.core.state.state import TABLES, State, Table
from shared.errors import LogDamaged, StateDiverged


class Replica:
    """State at the head of the log, as far as it was delivered."""

    def __init__(
        self, tables: frozenset[str] = TABLES, decode: RecordDecoder = decode_record
    ) -> None:
        self.tables = tables
        self.chain = Chain(decode)
        self.state = State(tables)
        self.room = LogCapacity()
        self.checked = 0
        #: seq of the last checkpoint that our tables were equal to.
        self.checked_seq = 0

    @property
    def next_seq(self) -> int:
        """First seq that was not delivered yet."""
        return self.chain.next_seq

    @property
    def seq(self) -> int:
        """Last seq that was delivered, foreign records included."""
        return self.chain.next_seq - 1

    def apply(
        self,
        record: messages.Record,
        before: Callable[[envelope.LogRecord], None] | None = None,
    ) -> envelope.LogRecord | None:
        """Apply one delivered record; return it decoded, None when it is foreign or was applied before.

        `before` sees the decoded record before the state changes. Raises LogDamaged, UnknownEvent, StateDiverged.
        """
        if record.seq < self.chain.next_seq:
            return None
        decoded = self.chain.accept(record.seq, record.subject, record.data)
        self.room.note(record.seq, len(record.data))
        if decoded is None:
            return None
        if decoded.kind == "roll":
            self.room.begin(record.seq + 1)
        if before is not None:
            before(decoded)
        if decoded.events:
            self.state.apply(decoded, record.seq)
        elif decoded.kind == "checkpoint":
            self.compare(decoded, record.seq)
        return decoded

    def wrote(self, seq: int, record: envelope.LogRecord, digest: str, size: int) -> None:
        """Take our own record of `size` bytes, whose events the state has already, as the head of the log."""
        self.chain.wrote(seq, record, digest)
        self.room.note(seq, size)
        if record.kind == "roll":
            self.room.begin(seq + 1)
        if record.events:
            assert self.state.seq == seq, (self.state.seq, seq)

    def begin_at(self, other: "Replica") -> None:
        """Take over the state of a replica that was restored; only when nothing was applied yet."""
        assert self.chain.next_seq == 1, self.chain.next_seq
        assert other.tables == self.tables, (other.tables, self.tables)
        self.stand_at(other.state.tables(), other.state.seq, other.state.t_ns, other.chain)
        self.checked, self.checked_seq = other.checked, other.checked_seq

    def begin_at_copy(self, other: "Replica") -> None:
        """Take over copies of the tables of another replica, which stays as it is."""
        theirs = other.state.tables()
        tables = {name: copied(theirs[name]) for name in self.state.tables()}
        self.stand_at(tables, other.state.seq, other.state.t_ns, other.chain)

    def stand_at(self, tables: Mapping[str, Table], seq: int, t_ns: int, chain: Chain) -> None:
        """Take over tables as they are behind the transaction at `seq`, and where the chain stands."""
        for name, table in tables.items():
            self.state.put(name, table)
        self.state.seq, self.state.t_ns = seq, t_ns
        self.continue_chain(chain)

    def continue_chain(self, other: Chain) -> None:
        """Stand where another replica's chain does, and keep our own decoder."""
        decode, self.chain = self.chain.decode, copy(other)
        self.chain.decode = decode

    def refuse_lost_end(self, end: int, once_reached: Mapping[str, int]) -> None:
        """Compare the end of the log with snapshots, seqs by cluster id: one that is later proves a loss.

        Raises LogDamaged.
        """
        known = once_reached.get(self.chain.cluster_id, 0)
        if known > end:
            lost = f"records {end + 1} to {known} are lost"
            text = f"the log ends at {end}, but a snapshot at {known} was made of it: {lost}"
            raise LogDamaged(end + 1, text, sound_seq=end)

    def compare(self, checkpoint: envelope.LogRecord, seq: int) -> None:
        """Compare our tables with a checkpoint's. Raises LogDamaged, StateDiverged."""
        if checkpoint.tables is None:
            raise LogDamaged(seq, "a checkpoint without tables")
        ours = self.state.hashes()
        for name, digest in sorted(ours.items()):
            if name not in checkpoint.tables and digest == self.state.empty_hash(name):
                # Written by a release that did not have the table, and no fact of it came before.
                continue
            if checkpoint.tables.get(name) != digest:
                message = (
                    f"table {name} is {digest}, the checkpoint says {checkpoint.tables.get(name)}"
                )
                raise StateDiverged(seq, message)
        self.checked += 1
        self.checked_seq = seq


def copy_replica(source: Replica, tables: frozenset[str] = TABLES) -> Replica:
    """A replica of its own in the same state."""
    found = Replica(tables)
    found.begin_at_copy(source)
    return found


#: Makes the replica of a role, given the tables that it follows.
ReplicaFactory = Callable[[frozenset[str]], Replica]
