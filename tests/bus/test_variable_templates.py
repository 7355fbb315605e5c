"""A template that reads a variable, in a whole cluster: from the command line to the file of the task."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bus.up import Up

pytestmark = pytest.mark.bus

MARKER = "marker-77aa-of-a-text"
PATH = "nomad/jobs/shop"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.end()


def job(folder: Path, text: str, name: str = "shop") -> str:
    """The file of a job whose task has one template."""
    task: dict[str, Any] = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["10000"]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "Templates": [
            {"EmbeddedTmpl": text, "DestPath": "secrets/made.conf", "ChangeMode": "restart"}
        ],
    }
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    path = folder / f"{name}.json"
    body = {"Job": {"ID": name, "Datacenters": ["*"], "TaskGroups": [group]}}
    path.write_text(json.dumps(body))
    return str(path)


def put(up: Up, path: str, text: str) -> None:
    """Put one item by standard input."""
    subprocess.run(
        up._command("var", "put", path, "password=-", "--force", "--json"),
        env=up.env,
        input=text.encode(),
        capture_output=True,
        check=True,
    )


def made(up: Up) -> list[Path]:
    return list(up.data_dir.rglob("made.conf"))


def test_a_task_starts_with_its_variable_and_follows_it(up: Up, tmp_path: Path) -> None:
    """It waits for the put, over a keeper that is killed, restarts at a change, and only its file has the text."""
    text = '{{ with nomadVar "nomad/jobs/shop" }}{{ .password }}{{ end }}'
    up.documented("job", "run", "--detach", job(tmp_path, text))
    up.until(lambda: up.allocs("shop", "pending"), "it is placed")
    (alloc,) = up.allocs("shop", "pending")

    def events() -> str:
        return json.dumps(up.run("alloc", "status", alloc["id"])[1])

    up.until(lambda: f"Missing: nomad.var.block({PATH})" in events(), "what is missing is said")
    put(up, PATH, MARKER)
    up.until(lambda: up.allocs("shop", "running"), "it runs")
    (file,) = made(up)
    assert file.read_text() == MARKER
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    put(up, PATH, MARKER + "2")
    up.until(lambda: made(up)[0].read_text() == MARKER + "2", "the change is rendered")
    up.until(lambda: "Restart Signaled" in events(), "the task is restarted")
    assert MARKER not in events()
    files = [one for one in up.data_dir.parent.rglob("*") if one.is_file() and one != file]
    shown = [one for one in files if MARKER.encode() in one.read_bytes()]
    assert len(files) > 10 and shown == []


def test_a_path_of_another_job_is_refused_at_submission(up: Up, tmp_path: Path) -> None:
    """With the line of the template, and what the task may read."""
    text = 'a\n{{ nomadVar "nomad/jobs/other" }}'
    code, answer = up.run("job", "run", job(tmp_path, text))
    assert code == 1
    assert "line 2 of the template: this task may not read variable nomad/jobs/other" in str(answer)
