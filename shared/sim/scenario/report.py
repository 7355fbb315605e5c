"""What a scenario came to, in numbers: a pure function of the ledger, equal each time. What was measured stands apart.

Decides percentiles (nearest rank, each allocation counts), means and fairness. Must not know how it is shown
(`page.py`, the command line). Units in the names.
"""

from math import fsum
from typing import Any

import msgspec

from shared.sim.engine.deciding import Decided, Decision
from shared.sim.engine.setup import Stats
from shared.sim.scenario.ledger import JobNote, Ledger, Sample

SECOND = 1_000_000_000
MS = 1_000_000
#: Loads that decisions are told by: so many evaluations leased, this one included, or more.
_LOADS = (1, 2, 8, 64, 512)
#: Slowdown of short jobs is bounded: what runs less counts as if it ran so long.
_BOUND_NS = 10 * SECOND


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """How long allocations of one kind waited for their first placement."""

    name: str
    jobs: int
    wanted: int
    placed: int
    #: still, at the end; and since when the oldest of them.
    waiting: int
    oldest_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    mean_s: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From a worker's lease to the end of the evaluation in the log, by how many were leased at the time."""

    load: str
    decisions: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share over time."""

    mean: float
    max: float
    end: float


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Samples as columns."""

    t_s: list[float]
    nodes: list[int]
    running: list[int]
    waiting: list[int]
    running_by: dict[str, list[int]]
    used: dict[str, list[float]]
    fragmented: dict[str, list[float]]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything told of a run; the same each time."""

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
    #: allocations that found no room at a try, by why.
    unplaced: dict[str, int]
    refused: dict[str, int]
    #: the first few of them in words.
    refusals: list[str]
    plans: dict[str, int]
    #: "victim < evictor": allocations.
    evicted: dict[str, int]
    waiting: list[Waiting]
    priorities: list[Waiting]
    decisions: list[Latency]
    used: dict[str, Share]
    fragmented: dict[str, Share]
    fairness: dict[str, float]
    series: Series


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine took; another each time."""

    wall_s: float
    cpu_s: dict[str, float]
    #: of the deciding code alone.
    decisions_per_cpu_s: float
    placements_per_cpu_s: float
    decide_p50_us: float
    decide_p99_us: float
    #: virtual time over wall time.
    speed: float


def report_of(
    ledger: Ledger,
    stats: Stats,
    latencies: list[Decided],
    *,
    name: str,
    about: str,
    seed: int,
    algorithm: str,
    schedulers: int,
    nodes: int,
    end_ns: int,
    digest: str,
) -> Report:
    """Work out everything."""
    counts, notes = ledger.counts, list(ledger.jobs.values())
    duration_ns = max(end_ns - ledger.begin_ns, 1)
    return Report(
        name=name,
        about=about,
        seed=seed,
        duration_s=duration_ns / SECOND,
        algorithm=algorithm,
        schedulers=schedulers,
        nodes=nodes,
        digest=digest,
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
        decisions=_latencies(latencies),
        used=_shares(ledger.samples, "used"),
        fragmented=_shares(ledger.samples, "fragmented"),
        fairness=_fairness(notes),
        series=_series(ledger.samples),
    )


def _jobs(ledger: Ledger, stats: Stats) -> dict[str, int]:
    notes = ledger.jobs.values()
    return {
        "submitted": ledger.counts["submitted"],
        "refused": sum(stats.refused.values()),
        "placed": ledger.counts["jobs_placed"],
        "complete": sum(one.done >= one.wanted for one in notes),
        "waiting": sum(one.placed < one.wanted and not one.is_stopped for one in notes),
    }


def _allocations(ledger: Ledger) -> dict[str, int]:
    counts = ledger.counts
    names = ("placed", "again", "started", "complete", "stopped", "failed", "lost")
    return {
        "wanted": sum(one.wanted for one in ledger.jobs.values()),
        **{name: counts[name] for name in names},
        "evicted": sum(ledger.evicted.values()),
        "waiting": ledger.waiting,
    }


