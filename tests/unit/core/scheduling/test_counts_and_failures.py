"""Counts, failed allocations and moves of service and batch jobs, after the scenarios of Nomad's reconciler."""

import pytest

from schemas.deployments import DeploymentEnded, FailDeployment
from schemas.evaluations import EvaluationsCreated, WakeEvaluations
from schemas.jobs import ReschedulePolicy, UpdatePolicy
from schemas.policy import DrainNode, StopAllocation
from tests.builders import SECOND, group, register, stop
from tests.unit.core.scheduling.rollout import A, Pass, Rollout

UNNEEDED, REPLACED = "not needed", "replaced"
STOPPED, DRAINED = "stopped by an operator", "its node is drained"
#: Failed allocations are replaced after half a minute, and not forever.
SLOW = ReschedulePolicy(delay_ns=30 * SECOND, delay_function="constant")
NEVER = ReschedulePolicy(attempts=0, unlimited=False)


def fail(world: Rollout, *rows: int) -> list[int]:
    """Have a node report failures; return the instants of the evaluations that follow."""
    table, made = world.table, []
    for row in rows:
        node = world.world.state.fleet.ids[int(table.node[row])]
        events = world.world.report(node, (row, "failed"))
        made += [event for event in events if isinstance(event, EvaluationsCreated)]
    return [one.wait_until_ns for event in made for one in event.evaluations]


def stop_rows(world: Rollout, *rows: int) -> None:
    """Have an operator stop allocations."""
    for row in rows:
        key = int(world.table.key[row])
        world.world.do(StopAllocation(request_id=f"r{row}", alloc_key=key))


def settle(world: Rollout, status: str, *rows: int) -> None:
    """Have nodes report a status."""
    for row in rows:
        node = world.world.state.fleet.ids[int(world.table.node[row])]
        world.world.report(node, (row, status))


def wake(world: Rollout) -> None:
    """Wake the evaluations that are due."""
    table = world.world.state.evaluations
    due = [k for k in table.open if 0 < table.by_key[k].wait_until_ns <= world.world.now_ns]
    world.world.do(WakeEvaluations(keys=tuple(due), reason="due"))


# ---- the job and its deployment ----


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("status", ["running", "failed"])
def test_r1_a_stopped_job_stops_everything(status: str, *, purge: bool) -> None:
    """R1: all ten stop; an active deployment is cancelled, of a failed one nothing is said."""
    world = Rollout()
    world.register("new")
    world.look()
    world.say(1, world.rows()[:9])
    if status == "failed":
        world.end("failed")
    events = world.world.do(stop("app", purge=purge))
    ended = [event for event in events if isinstance(event, DeploymentEnded)]
    wanted = [] if status == "failed" else [("cancelled", "Cancelled because job is stopped")]
    assert [(one.status, one.reason) for one in ended] == wanted
    done = world.look()
    assert done.stopped == {"job stopped": list(range(10))} and not done.placed


def test_r5_what_is_current_needs_no_deployment() -> None:
    """R5: ten of the newest version: nothing moves, and the same text begins no deployment."""
    world = Rollout()
    world.old()
    before = world.deployment
    again = register("app", group(digest="old", count=10, update=A), submission_id="again")
    world.world.do(again)
    done = world.look()
    assert done == Pass({}, [], [], []) and world.deployment == before


def test_r5_a_purged_job_that_is_registered_anew() -> None:
    """R5: what the purge stopped is on its way out, and counts for nothing; the new job has its own deployment."""
    world = Rollout()
    world.old(5)
    world.world.do(stop("app", purge=True))
    world.look()
    dying = world.table.rows_of("app").tolist()
    world.register("old", count=10)
    done = world.look()
    assert done.names == list(range(10)) and not done.stopped and not done.updated
    assert world.deployment.groups[0].desired_total == 10
    assert not set(world.rows()) & set(dying)


@pytest.mark.parametrize("count", [10, 0])
def test_r11_fewer_of_the_same(count: int) -> None:
    """R11: without another change the highest names stop; at a count of 0 all."""
    world = Rollout()
    world.old(20, update=None)
    world.register("old", count=count, update=None)
    done = world.look()
    assert done.stopped == {UNNEEDED: list(range(count, 20))} and not done.placed
    assert world.names() == list(range(count))


def test_r29_a_revert_that_is_healthy_is_over() -> None:
    """R29: the version that an automatic revert made has three of three healthy: successful, nothing stops."""
    update = UpdatePolicy(max_parallel=3, auto_revert=True)
    world = Rollout()
    world.old(3, update=update)
    world.register("bad", count=3, update=update)
    world.look()
    bad = world.rows(1)
    key = world.deployment.key
    world.world.do(FailDeployment(request_id="r1", deployment_key=key))
    assert (world.deployment.version, world.deployment.cause) == (2, "revert")
    done = world.look()
    assert done.names == [0, 1, 2] and len(world.rows(2)) == 3
    settle(world, "complete", *bad)
    world.say(1, world.rows(2))
    done = world.look()
    assert not done.stopped and not done.placed and world.deployment.status == "successful"


# ---- failures ----


def test_r32_at_once_where_the_delay_is_over() -> None:
    """R32: without a delay, and in the evaluation that waited for it, a failed one is replaced now."""
    world = Rollout()
    world.old(2, update=None, reschedule=ReschedulePolicy(delay_ns=0))
    assert fail(world, world.rows()[0]) == [0]
    assert world.look().stopped == {REPLACED: [0]}
    world = Rollout()
    world.old(2, update=None, reschedule=SLOW)
    fail(world, world.rows()[0])
    assert not world.look().placed
    world.world.later(30)
    wake(world)
    assert world.look().names == [0]


