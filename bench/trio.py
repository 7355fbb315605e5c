"""A cluster on three servers of one bus, on one machine: for what only a bus with replicas can show.

Decides how the three are set up (as in `streams.py`, each write fsynced) and that whoever of them dies is started
again, as `caravan up` does with its one. Everything else is the harness. Three servers that share two cores and one
disk show that nothing is lost; how fast three machines are they do not show.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench.harness import Harness
from bench.streams import Member
from services.cli.children import Child
from services.cli.cluster import ClusterSettings
from shared.bus import accounts, streams, subjects
from shared.bus.connect import BusClient
from shared.bus.runner import loop_factory
from shared.bus.server import NatsServer, ServerSettings, free_port
from shared.errors import BusUnavailable

REPLICAS = 3
_READY_S = 60.0


class _Cluster(msgspec.Struct):
    leader: str = ""


class _Info(msgspec.Struct):
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class Trio(NatsServer):
    """Three servers, taken for one."""

    def __init__(self, settings: ServerSettings, credentials: accounts.Credentials) -> None:
        super().__init__(settings, credentials)
        routes = tuple(free_port() for _ in range(REPLICAS))
        self.members: list[Member] = []
        for number in range(REPLICAS):
            folder = settings.data_dir / f"bus{number}"
            own = msgspec.structs.replace(settings, data_dir=folder, port=0)
            member = Member(own, credentials, number=number)
            member.routes = routes
            self.members.append(member)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return ",".join(one.url for one in self.members)

    @property
    def pid(self) -> int:
        """Of the first, while all of them run; else 0."""
        return self.members[0].pid if all(one.pid for one in self.members) else 0

    def start(self) -> None:
        """Start those that do not run. Raises BusUnavailable."""
        for one in self.members:
            if not one.pid:
                one.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End all."""
        for one in self.members:
            one.stop(timeout_s)

    def reload(self, credentials: accounts.Credentials) -> None:
        """Let all take over changed users."""
        for one in self.members:
            one.reload(credentials)


class TrioHarness(Harness):
    """The harness on three servers."""

    @property
    def trio(self) -> Trio:
        """The servers."""
        assert isinstance(self.server, Trio)
        return self.server

    def pids(self) -> dict[str, int]:
        """Processes that run now, each server under its own name."""
        found = super().pids()
        found.pop("bus", None)
        servers = {f"bus-{at}": one.pid for at, one in enumerate(self.trio.members)}
        return {**{name: pid for name, pid in servers.items() if pid}, **found}

    async def leader_of_log(self) -> str:
        """Name of the server that leads LOG_1, as `pids` has it."""
        async with self.connection() as bus:
            answer = await bus.ask(subjects.js_stream_info(subjects.log_stream(1)), b"")
        return msgspec.json.decode(answer, type=_Info).cluster.leader.replace("m", "bus-")

    def _new_server(self, bus: ServerSettings, credentials: accounts.Credentials) -> NatsServer:
        return Trio(bus, credentials)

    async def _bootstrap(self, credentials: accounts.Credentials) -> None:
        """Make the streams, once the three have agreed who leads."""
        del credentials
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                async with self.connection() as bus:
                    await _begin(bus)
            except BusUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                break
        self._write_identity(msgspec.structs.replace(self.identity, bootstrapped=True))

    def _child(self, role: str, name: str, **more: str) -> Child:
        return super()._child(role, name, CARAVAN_REPLICAS=str(REPLICAS), **more)


async def _begin(bus: BusClient) -> None:
    await streams.bootstrap(bus, replicas=REPLICAS)


def run_in_trio(story: Callable[[TrioHarness], Awaitable[None]], **settings: int) -> None:
    """Run a story against a fresh cluster on three servers, in a temporary directory."""
    folder = Path(tempfile.mkdtemp(prefix="caravan-"))
    before = os.environ.get("CARAVAN_REPLICAS")
    os.environ["CARAVAN_REPLICAS"] = str(REPLICAS)
    try:
        own = {"agents": 0, "appliers": 2, "schedulers": 2, **settings}
        fsync = os.environ.get("CARAVAN_BENCH_FSYNC", "1") != "0"
        asked = ClusterSettings(data_dir=folder / "data", fsync=fsync, **own)  # type: ignore[arg-type]
        with TrioHarness(asked) as cluster, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_told(story, cluster))
    finally:
        if before is None:
            del os.environ["CARAVAN_REPLICAS"]
        else:
            os.environ["CARAVAN_REPLICAS"] = before
        shutil.rmtree(folder, ignore_errors=True)


async def _told(story: Callable[[TrioHarness], Awaitable[None]], cluster: TrioHarness) -> None:
    await story(cluster)
