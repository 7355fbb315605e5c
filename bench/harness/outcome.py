"""The result of a benchmark: medians and ranges over its runs, checks, and the use of CPU and memory.

`caravan bench` adds name, machine, load and versions.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec


class BenchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark. Units are in the names of the keys."""

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
    #: growth of the log while the clock ran.
    log_bytes: int = 0
    #: as the server reports it.
    fsync: bool = False
    replicas: int = 1


class InProcessOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a benchmark without processes of its own."""

    size: dict[str, int]
    #: medians over the runs, units in the names.
    result: dict[str, Any]
    result_min: dict[str, Any]
    result_max: dict[str, Any]
    checks: dict[str, bool]
    runs: int


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark through the whole product."""

    result: dict[str, float]
    checks: dict[str, bool]
    cpu_s: dict[str, float]
    rss_mib: dict[str, float]
    log_bytes: int
    fsync: bool
    replicas: int = 1


def repeat_runs(
    once: Callable[[], BenchRun], runs: int, size: Mapping[str, int], digits: int = 4
) -> BenchOutcome:
    """Run it `runs` times, and merge the runs. Prints a line after each, on a terminal also one before it."""
    found: list[BenchRun] = []
    begun_s, is_live = time.monotonic(), sys.stderr.isatty()
    for number in range(runs):
        # Nothing is drawn during a run: a moving bar would take a part of the CPU that is measured.
        if is_live:
            _print_line(f"run {number + 1} of {runs} begins{_time_left(begun_s, number, runs)}")
        found.append(once())
        _print_line(f"run {number + 1} of {runs}: {run_line(found[-1])}")
    return merge_runs(size, found, digits)


def _time_left(begun_s: float, done: int, runs: int) -> str:
    """Say how long the rest takes at the pace of the runs that are done."""
    if not done:
        return ""
    left_s = (time.monotonic() - begun_s) / done * (runs - done)
    return f", about {left_s:.0f} s left" if left_s < 100 else f", about {left_s / 60:.0f} min left"


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def merge_runs(size: Mapping[str, int], runs: Sequence[BenchRun], digits: int = 4) -> BenchOutcome:
    """Make one outcome of runs: medians; a check holds only if it held in every run, else there are no figures."""
    checks = {name: all(run.checks[name] for run in runs) for name in runs[0].checks}
    names = list(runs[0].result) if all(checks.values()) else []
    of = {name: [run.result[name] for run in runs] for name in names}
    return BenchOutcome(
        size=dict(size),
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


def run_line(run: BenchRun) -> str:
    """One line about one run: its figures, or the checks that failed."""
    bad = [name for name, holds in run.checks.items() if not holds]
    if bad:
        return f"FAILED: {', '.join(bad)}"
    figures = [f"{name} {value:g}" for name, value in run.result.items()]
    return ", ".join(figures) + (
        "" if run.fsync or not run.replicas else "; the bus does not fsync"
    )


def _middle(values: Sequence[float], digits: int) -> float:
    """Return the median; what is counted and the same in every run stays a whole number."""
    return round(values[0] if len(set(values)) == 1 else median(values), digits)


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted(set().union(*runs))
    return {name: round(median([run.get(name, 0.0) for run in runs]), 2) for name in names}
