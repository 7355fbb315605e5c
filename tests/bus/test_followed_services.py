"""Templates that read services in a whole cluster: a job of another team moves, and the balancer's file follows."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bus.up import Up

pytestmark = pytest.mark.bus

SOURCE = '{{ range nomadService "shop" }}{{ .Port }},{{ end }}'
#: Says in its own file each time that it is asked to read its configuration again.
LISTENS = "trap 'cat local/shop >> local/seen' HUP; while :; do sleep 0.1; done"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster of one node."""
    one = Up(tmp_path, one_process=True)
    yield one
    assert one.end() == 0


def submit(up: Up, folder: Path, job_id: str, script: str, **more: Any) -> None:
    """Run a job of one task, which is a shell script; `more`: of the task."""
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        **more,
    }
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    path = folder / f"{job_id}.json"
    path.write_text(
        json.dumps({"Job": {"ID": job_id, "Datacenters": ["*"], "TaskGroups": [group]}})
    )
    up.documented("job", "run", "--detach", str(path))


def shop(up: Up, folder: Path, port: int) -> None:
    service = {"Name": "shop", "PortLabel": str(port), "Provider": "nomad"}
    submit(up, folder, "shop", "sleep 10000", Services=[service])


def read(up: Up, job_id: str, name: str) -> str:
    """A file in `local/` of the job's one allocation; empty: it is not there."""
    for one in up.allocs(job_id):
        path = up.data_dir / "agents" / one["node"] / "alloc" / one["id"] / "t" / "local" / name
        if path.is_file():
            return path.read_text()
    return ""


def task_of(up: Up, job_id: str) -> dict[str, Any]:
    """State of the job's one task."""
    (one,) = up.allocs(job_id)
    found: dict[str, Any] = up.documented("alloc", "status", one["id"])["tasks"]["t"]
    return found


def test_a_running_task_hears_of_each_change(up: Up, tmp_path: Path) -> None:
    """Its file has what the service is, and the signal comes; a kill of the agent loses no change and repeats none."""
    template = {
        "EmbeddedTmpl": SOURCE,
        "DestPath": "local/shop",
        "ChangeMode": "signal",
        "ChangeSignal": "SIGHUP",
        "Splay": 0,
    }
    submit(up, tmp_path, "front", LISTENS, Templates=[template])
    up.until(lambda: bool(up.allocs("front", "running")), "the reader runs")
    assert read(up, "front", "shop") == ""
    shop(up, tmp_path, 8101)
    up.until(lambda: read(up, "front", "seen") == "8101,", "it saw the first")
    os.kill(up.said["services"]["agent-node-1"], signal.SIGKILL)
    shop(up, tmp_path, 8102)
    up.until(lambda: "8102," in read(up, "front", "seen"), "it saw the next")
    assert read(up, "front", "shop") == "8102,"
    seen = read(up, "front", "seen").removeprefix("8101,")
    # While the job is updated the list may be empty, and a signal may come twice.
    assert set(seen.split(",")) == {"8102", ""}
    assert task_of(up, "front")["restarts"] == 0


def test_a_task_that_restarts_for_a_change_costs_no_attempt(up: Up, tmp_path: Path) -> None:
    """The next run reads the new file, and its events say why it was restarted."""
    template = {"EmbeddedTmpl": SOURCE, "DestPath": "local/shop", "Splay": 0}
    script = "cat local/shop >> local/seen; sleep 10000"
    submit(up, tmp_path, "front", script, Templates=[template])
    up.until(lambda: bool(up.allocs("front", "running")), "the reader runs")
    shop(up, tmp_path, 8101)
    up.until(lambda: read(up, "front", "seen") == "8101,", "it was started again")
    up.until(lambda: task_of(up, "front")["state"] == "running", "the next run is reported")
    task = task_of(up, "front")
    kinds = [(event["kind"], event["message"]) for event in task["events"]]
    assert ("Restart Signaled", "template[0] was rendered anew") in kinds
    assert "Restarting" not in [kind for kind, _ in kinds]
    assert (task["state"], task["restarts"]) == ("running", 1)
