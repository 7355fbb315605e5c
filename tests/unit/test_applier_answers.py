"""The plan applier and the answers to its appends: what comes too early, too late, or to another state."""

from schemas.envelope import CORE_VERSION, RECORD_DECODER, SCHEMA_VERSION, LeaseHeld
from schemas.envelope import Record as LogRecord
from services.plan_applier.role import PlanApplier
from shared.core import role
from shared.core.log import seal

NOW_NS = 1_000_000_000_000


def applier() -> PlanApplier:
    """An instance that leads an empty log and has asked for its lease."""
    one = PlanApplier(instance="a-1", cluster_id="c")
    one.step([role.Reconnected(fsync=True), role.CaughtUp(0)], NOW_NS)
    return one


def appends(effects: list[role.Effect]) -> list[role.Append]:
    return [one for one in effects if isinstance(one, role.Append)]


def record(seq: int, append: role.Append) -> role.Record:
    return role.Record(seq, f"log.1.{append.kind}", append.data)


def lease_of_another(seq: int, prev: str) -> role.Record:
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
    return role.Record(seq, "log.1.lease", seal(lease)[0])


def test_the_next_append_waits_for_the_answer_to_the_last() -> None:
    """A record that the replay shows before its append is answered does not start another append."""
    one = applier()
    (lease,) = appends(one.step([role.LeadershipWon()], NOW_NS))
    assert appends(one.step([record(1, lease)], NOW_NS)) == []
    (created,) = appends(one.step([role.Appended(1)], NOW_NS))
    assert created.expected_seq == 1


def test_an_unknown_answer_to_a_record_already_seen_changes_nothing() -> None:
    """AppendUnknown after the replay showed the record arms no timer that could hit the next append."""
    one = applier()
    (lease,) = appends(one.step([role.LeadershipWon()], NOW_NS))
    one.step([record(1, lease)], NOW_NS)
    effects = one.step([role.AppendUnknown()], NOW_NS)
    assert len(appends(effects)) == 1
    armed = [e for e in effects if isinstance(e, role.SetTimer) and e.name == "unknown" and e.at_ns]
    assert armed == []


def test_records_from_before_a_rewind_are_no_gap() -> None:
    """After a refused append the records still on their way are left alone; the state is built from seq 1 on."""
    one = applier()
    (lease,) = appends(one.step([role.LeadershipWon()], NOW_NS))
    other = lease_of_another(1, "")
    later = lease_of_another(2, RECORD_DECODER.decode(other.data).sum)
    effects = one.step([role.AppendRefused("wrong last sequence"), later, role.CaughtUp(2)], NOW_NS)
    assert [type(e) for e in effects if isinstance(e, role.Rewind | role.Stop)] == [role.Rewind]
    assert appends(effects) == []
    effects = one.step([other, later, role.CaughtUp(2)], NOW_NS)
    (again,) = appends(effects)
    assert (again.kind, again.expected_seq) == ("lease", 2)
    assert lease.kind == "lease"


def test_who_resigns_waits_to_be_elected_again() -> None:
    """A holder that sees a higher epoch resigns, and writes no lease before it wins again."""
    one = applier()
    (lease,) = appends(one.step([role.LeadershipWon()], NOW_NS))
    (created,) = appends(one.step([role.Appended(1)], NOW_NS))
    head = RECORD_DECODER.decode(created.data).sum
    one.step([role.Appended(2)], NOW_NS)
    effects = one.step([lease_of_another(3, head)], NOW_NS)
    assert role.Resign() in effects
    assert appends(effects) == []
    (again,) = appends(one.step([role.LeadershipWon()], NOW_NS))
    assert (again.kind, lease.kind) == ("lease", "lease")
