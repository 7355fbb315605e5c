"""Each benchmark at a tenth of its size: that it runs, and that what it checks of the product holds."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from bench.harness import runner
from bench.harness.outcome import BenchOutcome, BenchRun, repeat_runs
from bench.latency import idle_latency, latency_under_rate
from bench.packing import packed_nodes
from bench.scheduler import nomad_matrix, rank_kernel, zone_spread
from bench.throughput import fill_slope, million_placements, single_pods
from services.cli.runtime.output import CommandOutput


def prints_on_stdout(size: float, runs: int) -> BenchOutcome:
    """A benchmark that prints as log lines do, itself and by a process that it starts."""
    print("a line of the benchmark")
    subprocess.run(["/bin/echo", "a line of a process"], check=True)
    figures = {"one": 1.0}
    return BenchOutcome(
        size={"n": int(size)},
        result=dict(figures),
        result_min=figures,
        result_max=figures,
        checks={"ran": True},
        runs=runs,
    )


def test_json_is_alone_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a benchmark prints goes to stderr; the slow ones are guarded by this alone."""
    monkeypatch.setattr(runner, "import_module", lambda _: SimpleNamespace(run=prints_on_stdout))
    code = runner.bench(
        CommandOutput(is_json=True),
        name="p13",
        runs=1,
        size="1",
        workers=0,
        data="",
        variant="",
        policy="",
    )
    assert code == 0
    said = capfd.readouterr()
    (line,) = said.out.splitlines()
    assert json.loads(line)["name"] == "p13"
    assert "a line of the benchmark" in said.err and "a line of a process" in said.err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_sees_that_a_run_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    """Each run has a line when it has ended; on a terminal also one before, the second with the time left."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    one = BenchRun(
        result={"n": 1.0}, checks={"ran": True}, cpu_s={}, rss_mib={}, log_bytes=0, fsync=True
    )
    assert repeat_runs(lambda: one, 2, {}).runs == 2
    begins = ["run 1 of 2 begins", "run 2 of 2 begins, about 0 s left"]
    ends = ["run 1 of 2: n 1", "run 2 of 2: n 1"]
    lines = capsys.readouterr().err.splitlines()
    assert lines == ([begins[0], ends[0], begins[1], ends[1]] if is_terminal else ends)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_hundred_thousand_are_placed(workers: int) -> None:
    """P1: nothing refused for capacity, counts exact, replay equal to live, whatever the number of workers."""
    found = million_placements.run(0.1, 1, workers=workers)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.size["placements"] == found.result["placements"] == 100_000
    assert found.fsync and found.log_bytes > 0
    assert {"bus", "plan_applier", "view", "bench"} <= set(found.cpu_s) == set(found.rss_mib)


def test_a_small_fill_has_a_slope() -> None:
    """P4: everything is placed, and the slope is a ratio of rates; 0 where one look saw too much for one."""
    found = fill_slope.run(0.02, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert set(found.result) == {"slope"} and found.result["slope"] >= 0


def test_single_pods_are_placed() -> None:
    """P5: every pod is placed once, and the replay equals the live state."""
    found = single_pods.run(0.02, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.size["jobs"] == 1_000 and found.result["jobs_per_s"] > 0
    assert 0 < found.result["p50_ms"] <= found.result["p99_ms"]


def test_a_ramp_ends_with_everything_placed() -> None:
    """P7: whatever rate was too much, nothing is refused or lost and every job is placed once."""
    found = latency_under_rate.run(0.05, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["jobs_per_s"] <= found.result["jobs_per_s_within_1s"]


def test_lone_jobs_are_placed() -> None:
    """P8: every lone job is placed once, and the replay equals the live state."""
    found = idle_latency.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert 0 < found.result["p50_ms"] <= found.result["p99_ms"]


def test_the_rank_kernel_equals_greedy() -> None:
    """P10: each way of ranking is equal to scalar greedy, placement for placement."""
    found = rank_kernel.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks


def test_spread_over_zones_is_greedy_either_way() -> None:
    """P6: one by one and as one group the same rows in the same order, which are scalar greedy's."""
    found = zone_spread.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert {"singles_per_s", "group_per_s"} <= set(found.result)


def test_nomads_matrix_is_placed() -> None:
    """P9: every cell places its count on eligible racks, evenly where it spreads."""
    found = nomad_matrix.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["worst_ms"] > 0
    assert len(found.result["cells"]) == found.size["cells"]


def test_the_challenge_is_packed() -> None:
    """P19: without anti-affinity hardly more nodes are used than capacity asks for."""
    found = packed_nodes.run(0.1, 1)
    assert found.checks and all(found.checks.values()), found.checks
    assert found.result["nodes"] <= found.result["nodes_affinity"]
