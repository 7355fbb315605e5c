"""The report of a scenario: figures that are a pure function of the run's metrics, and measured times apart from them.

Percentiles are by nearest rank, one value per allocation. Field names include units.
"""

from math import fsum
from typing import Any

import msgspec

from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineStats
from shared.sim.engine.timed_decisions import EvaluationLatency, TimedDecision
from shared.sim.scenario.parser import ScenarioPlan
from shared.sim.scenario.run_metrics import ClusterSample, JobMetrics, RunMetrics
from shared.sim.virtual_time import MS, SECOND

#: Load classes of evaluation latency: leases outstanding, this one included, at least.
_LOADS = (1, 2, 8, 64, 512)
#: Bounded slowdown: shorter run times count as this one.
_BOUND_NS = 10 * SECOND


class WaitStats(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of allocations of one kind for their first placement."""

    name: str
    jobs: int
    wanted: int
    placed: int
    #: allocations that still wait at the end, and the oldest wait.
    waiting: int
    oldest_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    mean_s: float


class DecisionLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency from a worker's lease to the end of the evaluation in the log, by leases outstanding."""

    load: str
    decisions: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class ShareOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a share over time."""

    mean: float
    max: float
    end: float


class SampleSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Samples as columns."""

    t_s: list[float]
    nodes: list[int]
    running: list[int]
    waiting: list[int]
    running_by: dict[str, list[int]]
    used: dict[str, list[float]]
    fragmented: dict[str, list[float]]


class ScenarioReport(msgspec.Struct, frozen=True, kw_only=True):
    """The deterministic figures of a run."""

    name: str
    about: str
    seed: int
    duration_s: float
    algorithm: str
    schedulers: int
    nodes: int
    #: hash of the log's bytes.
    digest: str
    records: int
    bytes: int
    jobs: dict[str, int]
    allocations: dict[str, int]
    placements: dict[str, float]
    #: allocations that could not be placed, by reason.
    unplaced: dict[str, int]
    refused: dict[str, int]
    #: texts of the first few.
    refusals: list[str]
    plans: dict[str, int]
    #: "victim < evictor": allocations.
    evicted: dict[str, int]
    waiting: list[WaitStats]
    priorities: list[WaitStats]
    decisions: list[DecisionLatency]
    used: dict[str, ShareOverTime]
    fragmented: dict[str, ShareOverTime]
    fairness: dict[str, float]
    series: SampleSeries
    #: what was assumed of a recorded cluster.
    assumptions: tuple[str, ...] = ()


class MachineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times of a run, which vary."""

    wall_s: float
    cpu_s: dict[str, float]
    #: of the deciding code alone.
    decisions_per_cpu_s: float
    placements_per_cpu_s: float
    decide_p50_us: float
    decide_p99_us: float
    #: virtual time over wall time.
    speed: float


def build_report(
    plan: ScenarioPlan, engine: SimulationEngine, ledger: RunMetrics
) -> ScenarioReport:
    """Compute the report."""
    scenario, stats = plan.scenario, engine.stats
    counts, notes = ledger.counts, list(ledger.jobs.values())
    end_ns = engine.now_ns
    duration_ns = max(end_ns - ledger.begin_ns, 1)
    return ScenarioReport(
        name=scenario.name,
        about=scenario.about,
        seed=scenario.seed,
        duration_s=duration_ns / SECOND,
        algorithm=plan.policy.algorithm,
        schedulers=scenario.schedulers,
        nodes=len(engine.state.fleet.row_of),
        digest=engine.digest,
        records=stats.records,
        bytes=stats.bytes,
        jobs=_jobs(ledger, stats),
        allocations=_allocations(ledger),
        placements=_placements(ledger, duration_ns),
        unplaced=dict(sorted(ledger.unplaced.items())),
        refused=dict(sorted(stats.refused.items())),
        refusals=ledger.refusals,
        plans={
            "committed": counts["plans"],
            "cut": counts["cut"],
            **{f"refused_{code}": n for code, n in sorted(ledger.plans_refused.items())},
        },
        evicted={f"{of} < {by}": n for (of, by), n in sorted(ledger.evicted.items())},
        waiting=_by_name(ledger, notes, end_ns),
        priorities=_by_priority(notes, end_ns),
        decisions=_latencies([one for one in engine.latencies if one.at_ns >= ledger.begin_ns]),
        used=_shares(ledger.samples, "used"),
        fragmented=_shares(ledger.samples, "fragmented"),
        fairness=_fairness(notes),
        series=_series(ledger.samples),
    )


def _jobs(ledger: RunMetrics, stats: EngineStats) -> dict[str, int]:
    notes = ledger.jobs.values()
    return {
        "submitted": ledger.counts["submitted"],
        "refused": sum(stats.refused.values()),
        "placed": ledger.counts["jobs_placed"],
        "complete": sum(one.done >= one.wanted for one in notes),
        "waiting": sum(one.placed < one.wanted and not one.is_stopped for one in notes),
    }


def _allocations(ledger: RunMetrics) -> dict[str, int]:
    counts = ledger.counts
    names = ("placed", "again", "started", "complete", "stopped", "failed", "lost")
    return {
        "wanted": sum(one.wanted for one in ledger.jobs.values()),
        **{name: counts[name] for name in names},
        "evicted": sum(ledger.evicted.values()),
        "waiting": ledger.waiting,
    }


def _placements(ledger: RunMetrics, duration_ns: int) -> dict[str, float]:
    seconds = duration_ns / SECOND
    peaks = [max((one[at] for one in ledger.seconds.values()), default=0) for at in range(3)]
    counts = ledger.counts
    return {
        "allocations_per_s": counts["placed"] / seconds,
        "groups_per_s": counts["groups"] / seconds,
        "jobs_per_s": counts["jobs_placed"] / seconds,
        "allocations_peak_per_s": peaks[0],
        "groups_peak_per_s": peaks[1],
        "jobs_peak_per_s": peaks[2],
    }


# ---- waiting ----


def percentile(waits: list[tuple[int, int]], per_mille: int) -> int:
    """Nearest-rank percentile of (value, count) in order of value; 0 without values."""
    total = sum(count for _, count in waits)
    rank = -(-total * per_mille // 1000)
    for value, count in waits:
        rank -= count
        if rank <= 0:
            return value
    return 0


def _waiting(
    name: str, notes: list[JobMetrics], waits: list[tuple[int, int]], end_ns: int
) -> WaitStats:
    waits = sorted(waits)
    placed = sum(count for _, count in waits)
    left = [one for one in notes if one.placed < one.wanted and not one.is_stopped]
    total_ns = sum(value * count for value, count in waits)
    return WaitStats(
        name=name,
        jobs=len(notes),
        wanted=sum(one.wanted for one in notes),
        placed=placed,
        waiting=sum(one.wanted - one.placed for one in left),
        oldest_s=max((end_ns - one.asked_ns for one in left), default=0) / SECOND,
        p50_s=percentile(waits, 500) / SECOND,
        p90_s=percentile(waits, 900) / SECOND,
        p99_s=percentile(waits, 990) / SECOND,
        max_s=max((value for value, _ in waits), default=0) / SECOND,
        mean_s=total_ns / placed / SECOND if placed else 0.0,
    )


def _by_name(ledger: RunMetrics, notes: list[JobMetrics], end_ns: int) -> list[WaitStats]:
    names = sorted({one.name for one in notes})
    return [
        _waiting(
            name, [one for one in notes if one.name == name], ledger.waits.get(name, []), end_ns
        )
        for name in names
    ]


def _by_priority(notes: list[JobMetrics], end_ns: int) -> list[WaitStats]:
    """Waits by priority; a job's allocations count as placed with its last one."""
    found = []
    for priority in sorted({one.priority for one in notes}, reverse=True):
        some = [one for one in notes if one.priority == priority]
        waits = [(one.last_ns - one.asked_ns, one.placed) for one in some if one.placed]
        found.append(_waiting(str(priority), some, waits, end_ns))
    return found


def _latencies(latencies: list[EvaluationLatency]) -> list[DecisionLatency]:
    found = []
    for least, most in zip(_LOADS, (*_LOADS[1:], 0), strict=True):
        some = sorted(
            (one.took_ns, 1)
            for one in latencies
            if one.load >= least and (not most or one.load < most)
        )
        if some:
            found.append(
                DecisionLatency(
                    load=f"{least}" if most == least + 1 else f"{least}+",
                    decisions=len(some),
                    p50_ms=percentile(some, 500) / MS,
                    p99_ms=percentile(some, 990) / MS,
                    max_ms=some[-1][0] / MS,
                )
            )
    return found


# ---- shares and fairness ----


def _shares(samples: list[ClusterSample], field: str) -> dict[str, ShareOverTime]:
    names = sorted({name for one in samples for name in getattr(one, field)})
    found = {}
    for name in names:
        values = [getattr(one, field).get(name, 0.0) for one in samples]
        found[name] = ShareOverTime(
            mean=round(fsum(values) / len(values), 6),
            max=round(max(values), 6),
            end=round(values[-1], 6),
        )
    return found


def jain_index(values: list[float]) -> float:
    """Jain's fairness index: 1 if all are equal, 1/n if one has everything; 1 without values."""
    squares = fsum(one * one for one in values)
    return fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _fairness(notes: list[JobMetrics]) -> dict[str, float]:
    """Fairness of the bounded slowdown of completed jobs, among jobs and among kinds."""
    by_name: dict[str, list[float]] = {}
    for one in notes:
        if one.ended_ns and one.done >= one.wanted:
            run_ns = max(one.ended_ns - one.first_ns, _BOUND_NS)
            slowdown = max((one.ended_ns - one.asked_ns) / run_ns, 1.0)
            by_name.setdefault(one.name, []).append(slowdown)
    everyone = [one for some in by_name.values() for one in some]
    means = [fsum(some) / len(some) for _, some in sorted(by_name.items())]
    return {
        "jobs": len(everyone),
        "slowdown_mean": round(fsum(everyone) / len(everyone), 6) if everyone else 0.0,
        "slowdown_max": round(max(everyone, default=0.0), 6),
        "jain_jobs": round(jain_index([1 / one for one in everyone]), 6),
        "jain_kinds": round(jain_index([1 / one for one in means]), 6),
    }


def _series(samples: list[ClusterSample]) -> SampleSeries:
    def columns(field: str) -> dict[str, list[float]]:
        names = sorted({name for one in samples for name in getattr(one, field)})
        return {
            name: [round(getattr(one, field).get(name, 0.0), 6) for one in samples]
            for name in names
        }

    return SampleSeries(
        t_s=[one.at_ns / SECOND for one in samples],
        nodes=[one.nodes for one in samples],
        running=[one.running for one in samples],
        waiting=[one.waiting for one in samples],
        running_by={
            name: [one.running_by.get(name, 0) for one in samples]
            for name in sorted({name for one in samples for name in one.running_by})
        },
        used=columns("used"),
        fragmented=columns("fragmented"),
    )


def measure_machine(
    decisions: list[TimedDecision], stats: EngineStats, *, wall_ns: int, virtual_ns: int
) -> MachineTimes:
    """Return the measured times."""
    spent = sorted((one.cpu_ns, 1) for one in decisions)
    total_ns = sum(ns for ns, _ in spent)
    placed = sum(one.placed for one in decisions)
    return MachineTimes(
        wall_s=wall_ns / SECOND,
        cpu_s={name: ns / SECOND for name, ns in sorted(stats.cpu_ns.items())},
        decisions_per_cpu_s=len(spent) * SECOND / total_ns if total_ns else 0.0,
        placements_per_cpu_s=placed * SECOND / total_ns if total_ns else 0.0,
        decide_p50_us=percentile(spent, 500) / 1000,
        decide_p99_us=percentile(spent, 990) / 1000,
        speed=virtual_ns / max(wall_ns, 1),
    )


# ---- two reports ----


class FigureDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two reports."""

    figure: str
    a: float
    b: float


def compare_reports(a: ScenarioReport, b: ScenarioReport) -> list[FigureDifference]:
    """Compare two reports figure by figure; a figure missing in one is 0 there."""
    left, right = _figures(a), _figures(b)
    names = [*left, *(name for name in right if name not in left)]
    return [
        FigureDifference(figure=name, a=left.get(name, 0.0), b=right.get(name, 0.0))
        for name in names
    ]


def _figures(one: ScenarioReport) -> dict[str, float]:
    found: dict[str, float] = {"nodes": one.nodes, "schedulers": one.schedulers}
    parts: dict[str, Any] = {
        "jobs": one.jobs,
        "allocations": one.allocations,
        "placements": one.placements,
        "unplaced": one.unplaced,
        "plans": one.plans,
        "fairness": one.fairness,
    }
    for part, values in parts.items():
        found |= {f"{part} {name}": float(value) for name, value in values.items()}
    for waiting in one.waiting:
        for name in ("p50_s", "p90_s", "p99_s", "max_s", "waiting"):
            found[f"waiting {waiting.name} {name}"] = float(getattr(waiting, name))
    for part, shares in (("used", one.used), ("fragmented", one.fragmented)):
        for name, share in shares.items():
            found[f"{part} {name} mean"] = share.mean
            found[f"{part} {name} max"] = share.max
    return found
