"""The figures of a timeline: placements, waits by class and by job, use by resource, failures, open work."""

from itertools import pairwise

import msgspec
import numpy as np

from shared.core.columns import Int64s
from shared.sim.virtual_time import SECOND
from shared.whatif.timeline import Timeline

RESOURCES = ("cpu", "memory", "disk")


class WaitByClass(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of one class. `still`: allocations that wait at the end."""

    allocation_s: float
    allocations_max: int
    still: int
    jobs: int


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one resource on ready nodes, in percent; `mean` over time."""

    mean_pct: float
    peak_pct: float
    end_pct: float


class PlacementDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Delay from request to placement, ms, over placed allocations."""

    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0


class TimelineEffects(msgspec.Struct, frozen=True, kw_only=True):
    """All compared figures."""

    decisions: int
    refused: int
    placements: int
    complete: int
    failed: int
    lost: int
    evicted: int
    #: allocations that wait at the end.
    unplaced: int
    waiting: dict[str, WaitByClass]
    delays: PlacementDelays
    use: dict[str, ResourceUse]
    #: log time at its end.
    t_ns: int


def measure_effects(timeline: Timeline) -> TimelineEffects:
    """Compute the figures of a closed timeline."""
    waiting = _waiting(timeline)
    totals = timeline.totals
    return TimelineEffects(
        decisions=totals.plans,
        refused=totals.plans_refused,
        placements=totals.placements,
        complete=totals.complete,
        failed=totals.failed,
        lost=totals.lost,
        evicted=totals.evicted,
        unplaced=sum(one.still for one in waiting.values()),
        waiting=waiting,
        delays=_delays(timeline),
        use=_use(timeline),
        t_ns=timeline.t_ns,
    )


def wait_s_by_job(timeline: Timeline) -> dict[str, float]:
    """Wait of each job, allocation-seconds."""
    found: dict[str, int] = {}
    for one in timeline.waits.ended:
        job_id = timeline.names.groups[one.group][0]
        lasted = (one.to_ns or timeline.t_ns) - one.from_ns
        found[job_id] = found.get(job_id, 0) + lasted * one.count
    return {job_id: ns / SECOND for job_id, ns in sorted(found.items())}


def still_waiting(timeline: Timeline) -> dict[str, dict[str, int]]:
    """Allocations waiting at the end, by job and class."""
    found: dict[str, dict[str, int]] = {}
    for one in timeline.waits.ended:
        if not one.to_ns:
            of_job = found.setdefault(timeline.names.groups[one.group][0], {})
            of_job[one.wait_class] = of_job.get(one.wait_class, 0) + one.count
    return dict(sorted(found.items()))


def _waiting(timeline: Timeline) -> dict[str, WaitByClass]:
    by_class: dict[str, list[tuple[int, int, int]]] = {}
    jobs: dict[str, set[str]] = {}
    still: dict[str, int] = {}
    for one in timeline.waits.ended:
        begin, end = one.from_ns, one.to_ns or timeline.t_ns
        if not one.is_undecided:
            by_class.setdefault(one.wait_class, []).append((begin, end, one.count))
        if not one.is_undecided or not one.to_ns:
            jobs.setdefault(one.wait_class, set()).add(timeline.names.groups[one.group][0])
        if not one.to_ns:
            still[one.wait_class] = still.get(one.wait_class, 0) + one.count
    undecided = timeline.waits.undecided
    for span in undecided.spans:
        by_class.setdefault(span.wait_class, []).append((span.from_ns, span.to_ns, span.count))
    for name, some in undecided.jobs.items():
        jobs.setdefault(name, set()).update(some)
    for name in jobs:
        # It began to wait with the end.
        by_class.setdefault(name, [])
    return {
        name: WaitByClass(
            allocation_s=round(sum((end - begin) * n for begin, end, n in some) / SECOND, 3),
            allocations_max=_most(some),
            still=still.get(name, 0),
            jobs=len(jobs[name]),
        )
        for name, some in sorted(by_class.items())
    }


def _most(spans: list[tuple[int, int, int]]) -> int:
    """The most allocations that waited at once."""
    steps = [(end, 0, -n) for _, end, n in spans] + [(begin, 1, n) for begin, _, n in spans]
    most = now = 0
    for _, _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most


def _delays(timeline: Timeline) -> PlacementDelays:
    ns = placement_delays_ns(timeline)[timeline.there :]
    if not len(ns):
        return PlacementDelays()
    sorted_ns = np.sort(ns)
    return PlacementDelays(
        mean_ms=_ms(int(sorted_ns.sum()) // len(ns)),
        p50_ms=_ms(int(sorted_ns[len(ns) // 2])),
        p99_ms=_ms(int(sorted_ns[min(len(ns) * 99 // 100, len(ns) - 1)])),
        max_ms=_ms(int(sorted_ns[-1])),
    )


def placement_delays_ns(timeline: Timeline) -> Int64s:
    """Delay from request to placement of each allocation. Shape: (count,)."""
    found: Int64s = timeline.placed.column("placed_ns") - timeline.placed.column("asked_ns")
    return found


def _use(timeline: Timeline) -> dict[str, ResourceUse]:
    samples = timeline.usage
    found: dict[str, ResourceUse] = {}
    for at, name in enumerate(RESOURCES):
        parts = [_pct(one.used[at], one.capacity[at]) for one in samples]
        lasts = [after.t_ns - before.t_ns for before, after in pairwise(samples)]
        weighed = sum(part * ns for part, ns in zip(parts, lasts, strict=False))
        mean = weighed / sum(lasts) if sum(lasts) else parts[-1]
        found[name] = ResourceUse(
            mean_pct=round(mean, 2), peak_pct=round(max(parts), 2), end_pct=round(parts[-1], 2)
        )
    return found


def _pct(used: int, capacity: int) -> float:
    return 100 * used / capacity if capacity else 0.0


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
