"""Records and the chain: what is accepted, what is foreign, what stops a replica."""

import msgspec
import pytest

from schemas.envelope import LeaseHeld, LogRecord
from schemas.policy import ClusterCreated
from shared.core.runtime import messages
from shared.core.runtime.chain import Chain, is_framed, seal
from shared.core.runtime.replica import Replica
from shared.errors import LogDamaged, StateDiverged, UnknownEvent

TX, LEASE, CHECKPOINT = "log.1.tx", "log.1.lease", "log.1.checkpoint"


class Log:
    """Writes a chain the way an applier does."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.head = ""
        self.epoch = 0

    def add(self, kind: str, **fields: object) -> bytes:
        base = {
            "kind": kind,
            "schema": 1,
            "core": "t",
            "epoch": self.epoch,
            "prev": self.head,
            "t_ns": 5,
        }
        data, self.head = seal(LogRecord(**(base | fields)))  # type: ignore[arg-type]
        self.records.append((f"log.1.{kind}", data))
        return data

    def lease(self, holder: str = "a", **fields: object) -> bytes:
        self.epoch = len(self.records) + 1
        held = LeaseHeld(holder=holder, cluster_id="c1")
        return self.add("lease", **({"epoch": self.epoch, "lease": held} | fields))

    def foreign(self, data: bytes) -> None:
        self.records.append((TX, data))

    def read(self) -> Chain:
        chain = Chain()
        for seq, (subject, data) in enumerate(self.records, start=1):
            chain.accept(seq, subject, data)
        return chain


@pytest.fixture
def log() -> Log:
    """A log with its first lease."""
    written = Log()
    written.lease()
    return written


def test_a_chain_of_our_own_is_accepted(log: Log) -> None:
    """Lease, transactions and checkpoints that link are accepted in order."""
    log.add("tx")
    log.add("checkpoint", tables={})
    chain = log.read()
    assert (chain.accepted, chain.foreign, chain.next_seq, chain.epoch) == (3, 0, 4, 1)


@pytest.mark.parametrize("data", [b"", b"hello", b'{"stream":"CMD","seq":5}', b"\xff\xfe", b"[1,2"])
def test_what_is_no_record_is_skipped_and_counted(log: Log, data: bytes) -> None:
    """A foreign record takes its seq and nothing else; the chain continues over it."""
    log.foreign(data)
    log.add("tx")
    chain = log.read()
    assert (chain.accepted, chain.foreign) == (2, 1)


def test_an_older_epoch_is_foreign(log: Log) -> None:
    """What a deposed applier manages to write is skipped by everyone."""
    old_head = log.head
    log.lease("b")
    log.records.append(
        (TX, seal(LogRecord(kind="tx", schema=1, core="t", epoch=1, prev=old_head, t_ns=9))[0])
    )
    log.add("tx")
    chain = log.read()
    assert (chain.epoch, chain.foreign, chain.accepted) == (2, 1, 3)


def test_a_gap_stops(log: Log) -> None:
    """A missing seq is damage."""
    chain = log.read()
    with pytest.raises(LogDamaged, match="expected seq 2"):
        chain.accept(3, TX, log.add("tx"))


def test_another_chain_at_the_current_epoch_stops(log: Log) -> None:
    """Two transactions with one predecessor cannot both be ours."""
    log.add("tx")
    log.add("tx", prev="0" * 32)
    with pytest.raises(LogDamaged, match="our head is"):
        log.read()


def test_an_epoch_without_its_lease_stops(log: Log) -> None:
    """A newer epoch counts only after its lease record."""
    log.add("tx", epoch=7)
    with pytest.raises(LogDamaged, match="without its lease"):
        log.read()


def test_a_lease_of_another_cluster_stops(log: Log) -> None:
    """A log never changes its cluster."""
    log.lease("b", lease=LeaseHeld(holder="b", cluster_id="c2"))
    with pytest.raises(LogDamaged, match="cluster c2"):
        log.read()


def test_every_flipped_bit_is_noticed(log: Log) -> None:
    """No flipped bit in a record goes by: it is damage here, or at the next record's link."""
    log.add("tx", events=(ClusterCreated(cluster_id="c1"),))
    log.add("tx")
    subject, good = log.records[1]
    for position in range(len(good)):
        for bit in (0, 5):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            log.records[1] = (subject, bytes(bad))
            with pytest.raises((LogDamaged, UnknownEvent)):
                log.read()


def test_every_truncation_is_noticed(log: Log) -> None:
    """A record cut short anywhere is damage here or at the next link."""
    log.add("tx", events=(ClusterCreated(cluster_id="c1"),))
    log.add("tx")
    subject, good = log.records[1]
    for length in range(len(good)):
        log.records[1] = (subject, good[:length])
        with pytest.raises(LogDamaged):
            log.read()


def test_an_unknown_event_stops_with_advice(log: Log) -> None:
    """A newer release's event is not skipped: state with a hole is worse than no service."""
    body = msgspec.json.encode(
        {
            "kind": "tx",
            "schema": 1,
            "core": "t",
            "epoch": 1,
            "prev": log.head,
            "t_ns": 5,
            "events": [{"type": "job.exploded"}],
        }
    )
    from shared.core.runtime.chain import checksum

    data = body[:-1] + b',"sum":"' + checksum(body[:-1]).encode() + b'"}'
    assert is_framed(data)
    log.foreign(data)
    with pytest.raises(UnknownEvent, match="upgrade"):
        log.read()


def test_a_checkpoint_that_differs_stops_the_replica(log: Log) -> None:
    """A replica whose tables are not the applier's stops."""
    log.add("tx", events=(ClusterCreated(cluster_id="c1"),))
    log.add("checkpoint", tables={"policy": "0000000000000000"})
    replica = Replica(frozenset({"policy"}))
    *before, last = [messages.Record(seq, *entry) for seq, entry in enumerate(log.records, start=1)]
    for record in before:
        replica.apply(record)
    with pytest.raises(StateDiverged, match="table policy"):
        replica.apply(last)


def test_a_repeat_of_what_was_applied_is_nothing(log: Log) -> None:
    """Records below the replica's position are passed over."""
    replica = Replica(frozenset({"policy"}))
    first = messages.Record(1, *log.records[0])
    assert replica.apply(first) is not None
    assert replica.apply(first) is None and replica.next_seq == 2
