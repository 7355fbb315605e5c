"""A whole cluster for a benchmark or a fault test: real processes, a fleet without agents, an observer of the log.

Decides how benchmarks set up and what they may claim: the bus fsyncs, every role is a process with its own
permissions, jobs come in by the public door, and what counts is what a replaying process sees. Nodes are registered
and kept alive by messages as their agents would send them, by one process for the whole fleet.
Next: `observer.py`, `fleet.py`.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from bench import profiles
from bench.observer import Observer, observing
from schemas.nodes import NodeSpec
from services.cli.cluster import Cluster, ClusterSettings
from shared.bus import accounts, streams, subjects
from shared.bus.client import Client
from shared.bus.connect import BusClient, Login, connect
from shared.bus.runner import collect_rarely, loop_factory
from shared.bus.server import NatsServer
from shared.errors import BusUnavailable
from shared.fleet.profile import Profile

ROOT = Path(__file__).parents[1]
READY_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Harness(Cluster):
    """A cluster as `caravan up` runs it, whose bus can be held down and whose roles can be profiled."""

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__(settings, self._note)
        self.notes: list[str] = []
        self.is_bus_held = False
        self._fleet: subprocess.Popen[bytes] | None = None
        folder = os.environ.get(profiles.FOLDER, "")
        self._samplers = profiles.Samplers(Path(folder)) if folder else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, err: BaseException | None, _trace: object) -> None:
        if err is not None:
            for line in (*self.notes[-20:], self._fleet_said()):
                err.add_note(line)
        self.sample(until=True)
        if self._fleet is not None:
            self._fleet.kill()
            self._fleet.wait()
        self.stop()

    @property
    def server(self) -> NatsServer:
        """The embedded server."""
        assert self._server is not None
        return self._server

    @property
    def credentials(self) -> accounts.Credentials:
        """Everybody's passwords."""
        return accounts.read_credentials(self.data_dir / "credentials.json")

    def login(self, name: str) -> Login:
        """Login of a role, admin or sys."""
        user, password = self.credentials.login(name)
        return Login(url=self.url, user=user, password=password)

    def add_nodes(self, *node_ids: str) -> None:
        """Make users for nodes that no agent of ours runs."""
        known = self.credentials
        for node_id in node_ids:
            known = known.with_node(node_id)
        accounts.write_credentials(self.data_dir / "credentials.json", known)
        self.server.reload(known)
        asyncio.run(self._until_known(node_ids[-1]))

    def node_login(self, node_id: str) -> Login:
        """Login of a node's agent."""
        user, password = self.credentials.node_login(node_id)
        return Login(url=self.url, user=user, password=password)

    @asynccontextmanager
    async def connection(self, name: str = "admin") -> AsyncIterator[BusClient]:
        """A raw connection as a role or admin."""
        client = await connect(self.login(name))
        try:
            yield client
        finally:
            await client.end()

    @asynccontextmanager
    async def observer(self) -> AsyncIterator[Observer]:
        """Replay the log in this loop, whole state, and follow it."""
        async with observing(self.login("admin")) as found:
            yield found

    def client(self) -> Client:
        """A client of the public, without credentials."""
        return Client(self.url)

    def start_fleet(self, nodes: list[NodeSpec], profile: Profile | None = None) -> None:
        """Register these nodes and send their heartbeats, from one process, until the end.

        With `profile` they also run what is placed on them, as `caravan fleet` has it.
        """
        path = self.data_dir / "fleet.json"
        path.write_bytes(msgspec.json.encode(nodes))
        if profile is not None:
            (self.data_dir / "profile.json").write_bytes(msgspec.json.encode(profile))
        with (self.data_dir / "logs" / "fleet.log").open("ab") as log:
            self._fleet = subprocess.Popen(
                [sys.executable, "-m", "bench.fleet", str(self.data_dir), self.url],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def sample(self, *, until: bool = False) -> None:
        """The clock starts, or with `until` stops: under `just profile` every Python process is sampled in between."""
        if self._samplers is None:
            return
        if until:
            self._samplers.stop()
        else:
            pids = {name: pid for name, pid in self.pids().items() if name != "bus"}
            self._samplers.start({**pids, "bench": os.getpid()})

    def members(self) -> dict[str, int]:
        """Pids of what belongs to the product, by name."""
        return self.pids()

    def all_pids(self) -> dict[str, int]:
        """Pids of the product and of the fleet's process, by name."""
        fleet = {} if self._fleet is None else {"fleet": self._fleet.pid}
        return {**self.pids(), **fleet}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal one process of the cluster, the bus included."""
        os.kill(self.pids()[name], number)

    def hold_bus(self) -> None:
        """Stop the server gently and keep it down."""
        self.is_bus_held = True
        self.server.stop()

    def release_bus(self) -> None:
        """Let the supervisor start the server again."""
        self.is_bus_held = False

    async def log_state(self) -> streams.StreamState:
        """What LOG_1 holds, as the server says."""
        async with self.connection() as bus:
            found = await streams.info(bus, subjects.log_stream(1))
        assert found is not None
        return found.state

    def _fleet_said(self) -> str:
        log = self.data_dir / "logs" / "fleet.log"
        return f"fleet: {log.read_text(errors='replace')[-2000:]}" if log.exists() else "no fleet"

    async def _until_known(self, node_id: str) -> None:
        """The server takes changed users over a moment after it was told."""
        for _ in range(100):
            try:
                await (await connect(self.node_login(node_id))).end()
            except BusUnavailable:
                await asyncio.sleep(0.05)
            else:
                return
        raise TimeoutError(f"the server never took over the user of {node_id}")

    def _note(self, line: str) -> None:
        self.notes.append(line)

    def _watch_bus(self, now_s: float) -> bool:
        return False if self.is_bus_held else super()._watch_bus(now_s)

    def _write_state(self) -> None:
        """Not a cluster that the command line of this machine's user should find."""


def run_in(
    story: Callable[[Harness], Awaitable[None]],
    settings: Mapping[str, int] | None = None,
    kind: type[Harness] = Harness,
) -> None:
    """Run a story against a fresh cluster in a temporary directory."""
    folder = Path(tempfile.mkdtemp(prefix="caravan-"))
    try:
        own = {"agents": 0, "appliers": 1, "schedulers": 1, **(settings or {})}
        fsync = os.environ.get("CARAVAN_BENCH_FSYNC", "1") != "0"
        # As the services do: whoever watches must not be what is slow.
        collect_rarely()
        asked = ClusterSettings(data_dir=folder / "data", fsync=fsync, **own)  # type: ignore[arg-type]
        with kind(asked) as cluster, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(story, cluster))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(story: Callable[[Harness], Awaitable[None]], cluster: Harness) -> None:
    await story(cluster)


# ---- what processes take ----


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds since the start, and resident MiB, by process."""

    cpu_s: dict[str, float]
    rss_mib: dict[str, float]


def usage(pids: Mapping[str, int]) -> Usage:
    """Read /proc; a process that is gone is left out."""
    cpu_s: dict[str, float] = {}
    rss_mib: dict[str, float] = {}
    for name, pid in {**pids, "bench": os.getpid()}.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu_s[name] = (int(fields[11]) + int(fields[12])) / _TICKS
        rss_mib[name] = int(fields[21]) * _PAGE / (1 << 20)
    return Usage(cpu_s, rss_mib)


def between(before: Usage, after: Usage) -> dict[str, float]:
    """CPU seconds by process between two looks; a process that was restarted counts from its start."""
    return {
        name: round(spent - before.cpu_s.get(name, 0.0), 2)
        for name, spent in after.cpu_s.items()
        if spent >= before.cpu_s.get(name, 0.0)
    }


async def until(holds: Callable[[], object], what: str, within_s: float = READY_S) -> None:
    """Wait for a level. Raises TimeoutError that names it."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.005)
