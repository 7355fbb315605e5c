"""Tasks that run elsewhere, on a running cluster: one of a slot whatever is killed, and none left when its job ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bounds import until
from tests.bus.up import Up
from tests.integration import cloud_runtime

pytestmark = [pytest.mark.bus, pytest.mark.full("a whole cluster, its agents and drivers killed")]
DRIVER = Path(cloud_runtime.__file__).with_name("cloud_driver.py")
JOB = """
job "far" {
  group "g" {
    count = COUNT
    restart {
      attempts = 3
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }
    task "t" {
      driver = "cloud"
      config { image = "IMAGE" }
      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
"""


class Cloud:
    """The runtime as a process, and the folder of its driver."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "cloud"
        self.home.mkdir()
        self.drivers = folder / "drivers"
        self.drivers.mkdir(mode=0o755)
        program = self.drivers / "cloud"
        program.write_text(f"#!{sys.executable}\n{DRIVER.read_text()}")
        program.chmod(0o755)
        self.begin()

    def begin(self) -> None:
        """Start it, with what it knew."""
        command = (sys.executable, cloud_runtime.__file__, str(self.home))
        self.process = subprocess.Popen(command)
        until(self._is_up, "the runtime answers")

    def _is_up(self) -> bool:
        try:
            return bool(self.state())
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def state(self) -> dict[str, Any]:
        """All that it knows."""
        return cloud_runtime.ask(str(self.home), verb="list")

    def alive(self) -> list[str]:
        """Tokens of what runs."""
        things = self.state()["things"]
        return [token for token, one in things.items() if one["exit_code"] is None]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A runtime, killed at the end."""
    one = Cloud(tmp_path)
    yield one
    one.kill()


@pytest.fixture
def up(tmp_path: Path, cloud: Cloud) -> Iterator[Up]:
    """Two nodes with the driver."""
    one = Up(
        tmp_path,
        *("--agents", "2"),
        CARAVAN_AGENT_DRIVER_PLUGINS=str(cloud.drivers),
        CARAVAN_DRIVER_CLOUD=str(cloud.home),
    )
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def submit(up: Up, folder: Path, *, count: int = 1, image: str = "web") -> None:
    """Submit the job."""
    path = folder / "far.nomad.hcl"
    path.write_text(JOB.replace("COUNT", str(count)).replace("IMAGE", image), encoding="utf-8")
    code, said = up.run("job", "run", "--detach", str(path))
    assert code == 0, said


def running(up: Up) -> list[dict[str, Any]]:
    """What runs of the job."""
    return up.allocs("far", "running")


def pids(*words: str) -> list[int]:
    """Processes whose command line and environment have all words."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            text = (one / "cmdline").read_bytes() + (one / "environ").read_bytes()
        except OSError:
            continue
        if all(word.encode() in text for word in words):
            found.append(int(one.name))
    return found


def agent_of(up: Up, node_id: str) -> int:
    """Process of a node's agent, without its helpers."""
    found = pids(f"CARAVAN_AGENT_NODE_ID={node_id}\0", "\0run\0agent\0")
    (one,) = [pid for pid in found if parent_of(pid) == up.process.pid]
    return one


def parent_of(pid: int) -> int:
    """Process id of the parent; 0: the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def adopted(up: Up, shown: str) -> bool:
    """Say whether an allocation was found by another life of its agent."""
    return "adopted after agent restart" in json.dumps(up.run("alloc", "status", shown)[1])


def node_status(up: Up, node_id: str) -> str:
    """Status of a node."""
    found: str = up.run("node", "status", node_id)[1]["nodes"][0]["status"]
    return found


def test_a_remote_task_outlives_all_who_track_it(up: Up, cloud: Cloud, tmp_path: Path) -> None:
    """Driver, runtime and the tracking agent are killed -9: one task runs all the time; it ends with its job (S92)."""
    submit(up, tmp_path)
    up.until(lambda: len(running(up)) == 1 and len(cloud.alive()) == 1, "it runs")
    (token,) = cloud.alive()
    first = running(up)[0]
    for pid in pids(str(cloud.drivers / "cloud"), "CARAVAN_DRIVER_SOCKET"):
        os.kill(pid, signal.SIGKILL)
    cloud.kill()
    cloud.begin()
    assert cloud.alive() == [token]
    os.kill(agent_of(up, first["node"]), signal.SIGKILL)
    up.until(lambda: adopted(up, first["id"]), "its next life tracks it")
    assert cloud.alive() == [token]
    paused = agent_of(up, first["node"])
    os.kill(paused, signal.SIGSTOP)
    try:
        up.until(
            lambda: [one["node"] != first["node"] for one in running(up)] == [True],
            "another node tracks it",
        )
        assert cloud.alive() == [token]
        highest = max(cloud.state()["epochs"].values())
    finally:
        os.kill(paused, signal.SIGCONT)
    up.until(lambda: node_status(up, first["node"]) == "ready", "the first node is back")
    detached = up.data_dir / "agents" / first["node"]
    up.until(lambda: not list(detached.glob("**/drivers/cloud/runs/*")), "it tracks nothing")
    state = cloud.state()
    assert (list(state["things"]), cloud.alive()) == ([token], [token])
    assert [highest] == list(state["epochs"].values())
    assert up.run("job", "stop", "--detach", "far")[0] == 0
    up.until(lambda: not cloud.alive(), "it ends with its job")


def test_another_text_is_another_task(up: Up, cloud: Cloud, tmp_path: Path) -> None:
    """A destructive update ends the task and starts another; fewer allocations are fewer tasks."""
    submit(up, tmp_path, count=2)
    up.until(lambda: len(running(up)) == 2 and len(cloud.alive()) == 2, "both run")
    before = set(cloud.alive())
    submit(up, tmp_path, count=1, image="other")
    up.until(
        lambda: len(cloud.alive()) == 1 and not before & set(cloud.alive()),
        "one of the new text runs",
    )
    assert up.run("job", "stop", "--detach", "far")[0] == 0
    up.until(lambda: not cloud.alive(), "none is left")
