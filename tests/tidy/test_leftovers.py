"""What a run leaves behind is found: by its environment, or by the run's folder, and named with its test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers

RUN = "a-run-of-its-own"
SLEEP = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")


def begin(environment: dict[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a process that stays, and wait until it has its own command and environment."""
    process = subprocess.Popen(SLEEP, env=environment, cwd=cwd, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_process_is_known_by_its_run_and_named_by_its_test() -> None:
    """The name of the test is what pytest had set when the process began; it is killed by its id, and gone then."""
    of_test = {"PYTEST_CURRENT_TEST": "tests/bus/test_a.py::t[1] (call)", leftovers.RUN: RUN}
    with begin({**os.environ, **of_test}, Path("/")) as process:
        left = leftovers.look(RUN, "", leftovers.mounts())
        assert [(one.pid, one.test) for one in left] == [(process.pid, "tests/bus/test_a.py::t[1]")]
        assert leftovers.report(left[0]).nodeid == "tests/bus/test_a.py::t[1]"
        leftovers.end(left)
    assert leftovers.look(RUN, "", leftovers.mounts()) == []


def test_a_process_with_an_empty_environment_is_known_by_its_folder(tmp_path: Path) -> None:
    """A task gets an environment of its own; where it works tells whose it is."""
    with begin({}, tmp_path) as process:
        try:
            left = leftovers.look(RUN, str(tmp_path), leftovers.mounts())
            assert [(one.pid, one.test) for one in left] == [(process.pid, f"a test of {tmp_path}")]
        finally:
            process.kill()


def test_looking_ends_as_soon_as_nothing_is_left() -> None:
    """What ends by itself is no leftover; what stays is told when patience is at its end."""
    left = leftovers.Left("process 1 (x)", "t")
    looks = [[left], [left], []]
    assert leftovers.settle(lambda: looks.pop(0)) == []
    assert leftovers.settle(lambda: [left], patience_s=0.0) == [left]


def test_a_new_mount_below_the_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts of others, and those that were there before, are not of this run."""
    now = frozenset({"/", "/run/other", "/run-folder/a", "/run-folder/b"})
    monkeypatch.setattr(leftovers, "mounts", lambda: now)
    left = leftovers.look(RUN, "/run-folder", frozenset({"/", "/run-folder/a"}))
    assert [one.what for one in left] == ["mount /run-folder/b"]
