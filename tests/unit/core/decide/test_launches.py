"""Launches: one child for each planned instant, none beside a running one where overlap is prohibited."""

from typing import Any

import msgspec
import pytest

from schemas.base import JobId
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import JobRegistered, JobsCollected, PeriodicBlock
from schemas.launches import ForceLaunch, JobLaunched, LaunchDue, LaunchSkipped
from schemas.policy import CollectGarbage, OperatorRefused
from shared.core.decide.jobs.children import child_spec
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.tables.launches import LAUNCHES_KEPT, SKIPS_KEPT
from tests.builders import SECOND, Cluster, group, join, register, stop

#: The log time at which the worlds of these tests begin.
BEGIN_S = 1_000
EVERY_MINUTE = PeriodicBlock(crons=("* * * * *",))
NO_OVERLAP = PeriodicBlock(crons=("* * * * *",), prohibit_overlap=True)


def world_with(block: PeriodicBlock = EVERY_MINUTE, **fields: Any) -> Cluster:
    """A cluster of one node with the periodic job `cron`."""
    world = Cluster()
    world.do(join(), register("cron", **({"job_type": "batch", "periodic": block} | fields)))
    return world


def due(world: Cluster, at_s: int, *, missed: int = 0, job_id: str = "cron") -> LaunchDue:
    """What a timekeeper sends that knows the tables as they are."""
    parent = world.state.launches.by_parent[JobId(job_id)]
    return LaunchDue(
        parent=JobId(job_id),
        modify_seq=parent.modify_seq,
        after_ns=parent.handled_ns,
        at_ns=at_s * SECOND,
        missed=missed,
    )


def at(world: Cluster, second: int) -> Cluster:
    """Let log time come to a second."""
    world.now_ns = second * SECOND
    return world


def finish(world: Cluster, child: str) -> None:
    """Place the only allocation of a child and let it complete."""
    world.schedule(child)
    (row,) = world.state.allocations.rows_of(JobId(child)).tolist()
    world.report("n1", (row, "complete"))


def test_a_child_is_the_parent_under_its_own_name_and_without_the_pattern() -> None:
    """The planned second names it; version 0, no verdict, its evaluation beside it in the same record."""
    spec = {"ID": "cron", "Name": "cron", "Periodic": {"Specs": ["* * * * *"]}, "Priority": 70}
    command = register("cron", job_type="batch", periodic=EVERY_MINUTE, priority=70)
    world = Cluster()
    world.do(msgspec.structs.replace(command, spec=msgspec.Raw(msgspec.json.encode(spec))))
    launched, child, created = at(world, 1_021).do(due(world, 1_020))
    assert isinstance(launched, JobLaunched) and isinstance(child, JobRegistered)
    assert (launched.child_id, launched.at_ns) == ("cron/periodic-1020", 1_020 * SECOND)
    said = (child.job_id, child.parent, child.version, child.submission_id, child.priority)
    assert said == ("cron/periodic-1020", "cron", 0, "", 70)
    assert child.periodic is None
    assert bytes(child.spec) == (
        b'{"ID":"cron/periodic-1020","Name":"cron/periodic-1020","Priority":70}'
    )
    assert isinstance(created, EvaluationsCreated)
    assert created.evaluations[0].triggered_by == "periodic-job"
    assert list(world.state.evaluations.open_of[child.job_id]) == [child.evaluation]
    assert list(world.state.launches.children[JobId("cron")]) == ["cron/periodic-1020"]


def test_texts_of_children_are_canonical() -> None:
    """Equal parents give equal bytes, with sorted keys and nothing inside changed."""
    parent = b'{"ID":"a","Periodic":{"Spec":"@daily"},"TaskGroups":[{"Name":"g","Count":1.50}]}'
    name = "a/periodic-7"
    text = child_spec(parent, without="Periodic", ID=name, Name=name)
    assert text == (
        b'{"ID":"a/periodic-7","Name":"a/periodic-7","TaskGroups":[{"Name":"g","Count":1.50}]}'
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"modify_seq": 1}, "another version was read"),
        ({"after_ns": 5}, "another instant was handled since"),
        ({"at_ns": 1_080 * SECOND}, "log time has not come there"),
        ({"at_ns": BEGIN_S * SECOND}, "it is before the registration"),
        ({"parent": "nothing"}, "there is no such job"),
    ],
)
def test_what_does_not_fit_the_tables_changes_nothing(change: dict[str, Any], why: str) -> None:
    """A command acts only on the state that its sender has read."""
    world = at(world_with(), 1_070)
    assert world.do(msgspec.structs.replace(due(world, 1_020), **change)) == [], why


def test_a_command_that_comes_twice_launches_once() -> None:
    """Sent again, or by two timekeepers: the second finds the instant handled."""
    world = at(world_with(), 1_021)
    command = due(world, 1_020)
    assert len(world.do(command, command)) == 3
    assert world.do(command) == []


