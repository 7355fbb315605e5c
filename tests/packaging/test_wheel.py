"""The distribution as a user installs it: a wheel in an environment of its own, from the hashed lock."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bounds import LONG_S

ROOT = Path(__file__).resolve().parents[2]
#: Packages of the extras `agent` and `sql`, which the demo does not need.
LEFT_OUT = ("docker", "duckdb", "requests")
ENTRY = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==.*(?:\n(?: ).*)*\n", re.MULTILINE)

pytestmark = pytest.mark.timeout(2 * LONG_S)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program without what would lead it back into the checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**env, "HOME": str(cwd), "PIP_CACHE_DIR": pip_cache()},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
    )


def pip_cache() -> str:
    """Where pip keeps what the setup of this environment downloaded."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "-w", folder)
    done = run(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the lock, without the packages of two extras."""
    folder = tmp_path_factory.mktemp("installed")
    lock = (ROOT / "deploy" / "requirements.txt").read_text()
    kept = [one.group() for one in ENTRY.finditer(lock) if one[1] not in LEFT_OUT]
    (folder / "lock.txt").write_text("".join(kept))
    python = folder / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    for command in (
        (sys.executable, "-m", "venv", "--without-pip", folder / "env"),
        (*pip, "--require-hashes", "--no-deps", "-r", folder / "lock.txt"),
        (*pip, "--no-deps", "--no-index", wheel),
    ):
        done = run(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_holds_the_program_alone(wheel: Path) -> None:
    """The wheel has three packages, the job files of the demo, the licence, and the console script."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert wheel.name.startswith("caravan_orchestrator-")
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "schemas",
        "services",
        "shared",
    }
    files = {name.rpartition("/")[2] for name in names}
    assert {"hello.nomad.hcl", "batch.nomad.hcl", "LICENSE", "entry_points.txt"} <= files


def test_the_demo_runs_from_the_wheel(installed: Path) -> None:
    """`caravan demo` succeeds in an environment that has never seen the checkout, nor Docker's client."""
    done = run(installed / "env" / "bin" / "caravan", "demo", "--json", cwd=installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_a_missing_extra_is_named(installed: Path) -> None:
    """A command whose packages were not installed names the extra to install."""
    done = run(installed / "env" / "bin" / "caravan", "sql", "SELECT 1", cwd=installed)
    assert done.returncode != 0
    assert "install caravan-orchestrator[sql]" in done.stderr
