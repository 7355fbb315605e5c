"""What a job wants against what there is: the buckets of reconcile, through place and the applier's decision."""

from schemas.evaluations import EvaluationsCreated, WakeEvaluations
from schemas.jobs import Constraint, ReschedulePolicy
from schemas.nodes import ChangeLiveness
from schemas.plans import PlanCommitted
from tests.builders import SECOND, Cluster, group, join, register, stop


def cluster(*nodes: str) -> Cluster:
    world = Cluster()
    for name in nodes or ("n1", "n2"):
        world.do(join(name))
    return world


def committed(events: list) -> PlanCommitted:
    return next(event for event in events if isinstance(event, PlanCommitted))


def test_a_new_job_gets_its_count() -> None:
    """Every allocation of the count is placed, under names 0 to count - 1."""
    world = cluster()
    world.run(register("app", group(count=5)))
    table = world.state.allocations
    assert table.index[world.rows()].tolist() == [0, 1, 2, 3, 4]


def test_scaling_down_stops_the_highest_names() -> None:
    """What is not needed stops, highest names first."""
    world = cluster()
    world.run(register("app", group(count=5)))
    world.run(register("app", group(count=2), salt=1, submission_id="s2"))
    assert world.state.allocations.index[world.rows()].tolist() == [0, 1]


def test_the_same_digest_goes_on_in_place() -> None:
    """A new version with the same group digest updates allocations without a restart."""
    world = cluster()
    world.run(register("app", group(count=2)))
    before = world.rows()
    event = committed(world.run(register("app", group(count=2), salt=1, submission_id="s2")))
    assert [update.version for update in event.updates] == [1]
    assert world.rows() == before and not event.placements


def test_another_digest_replaces() -> None:
    """A new version with another digest stops the old allocations and places new ones under the same names."""
    world = cluster()
    world.run(register("app", group(count=2)))
    event = committed(
        world.run(register("app", group(count=2, digest="d2"), salt=1, submission_id="s2"))
    )
    assert [stop.reason for stop in event.stops] == ["job changed"]
    assert sum(event.placements[0].counts) == 2 and all(event.placements[0].previous)
    assert sorted(world.state.allocations.index[world.rows()].tolist()) == [0, 1]


def test_a_stopped_job_stops_everything_and_wants_nothing() -> None:
    """After a stop no allocation is desired to run."""
    world = cluster()
    world.run(register("app", group(count=3)))
    world.do(stop("app"))
    world.schedule()
    assert world.rows() == []


def test_a_removed_group_stops() -> None:
    """Allocations of a group that the new version lacks stop; the others stay."""
    world = cluster()
    world.run(register("app", group("a"), group("b")))
    event = committed(world.run(register("app", group("a"), salt=1, submission_id="s2")))
    assert [stop.reason for stop in event.stops] == ["group removed"]
    assert len(world.rows()) == 1


def test_what_ran_on_a_dead_node_is_lost_and_replaced() -> None:
    """A node that goes down makes an evaluation for its jobs, which marks lost and places elsewhere."""
    world = cluster()
    world.run(register("app", group(count=4, cpu_mhz=200)))
    lost_node = world.nodes_of()[0]
    events = world.do(
        ChangeLiveness(node_ids=(lost_node,), status="down", seen_seq=world.state.seq)
    )
    assert any(isinstance(event, EvaluationsCreated) for event in events)
    event = committed(world.schedule())
    assert [s.client_status for s in event.stops] == ["lost"]
    assert len(world.rows()) == 4 and lost_node not in world.nodes_of()


def test_a_stopping_allocation_on_a_dead_node_is_lost_but_not_replaced() -> None:
    """A dead node sends no reports, so the plan settles what was stopping there."""
    world = cluster("n1")
    world.run(register("app", group(count=1)))
    row = world.rows()[0]
    world.do(stop("app"))
    world.schedule()
    world.do(ChangeLiveness(node_ids=("n1",), status="down", seen_seq=world.state.seq))
    event = committed(world.schedule())
    assert event.stops[0].rows == (row,) and event.stops[0].client_status == "lost"
    assert not event.placements and not world.state.allocations.held.used.any()


