"""A job that was stopped and runs again: what failed begins anew, what completed stays done; forced reschedules."""

import pytest

from schemas.base import JobId
from schemas.evaluations import EvaluationsCreated
from schemas.job_versions import StartJob
from schemas.jobs import EvaluateJob, ReschedulePolicy, UpdatePolicy
from schemas.policy import CollectGarbage
from shared.core.decide.garbage import is_finished
from tests.builders import SECOND, Cluster, group, join, register, stop

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
ONCE = ReschedulePolicy(attempts=1, unlimited=False, interval_ns=3_600 * SECOND, delay_ns=0)


def run_again(world: Cluster, job_id: str = "app") -> list[int]:
    """Start a stopped job; return the names that were placed."""
    before = set(world.rows(job_id))
    world.do(StartJob(submission_id=f"start-{world.state.seq}", digest="x", job_id=JobId(job_id)))
    world.schedule(job_id)
    table = world.state.allocations
    return sorted(table.index[[row for row in world.rows(job_id) if row not in before]].tolist())


def ended(job_type: str = "batch", **fields: object) -> Cluster:
    """Three allocations of which the second failed, and the others completed."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(count=3, reschedule=NEVER, **fields), job_type=job_type))
    for row, status in zip(world.rows(), ("complete", "failed", "complete"), strict=True):
        world.report("n1", (row, "running"))
        world.report("n1", (row, status))
    return world


@pytest.mark.parametrize("is_stop_planned", [True, False])
def test_what_failed_runs_again_and_what_completed_does_not(*, is_stop_planned: bool) -> None:
    """Of three the second failed: after stop and run only that one is placed, and then the job is complete."""
    world = ended()
    world.do(stop())
    if is_stop_planned:
        world.schedule()
    assert run_again(world) == [1]
    (row,) = world.rows()
    assert int(world.state.allocations.reschedules[row]) == 0
    world.report("n1", (row, "running"))
    world.report("n1", (row, "complete"))
    assert is_finished(world.state, world.state.jobs.by_id[JobId("app")])


def test_what_completed_stays_done_over_more_stops_and_garbage() -> None:
    """Stopped and started three times, without a plan between: the completed ones are of the newest version."""
    world = ended()
    for nth in range(3):
        world.do(stop(submission_id=f"stop-{nth}"))
        if nth < 2:
            start = StartJob(submission_id=f"start-{nth}", digest="x", job_id=JobId("app"))
            world.do(start)
    assert run_again(world) == [1]
    world.later(1).do(CollectGarbage(request_id="g"))
    world.later(1).do(EvaluateJob(submission_id="e", digest="e", job_id=JobId("app")))
    world.schedule()
    assert len(world.rows()) == 1


def test_another_text_runs_everything() -> None:
    """A stop, then another text of the tasks: nothing of the old version counts."""
    world = ended()
    world.do(stop())
    world.run(
        register("app", group(count=3, digest="d2"), job_type="batch", submission_id="2", salt=1)
    )
    assert len(world.rows()) == 3


def test_a_purged_job_runs_everything_again() -> None:
    """The documented way to run all of a job again: purge it, and run it."""
    world = ended()
    world.do(stop(purge=True))
    world.run(
        register("app", group(count=3, reschedule=NEVER), job_type="batch", submission_id="2")
    )
    assert len(world.rows()) == 3


@pytest.mark.parametrize("update", [None, UpdatePolicy(max_parallel=1)])
def test_a_service_without_attempts_comes_back(update: UpdatePolicy | None) -> None:
    """A service that failed for good runs again after stop and run, in full."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(count=2, reschedule=NEVER, update=update)))
    for row in world.rows():
        world.report("n1", (row, "running"))
        world.report("n1", (row, "failed"))
    world.do(stop())
    world.schedule()
    assert run_again(world) == [0, 1]


def test_a_sysbatch_job_runs_again_where_it_failed() -> None:
    """Of two nodes the one where it failed runs it again; where it completed it stays done."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    world.run(register("app", group(), job_type="sysbatch"))
    by_node = {int(world.state.allocations.node[row]): row for row in world.rows()}
    for node, status in (("n1", "complete"), ("n2", "failed")):
        row = by_node[world.state.fleet.row_of[node]]
        world.report(node, (row, "running"))
        world.report(node, (row, status))
    world.do(stop())
    world.schedule()
    run_again(world)
    assert world.nodes_of() == ["n2"]


@pytest.mark.parametrize(
    ("policy", "placed"), [(ONCE, 1), (ReschedulePolicy(delay_ns=0), 1), (NEVER, 0)]
)
@pytest.mark.parametrize("update", [None, UpdatePolicy(max_parallel=1)])
def test_a_changed_policy_counts_for_what_failed_before(
    policy: ReschedulePolicy, placed: int, update: UpdatePolicy | None
) -> None:
    """Another reschedule policy, the same tasks: what failed past the old one's attempts is judged by the new one."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(reschedule=NEVER, update=update)))
    (row,) = world.rows()
    world.report("n1", (row, "running"))
    world.report("n1", (row, "failed"))
    world.do(
        register(
            "app",
            group(reschedule=policy, update=update),
            submission_id="2",
            salt=1,
        )
    )
    world.schedule()
    assert len(world.rows()) == placed


@pytest.mark.parametrize("job_type", ["service", "batch"])
def test_an_evaluation_may_force_reschedules(job_type: str) -> None:
    """What failed past its attempts is replaced once an operator wants it; a plain evaluation leaves it."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(count=2, reschedule=NEVER), job_type=job_type))
    first, second = world.rows()
    world.report("n1", (first, "running"), (second, "running"))
    world.report("n1", (first, "failed"))
    for forced, placed in ((False, 1), (True, 2), (True, 2)):
        command = EvaluateJob(
            submission_id=f"e{world.state.seq}",
            digest="e",
            job_id=JobId("app"),
            force_reschedule=forced,
        )
        events = world.do(command)
        assert isinstance(events[-1], EvaluationsCreated)
        world.schedule()
        assert len(world.rows()) == placed
    (third,) = (row for row in world.rows() if row != second)
    assert world.state.allocations.previous[third] == int(world.state.allocations.key[first])
