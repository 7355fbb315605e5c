"""The overlay: what a worker's own plans hold until the log shows them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.base import EvalKey, JobId
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from services.scheduler.overlay import Overlay
from shared.core.resources.asks import UnsoundColumnsError
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from tests.builders import Cluster, group, join, register
from tests.unit.core.state.written_log import WrittenLog

ASK = np.array((100, 64, 0))
JOB = JobId("a")


def world(nodes: int = 4) -> tuple[WrittenLog, Replica]:
    """A fleet and a job whose group asks for ASK."""
    log, replica = WrittenLog(), Replica()
    log.nodes(nodes)
    log.jobs("a", cpu_mhz=int(ASK[0]))
    for record in log.records:
        replica.apply(record)
    return log, replica


def on(*runs: tuple[int, int]) -> tuple[GroupPlacement, ...]:
    """A placement of group `g`: (row, count) each."""
    rows, counts = zip(*runs, strict=True)
    return (GroupPlacement(group="g", version=0, rows=rows, counts=counts, names=(0, sum(counts))),)


def used(overlay: Overlay, state: State) -> NDArray[np.int64]:
    """The three columns that an overlay gives."""
    return overlay.held(state).columns(state.fleet.size)


def test_a_proposal_holds_its_asks() -> None:
    """Each proposed allocation holds its group's ask on its row; a row that appears twice holds both."""
    _, replica = world()
    overlay = Overlay()
    overlay.add(replica.state, JOB, on((1, 2), (3, 1), (1, 1)), number=1, part=0)
    expected = np.zeros((4, 3), dtype=np.int64)
    expected[1], expected[3] = 3 * ASK, ASK
    assert (used(overlay, replica.state) == expected).all()
    assert overlay.allocations == 4


def test_without_plans_nothing_is_copied() -> None:
    """While no plan is outstanding, the replayed use itself is given, not a copy."""
    _, replica = world()
    overlay = Overlay()
    assert overlay.held(replica.state) is replica.state.allocations.held
    overlay.add(replica.state, JOB, on((0, 1)), number=1, part=0)
    overlay.settle(1, 0)
    assert overlay.held(replica.state) is replica.state.allocations.held


def test_what_the_log_shows_is_counted_once() -> None:
    """A plan moves from the overlay to the replayed use; the sum stays what it was."""
    log, replica = world()
    overlay = Overlay()
    placements = on((1, 2))
    overlay.add(replica.state, JOB, placements, number=1, part=0)
    overlay.add(replica.state, JOB, on((2, 1)), number=2, part=0)
    before = used(overlay, replica.state).copy()
    origin = Origin(worker="w", number=1, snapshot_seq=1)
    plan = PlanCommitted(key=EvalKey(1), job_id=JOB, origin=origin, placements=placements)
    replica.apply(log.tx(plan))
    overlay.settle(1, 0)
    assert (used(overlay, replica.state) == before).all()
    assert overlay.allocations == 1


def test_a_refused_part_frees_only_itself() -> None:
    """Parts of a plan are held and let go one by one; one that is unknown changes nothing."""
    _, replica = world()
    overlay = Overlay()
    overlay.add(replica.state, JOB, on((0, 1)), number=1, part=0)
    overlay.add(replica.state, JOB, on((0, 2)), number=1, part=1)
    overlay.settle(1, 0)
    overlay.settle(1, 0)
    overlay.settle(9, 0)
    assert (used(overlay, replica.state)[0] == 2 * ASK).all()


def test_a_foreign_plan_is_seen_beside_our_own() -> None:
    """When the state moves on, the sum moves with it, and so it does with the fleet's size."""
    log, replica = world()
    overlay = Overlay()
    overlay.add(replica.state, JOB, on((0, 1)), number=1, part=0)
    assert used(overlay, replica.state)[0, 0] == ASK[0]
    origin = Origin(worker="other", number=1, snapshot_seq=1)
    plan = PlanCommitted(key=EvalKey(1), job_id=JOB, origin=origin, placements=on((0, 4)))
    replica.apply(log.tx(plan))
    assert used(overlay, replica.state)[0, 0] == 5 * ASK[0]
    replica.apply(log.nodes(40))
    found = used(overlay, replica.state)
    assert len(found) == replica.state.fleet.size
    assert found[0, 0] == 5 * ASK[0]


def test_a_sum_follows_what_is_proposed_after_it() -> None:
    """Plans proposed on one state see each other, though the sum is made once."""
    _, replica = world()
    overlay = Overlay()
    overlay.add(replica.state, JOB, on((0, 1)), number=1, part=0)
    first = overlay.held(replica.state)
    overlay.add(replica.state, JOB, on((1, 1)), number=2, part=0)
    second = overlay.held(replica.state)
    assert second is first
    assert (second.used[:2] == ASK).all()


def test_a_row_that_is_no_node_leaves_nothing_behind() -> None:
    """A proposal for a row outside the fleet is a bug that shows at once, and holds nothing."""
    _, replica = world()
    overlay = Overlay()
    with pytest.raises(AssertionError):
        overlay.add(replica.state, JOB, on((0, 1), (99, 1)), number=1, part=0)
    assert not len(overlay)
    assert not used(overlay, replica.state).any()


def test_the_trail_names_where_the_sum_changed() -> None:
    """Every row that a proposal changes is on the sum's trail; another sum begins another one."""
    log, replica = world()
    overlay = Overlay()
    overlay.held(replica.state)
    assert overlay.dirty_rows is None
    overlay.add(replica.state, JOB, on((0, 1)), number=1, part=0)
    before, trail = used(overlay, replica.state).copy(), overlay.dirty_rows
    assert trail is not None and not trail.rows
    overlay.add(replica.state, JOB, on((2, 3)), number=2, part=0)
    overlay.add(replica.state, JOB, on((1, 1), (2, 1)), number=3, part=0)
    changed = (used(overlay, replica.state) != before).any(axis=1)
    assert overlay.dirty_rows is trail
    assert set(np.flatnonzero(changed).tolist()) == set(trail.rows) == {1, 2}
    replica.apply(log.nodes(1))
    assert used(overlay, replica.state)[2, 0] == 4 * ASK[0]
    assert overlay.dirty_rows is not trail


@pytest.mark.parametrize("runs", [((1, 1),), ((1, 1), (2, 1))])
def test_a_proposal_that_is_not_sound_leaves_nothing_behind(
    runs: tuple[tuple[int, int], ...],
) -> None:
    """What fails half-way is held nowhere, and is no part of the next plan under the same number."""
    world = Cluster()
    for nth in range(4):
        world.do(join(f"n{nth}"))
    world.do(register("ports", group("g", dynamic_ports=1)), register("a", group("g")))
    overlay, state = Overlay(), world.state
    overlay.add(state, JOB, on((0, 1)), number=1, part=0)
    before = used(overlay, state).copy()
    with pytest.raises(UnsoundColumnsError):
        overlay.add(state, JobId("ports"), on(*runs), number=2, part=0)
    overlay.settle(2, 0)
    assert (used(overlay, state) == before).all() and len(overlay) == 1
    overlay.add(state, JOB, on((1, 1), (2, 1)) if len(runs) == 1 else on((3, 1)), number=2, part=0)
    overlay.settle(2, 0)
    overlay.add(state, JOB, on((3, 1)), number=3, part=0)
    overlay.settle(3, 0)
    assert (used(overlay, state) == before).all()
