"""Snapshots in the whole product: `caravan up` writes them, killed processes restart from them, nothing is lost."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = pytest.mark.bus
ROLES = ("intake", "eval_broker", "scheduler", "heartbeat", "view", "plan_applier-1")
OFTEN = {"CARAVAN_SNAPSHOT_RECORDS": "5", "CARAVAN_AGENT_CPU_MHZ": "2000"}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster of one node whose view writes a snapshot every few records."""
    one = Up(tmp_path, **OFTEN)
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def run_job(up: Up, folder: Path, name: str) -> None:
    """Run a job of two tasks and wait until they run."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", "sleep 600"]},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    }
    group = {"Name": "g", "Count": 2, "Tasks": [task]}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"ID": name, "Type": "service", "TaskGroups": [group]}))
    words = ("job", "run", "--detach", str(path), "--submission-id", name)
    up.until(lambda: up.run(*words)[0] == 0, f"{name} is placed")
    up.until(lambda: running(up, name) == 2, f"{name} runs")


def running(up: Up, name: str) -> int:
    """How many allocations of a job run."""
    return len(up.allocs(name, "running"))


def told(up: Up, role: str, word: str) -> list[dict[str, Any]]:
    """Lines of a service's log that are about `word`."""
    lines = (up.data_dir / "logs" / f"{role}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line.get("event") == word]


def services(up: Up) -> dict[str, int]:
    """Pids by name."""
    found: dict[str, int] = json.loads((up.data_dir / "up.json").read_text())["services"]
    return found


def test_whoever_is_killed_comes_back_by_a_snapshot(up: Up, tmp_path: Path) -> None:
    """After kill -9 of every role, of the view while it writes too, each begins at a snapshot; the log is sound."""
    for number in range(3):
        run_job(up, tmp_path, f"before-{number}")
        os.kill(services(up)["view"], signal.SIGKILL)
    up.until(lambda: "snap.set" in listed(up), "a whole snapshot")
    before = {role: len(told(up, role, "snapshot.restored")) for role in ROLES}
    for role in ROLES:
        os.kill(services(up)[role], signal.SIGKILL)
    up.until(
        lambda: all(len(told(up, one, "snapshot.restored")) > before[one] for one in ROLES),
        "all began at one",
    )
    run_job(up, tmp_path, "after")
    assert [running(up, f"before-{number}") for number in range(3)] == [2, 2, 2]
    code, proof = up.run("log", "verify")
    assert code == 0, proof
    assert not any(told(up, role, "snapshot.passed_over") for role in ROLES)


def listed(up: Up) -> str:
    """What the bus keeps of snapshots, by its own files: subjects stand in them as they are."""
    blocks = sorted((up.data_dir / "bus").glob("**/SNAP/msgs/*.blk"))
    return "".join(block.read_bytes().decode("latin-1") for block in blocks)
