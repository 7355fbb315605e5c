"""The distribution as a user installs it: a wheel in an environment of its own, from the hashed lock."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.bounds import LONG_S

ROOT = Path(__file__).resolve().parents[2]
#: The only extra that the demo needs: the server of the bus.
EXTRA = "server"
ENTRY = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==.*(?:\n(?: ).*)*\n", re.MULTILINE)
NAME = re.compile(r"[A-Za-z0-9_.-]+")

pytestmark = pytest.mark.timeout(2 * LONG_S)


def run(*command: str | Path, cwd: Path, **own: str) -> subprocess.CompletedProcess[str]:
    """Run a program without what would lead it back into the checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**env, **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
    )


def wanted() -> set[str]:
    """Packages that the base and the extra of the demo declare."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"][EXTRA]]
    return {match.group() for one in declared if (match := NAME.match(one))}


def locked(names: set[str]) -> list[str]:
    """Entries of the lock for these packages and for what they need themselves."""
    entries = list(ENTRY.finditer((ROOT / "deploy" / "requirements.txt").read_text()))
    kept = set(names)
    while True:
        needed = {one[1] for one in entries if kept & set(NAME.findall(one[0].split("# via")[-1]))}
        if needed <= kept:
            return [one[0] for one in entries if one[1] in kept]
        kept |= needed


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
    """An environment with the wheel, and of the lock what the base and one extra need."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "lock.txt").write_text("".join(locked(wanted())))
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


def caravan(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command with an empty home."""
    return run(folder / "env" / "bin" / "caravan", *words, cwd=folder, HOME=str(folder))


def test_the_wheel_holds_the_program_alone(wheel: Path) -> None:
    """The wheel has three packages, the licence, and the console script."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert wheel.name.startswith("caravan_orchestrator-")
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "schemas",
        "services",
        "shared",
    }
    files = {name.rpartition("/")[2] for name in names}
    assert {"LICENSE", "entry_points.txt"} <= files


def test_the_demo_runs_from_the_wheel(installed: Path) -> None:
    """`caravan demo` succeeds with the base and the server alone, in an environment without the checkout."""
    done = caravan(installed, "demo", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_a_missing_extra_is_named(installed: Path) -> None:
    """A command whose packages were not installed names the extra to install."""
    done = caravan(installed, "sql", "SELECT 1")
    assert done.returncode != 0
    assert "install caravan-orchestrator[sql]" in done.stderr