def test_overlap_is_prohibited_until_the_child_has_ended() -> None:
    """P1, P6: an open evaluation counts as running, a live allocation too; a skipped instant is not made up for."""
    world = world_with(NO_OVERLAP)
    at(world, 1_021).do(due(world, 1_020))
    (skipped,) = at(world, 1_081).do(due(world, 1_080))
    assert isinstance(skipped, LaunchSkipped)
    assert (skipped.why, skipped.at_ns, skipped.missed) == ("overlap", 1_080 * SECOND, 0)
    child = "cron/periodic-1020"
    world.schedule(child)
    assert not world.state.evaluations.open_of.get(JobId(child))
    (skipped,) = at(world, 1_141).do(due(world, 1_140))
    assert isinstance(skipped, LaunchSkipped) and skipped.why == "overlap"
    (row,) = world.state.allocations.rows_of(JobId(child)).tolist()
    world.report("n1", (row, "complete"))
    launched, *_ = at(world, 1_201).do(due(world, 1_200))
    assert isinstance(launched, JobLaunched)
    kept = world.state.launches.by_parent[JobId("cron")]
    assert [one.why for one in kept.skips] == ["overlap", "overlap"]


def test_only_live_children_are_looked_at() -> None:
    """The index has children with allocations that have not ended, and no other job; a snapshot restores it."""
    world = world_with()
    world.do(register("other", group(count=2), job_type="batch", periodic=EVERY_MINUTE))
    children = []
    for minute in range(17, 20):
        at(world, minute * 60 + 1)
        for job_id in ("cron", "other"):
            world.do(due(world, minute * 60, job_id=job_id))
            children.append(f"{job_id}/periodic-{minute * 60}")
            world.schedule(children[-1])
    world.run(register("plain"))
    table = world.state.allocations
    assert set(table.live_children.of(JobId("other"))) == set(children[1::2])
    for child in children[:-2]:
        rows = table.rows_of(JobId(child)).tolist()
        world.report("n1", *((row, "complete") for row in rows))
    first, second = table.rows_of(JobId(children[-1])).tolist()
    world.report("n1", (first, "failed"))
    assert set(table.live_children.of(JobId("cron"))) == set(children[-2::2])
    codec = TABLE_CODECS["allocations"]
    restored = codec.read(ByteReader(b"".join(codec.pieces(table))))
    for one in (table, restored):
        assert set(one.live_children.of(JobId("other"))) == set(children[-1::2])
        assert not one.live_children.of(JobId("plain"))
    world.report("n1", (second, "complete"))
    assert not table.live_children.of(JobId("other"))


def test_without_the_rule_children_overlap_and_two_jobs_launch_at_one_instant() -> None:
    """P1: each job has its own children, each instant one."""
    world = world_with()
    world.do(register("other", job_type="batch", periodic=EVERY_MINUTE))
    at(world, 1_081)
    launched = world.do(due(world, 1_020), due(world, 1_020, job_id="other"))
    assert [one.child_id for one in launched if isinstance(one, JobLaunched)] == [
        "cron/periodic-1020",
        "other/periodic-1020",
    ]
    assert isinstance(world.do(due(world, 1_080))[0], JobLaunched)


@pytest.mark.parametrize("missed", [0, 2])
def test_missed_instants_are_one_launch_and_one_note(missed: int) -> None:
    """P4: the launch has its planned instant, and the earlier ones are counted."""
    world = at(world_with(), 1_150)
    events = world.do(due(world, 1_140, missed=missed))
    kinds = [LaunchSkipped] * bool(missed) + [JobLaunched, JobRegistered, EvaluationsCreated]
    assert [type(one) for one in events] == kinds
    if isinstance(events[0], LaunchSkipped):
        assert (events[0].why, events[0].missed) == ("missed", missed)
    assert world.state.launches.by_parent[JobId("cron")].handled_ns == 1_140 * SECOND


def test_missed_instants_beside_a_running_child_launch_nothing() -> None:
    """P4: the catching up obeys the overlap rule."""
    world = world_with(NO_OVERLAP)
    at(world, 1_021).do(due(world, 1_020))
    missed, overlap = at(world, 1_150).do(due(world, 1_140, missed=1))
    assert isinstance(missed, LaunchSkipped) and isinstance(overlap, LaunchSkipped)
    assert (missed.why, missed.missed, overlap.why) == ("missed", 1, "overlap")


