"""docs/operations.md for a bus of three, followed word by word: upgrade, back up, restore, repair."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.harness.three_servers import REPLICAS
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.server import accounts
from tests.bounds import LONG_S, until
from tests.bus.compose_stub import ComposeStub, PageCluster
from tests.compose.page import PAGE, blocks

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
        # As a first `operator bootstrap` left them: a later one keeps these passwords.
        accounts.write_credentials(secrets / "credentials.json", cluster.credentials)
        identity = {"cluster_id": cluster.identity.cluster_id, "servers": REPLICAS}
        (secrets / "cluster.json").write_text(json.dumps(identity))
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
        """Run a block as one paste, in a shell that runs on behind a failed line; it must end with 0."""
        code, said = self.paste(text)
        assert code == 0, (text, said)
        return said

    def paste(self, text: str) -> tuple[int, str]:
        """Run a block in a reader's shell, which keeps what was exported; returns its exit code and what it printed."""
        kept = f"{text}\nlast=$?\nexport -p > exports\nexit $last"
        done = subprocess.run(
            ["/bin/sh", "-c", f"[ ! -f exports ] || . ./exports\n{kept}"],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        return done.returncode, done.stdout

    def begin_anew(self) -> None:
        """A checkout before its first start: no secrets, no variables, no containers.

        Stands in for the page's own cluster: `operator bootstrap` writes secrets for ports that are not those of the
        test's, so the address of the test's takes the place of the one that it wrote.
        """
        shutil.rmtree(self.folder / "deploy")
        (self.folder / "deploy").mkdir()
        for name in ("CARAVAN_NATS_URL", "CARAVAN_CREDENTIALS", "COMPOSE_PROFILES"):
            del self._env[name]
        program = f"{sys.executable} -m services.cli"
        url = f"echo '{self.cluster.client_url}' > deploy/secrets/url"
        script = f'{program} "$@" || exit\n[ "$1 $2" != "operator bootstrap" ] || {url}\n'
        (self.stub.programs / "caravan").write_text(f"#!/bin/sh\n{script}")
        self.cluster.stop_services(sorted(self.cluster.exist))
        self.cluster.exist.clear()

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


def shown(heading: str) -> list[list[str]]:
    """Lines of the text blocks under one heading of the page."""
    part = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n### ")[0]
    found = re.findall(r"^```text\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return [[line for line in one.splitlines() if line] for one in found]


def masked(line: str, names: dict[str, str]) -> tuple[str, ...]:
    """The words of a line in a fixed order; times, counts of seconds and instances are alike, servers renamed."""
    line = re.sub(r"nats-\d", lambda found: names.get(found.group(), found.group()), line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", line)
    line = re.sub(r"plan_applier-[\w-]+, epoch \d+", "INSTANCE", line)
    return tuple(sorted(re.sub(r"\d+(\.\d+)? s\b", "N s", line).split()))


def test_a_bus_of_three_is_followed_from_its_first_line(reader: PageReader) -> None:
    """The block starts all; with one and with two servers away the command prints what the page shows, and exits so."""
    heading = "A bus of three servers"
    cluster = reader.cluster
    reader.begin_anew()
    [start] = blocks(heading)
    assert "--wait current" in start.splitlines()[-1]
    reader.type(start)
    assert {one for one in cluster.exist if one.startswith("nats-")} == {
        f"nats-{number}" for number in (1, 2, 3)
    }
    assert set(cluster.started) == cluster.exist
    code, bus = cluster.status()
    assert code == 0
    leader = next(one["name"] for one in bus["servers"] if one["leads"])
    third, second = [one["name"] for one in bus["servers"] if one["name"] != leader]
    # On the page nats-1 leads, and is there when the others are away.
    names = {leader: "nats-1", second: "nats-2", third: "nats-3"}
    one_away, two_away = shown(heading)

    def until_shown(lines: list[str], exit_code: int) -> None:
        wanted = [masked(line, {}) for line in lines]
        found: list[Any] = []

        def is_so() -> bool:
            code, said = reader.paste("caravan operator status")
            told = [masked(line, names) for line in said.splitlines()]
            missing = [line for line in wanted if line not in told]
            found[:] = [code, missing, said]
            return code == exit_code and not missing

        until(is_so, lambda: found, LONG_S)

    cluster.stop_services([third])
    until_shown(one_away, 2)
    assert reader.paste(f"caravan operator status --server {third}")[0] == 2
    assert reader.paste(f"caravan operator status --server {leader}")[0] == 0
    code, said = reader.paste("caravan operator status --server nats-4")
    assert (code, "no server 'nats-4'; it has: nats-1, nats-2, nats-3" in said) == (1, True)
    assert reader.paste(f"caravan operator status --wait current --server {leader}")[0] == 0
    assert reader.paste("caravan operator status --wait current --timeout 1s")[0] == 1
    cluster.stop_services([second])
    until_shown(two_away, 1)
    assert reader.paste("caravan operator status --wait quorum --timeout 1s")[0] == 1
    cluster.start_services([second])
    reader.type("caravan operator status --wait quorum")
    cluster.start_services([third])
    reader.type("caravan operator status --wait current")
    assert cluster.status()[0] == 0


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


def test_a_restore_stops_where_a_store_was_not_removed(reader: PageReader) -> None:
    """A store that is in use stays while others are removed: nothing behind that line runs, and no server starts."""
    reader.follow("Back up three servers")
    down, rest = blocks("Back up three servers")[1].split(" &&\n", 1)
    removes = rest.partition(" &&\n")[0].split()[3:]
    assert {"caravan_nats-1", "caravan_nats-2", "caravan_nats-3"} <= set(removes)
    reader.type(down)
    # A container that `down` did not remove, as one of another project, has the second store.
    reader.cluster.exist.add("nats-2")
    before = list(reader.stub.orders)
    code, said = reader.paste(rest)
    assert (code, "volume nats-2 is in use" in said) == (1, True)
    assert [order.split()[0] for order in reader.stub.orders[len(before) :]] == ["volume"]
    assert not reader.cluster.store_of("nats-1").exists()
    assert not any(reader.cluster.is_running(f"nats-{number}") for number in (1, 2, 3))
    # What is left is removed, and the page followed behind that line.
    reader.cluster.exist.discard("nats-2")
    reader.type("docker volume rm caravan_nats-2")
    reader.type(rest.partition(" &&\n")[2])
    assert reader.asked("log", "verify")["ok"]


def test_three_servers_are_upgraded_by_one_block(reader: PageReader) -> None:
    """Each server is replaced while all hold everything, then a kind when the one before is ready; agents last."""
    reader.run_job("runs")
    [block] = blocks("Upgrade three servers")
    everything = {name for name in reader.cluster.exist if not name.startswith("nats-")}
    reader.cluster.outdated = set(everything)
    kinds = re.findall(r"--no-deps --wait (\w+) &&$", block, re.MULTILINE)
    reader.type(block)
    servers = ["nats-1", "nats-2", "nats-3"]
    assert reader.cluster.started == [*servers, *kinds, "agent-1", "agent-2", "agent-3"]
    reader.until_running("runs")
    reader.run_job("new")


def test_an_upgrade_stops_where_a_server_does_not_come_back(reader: PageReader) -> None:
    """The wait behind that server fails: no other server is touched, and no service."""
    reader.cluster.broken = {"nats-2"}
    reader.cluster.outdated = {name for name in reader.cluster.exist if name[:5] != "nats-"}
    [block] = blocks("Upgrade three servers")
    second = "--force-recreate nats-2 &&\ncaravan operator status --wait current"
    assert block.count(second) == 1
    code, said = reader.paste(block.replace(second, f"{second} --timeout 5s"))
    assert (code, "nats-2" in said) == (1, True)
    assert reader.cluster.started == ["nats-1"]
    assert not reader.cluster.is_running("nats-2")
    assert reader.stub.orders[-1].endswith("--force-recreate nats-2")
    assert Path(reader.folder, "deploy", "secrets", "url").exists()
    # With its cause removed that server is started, and the block is pasted again, as a whole.
    reader.cluster.broken = set()
    start = "docker compose -f deploy/compose.yaml up -d --no-deps nats-2"
    assert f"`{start}`" in PAGE.read_text()
    reader.type(start)
    reader.type(block)
    assert reader.cluster.started[1:5] == ["nats-2", "nats-1", "nats-2", "nats-3"]


def test_a_damaged_server_is_repaired(reader: PageReader) -> None:
    """A wiped server has everything again."""
    reader.follow("Repair a damaged server")
    assert reader.cluster.started == ["nats-2"]
    assert reader.cluster.status()[0] == 0
    assert reader.asked("log", "verify")["ok"]
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