def test_r32_what_is_due_together_shares_an_evaluation() -> None:
    """R32: of failures within five seconds the evaluation that comes last counts for all; a later one gets its own."""
    world = Rollout()
    world.old(4, update=None, reschedule=SLOW)
    rows, first_ns = world.rows(), world.world.now_ns + 30 * SECOND
    assert fail(world, rows[0]) == [first_ns]
    assert fail(world, rows[1]) == [], "due at the same instant"
    world.world.later(6)
    assert fail(world, rows[2]) == [first_ns + 6 * SECOND]
    assert fail(world, rows[3]) == []
    world.world.later(24)
    wake(world)
    assert world.look().names == [0, 1]
    world.world.later(6)
    wake(world)
    assert world.look().names == [2, 3]


def test_r33_one_successor_is_enough() -> None:
    """R33: what has a successor is never replaced again, whatever becomes of that one."""
    world = Rollout()
    world.old(1, update=None, reschedule=ReschedulePolicy(delay_ns=0))
    first = world.rows()[0]
    fail(world, first)
    world.look()
    (second,) = world.rows()
    assert not world.look().placed
    fail(world, second)
    done = world.look()
    assert done.names == [0] and done.replaced == [0]
    (third,) = world.rows()
    assert int(world.table.previous[third]) == int(world.table.key[second])
    assert int(world.table.reschedules[third]) == 2


def test_r33_used_up_attempts() -> None:
    """R33: with attempts used up it is left in its place; another text replaces it past the limit."""
    world = Rollout()
    world.old(2, update=None, reschedule=NEVER)
    failed = world.rows()[0]
    assert fail(world, failed) == []
    done = world.look()
    assert not done.placed and not done.stopped
    world.register("new", count=2, update=None, reschedule=NEVER)
    done = world.look()
    assert done.names == [0, 1] and done.replaced == [0, 1]


def test_r36_fewer_while_a_deployment_waits_for_failed_ones() -> None:
    """R36: of three, two failed and their health is not known; with a count of two the third stops, they stay."""
    world = Rollout()
    world.old(3)
    first, second, _ = world.rows()
    world.register("old", count=2)
    world.fail((first, second), due=False)
    done = world.look()
    assert done.stopped == {UNNEEDED: [2]} and not done.placed


def test_r36_one_less_and_one_failed_is_enough() -> None:
    """R36: six, one of which failed and is due, and a count of five: it ends, and the others are the five."""
    world = Rollout()
    world.old(6, update=None)
    world.fail(world.rows()[3:4])
    world.register("old", count=5, update=None)
    done = world.look()
    assert done.stopped == {REPLACED: [3]} and not done.placed
    assert len(world.rows()) == 5


# ---- batch ----


def test_r35_what_ended_stays_as_it_ended() -> None:
    """R35: a batch job runs 0 to 4, 5 and 6 completed; with a count of five nothing starts and nothing stops."""
    world = Rollout(job_type="batch")
    world.old(7, update=None)
    rows = world.rows()
    settle(world, "complete", *rows[5:])
    world.register("old", count=5, update=None)
    done = world.look()
    assert not done.placed and not done.stopped and world.names() == [0, 1, 2, 3, 4]


def test_r37_a_drained_batch_allocation_is_not_replaced() -> None:
    """R37: stopped by its drain and still dying, it is evaluated again: nothing begins elsewhere."""
    world = Rollout(nodes=2, job_type="batch")
    world.old(1, update=None)
    node = world.world.nodes_of()[0]
    now_ns = world.world.now_ns
    world.world.do(DrainNode(request_id="r", node_id=node, draining=True, deadline_ns=now_ns))
    assert world.look().stopped == {DRAINED: [0]}
    done = world.look()
    assert not done.placed and not done.stopped


@pytest.mark.parametrize("delay_s", [0, 30])
def test_r37_a_batch_allocation_stopped_by_hand(delay_s: int) -> None:
    """R37: it is replaced at once; unlike in Nomad also where failures are replaced after a delay."""
    policy = ReschedulePolicy(delay_ns=delay_s * SECOND, delay_function="constant")
    world = Rollout(job_type="batch")
    world.old(1, update=None, reschedule=policy)
    stop_rows(world, world.rows()[0])
    done = world.look()
    assert done.stopped == {STOPPED: [0]} and done.names == [0]


# ---- moves ----


def test_r38_moves_and_more() -> None:
    """R38: two move while the count grows by five: both come back under their names, and five more."""
    world = Rollout()
    world.old(10, update=None)
    stop_rows(world, *world.rows()[:2])
    world.register("old", count=15, update=None)
    done = world.look()
    assert done.stopped == {STOPPED: [0, 1]}
    assert done.names == [0, 1, 10, 11, 12, 13, 14]
    assert done.replaced == [-1] * 5 + [0, 1]


def test_r38_moves_and_fewer() -> None:
    """R38: three move while the count falls to eight: one is placed again, two just stop."""
    world = Rollout()
    world.old(10, update=None)
    stop_rows(world, *world.rows()[:3])
    world.register("old", count=8, update=None)
    done = world.look()
    assert done.stopped == {STOPPED: [0, 1, 2]}
    assert done.names == [0] and done.replaced == [0]
