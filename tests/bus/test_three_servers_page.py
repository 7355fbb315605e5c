"""docs/operations.md for a bus of three, followed word by word: upgrade, back up, restore, repair."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.harness.three_servers import REPLICAS
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.server import accounts
from tests.bounds import LONG_S, until
from tests.bus.compose_stub import ComposeStub, PageCluster
from tests.compose.page import blocks

pytestmark = [
    pytest.mark.bus,
    pytest.mark.full("three servers beside all services, whose elections depend on load"),
]
SLEEPS = {"Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["600"]}}


class PageReader:
    """A user in a checkout whose cluster is that of the test."""

    def __init__(self, cluster: PageCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.stub = ComposeStub(cluster, folder)
        secrets = folder / "deploy" / "secrets"
        secrets.mkdir(parents=True)
        admin = cluster.credentials.only_user(accounts.ADMIN)
        accounts.write_credentials(secrets / "admin.json", admin)
        self._env = {
            **os.environ,
            "PATH": f"{self.stub.programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "CARAVAN_NATS_URL": cluster.client_url,
            # As the page has it, under "Start".
            "CARAVAN_CREDENTIALS": "deploy/secrets/admin.json",
            "COMPOSE_PROFILES": "agents,cluster",
        }

    def follow(self, heading: str, at: int = 0) -> str:
        """Run one block under a heading as it stands there; it must end with 0."""
        return self.type(blocks(heading)[at])

    def type(self, text: str) -> str:
        """Run shell lines; they must end with 0."""
        done = subprocess.run(
            ["/bin/sh", "-ec", text],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        assert done.returncode == 0, (text, done.stdout)
        return done.stdout

    def asked(self, *words: str) -> dict[str, Any]:
        """The object that a command prints."""
        found: dict[str, Any] = json.loads(self.cluster.caravan(*words).stdout)
        return found

    def run_job(self, name: str) -> None:
        """Run a job of one sleeping task, to its running."""
        job = {"ID": name, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", **SLEEPS}]}]}
        (self.folder / f"{name}.json").write_text(json.dumps({"Job": job}))
        done = self.cluster.caravan("job", "run", "--detach", str(self.folder / f"{name}.json"))
        assert done.returncode == 0, done
        self.until_running(name)

    def until_running(self, name: str) -> None:
        """Wait until the job's task runs."""
        found: list[str] = []

        def runs() -> bool:
            found[:] = [one["client_status"] for one in self._allocs(name)]
            return "running" in found

        until(runs, lambda: found, LONG_S)

    def _allocs(self, name: str) -> list[dict[str, Any]]:
        told = self.asked("job", "status", name)
        return [one for one in told.get("allocations", []) if one["desired_status"] == "run"]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageReader]:
    """The page's cluster: three servers, every service, three nodes."""
    monkeypatch.setenv("CARAVAN_REPLICAS", str(REPLICAS))
    settings = LocalClusterSettings(
        data_dir=tmp_path / "data", agents=3, appliers=2, schedulers=1, raw_exec=True
    )
    with PageCluster(settings) as running:
        (tmp_path / "page").mkdir()
        one = PageReader(running, tmp_path / "page")
        assert running.status("--wait", "current")[0] == 0
        try:
            yield one
        finally:
            one.stub.close()


def test_a_copy_of_three_servers_takes_the_place_of_what_came_later(reader: PageReader) -> None:
    """What was decided after the copy is gone, what was there before runs; the log is sound on all servers."""
    reader.run_job("kept")
    reader.follow("Back up three servers")
    reader.until_running("kept")
    reader.run_job("later")
    assert reader.cluster.caravan("job", "stop", "kept").returncode == 0
    before = reader.asked("log", "verify")
    assert before["ok"]
    reader.follow("Back up three servers", 1)
    reader.until_running("kept")
    code, bus = reader.cluster.status()
    assert (code, {one["status"] for one in bus["servers"]}) == (0, {"current"})
    assert reader.asked("job", "status", "later")["error"]["code"] == "not_found"
    assert reader.asked("log", "verify")["ok"]


def test_a_store_is_not_removed_under_a_server(reader: PageReader) -> None:
    """The line of the page that removes all three stores fails while a server is there: no two outvote a copy."""
    removes = next(line for line in blocks("Back up three servers")[1].splitlines() if "rm" in line)
    names = removes.split()[3:]
    assert {"caravan_nats-1", "caravan_nats-2", "caravan_nats-3"} <= set(names)
    stopped = blocks("Back up three servers")[0]
    assert "stop intake plan_applier nats-1 nats-2 nats-3" in stopped
    done = subprocess.run(
        ["/bin/sh", "-ec", removes], env=reader._env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "in use" in done.stdout) == (1, True)
    assert reader.cluster.status("--wait", "current")[0] == 0


def test_servers_are_replaced_one_after_the_other_and_repaired(reader: PageReader) -> None:
    """Each server is replaced once, while the others hold everything; a wiped one has everything again."""
    reader.run_job("runs")
    reader.follow("Upgrade three servers")
    assert reader.cluster.started == ["nats-1", "nats-2", "nats-3"]
    reader.until_running("runs")
    reader.follow("Repair a damaged server")
    assert reader.cluster.started[3:] == ["nats-2"]
    assert reader.cluster.status()[0] == 0
    assert reader.asked("log", "verify")["ok"]
    reader.run_job("new")


def test_services_are_replaced_one_kind_after_the_other(reader: PageReader) -> None:
    """The loop of the page begins a kind when the one before is ready; agents, with their tasks, are replaced last."""
    reader.run_job("runs")
    text = blocks("Upgrade")[0]
    everything = {name for name in reader.cluster.exist if not name.startswith("nats-")}
    reader.cluster.outdated = set(everything)
    reader.type(text[text.index("for kind in") :])
    kinds = text.partition("for kind in ")[2].partition(";")[0].split()
    assert reader.cluster.started == [*kinds, "agent-1", "agent-2", "agent-3"]
    reader.until_running("runs")
    reader.run_job("new")


def test_all_profiles_stop_and_start_again(reader: PageReader) -> None:
    """With the profiles of the page `stop` leaves nothing running; what ran runs again after `start`."""
    reader.run_job("runs")
    stop, start = blocks("Stop")[0].splitlines()
    reader.type(stop)
    assert [name for name in reader.cluster.exist if reader.cluster.is_running(name)] == []
    reader.type(start)
    assert reader.cluster.status("--wait", "current")[0] == 0
    reader.until_running("runs")
