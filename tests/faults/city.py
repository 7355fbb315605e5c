"""What every fault test needs: a running cluster, an observer of its log, jobs, and checks at the end."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.harness.cluster import ROOT, BenchCluster, wait_until
from bench.harness.log_observer import LogObserver
from schemas.answers import DeadAnswer
from schemas.jobs import Verdict
from shared.bus.connection.nats_client import url_with_login
from shared.bus.connection.public_client import Client
from shared.bus.server import accounts
from shared.core.state.invariants import check
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import LONG_S, WAIT_S


class City:
    """A cluster with an observer and a client of the public, inside one loop."""

    def __init__(self, cluster: BenchCluster, observer: LogObserver, public: Client) -> None:
        self.cluster = cluster
        self.observer = observer
        self.public = public

    # ---- jobs ----

    async def submit(self, body: bytes, verb: str = "submit") -> Verdict:
        """Ask until there is a verdict, under one id, as a careful submitter does."""
        async with asyncio.timeout(LONG_S):
            while True:
                answer = await self.ask(body, verb)
                if answer is not None and answer.status != "pending":
                    return answer
                await asyncio.sleep(0.05)

    async def ask(
        self, body: bytes, verb: str = "submit", timeout_s: float = 1.0
    ) -> Verdict | None:
        """Ask once; None: no answer in time."""
        try:
            data = await self.public.request_bytes(subjects.api_jobs(verb), body, timeout_s)
        except BusUnavailable:
            return None
        return msgspec.json.decode(data, type=Verdict)

    async def lives(self, name: str) -> None:
        """The services continue: a fresh job is accepted and placed."""
        verdict = await self.submit(body_of(name))
        assert verdict.status == "accepted", verdict
        await wait_until(lambda: self.held(name) == 1, f"{name} is placed", LONG_S)

    def held(self, job_id: str) -> int:
        """Allocations of a job that are desired to run and have not ended, as the observer sees them."""
        table = self.observer.state.allocations
        rows = table.rows_of(job_id)  # type: ignore[arg-type]
        return int(np.count_nonzero((table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]))

    # ---- what must hold ----

    async def proven(self) -> dict[str, Any]:
        """No invariant is broken, and `caravan log verify` proves the log."""
        assert not self.observer.failure, self.observer.failure
        assert check(self.observer.state) == []
        code, found = await asyncio.to_thread(verify, self.cluster)
        assert (code, found["ok"], found["problem"]) == (0, True, "")
        return found

    async def dead_letters(self, subject: str) -> list[str]:
        """Reasons of the dead letters that came on a subject, as the view knows them."""
        async with asyncio.timeout(LONG_S):
            while (answer := await self._asked("dead")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        found = msgspec.convert(answer, DeadAnswer)
        return [one.reason for one in found.messages if one.subject == subject]

    async def told_of(self, subject: str, part: str) -> None:
        """Wait until the view names a dead letter with this in its reason: it hears of them after they are kept."""
        found: list[str] = []
        try:
            async with asyncio.timeout(LONG_S):
                while not any(part in one for one in found):
                    await asyncio.sleep(0.1)
                    found = await self.dead_letters(subject)
        except TimeoutError:
            raise AssertionError(f"no dead letter says {part!r}: {found}") from None

    async def answer(self, subject: str, body: bytes) -> bytes:
        """Ask until there is an answer: a question may be lost like any message."""
        async with asyncio.timeout(LONG_S):
            while True:
                with contextlib.suppress(BusUnavailable):
                    return await self.public.request_bytes(subject, body)
                await asyncio.sleep(0.1)

    async def _asked(self, noun: str) -> dict[str, Any] | None:
        """Ask the view once; None: it is not there."""
        try:
            return await self.public.request(subjects.query(noun), {"limit": 1000}, 1.0)
        except BusUnavailable:
            return None

    async def buried(self, subject: str, count: int) -> None:
        """Wait until so many dead letters of a subject are kept."""
        found = 0
        try:
            async with asyncio.timeout(LONG_S):
                while (found := await self.count_buried(subject)) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{found} dead letters of {subject}, expected {count}") from None

    async def count_buried(self, subject: str) -> int:
        """Count the dead letters of a subject, as the server keeps them."""
        where = subjects.dead(subject)
        ask = json.dumps({"subjects_filter": where}).encode()
        async with self.cluster.connection() as admin:
            told = json.loads(await admin.ask(subjects.js_stream_info("DEAD"), ask))
        return int((told["state"].get("subjects") or {}).get(where, 0))

    @property
    def active_applier(self) -> str:
        """Name of the child that holds the write lease, by the pid in its lease."""
        pid = int(self.observer.replica.chain.holder.split("-")[1])
        return next(name for name, one in self.cluster.pids().items() if one == pid)


@asynccontextmanager
async def watched(cluster: BenchCluster) -> AsyncIterator[City]:
    """Look at a cluster that has nodes and whose appliers have one active."""
    async with cluster.observer() as observer, cluster.client() as public:
        await wait_until(lambda: observer.state.fleet.ready().sum() > 0, "nodes are ready", LONG_S)
        yield City(cluster, observer, public)


def play(story: Coroutine[Any, Any, None]) -> None:
    """Run a story in a fresh loop."""
    asyncio.run(story)


def body_of(name: str, *, count: int = 1, submission: str = "", **more: object) -> bytes:
    """A submission of one group of sleeping tasks."""
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 20, "MemoryMB": 15},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    job = {"ID": name, "Name": name, "TaskGroups": [group]}
    return json.dumps({"Job": job, "SubmissionID": submission or f"s-{name}", **more}).encode()


def verify(cluster: BenchCluster, url: str = "") -> tuple[int, dict[str, Any]]:
    """Run `caravan log verify --json`; returns the exit code and the object."""
    public = cluster.credentials.login(accounts.PUBLIC)
    env = {
        **os.environ,
        "CARAVAN_NATS_URL": url_with_login(url, *public) if url else cluster.client_url,
        "CARAVAN_CREDENTIALS": str(cluster.data_dir / "credentials.json"),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "services.cli", "log", "verify", "--json"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=LONG_S,
    )
    return done.returncode, json.loads(done.stdout)


def metrics(cluster: BenchCluster, name: str) -> dict[str, float]:
    """What a process shows on /metrics."""
    port = int((cluster.data_dir / "logs" / f"{name}.port").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {key: float(value) for key, value in pairs}


def log_files(folder: Path) -> list[Path]:
    """Block files of LOG_1 below a server's data directory."""
    return sorted(folder.rglob("LOG_1/msgs/*.blk"))
