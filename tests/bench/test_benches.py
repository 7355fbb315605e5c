"""Each benchmark at a tenth of its size: that it runs, and that what it checks of the product holds."""

import pytest

from bench import p1, p8, p10


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_hundred_thousand_are_placed(workers: int) -> None:
    """P1: nothing refused for capacity, counts exact, replay equal to live, whatever the number of workers."""
    found = p1.run(0.1, 1, workers=workers)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.size["placements"] == found.result["placements"] == 100_000
    assert found.fsync and found.log_bytes > 0
    assert {"bus", "plan_applier", "view", "bench"} <= set(found.cpu_s) == set(found.rss_mib)


def test_lone_jobs_are_placed() -> None:
    """P8: every lone job is placed once, and the replay equals the live state."""
    found = p8.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert 0 < found.result["p50_ms"] <= found.result["p99_ms"]


def test_the_rank_kernel_equals_greedy() -> None:
    """P10: each way of ranking is equal to scalar greedy, placement for placement."""
    found = p10.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
