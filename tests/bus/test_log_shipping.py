"""Output of tasks on the bus: from a real task of a real agent, over its kill, to a reader without the node."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bus.up import Up

pytestmark = [
    pytest.mark.bus,
    pytest.mark.full("whole clusters, one after the other, and an agent that is killed"),
]
LINES = 600
SCRIPT = (
    f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.01; done;"
    " printf '\\033[31mred\\n' >&2; printf end; exec sleep 10000"
)
ALL = "".join(f"line {number}\n" for number in range(LINES)) + "end"


def submit(up: Up, folder: Path, job_id: str, **logs: Any) -> None:
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", SCRIPT]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "LogConfig": {"MaxFiles": 3, "MaxFileSizeMB": 1, **logs},
    }
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    path = folder / f"{job_id}.json"
    path.write_text(
        json.dumps({"Job": {"ID": job_id, "Datacenters": ["*"], "TaskGroups": [group]}})
    )
    up.run("job", "run", "--detach", str(path))


def shipped(up: Up, alloc_id: str, *more: str) -> str:
    """What a reader sees; empty: nothing yet."""
    code, answer = up.run("alloc", "logs", "--shipped", *more, alloc_id)
    return str(answer["text"]) if code == 0 else ""


def test_output_outlives_its_agent_and_its_node(tmp_path: Path) -> None:
    """After kill -9 of the agent each line is there once; after the end of the node all can still be read."""
    up = Up(tmp_path, CARAVAN_AGENT_SHIP_LOGS="1")
    try:
        submit(up, tmp_path, "talks", Ship=True)
        submit(up, tmp_path, "silent")
        up.until(lambda: bool(up.allocs("talks", "running")), "it runs")
        (one,) = up.allocs("talks")
        up.until(lambda: "line 5\n" in shipped(up, one["id"]), "its first lines are on the bus")
        os.kill(up.said["services"]["agent-node-1"], signal.SIGKILL)
        up.until(lambda: shipped(up, one["id"]).endswith("end"), "its last words are on the bus")
        assert shipped(up, one["id"]) == ALL
        assert shipped(up, one["id"], "--stderr") == "?[31mred\n"
        assert shipped(up, one["id"], "--tail", "2") == f"line {LINES - 1}\nend"
        (other,) = up.allocs("silent")
        code, answer = up.run("alloc", "logs", "--shipped", other["id"])
        assert (code, answer["error"]["code"]) == (1, "not_found")
    finally:
        assert up.end() == 0
    up = Up(tmp_path, "--agents", "0")
    try:
        assert shipped(up, one["id"]) == ALL
    finally:
        assert up.end() == 0
