"""A cluster on three servers of one bus, on one machine: for what only a bus with replicas can show.

The servers are those of `bus_servers.py`, each write fsynced; a server that dies is restarted, as by `caravan up`.
Three servers that share two cores and one disk show that nothing is lost, not how fast three machines are.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench.harness.bus_servers import clustered_servers
from bench.harness.cluster import BenchCluster
from services.cli.local.cluster import LocalClusterSettings
from services.cli.local.processes import SupervisedProcess
from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.process.runner import loop_factory
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.errors import BusUnavailable
from shared.protocol import subjects

REPLICAS = 3
_READY_S = 60.0


class _Cluster(msgspec.Struct):
    leader: str = ""


class _Info(msgspec.Struct):
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class ServerTrio(NatsServer):
    """Three servers behind the interface of one."""

    def __init__(self, settings: ServerSettings, credentials: accounts.Credentials) -> None:
        super().__init__(settings, credentials)
        folders = [settings.data_dir / f"bus{number}" for number in range(REPLICAS)]
        self.members = clustered_servers(
            [msgspec.structs.replace(settings, data_dir=one, port=0) for one in folders],
            credentials,
        )

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
        """Let all apply changed users."""
        for one in self.members:
            one.reload(credentials)


class ThreeServerCluster(BenchCluster):
    """The harness on three servers."""

    @property
    def trio(self) -> ServerTrio:
        """The servers."""
        assert isinstance(self.server, ServerTrio)
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
        leader = msgspec.json.decode(answer, type=_Info).cluster.leader
        return next(f"bus-{one.number}" for one in self.trio.members if one.name == leader)

    def _new_server(self, bus: ServerSettings, credentials: accounts.Credentials) -> NatsServer:
        return ServerTrio(bus, credentials)

    async def _bootstrap(self, credentials: accounts.Credentials) -> None:
        """Create the streams once the three have elected a leader."""
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
                return

    def _child(self, role: str, name: str, **more: str) -> SupervisedProcess:
        return super()._child(role, name, CARAVAN_REPLICAS=str(REPLICAS), **more)


async def _begin(bus: BusClient) -> None:
    await streams.bootstrap(bus, replicas=REPLICAS)


def run_on_three_servers(
    story: Callable[[ThreeServerCluster], Awaitable[None]], **settings: int
) -> None:
    """Run a story against a fresh cluster on three servers, in a temporary directory."""
    folder = Path(tempfile.mkdtemp(prefix="caravan-"))
    before = os.environ.get("CARAVAN_REPLICAS")
    os.environ["CARAVAN_REPLICAS"] = str(REPLICAS)
    try:
        own = {"agents": 0, "appliers": 2, "schedulers": 2, **settings}
        fsync = os.environ.get("CARAVAN_BENCH_FSYNC", "1") != "0"
        asked = LocalClusterSettings(data_dir=folder / "data", fsync=fsync, **own)  # type: ignore[arg-type]
        with (
            ThreeServerCluster(asked) as cluster,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(_run(story, cluster))
    finally:
        if before is None:
            del os.environ["CARAVAN_REPLICAS"]
        else:
            os.environ["CARAVAN_REPLICAS"] = before
        shutil.rmtree(folder, ignore_errors=True)


async def _run(
    story: Callable[[ThreeServerCluster], Awaitable[None]], cluster: ThreeServerCluster
) -> None:
    await story(cluster)
