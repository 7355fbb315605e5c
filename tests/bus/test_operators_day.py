"""The operator's day: three servers, three agents, jobs all the time, and one fault after the other; nothing is lost.

What the cluster says of itself is not believed: `log_checker.py` reads the log, and tasks write down that they ran.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.harness.three_servers import REPLICAS
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.connection.public_client import Client
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings
from tests import not_tested
from tests.bounds import LONG_S, until
from tests.bus.log_checker import LogFacts
from tests.bus.test_lost_servers import UnattendedCluster
from tests.small_disk import fill, small_disk

pytestmark = [
    pytest.mark.bus,
    pytest.mark.full("three servers beside all services, whose elections depend on load"),
]
#: Of each server's disk.
DISK_MIB = 64
#: Jobs that must be accepted after each fault.
_MORE = 3


class DayCluster(UnattendedCluster):
    """Each server has a small disk of its own, where this machine lets tests mount one."""

    def __init__(self, settings: LocalClusterSettings, mounted: contextlib.ExitStack) -> None:
        super().__init__(settings)
        self._mounted = mounted
        #: by server; empty: mounting is not permitted.
        self.disks: dict[str, Path] = {}

    def _new_server(self, bus: ServerSettings, credentials: accounts.Credentials) -> NatsServer:
        for number in range(REPLICAS):
            folder = bus.data_dir / f"bus{number}"
            if self._mounted.enter_context(small_disk(folder, DISK_MIB)):
                self.disks[f"nats-{number + 1}"] = folder
        return super()._new_server(bus, credentials)


class Stream(threading.Thread):
    """Jobs, one after the other: each is a task that writes down its job and allocation, twice."""

    def __init__(self, cluster: UnattendedCluster, folder: Path) -> None:
        super().__init__(name="jobs")
        self._cluster = cluster
        self._folder = folder
        self._over = threading.Event()
        self.accepted: list[str] = []
        self.tried: list[str] = []

    def run(self) -> None:
        """Submit until `close`; a job that was not accepted is left."""
        while not self._over.wait(0.1):
            name = f"day-{len(self.tried)}"
            path = self._folder / f"{name}.json"
            path.write_text(json.dumps({"Job": self._job(name)}))
            self.tried.append(name)
            done = self._cluster.caravan("job", "run", "--detach", str(path))
            if done.returncode == 0:
                self.accepted.append(name)

    def _job(self, name: str) -> dict[str, Any]:
        line = '"$NOMAD_JOB_ID $NOMAD_ALLOC_ID"'
        script = f"echo began {line} >> {self.book}; sleep 1; echo ended {line} >> {self.book}"
        config = {"command": "/bin/sh", "args": ["-c", script]}
        resources = {"CPU": 20, "MemoryMB": 10}
        task = {"Name": "t", "Driver": "raw_exec", "Config": config, "Resources": resources}
        return {"ID": name, "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}

    @property
    def book(self) -> Path:
        """Where tasks write."""
        return self._folder / "book"

    def lines(self, word: str) -> list[tuple[str, str]]:
        """Job and allocation of each line of a kind."""
        text = self.book.read_text() if self.book.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [(job, alloc) for kind, job, alloc in found if kind == word]

    def close(self) -> None:
        """No more."""
        self._over.set()
        self.join()


class Day:
    """A cluster with its stream of jobs."""

    def __init__(self, cluster: "DayCluster", stream: Stream) -> None:
        self.cluster = cluster
        self.stream = stream

    def goes_on(self) -> None:
        """More jobs are accepted, and what was accepted so far is done."""
        so_far = list(self.stream.accepted)
        count = len(so_far) + _MORE
        until(lambda: len(self.stream.accepted) >= count, lambda: self.stream.tried[-1:], LONG_S)
        until(lambda: not self.undone(so_far), lambda: self.undone(so_far), LONG_S)

    def undone(self, jobs: list[str]) -> list[str]:
        """Those whose task did not end."""
        ended = {job for job, _ in self.stream.lines("ended")}
        return [job for job in jobs if job not in ended]

    def holder(self) -> str:
        """The active applier, as the newest answer has it."""
        done = self.cluster.caravan("operator", "status")
        return str(json.loads(done.stdout).get("holder", ""))

    def applier(self, strike: Callable[[int], None]) -> int:
        """Do something to the active applier, and wait for another one; returns the pid of the first."""
        first = self.holder()
        pid = int(first.split("-")[1])
        strike(pid)
        until(lambda: self.holder() not in ("", first), self.holder, LONG_S)
        return pid

    def agent(self) -> int:
        """Pid of the first agent."""
        return next(child.pid for child in self.cluster.children if child.role == "agent")

    def facts(self) -> LogFacts:
        """The whole log, as the checker reads it."""

        async def read() -> LogFacts:
            async with Client(self.cluster.client_url) as client:
                return LogFacts([(one.seq, one.data) async for one in client.read_log()])

        return asyncio.run(read())


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """All services on three servers, three nodes, and jobs."""
    monkeypatch.setenv("CARAVAN_REPLICAS", str(REPLICAS))
    settings = LocalClusterSettings(
        data_dir=tmp_path / "data", agents=3, appliers=2, schedulers=2, raw_exec=True
    )
    with contextlib.ExitStack() as disks, DayCluster(settings, disks) as running:
        stream = Stream(running, tmp_path)
        assert running.status("--wait", "current")[0] == 0
        stream.start()
        try:
            yield Day(running, stream)
        finally:
            stream.close()


def _leader_first(cluster: UnattendedCluster) -> list[Any]:
    leader = next(one["name"] for one in cluster.status()[1]["servers"] if one["leads"])
    return sorted(cluster.trio.members, key=lambda one: one.name != leader)


def _fill_and_free(day: Day, filler: Path, name: str) -> None:
    """The disk of a server is full: the others go on without it. With room, and a new start, it has everything."""
    cluster = day.cluster
    fill(filler)
    bus: dict[str, Any] = {}

    def lacks() -> bool:
        code, found = cluster.status()
        bus.update(found)
        states = {one["name"]: one["status"] for one in found.get("servers", ())}
        return code == 2 and states[name] != "current"

    until(lacks, lambda: bus, LONG_S)
    day.goes_on()
    filler.unlink()
    server = next(one for one in cluster.trio.members if one.name == name)
    server.stop()
    server.start()
    assert cluster.status("--wait", "current")[0] == 0
    day.goes_on()


def test_a_day_of_faults_loses_and_doubles_nothing(day: Day) -> None:
    """Leader of the bus, applier killed and frozen, agent, majority, a full disk: each ends, log and tasks agree."""
    cluster = day.cluster
    day.goes_on()

    leader, *_ = _leader_first(cluster)
    leader.kill()
    cluster.until_status(2)
    day.goes_on()
    cluster.trio.start()
    assert cluster.status("--wait", "current")[0] == 0

    day.applier(lambda pid: os.kill(pid, signal.SIGKILL))
    day.goes_on()
    frozen = day.applier(lambda pid: os.kill(pid, signal.SIGSTOP))
    day.goes_on()
    os.kill(frozen, signal.SIGCONT)
    day.goes_on()

    agent = day.agent()
    os.kill(agent, signal.SIGKILL)
    until(lambda: day.agent() not in (0, agent), within_s=LONG_S)
    day.goes_on()

    first, second, _ = _leader_first(cluster)
    first.kill()
    second.kill()
    cluster.until_status(1, lambda bus: bool(bus["blocked_since_ns"]))
    cluster.trio.start()
    assert cluster.status("--wait", "current")[0] == 0
    day.goes_on()

    if cluster.disks:
        leader, *_ = _leader_first(cluster)
        _fill_and_free(day, cluster.disks[leader.name] / "filler", leader.name)

    day.stream.close()
    accepted, tried = set(day.stream.accepted), set(day.stream.tried)
    until(lambda: not day.undone(sorted(accepted)), within_s=LONG_S)
    facts = day.facts()
    assert facts.problems(accepted, tried) == []
    ended = Counter(job for job, _ in set(day.stream.lines("ended")))
    # A second allocation of a job has a record that says which one it replaces.
    assert [job for job, count in ended.items() if count > 1 + facts.again[job]] == []
    assert {job for job, _ in day.stream.lines("began")} <= set(facts.registered)
    assert json.loads(cluster.caravan("log", "verify").stdout)["ok"]
    if not cluster.disks:
        not_tested.missing_feature("mounting is not permitted: all held, but no disk was full")


def _sealed(prev: str, *events: dict[str, Any]) -> tuple[bytes, str]:
    body = json.dumps({"kind": "tx", "prev": prev, "events": events}, separators=(",", ":"))
    digest = hashlib.blake2b(body[:-1].encode(), digest_size=16).hexdigest()
    return f'{body[:-1]},"sum":"{digest}"}}'.encode(), digest


def test_the_checker_finds_what_is_wrong() -> None:
    """A lost, a doubled and an orphaned job, a cut and a changed record each have their line."""
    job = {"type": "job.registered", "job_id": "a", "version": 0}
    placement = {"group": "g", "names": [0, 1]}
    plan = {"type": "plan.committed", "job_id": "a", "placements": [placement]}
    first, head = _sealed("", job, plan)
    assert LogFacts([(1, first)]).problems({"a"}, {"a"}) == []
    assert LogFacts([(1, first)]).problems({"a", "b"}, {"a", "b"}) == [
        "b was accepted and is lost",
        "b was never placed",
    ]
    second, _ = _sealed(head, plan, job)
    twice = LogFacts([(1, first), (2, second)]).problems({"a"}, {"a"})
    assert twice == ["a is registered 2 times", "('a', 'g', 0) is placed 2 times"]
    orphan, _ = _sealed("", plan)
    assert LogFacts([(1, orphan)]).problems(set(), set()) == ["a is placed, not registered"]
    assert LogFacts([(2, second)]).faults == [
        "record 2 follows 0",
        f"record 2 links to {head}, not to ",
    ]
    changed = first.replace(b'"names":[0,1]', b'"names":[1,1]')
    assert LogFacts([(1, changed)]).faults == ["record 1: wrong sum"]
