"""Checks of the benchmarks of faults: lost and doubled allocations, and when nodes were detected down.

Lost and doubled compare the allocations of a job that should run and have not ended with the count of the job. Next:
`heartbeat_process.py`, `log_observer.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.harness.log_observer import LogObserver
from bench.harness.outcome import BenchOutcome
from schemas.base import JobId, NodeId
from schemas.nodes import NodeSpec
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.fleet import DOWN


class AllocationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences from the requested counts."""

    lost: int
    doubled: int

    @property
    def exact(self) -> bool:
        """Whether there are none."""
        return not (self.lost or self.doubled)


def count(observer: LogObserver, wanted: Mapping[str, int]) -> AllocationCounts:
    """Compare the allocations that should run and have not ended with `wanted`, allocations by job."""
    table = observer.state.allocations
    lost = doubled = 0
    for name, want in wanted.items():
        rows = table.rows_of(JobId(name))
        held = int(np.count_nonzero((table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]))
        lost += max(0, want - held)
        doubled += max(0, held - want)
    return AllocationCounts(lost=lost, doubled=doubled)


def down_rows(observer: LogObserver) -> set[int]:
    """Rows of nodes that are down now."""
    fleet = observer.state.fleet
    return set(np.flatnonzero(fleet.status[: fleet.size] == DOWN).tolist())


async def await_down(
    observer: LogObserver, rows: NDArray[np.int64], within_s: float = 30.0
) -> dict[int, float]:
    """When each row was seen down (time.perf_counter); rows that are not down in time are left out."""
    found: dict[int, float] = {}
    deadline = time.perf_counter() + within_s
    while len(found) < len(rows) and (left := deadline - time.perf_counter()) > 0:
        observer.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(observer.changed.wait(), min(left, 1.0))
        now = time.perf_counter()
        for row in rows[observer.state.fleet.status[rows] == DOWN].tolist():
            found.setdefault(row, now)
    return found


def every_nth(nodes: Sequence[NodeSpec], part: int) -> list[NodeId]:
    """One of each `part` nodes, at every place in the second at which a heartbeat goes."""
    return [spec.node_id for at, spec in enumerate(nodes) if at % part == at // part % part]


def nest_results(outcome: BenchOutcome) -> BenchOutcome:
    """Make `a.b` of the results a part `b` of `a`."""
    return msgspec.structs.replace(
        outcome,
        result=_nested(outcome.result),
        result_min=_nested(outcome.result_min),
        result_max=_nested(outcome.result_max),
    )


def _nested(flat: Mapping[str, float]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        into = out
        for part in path:
            into = into.setdefault(part, {})
        into[last] = value
    return out