def _placements(ledger: Ledger, duration_ns: int) -> dict[str, float]:
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
    """Nearest rank of (value, how many), in order of value; 0: there are none."""
    total = sum(count for _, count in waits)
    rank = -(-total * per_mille // 1000)
    for value, count in waits:
        rank -= count
        if rank <= 0:
            return value
    return 0


def _waiting(name: str, notes: list[JobNote], waits: list[tuple[int, int]], end_ns: int) -> Waiting:
    waits = sorted(waits)
    placed = sum(count for _, count in waits)
    left = [one for one in notes if one.placed < one.wanted and not one.is_stopped]
    total_ns = sum(value * count for value, count in waits)
    return Waiting(
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


def _by_name(ledger: Ledger, notes: list[JobNote], end_ns: int) -> list[Waiting]:
    names = sorted({one.name for one in notes})
    return [
        _waiting(
            name, [one for one in notes if one.name == name], ledger.waits.get(name, []), end_ns
        )
        for name in names
    ]


def _by_priority(notes: list[JobNote], end_ns: int) -> list[Waiting]:
    """By priority; a job's allocations count as placed with its last one."""
    found = []
    for priority in sorted({one.priority for one in notes}, reverse=True):
        some = [one for one in notes if one.priority == priority]
        waits = [(one.last_ns - one.asked_ns, one.placed) for one in some if one.placed]
        found.append(_waiting(str(priority), some, waits, end_ns))
    return found


def _latencies(latencies: list[Decided]) -> list[Latency]:
    found = []
    for least, most in zip(_LOADS, (*_LOADS[1:], 0), strict=True):
        some = sorted(
            (one.took_ns, 1)
            for one in latencies
            if one.load >= least and (not most or one.load < most)
        )
        if some:
            found.append(
                Latency(
                    load=f"{least}" if most == least + 1 else f"{least}+",
                    decisions=len(some),
                    p50_ms=percentile(some, 500) / MS,
                    p99_ms=percentile(some, 990) / MS,
                    max_ms=some[-1][0] / MS,
                )
            )
    return found


# ---- shares and fairness ----


def _shares(samples: list[Sample], field: str) -> dict[str, Share]:
    names = sorted({name for one in samples for name in getattr(one, field)})
    found = {}
    for name in names:
        values = [getattr(one, field).get(name, 0.0) for one in samples]
        found[name] = Share(
            mean=round(fsum(values) / len(values), 6),
            max=round(max(values), 6),
            end=round(values[-1], 6),
        )
    return found


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has it all. Of nothing: 1."""
    squares = fsum(one * one for one in values)
    return fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _fairness(notes: list[JobNote]) -> dict[str, float]:
    """How evenly jobs that completed were served: by their bounded slowdown, among jobs and among kinds of jobs."""
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
        "jain_jobs": round(jain([1 / one for one in everyone]), 6),
        "jain_kinds": round(jain([1 / one for one in means]), 6),
    }


def _series(samples: list[Sample]) -> Series:
    def columns(field: str) -> dict[str, list[float]]:
        names = sorted({name for one in samples for name in getattr(one, field)})
        return {
            name: [round(getattr(one, field).get(name, 0.0), 6) for one in samples]
            for name in names
        }

    return Series(
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


def measured_of(
    decisions: list[Decision], stats: Stats, *, wall_ns: int, virtual_ns: int
) -> Measured:
    """Say what the machine took."""
    spent = sorted((one.cpu_ns, 1) for one in decisions)
    total_ns = sum(ns for ns, _ in spent)
    placed = sum(one.placed for one in decisions)
    return Measured(
        wall_s=wall_ns / SECOND,
        cpu_s={name: ns / SECOND for name, ns in sorted(stats.cpu_ns.items())},
        decisions_per_cpu_s=len(spent) * SECOND / total_ns if total_ns else 0.0,
        placements_per_cpu_s=placed * SECOND / total_ns if total_ns else 0.0,
        decide_p50_us=percentile(spent, 500) / 1000,
        decide_p99_us=percentile(spent, 990) / 1000,
        speed=virtual_ns / max(wall_ns, 1),
    )


# ---- two reports ----


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two reports."""

    figure: str
    a: float
    b: float


def differences(a: Report, b: Report) -> list[Difference]:
    """Put two reports side by side, figure by figure; a figure that only one has is 0 in the other."""
    left, right = _figures(a), _figures(b)
    names = [*left, *(name for name in right if name not in left)]
    return [
        Difference(figure=name, a=left.get(name, 0.0), b=right.get(name, 0.0)) for name in names
    ]


def _figures(one: Report) -> dict[str, float]:
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
