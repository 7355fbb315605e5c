"""The commands of README refuse what cannot work before they begin, in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT


def bootstrap(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of README where PATH is one folder."""
    command = [sys.executable, str(ROOT / "deploy" / "bootstrap.py"), *words]
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("test",), "not on PATH: git (Debian: git)"),
        (("test", "--full"), "not on PATH: git (Debian: git)"),
    ],
)
def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    """Exit 1 before anything is set up or run."""
    done = bootstrap(tmp_path, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"caravan: {named}")
    assert done.stderr.endswith("no test was run\n")


def test_all_programs_of_the_full_tier_are_asked_for(tmp_path: Path) -> None:
    """With git alone the others are named, each with its package, and nothing is installed without apt-get."""
    (tmp_path / "git").write_text("#!/bin/sh\n")
    (tmp_path / "git").chmod(0o755)
    done = bootstrap(tmp_path, "test", "--full")
    assert (done.returncode, done.stdout) == (1, "")
    assert "git" not in done.stderr
    for named in (
        "dockerd (Debian: docker.io)",
        "go (Debian: golang-go)",
        "chromium (Debian: chromium)",
    ):
        assert named in done.stderr


def test_an_unknown_command_is_refused() -> None:
    """The commands that there are stand in the message."""
    done = bootstrap(Path("/nowhere"), "tests")
    assert done.returncode == 1
    assert done.stderr == (
        "caravan: expected one of demo, test, setup: python3 deploy/bootstrap.py demo | test [--full] | setup\n"
    )
