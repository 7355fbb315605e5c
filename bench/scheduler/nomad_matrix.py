"""P9, Nomad's own matrix: one service evaluation on fleets, racks and counts of its scheduler benchmark.

Measures reconcile to plan inside this process, masks included: half of the racks are eligible by a constraint, every
allocation requests 6,000 MHz and 6,000 MiB of 14,000 and 32,000, with and without a spread over racks. The figures to
reach: 5,000 nodes, 75 racks, count 1,200 in 10 ms with spread and in 1 ms without.

Source of the shapes: Nomad scheduler/benchmarks/benchmarks_test.go.
"""

from statistics import median
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from bench.harness.in_process_state import InProcessState, count_placed
from bench.harness.outcome import InProcessOutcome
from schemas.base import NodeId
from schemas.nodes import NodeSpec
from shared.core.scheduling.model import Proposal

RUNS: Final = 5
NODES: Final = (500, 1_000, 5_000, 10_000)
RACKS: Final = (25, 50, 75)
COUNTS: Final = (50, 300, 600, 900, 1_200)
#: Of each cell in one run; a run's figure is the fastest, as of Go's own benchmarks the mean of many would be.
CALLS: Final = 3
#: The cell that the figure is about.
_NODES_OF_WORST: Final = 5_000
_CPU_MHZ, _MEMORY_MIB, _DISK_MIB = 13_900, 31_744, 98_304
_ASK: Final = 6_000


def run(size: float, runs: int) -> InProcessOutcome:
    """Measure every cell `runs` times; `size` scales nodes and counts."""
    cells: dict[str, list[float]] = {}
    checks = {"count_exact": True, "within_capacity": True, "eligible_racks_only": True}
    checks["spread_evenly"] = True
    worst: list[float] = []
    nodes_of_worst = max(int(_NODES_OF_WORST * size), 100)
    for nodes in [max(int(one * size), 100) for one in NODES]:
        for racks in RACKS:
            inside = InProcessState([_node(at, racks) for at in range(nodes)])
            for count in [max(int(one * size), 5) for one in COUNTS]:
                for spread in (False, True):
                    job_id = inside.register(_job(count, racks, spread=spread))
                    name = f"{nodes}n_{racks}r_{count}a_{'spread' if spread else 'plain'}"
                    cells[name] = [_run_ms(inside, job_id) for _ in range(runs)]
                    proposal = inside.propose(job_id)
                    _check(checks, proposal, (nodes, racks, count), spread=spread)
    for name, samples in cells.items():
        if name.startswith(f"{nodes_of_worst}n_"):
            worst.append(median(samples))
    return InProcessOutcome(
        size={"nodes": max(int(NODES[-1] * size), 100), "cells": len(cells)},
        result={
            "worst_ms": round(max(worst), 3),
            "worst_plain_ms": _worst(cells, nodes_of_worst, "plain"),
            "cells": {name: round(median(ms), 3) for name, ms in cells.items()},
        },
        result_min={"cells": {name: round(min(ms), 3) for name, ms in cells.items()}},
        result_max={"cells": {name: round(max(ms), 3) for name, ms in cells.items()}},
        checks=checks,
        runs=runs,
    )


def _worst(cells: dict[str, list[float]], nodes: int, kind: str) -> float:
    return round(
        max(
            median(ms)
            for name, ms in cells.items()
            if name.startswith(f"{nodes}n_") and name.endswith(kind)
        ),
        3,
    )


def _run_ms(inside: InProcessState, job_id: Any) -> float:
    calls = []
    for _ in range(CALLS):
        start_ns = perf_counter_ns()
        inside.propose(job_id, fresh=True)
        calls.append((perf_counter_ns() - start_ns) / 1e6)
    return min(calls)


def _node(at: int, racks: int) -> NodeSpec:
    return NodeSpec(
        node_id=NodeId(f"n{at:05d}"),
        name=f"n{at:05d}",
        datacenter=f"dc-{at % 2 + 1}",
        cpu_mhz=_CPU_MHZ,
        memory_mib=_MEMORY_MIB,
        disk_mib=_DISK_MIB,
        attributes={"driver.exec": "1", "kernel.name": "linux"},
        meta={"rack": f"r{at % racks}"},
    )


def _job(count: int, racks: int, *, spread: bool) -> dict[str, Any]:
    eligible = ",".join(f"r{one}" for one in range(racks // 2))
    return {
        "ID": f"p9-{count}-{racks}-{'spread' if spread else 'plain'}",
        "Datacenters": ["dc-1", "dc-2"],
        "Constraints": [
            {"LTarget": "${meta.rack}", "Operand": "set_contains_any", "RTarget": eligible}
        ],
        "Spreads": [{"Attribute": "${meta.rack}", "Weight": 50}] if spread else [],
        "TaskGroups": [
            {
                "Name": "web",
                "Count": count,
                "EphemeralDisk": {"SizeMB": 150},
                "Tasks": [
                    {
                        "Name": "web",
                        "Driver": "exec",
                        "Config": {"command": "/bin/date"},
                        "Resources": {"CPU": _ASK, "MemoryMB": _ASK},
                    }
                ],
            }
        ],
    }


def _check(
    checks: dict[str, bool], proposal: Proposal, cell: tuple[int, int, int], *, spread: bool
) -> None:
    """Check one plan: complete as far as there is room, nowhere too much, and even over the racks."""
    nodes, racks, count = cell
    each = _CPU_MHZ // _ASK
    rack = np.arange(nodes) % racks
    room = int((rack < racks // 2).sum()) * each
    checks["count_exact"] &= count_placed(proposal) == min(count, room)
    on_nodes = np.zeros(nodes, np.int64)
    for part in proposal.placements:
        np.add.at(on_nodes, list(part.rows), part.counts)
    checks["within_capacity"] &= bool((on_nodes <= each).all())
    checks["eligible_racks_only"] &= not on_nodes[rack >= racks // 2].any()
    if spread and count <= room:
        on_racks = np.bincount(rack, weights=on_nodes)[: racks // 2]
        full = np.bincount(rack, minlength=racks)[: racks // 2] * each
        # Racks differ by one at most, except those that are full.
        least = on_racks[on_racks < full].min(initial=on_racks.max())
        checks["spread_evenly"] &= bool(on_racks.max() - least <= 1)
