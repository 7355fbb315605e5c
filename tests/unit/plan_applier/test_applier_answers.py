"""The plan applier and the answers to its appends: what comes too early, too late, or to another state."""

from schemas.envelope import CORE_VERSION, RECORD_DECODER, SCHEMA_VERSION, LeaseHeld, LogRecord
from services.plan_applier.role import PlanApplier
from shared.core.runtime import messages
from shared.core.runtime.chain import seal

NOW_NS = 1_000_000_000_000


def applier() -> PlanApplier:
    """An instance that leads an empty log and has asked for its lease."""
    one = PlanApplier(instance="a-1", cluster_id="c")
    one.step([messages.Reconnected(fsync=True), messages.CaughtUp(0)], NOW_NS)
    return one


def appends(effects: list[messages.Effect]) -> list[messages.Append]:
    return [one for one in effects if isinstance(one, messages.Append)]


def record(seq: int, append: messages.Append) -> messages.Record:
    return messages.Record(seq, f"log.1.{append.kind}", append.data)


def lease_of_another(seq: int, prev: str) -> messages.Record:
    held = LeaseHeld(holder="b-1", cluster_id="c", fsync=True)
    lease = LogRecord(
        kind="lease",
        schema=SCHEMA_VERSION,
        core=CORE_VERSION,
        epoch=seq,
        prev=prev,
        t_ns=NOW_NS,
        lease=held,
    )
    return messages.Record(seq, "log.1.lease", seal(lease)[0])


def test_the_next_append_waits_for_the_answer_to_the_last() -> None:
    """A record that the replay shows before its append is answered does not start another append."""
    one = applier()
    (lease,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    assert appends(one.step([record(1, lease)], NOW_NS)) == []
    (created,) = appends(one.step([messages.Appended(1)], NOW_NS))
    assert created.expected_seq == 1


def test_a_transaction_that_came_to_nothing_is_no_append_in_flight() -> None:
    """Only what was sent and not confirmed is: a garbage collection that finds nothing leaves the applier at rest."""
    one = applier()
    (lease,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    assert one.is_appending
    (created,) = appends(one.step([record(1, lease), messages.Appended(1)], NOW_NS))
    one.step([record(2, created), messages.Appended(2)], NOW_NS)
    assert not one.is_appending
    assert appends(one.step([messages.Timer("garbage", NOW_NS)], NOW_NS)) == []
    assert one.replica.state.seq == one.replica.next_seq
    assert not one.is_appending


def test_an_unknown_answer_to_a_record_already_seen_changes_nothing() -> None:
    """AppendUnknown after the replay showed the record arms no timer that could hit the next append."""
    one = applier()
    (lease,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    one.step([record(1, lease)], NOW_NS)
    effects = one.step([messages.AppendUnknown()], NOW_NS)
    assert len(appends(effects)) == 1
    armed = [
        e for e in effects if isinstance(e, messages.SetTimer) and e.name == "unknown" and e.at_ns
    ]
    assert armed == []


def test_records_from_before_a_rewind_are_no_gap() -> None:
    """After a refused append the records still on their way are left alone; the state is built from seq 1 on."""
    one = applier()
    (lease,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    other = lease_of_another(1, "")
    later = lease_of_another(2, RECORD_DECODER.decode(other.data).sum)
    effects = one.step(
        [messages.AppendRefused("wrong last sequence"), later, messages.CaughtUp(2)], NOW_NS
    )
    assert [type(e) for e in effects if isinstance(e, messages.Rewind | messages.Stop)] == [
        messages.Rewind
    ]
    assert appends(effects) == []
    effects = one.step([other, later, messages.CaughtUp(2)], NOW_NS)
    (again,) = appends(effects)
    assert (again.kind, again.expected_seq) == ("lease", 2)
    assert lease.kind == "lease"


def test_who_resigns_waits_to_be_elected_again() -> None:
    """A holder that sees a higher epoch resigns, and writes no lease before it wins again."""
    one = applier()
    (lease,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    (created,) = appends(one.step([messages.Appended(1)], NOW_NS))
    head = RECORD_DECODER.decode(created.data).sum
    one.step([messages.Appended(2)], NOW_NS)
    effects = one.step([lease_of_another(3, head)], NOW_NS)
    assert messages.Resign() in effects
    assert appends(effects) == []
    (again,) = appends(one.step([messages.LeadershipWon()], NOW_NS))
    assert (again.kind, lease.kind) == ("lease", "lease")
