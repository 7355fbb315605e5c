"""Every benchmark that no other test here runs, as its command at a small part of its size: checks and keys hold.

A benchmark that is added is found by itself. What is asserted is what CONTRACTS says of its output, never a timing.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.catalog import BENCHMARKS
from bench.report.build import RESULTS, ROOT, SEPARATE_PAGE
from tests.bounds import LONG_S

#: Parts of the size that take a few seconds.
SIZE = 0.02
#: Minutes at any size, or many clusters: only in `just full`. What they check of the product has tests of its own.
SLOW = frozenset({"memory", "moments", "overload", "p13", "p17"})
SIZES = {"p3": 0.01, "p15": 0.05, "archive": 0.05}
KEYS = (
    *("name", "size", "result", "result_min", "result_max", "checks", "cpu_s", "rss_mib"),
    *("log_bytes", "machine", "measured", "load_before", "versions", "fsync", "replicas", "runs"),
)
_PLACED = "placements t_first_s t50_s t99_s t_all_s rate_per_s"
#: What `result` holds at least.
RESULT = {
    "p1": _PLACED,
    "p2": f"{_PLACED} running_t99_s running_t_all_s",
    "p3": _PLACED,
    "p4": "slope",
    "p5": "jobs_per_s p50_ms p99_ms",
    "p6": "singles_per_s group_per_s",
    "p7": "jobs_per_s p50_ms p99_ms",
    "p8": "p50_ms p99_ms",
    "p9": "worst_ms cells",
    "p10": "binpack_us binpack_affinity_us spread_us equal_to_reference",
    "p11": "tasks_per_s",
    "p12": "placements_per_s single_events_per_s ready_s",
    "p13": "recover_s lost doubled",
    "p14": "events_per_s placements_per_s",
    "p15": "nodes cores detect_p50_s detect_p99_s false_positives",
    "p16": "one_node_s fifty_nodes_s",
    "p17": "workers",
    "p18": "log_bytes_per_alloc rss_bytes_per_alloc",
    "p19": "nodes nodes_affinity",
    "p20": "wall_s log_span_s decisions divergent",
    "p21": "variant policy at_100_pct at_130_pct run_s fgd_at_100_pct fgd_at_130_pct per_seed",
    "p22": "workloads",
    "p23": "over_ideal update_s ideal_s healthy_min plans placed_to_healthy_p50_s",
    "p24": "p50_ms p99_ms max_ms burst_p50_ms burst_p99_ms",
    "p25": "dispatches_per_s p50_ms p99_ms children",
    "p27": "reads_per_s reads_per_cpu_s blocked_cpu_pct viewers_cpu_pct",
    "p27-page": "first_picture_ms frame_p95_ms to_pixel_p95_ms moment_ms",
    "p28": "start_p50_ms start_p99_ms change_s change_own_s checks_cpu_pct",
    "archive": "events_per_s allocations_at_ms usage_at_ms",
}


def run_elsewhere() -> set[str]:
    """Name the benchmarks that other files of this folder run."""
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            found |= set(re.findall(r"\b(\w+)\.run\(", path.read_text(encoding="utf-8")))
    return found


LEFT = [
    pytest.param(name, marks=pytest.mark.full("minutes at any size") if name in SLOW else ())
    for name, module in BENCHMARKS.items()
    if name not in SEPARATE_PAGE and module.rpartition(".")[2] not in run_elsewhere()
]


def holds_contract(name: str, told: dict[str, Any]) -> None:
    """Every key is there, everything was checked and held, and there are figures."""
    assert tuple(told) == KEYS
    assert told["name"] == name
    assert told["checks"] and all(told["checks"].values()), told["checks"]
    assert set(RESULT.get(name, "").split()) <= set(told["result"])
    assert told["result"] and told["runs"] >= 1
    assert told["fsync"] or not told["replicas"]


@pytest.mark.timeout(4 * LONG_S)
@pytest.mark.parametrize("name", LEFT)
def test_a_small_part_of_it_holds(name: str) -> None:
    """The command ends well, stdout is the one object and nothing else, and all that it checked held."""
    part = str(SIZES.get(name, SIZE))
    command = [sys.executable, "-m", "services.cli", "bench", name, "--json"]
    done = subprocess.run(
        [*command, "--size", part, "--runs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    holds_contract(name, json.loads(done.stdout))


@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n not in SEPARATE_PAGE])
def test_a_published_result_holds_the_contract(name: str) -> None:
    """A result that stands in bench/results is one that the page may show; none is there by another name."""
    path = RESULTS / f"{name}.json"
    if path.exists():
        holds_contract(name, json.loads(path.read_bytes()))
    assert not list(RESULTS.glob(f"{name}.*.json"))
