"""Verification: the fences, partial commits and rows of plans."""

import msgspec
import pytest

from schemas.evaluations import EndEvaluations, EvaluationEnded, EvaluationsCreated
from schemas.nodes import CapacityFreed, ChangeLiveness
from schemas.plans import Origin, PlanCommitted, PlanRefused, Stops
from tests.builders import Cluster, group, join, placement, register, stop


@pytest.fixture
def world() -> Cluster:
    """Two nodes with room for ten allocations each, and a job of three that waits."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    world.do(register("app", group(count=3)))
    return world


def refusal(events: list) -> str:
    # What was asked for and never got may be what others were blocked by.
    assert [type(event) for event in events] in ([PlanRefused], [PlanRefused, CapacityFreed]), (
        events
    )
    return events[0].code


def test_a_plan_that_fits_ends_its_evaluation_in_the_same_transaction(world: Cluster) -> None:
    """Placements and the end of the evaluation are one transaction."""
    key = world.pending()
    events = world.schedule()
    assert [type(event) for event in events] == [PlanCommitted, EvaluationEnded]
    assert world.state.evaluations.by_key[key].status == "complete"


def test_the_same_plan_twice_changes_nothing(world: Cluster) -> None:
    """A resend of a plan that the log shows is no event at all."""
    plan = world.plan()
    world.do(plan)
    assert world.do(plan) == []


def test_a_later_number_waits_for_the_resend(world: Cluster) -> None:
    """A worker's plans are taken in the order of their numbers."""
    first = world.plan()
    second = msgspec.structs.replace(
        first, origin=msgspec.structs.replace(first.origin, number=first.origin.number + 1)
    )
    assert world.do(second) == []
    assert world.do(first) != []
    assert refusal(world.do(second)) == "evaluation_ended"


def test_a_plan_older_than_the_job_is_stale(world: Cluster) -> None:
    """The job fence refuses whole what was planned before the job changed."""
    plan = world.plan()
    world.do(register("app", group(count=1), salt=1, submission_id="s2"))
    assert refusal(world.do(plan)) == "stale"
    assert world.rows() == []


def test_two_workers_cannot_place_a_job_twice(world: Cluster) -> None:
    """A second worker with the same evaluation finds it ended."""
    one, two = world.plan(worker="w1"), world.plan(worker="w2")
    world.do(one)
    assert refusal(world.do(two)) == "evaluation_ended"
    assert len(world.rows()) == 3


def test_a_stop_while_the_evaluation_is_leased_wins(world: Cluster) -> None:
    """A plan made before the stop is refused; nothing runs of a stopped job."""
    plan = world.plan()
    world.do(stop("app"))
    assert refusal(world.do(plan)) == "stale"


def test_what_does_not_fit_any_more_is_cut_and_planned_again(world: Cluster) -> None:
    """A plan is cut per node; the evaluation stays pending and needs a newer snapshot."""
    plan = world.plan(placements=(placement((0, 1), (2, 1)),))
    world.do(register("other", group(cpu_mhz=900)))
    world.do(world.plan("other", worker="w2", placements=(placement((0,), (1,)),)))
    events = world.do(plan)
    assert [type(event) for event in events] == [PlanCommitted, CapacityFreed]
    committed = events[0]
    assert [sum(p.counts) for p in committed.placements] == [2]
    assert [(p.rows, p.counts, p.names) for p in committed.cut] == [((0,), (1,), (1, 1))]
    evaluation = world.state.evaluations.by_key[plan.key]
    assert (evaluation.status, evaluation.min_seq) == ("pending", world.state.seq)
    world.schedule()
    assert len(world.rows()) == 3


def test_all_at_once_is_refused_where_it_would_be_cut(world: Cluster) -> None:
    """With all_at_once a plan commits whole or not at all."""
    plan = world.plan(placements=(placement((0,), (11,)),), all_at_once=True)
    assert refusal(world.do(plan)) == "capacity"


def test_nodes_that_went_down_take_nothing(world: Cluster) -> None:
    """Placements on a node that is not ready any more are cut."""
    plan = world.plan(placements=(placement((0,), (3,)),))
    world.do(ChangeLiveness(node_ids=("n1",), status="down", seen_seq=world.state.seq))
    events = world.do(plan)
    assert events[0].placements == () and sum(events[0].cut[0].counts) == 3


