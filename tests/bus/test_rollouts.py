"""Jobs submitted together on a real bus, with real processes: all continue, or all go back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bus.up import Up

pytestmark = pytest.mark.bus
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One node with room for all."""
    one = Up(tmp_path_factory.mktemp("rollouts"), one_process=True)
    yield one
    if one.process.poll() is None:
        one.end()


def job_file(folder: Path, job_id: str, script: str, **more: Any) -> str:
    """Write a service of one shell script whose first unhealthy allocation fails its deployment."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    }
    group = {
        "Name": "g",
        "Count": 1,
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
    }
    update = {"MinHealthyTime": SECOND // 2, "ProgressDeadline": 0}
    spec = {"ID": job_id, "Type": "service", "TaskGroups": [group], "Update": update, **more}
    path = folder / f"{job_id}.json"
    path.write_text(json.dumps(spec))
    return str(path)


def test_all_go_on_and_all_go_back(up: Up, tmp_path: Path) -> None:
    """Two new jobs come up together; then the second fails in order, and the first, which was successful, goes back."""
    good = [job_file(tmp_path, one, "sleep 1000") for one in ("front", "back")]
    code, said = up.run("job", "run", "--together", "first", *good)
    assert (code, said["rollout"]["status"], said["rollout"]["done"]) == (0, "successful", 2)
    files = [
        job_file(tmp_path, "front", "sleep 1001"),
        job_file(tmp_path, "back", "exit 3"),
    ]
    code, said = up.run("job", "run", "--together", "second", "--in-order", *files)
    assert code == 1 and said["error"]["code"] == "rollout"
    assert [one["status"] for one in said["members"]] == ["rolled_back", "rolled_back"]
    assert "unhealthy" in said["rollout"]["description"]
    for job_id in ("front", "back"):
        _, text = up.run("job", "inspect", job_id)
        assert "sleep 1000" in json.dumps(text)
    _, listed = up.run("rollout", "list")
    assert [one["name"] for one in listed["rollouts"]] == ["second", "first"]


def test_a_batch_job_is_refused(up: Up, tmp_path: Path) -> None:
    """One clear line names the file and the reason, and nothing is registered."""
    files = [
        job_file(tmp_path, "beside", "sleep 1000"),
        job_file(tmp_path, "nightly", "true", Type="batch", Update=None),
    ]
    code, said = up.run("job", "run", "--together", "third", *files)
    assert code == 1 and "type batch, which has no deployment" in said["error"]["message"]
    assert up.run("job", "status", "beside")[0] == 1
