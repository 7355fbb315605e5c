"""Forgetting: what is terminal leaves by facts, in log time, and frees its row."""

from typing import Any

import numpy as np
import pytest

from schemas.allocations import AllocationsCollected
from schemas.base import Event, JobId
from schemas.jobs import JobVersionTagged
from schemas.nodes import ChangeLiveness
from schemas.policy import CollectGarbage, Policy
from shared.core.decide import garbage
from shared.core.decide.garbage import decide_garbage
from shared.core.state.tables.allocations import STOP
from tests.builders import SECOND, Cluster, group, join, register, stop

HOUR = 3_600


def world_with_one_node(**policy: int) -> Cluster:
    world = Cluster(policy=Policy(**policy))
    world.do(join("n1"))
    return world


def collect(world: Cluster) -> list[Event]:
    events = decide_garbage(world.state, world.horizon, world.now_ns)
    world.apply(*events)
    return events


def finish(world: Cluster, status: str, job_id: str = "app") -> None:
    world.report("n1", *((row, status) for row in world.rows(job_id, alive=False)))


def test_nothing_leaves_before_its_time() -> None:
    """Terminal entities stay for the policy's age."""
    world = world_with_one_node()
    world.run(register("app"))
    world.do(stop("app"))
    world.schedule()
    finish(world, "complete")
    world.later(60).do(register("tick"))
    assert collect(world) == []


def test_after_their_age_rows_are_free_again_and_reused_lowest_first() -> None:
    """A collected allocation's row is the next one given."""
    world = world_with_one_node()
    world.run(register("app", group(count=3)))
    world.do(stop("app"))
    world.schedule()
    finish(world, "complete")
    world.later(2 * HOUR).do(register("tick"))
    assert collect(world)
    assert world.state.allocations.rows_of("app").tolist() == []
    world.schedule("tick")
    assert world.rows("tick") == [0]
    assert "s-app-1" not in world.state.jobs.submissions


def test_a_finished_batch_job_does_not_run_again_because_it_was_collected() -> None:
    """Its allocations leave together with the job, never before it."""
    world = world_with_one_node()
    world.run(register("app", job_type="batch"))
    finish(world, "complete")
    world.later(2 * HOUR).do(register("tick"))
    collect(world)
    assert len(world.rows("app", alive=False)) == 1
    world.later(3 * HOUR).do(register("tock"))
    collect(world)
    assert "app" not in world.state.jobs.by_id
    assert world.rows("app", alive=False) == []


def test_what_a_drain_ended_for_good_is_not_forgotten_in_a_live_job() -> None:
    """A batch allocation that a drain stopped keeps its place: collected, it would be placed again."""
    world = world_with_one_node()
    world.run(register("app", group(count=2), job_type="batch"))
    ended, _ = world.rows("app")
    world.state.allocations.desired[ended] = STOP
    world.state.allocations.final[ended] = None
    world.report("n1", (ended, "complete"))
    world.later(2 * HOUR).do(register("tick"))
    collect(world)
    assert ended in world.rows("app", alive=False)


def test_a_failed_allocation_that_waits_for_its_retry_stays() -> None:
    """Collecting it would forget that it waits."""
    world = world_with_one_node(allocation_keep_ns=SECOND)
    world.run(register("app"))
    finish(world, "failed")
    world.later(20).do(register("tick"))
    collect(world)
    assert len(world.rows("app", alive=False)) == 1


def test_a_dead_job_with_a_tagged_version_stays() -> None:
    """It leaves at its age once the tag is taken away, and when it is purged at once."""
    world = world_with_one_node()
    for job_id in ("app", "other"):
        world.run(register(job_id, submission_id=f"s-{job_id}"))
        tag = JobVersionTagged(request_id="r", job_id=JobId(job_id), version=0, name="good")
        world.apply(tag)
        world.do(stop(job_id))
        world.schedule(job_id)
        finish(world, "complete", job_id)
    world.later(5 * HOUR).do(register("tick"))
    collect(world)
    world.later(5 * HOUR).do(register("tock"))
    collect(world)
    assert {"app", "other"} <= world.state.jobs.by_id.keys()
    world.apply(JobVersionTagged(request_id="r", job_id=JobId("app"), version=0, name=""))
    collect(world)
    assert "app" not in world.state.jobs.by_id and "other" in world.state.jobs.by_id
    world.do(stop("other", purge=True))
    assert "other" not in world.state.jobs.by_id


@pytest.mark.parametrize("job_type", ["service", "system"])
def test_a_job_that_was_not_stopped_stays_though_nothing_of_it_runs(job_type: str) -> None:
    """A service at count 0, or one whose deployment failed behind its gate, is there for its operator a day later."""
    world = world_with_one_node()
    world.run(register("app", group(count=0), job_type=job_type))
    world.later(24 * HOUR).do(register("tick"))
    collect(world)
    assert "app" in world.state.jobs.by_id
    world.do(stop("app"))
    world.schedule()
    world.later(24 * HOUR).do(register("tock"))
    collect(world)
    assert "app" not in world.state.jobs.by_id