@pytest.mark.parametrize(
    ("rows", "counts", "code"),
    [
        ((7,), (1,), "unknown_row"),
        ((-1,), (1,), "unknown_row"),
        ((0,), (0,), "invalid"),
        ((0, 1), (1,), "invalid"),
    ],
)
def test_rows_that_mean_no_node_are_refused(
    world: Cluster, rows: tuple[int, ...], counts: tuple[int, ...], code: str
) -> None:
    """A plan with inconsistent columns is refused whole."""
    plan = world.plan(placements=(placement(rows, counts, names=(0, max(sum(counts), 1))),))
    assert refusal(world.do(plan)) == code


def test_stopping_another_jobs_row_is_refused(world: Cluster) -> None:
    """A plan may only stop rows of its own job, so a freed and reused row is safe."""
    world.schedule()
    world.do(register("other"))
    plan = world.plan("other", placements=(), stops=(Stops(rows=(world.rows()[0],), reason="?"),))
    assert refusal(world.do(plan)) == "unknown_row"
    assert len(world.rows()) == 3


def test_a_node_that_is_up_loses_nothing(world: Cluster) -> None:
    """Only what ran on a node that is down may be declared lost."""
    world.schedule()
    world.do(register("app", group(count=2), salt=1, submission_id="s2"))
    stops = (Stops(rows=(world.rows()[0],), reason="?", client_status="lost"),)
    assert refusal(world.do(world.plan(placements=(), stops=stops))) == "stale"


def test_an_old_job_version_is_refused(world: Cluster) -> None:
    """Placements name the version they run; another than the job's is refused."""
    plan = world.plan(placements=(placement((0,), (1,), version=4),))
    assert refusal(world.do(plan)) == "stale"


def test_parts_of_one_plan_are_fenced_as_one(world: Cluster) -> None:
    """Later parts compare with the fence from before the first; the evaluation ends with the last."""
    base = world.plan(placements=(placement((0,), (2,)),))
    part = msgspec.structs.replace
    first = part(base, origin=part(base.origin, part=0, parts=2), end="")
    second = part(
        base,
        origin=part(base.origin, part=1, parts=2),
        placements=(placement((1,), (1,), names=(2, 1)),),
    )
    assert world.do(second) == []
    assert [type(e) for e in world.do(first)] == [PlanCommitted]
    assert [type(e) for e in world.do(second)] == [PlanCommitted, EvaluationEnded]
    assert len(world.rows()) == 3


def test_another_change_between_parts_refuses_the_rest(world: Cluster) -> None:
    """A submission between two parts makes the later ones stale."""
    base = world.plan(placements=(placement((0,), (2,)),))
    part = msgspec.structs.replace
    world.do(part(base, origin=part(base.origin, part=0, parts=2), end=""))
    world.do(register("app", group(count=1), salt=1, submission_id="s2"))
    second = part(base, origin=part(base.origin, part=1, parts=2))
    assert refusal(world.do(second)) == "stale"


def test_a_refused_number_has_no_further_parts(world: Cluster) -> None:
    """After a refusal the log waits for the next number."""
    plan = world.plan()
    world.do(EndEvaluations(keys=(plan.key,), status="canceled"))
    world.do(plan)
    origin = plan.origin
    later = Origin(
        worker=origin.worker,
        number=origin.number,
        part=1,
        parts=2,
        snapshot_seq=origin.snapshot_seq,
    )
    assert world.do(msgspec.structs.replace(plan, origin=later)) == []


def test_a_new_blocked_evaluation_replaces_the_old_one() -> None:
    """One blocked evaluation a job at most; the older one is canceled."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("app", group(count=11)))
    old = world.state.evaluations.blocked_of["app"]
    world.do(register("app", group(count=12), salt=1, submission_id="s2"))
    events = world.schedule()
    assert any(isinstance(e, EvaluationsCreated) for e in events)
    assert world.state.evaluations.by_key[old].status == "canceled"
    assert world.state.evaluations.blocked_of["app"] != old
