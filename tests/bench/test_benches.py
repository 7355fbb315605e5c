"""Each benchmark at a tenth of its size: that it runs, and that what it checks of the product holds."""

import pytest

from bench import p1, p4, p5, p6, p7, p8, p9, p10, p19


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_hundred_thousand_are_placed(workers: int) -> None:
    """P1: nothing refused for capacity, counts exact, replay equal to live, whatever the number of workers."""
    found = p1.run(0.1, 1, workers=workers)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.size["placements"] == found.result["placements"] == 100_000
    assert found.fsync and found.log_bytes > 0
    assert {"bus", "plan_applier", "view", "bench"} <= set(found.cpu_s) == set(found.rss_mib)


def test_a_small_fill_has_a_slope() -> None:
    """P4: everything is placed, and the slope is a ratio of rates; 0 where one look saw too much for one."""
    found = p4.run(0.02, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert set(found.result) == {"slope"} and found.result["slope"] >= 0


def test_single_pods_are_placed() -> None:
    """P5: every pod is placed once, and the replay equals the live state."""
    found = p5.run(0.02, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.size["jobs"] == 1_000 and found.result["jobs_per_s"] > 0
    assert 0 < found.result["p50_ms"] <= found.result["p99_ms"]


def test_a_ramp_ends_with_everything_placed() -> None:
    """P7: whatever rate was too much, nothing is refused or lost and every job is placed once."""
    found = p7.run(0.05, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["jobs_per_s"] <= found.result["jobs_per_s_within_1s"]


def test_lone_jobs_are_placed() -> None:
    """P8: every lone job is placed once, and the replay equals the live state."""
    found = p8.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert 0 < found.result["p50_ms"] <= found.result["p99_ms"]


def test_the_rank_kernel_equals_greedy() -> None:
    """P10: each way of ranking is equal to scalar greedy, placement for placement."""
    found = p10.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks


def test_spread_over_zones_is_greedy_either_way() -> None:
    """P6: one by one and as one group the same rows in the same order, which are scalar greedy's."""
    found = p6.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert {"singles_per_s", "group_per_s"} <= set(found.result)


def test_nomads_matrix_is_placed() -> None:
    """P9: every cell places its count on eligible racks, evenly where it spreads."""
    found = p9.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["worst_ms"] > 0
    assert len(found.result["cells"]) == found.size["cells"]


def test_the_challenge_is_packed() -> None:
    """P19: without anti-affinity hardly more nodes are used than capacity asks for."""
    found = p19.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["nodes"] <= found.result["nodes_affinity"]
