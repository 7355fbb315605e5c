"""What a benchmark hands back: medians and ranges over its runs, checks, and what the processes took.

Decides how several runs become one figure. Knows no benchmark; `caravan bench` adds name, machine, load and versions.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark. Units stand in the names of the keys."""

    size: dict[str, int]
    #: medians over the runs.
    result: dict[str, float | bool]
    result_min: dict[str, float]
    result_max: dict[str, float]
    checks: dict[str, bool]
    runs: int
    #: CPU seconds while the clock ran, by process, nats-server and the bench itself included.
    cpu_s: dict[str, float] = {}
    rss_mib: dict[str, float] = {}
    #: bytes that the log grew by while the clock ran.
    log_bytes: int = 0
    #: what the server itself says.
    fsync: bool = False
    replicas: int = 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark through the whole product."""

    result: dict[str, float]
    checks: dict[str, bool]
    cpu_s: dict[str, float]
    rss_mib: dict[str, float]
    log_bytes: int
    fsync: bool
    replicas: int = 1


def merge(size: dict[str, int], runs: Sequence[Run], digits: int = 4) -> Outcome:
    """Make one outcome of runs: medians; a check holds only if it held in every run, else there are no figures."""
    checks = {name: all(run.checks[name] for run in runs) for name in runs[0].checks}
    names = list(runs[0].result) if all(checks.values()) else []
    of = {name: [run.result[name] for run in runs] for name in names}
    return Outcome(
        size=size,
        result={name: _middle(values, digits) for name, values in of.items()},
        result_min={name: round(min(values), digits) for name, values in of.items()},
        result_max={name: round(max(values), digits) for name, values in of.items()},
        checks=checks,
        runs=len(runs),
        cpu_s=_medians([run.cpu_s for run in runs]),
        rss_mib=_medians([run.rss_mib for run in runs]),
        log_bytes=round(median([run.log_bytes for run in runs])),
        fsync=all(run.fsync for run in runs),
        replicas=min(run.replicas for run in runs),
    )


def shown(run: Run) -> str:
    """One line about one run: its figures, or what did not hold."""
    bad = [name for name, holds in run.checks.items() if not holds]
    if bad:
        return f"FAILED: {', '.join(bad)}"
    told = [f"{name} {value:g}" for name, value in run.result.items()]
    return ", ".join(told) + ("" if run.fsync or not run.replicas else "; the bus does not fsync")


def _middle(values: Sequence[float], digits: int) -> float:
    """Return the median; what is counted and the same in every run stays a whole number."""
    return round(values[0] if len(set(values)) == 1 else median(values), digits)


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted(set().union(*runs))
    return {name: round(median([run.get(name, 0.0) for run in runs]), 2) for name in names}
