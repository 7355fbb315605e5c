"""Trails: keys that are kept along a trail are those that are made anew, whatever plans come, go and are given up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import GroupSpec
from shared.core.resources.held import HeldResources
from shared.core.scheduling.scoring.score_cache import ScoreCache
from shared.core.scheduling.selection.candidates import Demand, Placement
from shared.core.scheduling.usage.dirty_rows import DirtyRows
from shared.core.scheduling.usage.tentative_usage import TentativeUsage
from tests.examples import examples

pytestmark = pytest.mark.property

NODES = 40
ASKS = ((10, 20, 1), (300, 40, 5))
CAPACITY = np.asfortranarray(np.tile(np.array((1_000, 800, 600)), (NODES, 1)))
GROUPS = tuple(
    GroupSpec(name="g", count=1, cpu_mhz=cpu, memory_mib=memory, disk_mib=disk)
    for cpu, memory, disk in ASKS
)
RUNS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(1, 3)), min_size=1, max_size=5)
#: what one plan does, want after want: which group, where to, and whether the plan is kept in the end.
PLANS = st.tuples(st.lists(st.tuples(st.integers(0, 1), RUNS), max_size=3), st.booleans())
#: plans on one sum of what is held; then another sum is made.
STEPS = st.lists(st.lists(PLANS, max_size=4), max_size=4)


def _placed(runs: list[tuple[int, int]]) -> Placement:
    rows, counts = (np.array(column, np.int32) for column in zip(*runs, strict=True))
    return Placement(rows, counts, int(counts.sum()))


def _check(ranked: ScoreCache, used: np.ndarray, trail: DirtyRows | None) -> None:
    for ask in ASKS:
        demand = Demand(ask, 1, "binpack", anti_affinity=True)
        kept = ranked.keys(demand, CAPACITY, used, trail)
        assert (kept == ScoreCache().keys(demand, CAPACITY, used)).all()


@examples(150)
@given(steps=STEPS, every=st.integers(1, 3))
def test_kept_keys_are_those_made_anew(steps: list[list[PLANS]], every: int) -> None:
    """Sum after sum, plan after plan: what is looked at in the middle of a plan, or not at all, never shows later."""
    ranked, base, looks = ScoreCache(), HeldResources(np.zeros((NODES, 3), np.int64)), 0
    for plans in steps:
        base, trail = base.copy(NODES), DirtyRows()
        for wants, is_kept in plans:
            trial = TentativeUsage(base, trail, NODES)
            for ref, runs in wants:
                looks += 1
                if looks % every == 0:
                    _check(ranked, trial.seen().columns(NODES), trial.dirty_rows)
                trial.put(GROUPS[ref], _placed(runs))
            if is_kept:
                for ref, runs in wants:
                    placed = _placed(runs)
                    base.add_counts(placed.rows, placed.counts, np.array(ASKS[ref]))
                    trail.note_all(placed.rows.tolist())
        _check(ranked, base.columns(NODES), trail)


def test_a_plan_that_nobody_looks_behind_copies_nothing() -> None:
    """What is held is the same object until a placement is looked behind, and is never written to."""
    base, trail = HeldResources(np.zeros((NODES, 3), np.int64)), DirtyRows()
    trial = TentativeUsage(base, trail, NODES)
    assert trial.seen() is base
    trial.put(GROUPS[0], _placed([(1, 2)]))
    assert not base.used.any()
    behind = trial.seen()
    assert behind is not base
    assert behind.used[1].tolist() == [20, 40, 2]
    assert not base.used.any() and not len(trail)