def test_a_new_version_begins_anew() -> None:
    """P2: instants before its registration do not count; the same text again changes nothing."""
    world = world_with()
    at(world, 1_050)
    old = due(world, 1_020)
    world.do(register("cron", job_type="batch", periodic=EVERY_MINUTE, submission_id="again"))
    assert world.state.launches.by_parent[JobId("cron")].handled_ns == BEGIN_S * SECOND
    world.do(register("cron", job_type="batch", periodic=EVERY_MINUTE, salt=1, submission_id="s2"))
    assert world.state.launches.by_parent[JobId("cron")].handled_ns == 1_050 * SECOND
    assert at(world, 1_090).do(old) == []
    assert world.do(due(world, 1_020)) == []
    assert world.do(due(world, 1_080))


@pytest.mark.parametrize("how", ["stopped", "disabled", "purged"])
def test_a_parent_that_is_gone_or_off_launches_nothing(how: str) -> None:
    """P2: neither its instants nor an operator's force make a child; its children continue."""
    world = at(world_with(), 1_021)
    command = due(world, 1_020)
    world.do(command)
    later = due(world, 1_080)
    if how == "disabled":
        off = msgspec.structs.replace(EVERY_MINUTE, enabled=False)
        world.do(register("cron", job_type="batch", periodic=off, salt=2, submission_id="off"))
        later = due(world, 1_080)
    else:
        world.do(stop("cron", purge=how == "purged"))
    assert at(world, 1_090).do(later) == []
    (refused,) = world.do(force(world))
    assert isinstance(refused, OperatorRefused)
    assert refused.code == ("not_found" if how == "purged" else "invalid")
    child = world.state.jobs.by_id[JobId("cron/periodic-1020")]
    assert not child.stopped and world.state.evaluations.open_of.get(child.id)


def force(world: Cluster, job_id: str = "cron", at_ns: int = 0) -> ForceLaunch:
    """A request to launch now."""
    return ForceLaunch(request_id="r1", job_id=JobId(job_id), at_ns=at_ns or world.now_ns)


def test_force_launches_beside_the_plan() -> None:
    """P3: no overlap rule, and the next planned instant stays; twice in one second is one child."""
    world = world_with(NO_OVERLAP)
    at(world, 1_021).do(due(world, 1_020))
    launched, *_ = at(world, 1_030).do(force(world))
    assert isinstance(launched, JobLaunched)
    assert launched.forced and launched.child_id == "cron/periodic-1030"
    assert world.do(force(world)) == []
    assert world.state.launches.by_parent[JobId("cron")].handled_ns == 1_020 * SECOND


@pytest.mark.parametrize(
    ("job_id", "at_s", "code"),
    [("nothing", 0, "not_found"), ("plain", 0, "invalid"), ("cron", 9_000, "conflict")],
)
def test_force_is_refused_with_a_reason(job_id: str, at_s: int, code: str) -> None:
    """P3: of a job that is unknown or not periodic, and far from log time."""
    world = world_with()
    world.do(register("plain", job_type="batch"))
    (refused,) = world.do(force(world, job_id, at_s * SECOND))
    assert isinstance(refused, OperatorRefused) and refused.code == code


def test_a_planned_second_that_was_forced_is_skipped() -> None:
    """Its child is there already: the instant is over without a second one."""
    world = at(world_with(), 1_020)
    world.do(force(world))
    (skipped,) = world.do(due(world, 1_020))
    assert isinstance(skipped, LaunchSkipped) and skipped.why == "exists"
    assert world.do(due(world, 1_020)) == []


def test_the_table_keeps_a_few_and_forgets_with_the_jobs() -> None:
    """The newest launches and skipped ones stay; a purge of the parent leaves its children their parent's name."""
    world = world_with()
    for minute in range(1, LAUNCHES_KEPT + 4):
        at(world, 960 + 60 * minute).do(due(world, 960 + 60 * minute, missed=1))
    kept = world.state.launches.by_parent[JobId("cron")]
    assert (len(kept.launches), len(kept.skips)) == (LAUNCHES_KEPT, SKIPS_KEPT)
    world.do(stop("cron", purge=True))
    table = world.state.launches
    assert not table.by_parent and len(table.children[JobId("cron")]) == LAUNCHES_KEPT + 3


def test_garbage_takes_finished_children_and_leaves_the_parent() -> None:
    """A parent has nothing that could end: it stays until it is stopped."""
    world = at(world_with(), 1_021)
    world.do(due(world, 1_020))
    finish(world, "cron/periodic-1020")
    collect = CollectGarbage(request_id="gc")
    gone = [one for one in world.do(collect) if isinstance(one, JobsCollected)]
    assert gone == [JobsCollected(job_ids=(JobId("cron/periodic-1020"),))]
    assert not world.state.launches.children and not world.state.launches.parent_of
    world.do(stop("cron"))
    gone = [one for one in world.do(collect) if isinstance(one, JobsCollected)]
    assert gone == [JobsCollected(job_ids=(JobId("cron"),))]
    assert not world.state.launches.by_parent