def test_a_purged_job_leaves_in_the_transaction_that_ends_the_last_of_it() -> None:
    """Purge waits for what still runs, and for nothing else."""
    world = world_with_one_node()
    world.run(register("app", group(count=2)))
    world.do(stop("app", purge=True))
    world.schedule()
    first, last = world.state.allocations.rows_of("app").tolist()
    world.report("n1", (first, "complete"))
    assert "app" in world.state.jobs.by_id
    world.report("n1", (last, "complete"))
    assert "app" not in world.state.jobs.by_id
    assert not world.state.allocations.groups.ref_of


def test_a_purged_job_of_which_nothing_is_left_leaves_at_once() -> None:
    """What waited for it ends in the same transaction, and so does the evaluation of the stop."""
    world = Cluster()
    world.run(register("app"))
    assert "app" in world.state.evaluations.blocked_of
    world.do(stop("app", purge=True))
    assert "app" not in world.state.jobs.by_id and not world.state.evaluations.open
    stopped = world.state.jobs.submissions["stop-app"].evaluation
    assert world.state.evaluations.by_key[stopped].status == "complete"


def test_what_a_purged_job_lost_with_its_node_is_collected() -> None:
    """A dead node sends no reports: the next pass deletes what the plan declared lost."""
    world = world_with_one_node()
    world.run(register("app"))
    world.do(ChangeLiveness(node_ids=("n1",), status="down", seen_seq=world.state.seq))
    world.do(stop("app", purge=True))
    world.schedule()
    if world.state.evaluations.open_of.get("app"):
        world.schedule()
    collect(world)
    collect(world)
    assert "app" not in world.state.jobs.by_id


def test_too_many_leave_before_their_time() -> None:
    """More than terminal_keep_max of a kind are not kept, whatever their age."""
    world = world_with_one_node(terminal_keep_max=2)
    for number in range(4):
        world.do(stop(f"no-{number}", submission_id=f"x{number}"))
    collect(world)
    assert list(world.state.jobs.submissions) == ["x2", "x3"]


def test_everything_terminal_leaves_when_an_operator_says_so() -> None:
    """`system gc` does not look at ages."""
    world = world_with_one_node()
    world.run(register("app"))
    world.do(stop("app"))
    world.schedule()
    finish(world, "complete")
    world.do(CollectGarbage(request_id="r"))
    world.do(CollectGarbage(request_id="r"))
    assert not world.state.jobs.by_id and not world.state.evaluations.by_key


def test_old_versions_groups_are_forgotten_when_nothing_points_to_them() -> None:
    """A hundred versions of a job leave no trace but the newest."""
    world = world_with_one_node()
    for number in range(100):
        world.do(
            register(
                "app", group(digest=f"d{number}"), salt=number + 100, submission_id=f"s{number}"
            )
        )
    assert len(world.state.allocations.groups.ref_of) == 1
    assert len(world.state.allocations.groups.names) <= 2


def test_a_pass_is_bounded_and_says_that_there_is_more() -> None:
    """A thousand finished tasks at once fit no transaction: some jobs go, and the next pass comes at once."""
    world = world_with_one_node(job_keep_ns=SECOND, allocation_keep_ns=SECOND)
    for number in range(3):
        name = f"b{number}"
        world.run(register(name, group(count=20, cpu_mhz=1, memory_mib=1), job_type="batch"))
        finish(world, "complete", name)
    world.later(20).do(register("tick"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage, "ROWS_MAX", 30)
        events = collect(world)
        assert garbage.is_pass_full(events)
        assert sum(map(garbage.collected_count, of(events, AllocationsCollected))) == 40
        events = collect(world)
        assert not garbage.is_pass_full(events)
    assert "b0" not in world.state.jobs.by_id and not world.state.allocations.rows_of("b2").size


def test_rows_beside_each_other_leave_as_runs() -> None:
    """What a wide job leaves is named by where it begins and how much it is; every table comes to the same."""
    one, other = world_with_one_node(), world_with_one_node()
    for world in (one, other):
        world.run(register("b", group(count=50, cpu_mhz=1, memory_mib=1), job_type="batch"))
    rows = np.array([3, 4, 5, 6, 40], dtype=np.int32)
    assert garbage.allocations_collected(rows).runs == (3, 4, 40, 1)
    assert garbage.allocations_collected(rows[[0, 4]]).rows == (3, 40)
    for world in (one, other):
        finish(world, "complete", "b")
    one.state.evolve(AllocationsCollected(rows=(), runs=(3, 4, 40, 1)), one.state.seq)
    other.state.evolve(AllocationsCollected(rows=(40, 6, 5, 4, 3)), other.state.seq)
    assert one.state.hashes() == other.state.hashes()
    assert len(one.state.allocations.rows_of("b")) == 45


def of(events: list[Event], kind: type[Event]) -> list[Any]:
    return [one for one in events if isinstance(one, kind)]
