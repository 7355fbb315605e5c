"""A second try, in the open: a failed test that starts real processes runs once more, alone, when nothing else runs.

Only `pytest --second-try` does so, as the gate does. Pure tests get none: what fails there is a fault. More failures
than a few get none either, because the run is red in any case. A test that passes alone counts as `unsteady`, not as
passed, and is named with its first failure at the end of the run.
"""

import os
import subprocess
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests import summary

#: Folders whose tests start servers, services or engines.
REAL_PROCESSES = frozenset(
    {
        "asyncapi", "attacks", "bench", "bus", "clients", "compose", "docker", "docs", "drivers", "faults",
        "gateway", "integration", "packaging",
    }
)  # fmt: skip
#: More failed tests than this get no second try.
MOST = 3
#: Outcome of a test that failed at first and passed alone; pytest counts it in the last line.
UNSTEADY = "unsteady"

Stats = MutableMapping[str, list[Any]]


def candidates(stats: Stats) -> list[str]:
    """Names of the failed tests, when each of them may be tried again; else nothing."""
    failed = {
        getattr(report, "nodeid", "")
        for kind in ("failed", "error")
        for report in stats.get(kind, ())
    }
    may = all(summary.part_of(name) in REAL_PROCESSES and "::" in name for name in failed)
    return sorted(failed) if may and len(failed) <= MOST else []


def run_alone(root: Path, name: str) -> bool:
    """Run one test in a process of its own; what it prints is shown when it fails again."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        print(f"\nsecond try of {name}:\n{ran.stdout}{ran.stderr}", flush=True)
    return ran.returncode == 0


def try_again(stats: Stats, passes_alone: Callable[[str], bool]) -> bool:
    """Try the candidates and move those that pass to `unsteady`. Returns whether no failure is left."""
    for name in candidates(stats):
        if not passes_alone(name):
            continue
        for kind in ("failed", "error"):
            moved = [report for report in stats.get(kind, ()) if report.nodeid == name]
            if moved:
                stats[kind] = [report for report in stats[kind] if report.nodeid != name]
                # One report a test: an error of the teardown beside a failure counts once.
                known = any(report.nodeid == name for report in stats.get(UNSTEADY, ()))
                stats.setdefault(UNSTEADY, []).extend([] if known else moved[:1])
                if not stats[kind]:
                    del stats[kind]
    return not stats.get("failed") and not stats.get("error")


def lines(stats: Stats) -> list[str]:
    """One line for each unsteady test: its name and the first line of its failure."""
    return [
        f"unsteady: {report.nodeid}, {summary.place(report)}{summary.reason(report)[0]}"
        for report in stats.get(UNSTEADY, ())
    ]


def finish(session: pytest.Session, stats: Stats) -> None:
    """At the end of a run with failures: try again, and let the run pass when nothing failed twice."""
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not session.config.getoption(
        "--second-try"
    ):
        return
    if try_again(stats, lambda name: run_alone(session.config.rootpath, name)):
        session.exitstatus = pytest.ExitCode.OK
