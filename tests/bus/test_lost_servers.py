"""A bus of three that loses servers: what `operator status`, `/health` and waiting commands say, and when they end."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.harness.three_servers import REPLICAS, ThreeServerCluster
from services.cli.local.cluster import LocalClusterSettings
from shared.protocol import subjects
from tests.bounds import LONG_S, until

pytestmark = [
    pytest.mark.bus,
    pytest.mark.full("three servers beside all services, whose elections depend on load"),
]
LOG = subjects.log_stream(1)
JOB = {"ID": "waits", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t"}]}]}
JOB["TaskGroups"][0]["Tasks"][0] |= {"Driver": "raw_exec", "Config": {"command": "/bin/true"}}  # type: ignore[index]


class UnattendedCluster(ThreeServerCluster):
    """A cluster whose servers stay down until the test starts them."""

    def _watch_bus(self, now_s: float) -> bool:
        del now_s
        return False

    def caravan(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command; it prints one object."""
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *words, "--json"],
            env={**os.environ, "CARAVAN_NATS_URL": self.client_url},
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

    def status(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code of `operator status`, and the bus."""
        done = self.caravan("operator", "status", *words)
        told: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, told.get("bus", told)

    def until_status(
        self, code: int, is_so_too: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Ask until the command exits with this code and the bus is so; returns the bus."""
        found: tuple[int, dict[str, Any]] = (-1, {})

        def is_so() -> bool:
            nonlocal found
            found = self.status()
            return found[0] == code and is_so_too(found[1])

        until(is_so, lambda: found, LONG_S)
        return found[1]

    def until_shown_away(self, name: str, code: int) -> None:
        """Ask until the command exits with this code and shows a server as away."""

        def is_away() -> bool:
            found, bus = self.status()
            return found == code and _statuses(bus)[name] == "away"

        until(is_away, within_s=LONG_S)

    def http_leader(self) -> tuple[int, str]:
        """What the gateway answers a client of Nomad that asks who leads."""
        url = (self.data_dir / "logs" / "gateway.url").read_text().strip()
        user, password = self.credentials.login("public")
        headers = {"X-Nomad-Token": f"{user}:{password}"}
        asked = urllib.request.Request(f"{url}/v1/status/leader", headers=headers)
        try:
            with urllib.request.urlopen(asked) as answered:
                return answered.status, answered.read().decode()
        except urllib.error.HTTPError as err:
            return err.code, err.read().decode()

    def health(self) -> dict[str, dict[str, Any]]:
        """`/health` of every service, with its status code."""
        found = {}
        for name in (one.name for one in self.children if one.role != "agent"):
            port = int((self.data_dir / "logs" / f"{name}.port").read_text())
            url = f"http://127.0.0.1:{port}/health"
            try:
                with urllib.request.urlopen(url) as answered:
                    found[name] = {"code": answered.status, **json.load(answered)}
            except urllib.error.HTTPError as err:
                found[name] = {"code": err.code, **json.load(err)}
        return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnattendedCluster]:
    """All services on three servers."""
    monkeypatch.setenv("CARAVAN_REPLICAS", str(REPLICAS))
    settings = LocalClusterSettings(
        data_dir=tmp_path / "data", agents=1, appliers=2, schedulers=1, raw_exec=True
    )
    with UnattendedCluster(settings) as running:
        yield running


def _statuses(bus: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["status"] for one in bus["servers"]}


def test_lost_servers_are_seen_and_waited_for(cluster: UnattendedCluster, tmp_path: Path) -> None:
    """One away: exit 2, and named; two: exit 1, no service is ready, a waiting command says so; then all is well."""
    code, bus = cluster.status("--wait", "current")
    assert code == 0
    assert _statuses(bus) == dict.fromkeys(("nats-1", "nats-2", "nats-3"), "current")
    assert [one["leads"] for one in bus["servers"]].count(True) == 1
    leader = next(one["name"] for one in bus["servers"] if one["leads"])
    first, second, last = sorted(cluster.trio.members, key=lambda one: one.name == leader)

    first.kill()
    cluster.until_shown_away(first.name, 2)
    until(lambda: {one["code"] for one in cluster.health().values()} == {200}, cluster.health)
    alarm = f"server {first.name} of the bus is away"
    until(
        lambda: all(alarm in str(one.get("alarms")) for one in cluster.health().values()),
        cluster.health,
    )
    assert cluster.caravan("operator", "status", "--wait", "quorum").returncode == 0
    assert cluster.http_leader()[0] == 200
    late = cluster.caravan("operator", "status", "--wait", "current", "--timeout", "0")
    assert (late.returncode, first.name in late.stdout) == (1, True)

    second.kill()
    bus = cluster.until_status(1, lambda bus: bool(bus["blocked_since_ns"]))
    assert _statuses(bus) == {
        first.name: "away",
        second.name: "away",
        last.name: "up",
    }
    assert not any(one["leads"] for one in bus["servers"])
    assert f"1 of 3 servers of the bus answers ({last.name})" in bus["reason"]
    until(lambda: {one["code"] for one in cluster.health().values()} == {503}, cluster.health)
    assert all("bus" in one["problems"] for one in cluster.health().values())
    assert cluster.http_leader() == (500, "No cluster leader")

    path = tmp_path / "job.json"
    path.write_text(json.dumps({"Job": JOB}))
    waiting = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "job", "run", "--detach", str(path)],
        env={**os.environ, "CARAVAN_NATS_URL": cluster.client_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    said = [waiting.stderr.readline(), waiting.stderr.readline()]
    assert said[0].startswith("cluster ")
    assert said[1].startswith("waiting: nothing can be committed since ")

    cluster.trio.start()
    code, bus = cluster.status("--wait", "current")
    assert (code, set(_statuses(bus).values()), bus["reason"]) == (0, {"current"}, "")
    until(lambda: {one["code"] for one in cluster.health().values()} == {200}, cluster.health)
    out, err = waiting.communicate(timeout=LONG_S)
    # A submission whose wait was over before the servers came back is sent again by its user.
    again = cluster.caravan("job", "run", "--detach", str(path))
    assert again.returncode == 0, (out, err, again)


def test_no_server_leads_while_the_log_has_no_leader(cluster: UnattendedCluster) -> None:
    """The leader dies: an answer in which no server leads the log has exit 1, until another one leads."""
    _, bus = cluster.status("--wait", "current")
    leader = next(one["name"] for one in bus["servers"] if one["leads"])
    next(one for one in cluster.trio.members if one.name == leader).kill()

    def is_led_again() -> bool:
        code, bus = cluster.status()
        leads = [one["name"] for one in bus["servers"] if one["leads"]]
        assert not leads or LOG not in bus["leaderless"], bus
        assert leads or code == 1, bus
        return bool(leads) and leads != [leader]

    until(is_led_again, within_s=LONG_S)
    assert cluster.caravan("operator", "status", "--wait", "quorum").returncode == 0


def test_a_status_that_no_server_answers_is_one_line(cluster: UnattendedCluster) -> None:
    """What was asked, of whom, for how long, and what to try; never an answer of before."""
    assert cluster.status("--wait", "current")[0] == 0
    cluster.trio.stop()
    done = cluster.caravan("operator", "status")
    assert (done.returncode, done.stderr) == (1, "")
    [line] = done.stdout.splitlines()
    told = json.loads(line)
    assert set(told) == {"error"}
    message = told["error"]["message"]
    assert "no bus at" in message
    assert all(f":{one.port}" in message for one in cluster.trio.members)
