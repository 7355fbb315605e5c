"""`caravan fleet` against a real cluster: it runs what is placed, dies, comes back, and nothing is lost or doubled."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus
NODES = 20
COUNT = 60


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster without agents of its own."""
    one = Up(tmp_path, "--agents", "0", one_process=True)
    yield one
    if one.process.poll() is None:
        one.end()


class Fleet:
    """A running `caravan fleet`."""

    def __init__(self, up: Up, *more: str) -> None:
        words = [sys.executable, "-m", "services.cli", "fleet", "--nodes", str(NODES), "--json"]
        self.process = subprocess.Popen(
            [*words, *more], env=up.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """End it; returns exit code and what it said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err


def submit(up: Up, folder: Path, name: str, **job: Any) -> None:
    """Submit a job of simulated tasks and wait for its verdict."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    small = {"CPU": 100, "MemoryMB": 100}
    group = {"Name": "g", "Count": COUNT, "Tasks": [{**task, "Resources": small}]}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"ID": name, "Type": "service", "TaskGroups": [group], **job}))
    up.until(lambda: up.run("job", "run", str(path), "--detach")[0] == 0, f"{name} is accepted")


def allocations(up: Up, name: str) -> list[dict[str, Any]]:
    """Allocations of a job that are desired or have not ended."""
    return up.allocs(name)


def running(up: Up, name: str) -> list[dict[str, Any]]:
    """Those of them that run."""
    return [one for one in allocations(up, name) if one["client_status"] == "running"]


def nodes(up: Up, status: str) -> int:
    """How many nodes are so."""
    return sum(one["status"] == status for one in up.ask("nodes")["nodes"])


def ended(up: Up, name: str, status: str) -> int:
    """How many allocations of a job are so."""
    return sum(one["client_status"] == status for one in allocations(up, name))


@pytest.mark.parametrize(
    "agents", ["lean", pytest.param("real", marks=pytest.mark.full("the same with more processes"))]
)
def test_a_fleet_that_dies_leaves_a_cluster_that_recovers(
    up: Up, tmp_path: Path, agents: str
) -> None:
    """After kill -9 its nodes are down and its work is lost; a new process runs all of it again, each once."""
    first = Fleet(up, "--agents", agents)
    up.until(lambda: up.ask("nodes")["total"] == NODES, "all nodes are there")
    submit(up, tmp_path, "web")
    up.until(lambda: len(running(up, "web")) == COUNT, "all of it runs")
    first.end(signal.SIGKILL)
    up.until(lambda: nodes(up, "down") == NODES, "all nodes are down")
    second = Fleet(up, "--agents", agents)
    up.until(lambda: nodes(up, "ready") == NODES, "all nodes are back")
    up.until(lambda: len(running(up, "web")) == COUNT, "all of it runs again")
    names = [one["name"] for one in running(up, "web")]
    assert len(set(names)) == COUNT
    assert up.run("log", "verify")[1]["ok"]
    code, out, err = second.end(signal.SIGINT)
    assert code == 0 and "Traceback" not in err
    told = json.loads(out)
    assert (told["nodes"], told["registered"], told["refused"]) == (NODES, NODES, 0)


def test_batches_end_as_their_profile_and_their_meta_say(up: Up, tmp_path: Path) -> None:
    """Tasks fail and end as in their profile; Ctrl-C on a fleet prints totals."""
    profile = tmp_path / "p.yaml"
    profile.write_text(
        "starts: {after: {exponential: 50ms}}\nruns: [{type: batch, lasts: 100ms}]\n"
    )
    fleet = Fleet(up, "--profile", str(profile), "--name-prefix", "rack-")
    up.until(lambda: up.ask("nodes")["total"] == NODES, "all nodes are there")
    assert all(one["id"].startswith("rack-") for one in up.run("node", "status")[1]["nodes"])
    submit(up, tmp_path, "done", Type="batch")
    policy = {"ReschedulePolicy": {"Attempts": 0, "Unlimited": False}}
    group = {"Name": "g", "Count": 3, "RestartPolicy": {"Attempts": 0, "Mode": "fail"}, **policy}
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    bad = {**group, "Tasks": [{**task, "Meta": {"sim.exit_code": "3", "sim.run_ms": "20"}}]}
    submit(up, tmp_path, "bad", Type="batch", TaskGroups=[bad])
    up.until(lambda: ended(up, "done", "complete") == COUNT, "all of one is complete")
    up.until(lambda: ended(up, "bad", "failed") == 3, "all of the other failed")
    assert fleet.end(signal.SIGTERM)[0] == 0
