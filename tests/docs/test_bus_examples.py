"""The programs of docs/any-language.md for logs and exit codes, as they stand there, against a running cluster."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus
PAGE = Path(__file__).resolve().parents[2] / "docs" / "any-language.md"
LINES_MAX = 22


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster with a job that continues, and one that has ended with a code."""
    folder = tmp_path_factory.mktemp("examples")
    one = Up(folder, one_process=True)
    for name, kind, script in (
        ("talks", "service", "seq -f 'line %g' 1 40; exec sleep 600"),
        ("ends", "batch", "echo gone; exit 3"),
    ):
        config = {"command": "/bin/sh", "args": ["-c", script]}
        task = {"Name": "main", "Driver": "raw_exec", "Config": config}
        group = {"Name": "g", "RestartPolicy": {"Attempts": 0, "Mode": "fail"}, "Tasks": [task]}
        job = {"ID": name, "Type": kind, "TaskGroups": [group]}
        (folder / f"{name}.json").write_text(json.dumps(job), encoding="utf-8")
        one.run("job", "run", "--detach", str(folder / f"{name}.json"))
    yield one
    assert one.end() == 0


def programs() -> dict[str, str]:
    """The programs of the page, by the name in their first line."""
    found = re.findall(
        r"^```py\n# (\w+\.py)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return dict(found)


def ran(up: Up, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the page with the URL that the page tells to export."""
    return subprocess.run(
        [sys.executable, "-c", programs()[name], *words],
        env={**up.env, "CARAVAN_NATS_URL": up.client_url},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def alloc(up: Up, job: str, status: str) -> str:
    """A shortened id of the job's allocation, once it has a status."""

    def found() -> bool:
        shown = up.run("job", "status", job)[1].get("allocations", [])
        return bool(shown) and shown[0]["client_status"] == status

    up.until(found, f"{job} is {status}")
    return str(up.run("job", "status", job)[1]["allocations"][0]["id"])[:8]


def test_the_programs_are_short() -> None:
    """They are examples: what a client does beyond the library stands in a few lines."""
    assert sorted(programs()) == ["logs.py", "run.py"]
    assert all(len(text.splitlines()) <= LINES_MAX for text in programs().values())


def test_the_last_lines_of_a_task_are_printed(up: Up) -> None:
    """By a short id; an unknown task is an error with its message."""
    some = alloc(up, "talks", "running")
    up.until(lambda: "line 40" in ran(up, "logs.py", some, "main").stdout, "all is written")
    done = ran(up, "logs.py", some, "main")
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"line {n}" for n in range(31, 41)])
    wrong = ran(up, "logs.py", some, "nope")
    assert wrong.returncode == 1 and "nope" in wrong.stderr


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_ends_with_its_exit_code(up: Up, code: int) -> None:
    """What it prints arrives, and the last frame carries the code."""
    some = alloc(up, "talks", "running")
    done = ran(up, "run.py", some, "main", "/bin/sh", "-c", f"echo hello; exit {code}")
    assert (done.returncode, done.stdout) == (code, "hello\n"), done.stderr


def test_the_exit_code_of_a_task_that_ended(up: Up) -> None:
    """Without a command the program ends as the task did."""
    some = alloc(up, "ends", "failed")
    assert ran(up, "run.py", some, "main").returncode == 3
