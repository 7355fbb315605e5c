"""Walls that only show at run time: what a process has really imported, libraries' own imports included."""

import json
import re
import subprocess
import sys

import pytest

from tests.bounds import WAIT_S
from tests.tidy.test_cycles import imported_names
from tests.tidy.tree import files, report, sources

HEAVY = ("faststream", "pydantic", "fast_depends", "duckdb", "docker")


def imported(module: str) -> set[str]:
    """Import a module in a fresh process and return the top-level packages it brought in."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


#: Every entry point: a process whose work needs a heavy package imports it when that begins. Every file of the
#: scheduler, so that a lazy wiring cannot hide a heavy import from the role's own test.
SLIM = [
    "services.cli.main",
    "services.scheduler.role",
    *(
        name.removesuffix(".py").replace("/", ".")
        for name in files()
        if (name.startswith(("services/scheduler/", "shared/sim/")) and name.endswith(".py"))
        or re.fullmatch(r"services/\w+/__main__\.py", name)
    ),
]


@pytest.mark.parametrize("module", sorted(set(SLIM)))
def test_slim_processes_stay_slim(module: str) -> None:
    """All entry points and the simulated world start without FastStream, pydantic, DuckDB and Docker's client."""
    assert not imported(module) & set(HEAVY)


def test_the_core_brings_no_bus() -> None:
    """The pure core loads without an event loop, a bus client or a log library."""
    assert not imported("shared.core.state.state") & {"asyncio", "nats", "structlog", "faststream"}


def test_the_python_client_is_a_package_of_its_own() -> None:
    """The Python client imports nothing of this tree: it is installed without it."""
    ours = {"bench", "deploy", "schemas", "services", "shared", "tests"}
    found = [
        f"{one.path}: {name}"
        for one in sources()
        if one.path.startswith("clients/python/")
        for name in imported_names(one)
        if name.partition(".")[0] in ours
    ]
    assert not found, report(found)
