"""What P17 counts as wasted, and what the overload benchmark holds: the sums behind their figures."""

import math
from pathlib import Path

import numpy as np
import pytest

from bench.harness.queue_bounds import QUEUE_BOUNDS, ClusterSize, quantile_of
from bench.throughput.worker_scaling import _PlanOutcomes
from schemas.base import EvalKey, JobId
from schemas.plans import GroupPlacement, Origin, PlanCommitted, PlanRefused

MS = 1_000_000
METRICS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def origin(number: int, **more: int) -> Origin:
    return Origin(worker="w", number=number, snapshot_seq=1, **more)


def placed(count: int) -> tuple[GroupPlacement, ...]:
    if not count:
        return ()
    return (GroupPlacement(group="g", version=0, rows=(0,), counts=(count,)),)


def committed(number: int, count: int, cut: int) -> PlanCommitted:
    return PlanCommitted(
        key=EvalKey(1),
        job_id=JobId("j"),
        origin=origin(number),
        placements=placed(count),
        cut=placed(cut),
    )


def refused(number: int, **more: int) -> PlanRefused:
    return PlanRefused(
        key=EvalKey(1), job_id=JobId("j"), origin=origin(number, **more), code="stale", reason="old"
    )


def test_wasted_is_the_time_of_what_the_log_did_not_take() -> None:
    """A refused plan wastes all that is left of its parts, a cut one its cut share, one that held nothing."""
    outcomes = _PlanOutcomes({"w": np.array([10, 20, 40, 80]) * MS})
    for event in (committed(1, 5, 0), committed(2, 3, 1), refused(3), refused(4, part=1, parts=4)):
        outcomes.look(event)
    assert (outcomes.plans, outcomes.conflicts) == (4, 3)
    assert dict(outcomes.causes) == {"cut": 1, "stale": 2}
    assert outcomes.wasted_s == pytest.approx((20 / 4 + 40 + 80 * 3 / 4) / 1e3)
    assert outcomes.is_timed


def test_a_plan_that_nobody_timed_is_told() -> None:
    """A figure of wasted time with plans left out would be none."""
    outcomes = _PlanOutcomes({"w": np.array([MS])})
    outcomes.look(committed(2, 1, 0))
    assert not outcomes.is_timed


def test_each_queue_is_one_that_operators_can_see() -> None:
    """Every gauge that is held stands in docs/metrics.md; no queue has two names, and each a bound or the log's."""
    gauges = {one.partition("{")[0] for queue in QUEUE_BOUNDS if queue.role for one in queue.gauges}
    assert {gauge for gauge in gauges if f"`{gauge}`" not in METRICS} == set()
    assert len({queue.key for queue in QUEUE_BOUNDS}) == len(QUEUE_BOUNDS)
    cluster = ClusterSize(nodes=10, jobs=20, stops=0, workers=1)
    unbounded = [one.name for one in QUEUE_BOUNDS if one.bound is None]
    assert set(unbounded) == {"log_lag"}
    assert all(one.bound is None or one.bound(cluster) > 0 for one in QUEUE_BOUNDS)


def test_a_quantile_is_of_what_was_counted_in_between() -> None:
    """Of two looks at a histogram only the growth counts; the bound that holds the part is the figure."""
    before = {0.1: 50.0, 1.0: 50.0, math.inf: 50.0}
    after = {0.1: 60.0, 1.0: 149.0, math.inf: 150.0}
    assert quantile_of(before, after, 0.99) == 1.0
    assert quantile_of(before, after, 0.05) == 0.1
    assert quantile_of(before, after, 1.0) == math.inf