def test_a_failed_one_is_replaced_when_its_time_has_come_and_elsewhere() -> None:
    """A failed allocation waits for its reschedule delay; its replacement names it and avoids its node."""
    world = cluster()
    retry = ReschedulePolicy(delay_ns=30 * SECOND, delay_function="constant")
    world.run(register("app", group(reschedule=retry)))
    row = world.rows()[0]
    failed_on = world.nodes_of()[0]
    world.report(failed_on, (row, "running"))
    created = world.report(failed_on, (row, "failed"))[-1]
    assert isinstance(created, EvaluationsCreated)
    assert created.evaluations[0].wait_until_ns == world.now_ns + 30 * SECOND
    assert not world.propose().placements
    world.later(31).do(WakeEvaluations(keys=(world.pending(),)))
    event = committed(world.schedule())
    assert event.placements[0].previous == (int(world.state.allocations.key[row]),)
    assert event.placements[0].reschedules == (1,)
    assert world.nodes_of() != [failed_on]


def test_one_that_failed_while_its_job_was_stopped_is_replaced_when_the_job_comes_back() -> None:
    """A job that returns before its stop was planned gets its whole count, what failed meanwhile included."""
    world = cluster()
    world.run(register("app", group(count=2)))
    row, name = world.rows()[0], world.nodes_of()[0]
    world.do(stop("app"))
    events = world.report(name, (row, "failed"))
    assert not [one for one in events if isinstance(one, EvaluationsCreated)]
    world.do(register("app", group(count=2), salt=1, submission_id="s2"))
    world.later(1)
    event = committed(world.schedule())
    assert sum(event.placements[0].counts) == 1
    assert len(world.rows()) == 2


def test_used_up_attempts_leave_the_failed_one_in_its_place() -> None:
    """Without attempts left nothing is placed and nothing stops, until another version comes."""
    world = cluster()
    never = ReschedulePolicy(unlimited=False, attempts=0)
    world.run(register("app", group(reschedule=never)))
    row, name = world.rows()[0], world.nodes_of()[0]
    world.report(name, (row, "failed"))
    world.do(register("app", group(count=2, reschedule=never), salt=1, submission_id="s2"))
    event = committed(world.schedule())
    assert sum(event.placements[0].counts) == 1
    world.run(register("app", group(count=2, digest="d2"), salt=2, submission_id="s3"))
    assert len(world.rows()) == 2


def test_a_finished_batch_allocation_is_never_replaced() -> None:
    """Complete counts as done for a batch job, and a new version runs again."""
    world = cluster()
    job = register("app", group(count=2), job_type="batch")
    world.run(job)
    rows = world.rows()
    for row, name in zip(
        rows, [world.state.fleet.ids[n] for n in world.state.allocations.node[rows]], strict=True
    ):
        world.report(name, (row, "complete"))
    world.do(register("app", group(count=3), job_type="batch", salt=0, submission_id="again"))
    proposal = world.propose()
    assert sum(sum(p.counts) for p in proposal.placements) == 3


def test_a_finished_service_allocation_is_replaced_at_once() -> None:
    """A service that ended by itself is missing: an evaluation places it anew."""
    world = cluster()
    world.run(register("app", group(count=1)))
    row, name = world.rows()[0], world.nodes_of()[0]
    world.report(name, (row, "complete"))
    world.schedule()
    assert len(world.rows()) == 1 and world.rows() != [row]


def test_what_finds_no_room_blocks_and_says_why() -> None:
    """The rest of a count becomes one blocked evaluation with its class and reasons."""
    world = cluster("n1")
    world.run(register("app", group(count=3, cpu_mhz=400)))
    key = world.state.evaluations.blocked_of["app"]
    blocked = world.state.evaluations.by_key[key].blocked
    assert blocked is not None and blocked.classes == (0,)
    waiting = blocked.waiting["web"]
    assert (waiting.count, waiting.wait_class) == (1, "capacity")
    assert waiting.reasons == ("cpu exhausted on 1 of 1 nodes",)


def test_too_large_and_infeasible_are_told_apart() -> None:
    """An ask above every node never fits; a constraint that no node meets is misconfigured."""
    world = cluster("n1")
    world.run(register("big", group(cpu_mhz=5000)))
    world.run(register("odd", group(drivers=("docker",))))
    table = world.state.evaluations
    classes = [
        table.by_key[table.blocked_of[name]].blocked.waiting["web"].wait_class
        for name in ("big", "odd")
    ]
    assert classes == ["never_fits", "misconfigured"]


def test_a_constraint_on_one_node_is_woken_by_any_class() -> None:
    """A computed class leaves out what is unique, so a job that asks for it waits for every class."""
    world = cluster("n1")
    only = Constraint(left="${node.unique.name}", right="n7")
    world.run(register("app", group(constraints=(only,))))
    blocked = world.state.evaluations.by_key[world.state.evaluations.blocked_of["app"]].blocked
    assert blocked is not None and blocked.seen_classes == 0
