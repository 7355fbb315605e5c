"""A whole cluster for a benchmark or a fault test: real processes, a fleet without agents, an observer of the log.

The bus fsyncs, every role is a process with its own permissions, jobs come in by the public API, and a placement counts
when a replaying process sees it. One process registers the whole fleet and sends its heartbeats, with the messages of
agents. Next: `log_observer.py`, `fleet_process.py`.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from bench.harness.log_observer import LogObserver, run_observer
from bench.report import profile
from schemas.nodes import NodeSpec
from services.cli.local.cluster import LocalCluster, LocalClusterSettings
from shared.bus.connection.nats_client import BusClient, Login, connect
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.process.runner import loop_factory, tune_garbage_collector
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer
from shared.errors import BusUnavailable
from shared.fleet.profile import FleetProfile
from shared.protocol import subjects

ROOT = Path(__file__).parents[2]
READY_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _StoredKey(msgspec.Struct):
    data: str = ""


class _LeaderKey(msgspec.Struct):
    message: _StoredKey = msgspec.field(default_factory=_StoredKey)


class BenchCluster(LocalCluster):
    """A cluster as `caravan up` runs it, whose bus can be held down and whose roles can be profiled."""

    def __init__(self, settings: LocalClusterSettings) -> None:
        super().__init__(settings, self._note)
        self.notes: list[str] = []
        self.is_bus_held = False
        self._fleet: subprocess.Popen[bytes] | None = None
        folder = os.environ.get(profile.PROFILE_FOLDER_VARIABLE, "")
        self._samplers = profile.Samplers(Path(folder)) if folder else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, err: BaseException | None, _trace: object) -> None:
        if err is not None:
            for line in (*self.notes[-20:], self._fleet_log_tail()):
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
        """All passwords."""
        return accounts.read_credentials(self.data_dir / "credentials.json")

    def login(self, name: str) -> Login:
        """Login of a role, admin or sys."""
        user, password = self.credentials.login(name)
        return Login(url=self.url, user=user, password=password)

    def add_nodes(self, *node_ids: str) -> None:
        """Make users for nodes without an agent."""
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
    async def observer(self) -> AsyncIterator[LogObserver]:
        """Replay the log in this loop, whole state, and follow it."""
        async with run_observer(self.login("admin")) as found:
            yield found

    def client(self) -> Client:
        """A client of the public."""
        return Client(self.client_url)

    def start_fleet(self, nodes: list[NodeSpec], profile: FleetProfile | None = None) -> None:
        """Register these nodes and send their heartbeats, from one process, until the end.

        With `profile` they also run what is placed on them, as `caravan fleet` has it.
        """
        path = self.data_dir / "fleet.json"
        path.write_bytes(msgspec.json.encode(nodes))
        if profile is not None:
            (self.data_dir / "profile.json").write_bytes(msgspec.json.encode(profile))
        with (self.data_dir / "logs" / "fleet.log").open("ab") as log:
            self._fleet = subprocess.Popen(
                [sys.executable, "-m", "bench.harness.fleet_process", str(self.data_dir), self.url],
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

    async def leader_pid(self, role: str) -> int:
        """The process that leads a role. Raises BusUnavailable."""
        async with self.connection() as bus:
            body = msgspec.json.encode({"last_by_subj": subjects.leader(role)})
            answer = await bus.ask(subjects.js_message_get(streams.LEADER.name), body)
        holder = b64decode(msgspec.json.decode(answer, type=_LeaderKey).message.data).decode()
        # An instance is ROLE-PID-CHANCE; of a key that was given up nothing is left.
        return int(holder.removeprefix(f"{role}-").partition("-")[0] or 0)

    async def log_state(self) -> streams.StreamState:
        """The state of LOG_1, as the server reports it."""
        async with self.connection() as bus:
            found = await streams.info(bus, subjects.log_stream(1))
        assert found is not None
        return found.state

    def _fleet_log_tail(self) -> str:
        log = self.data_dir / "logs" / "fleet.log"
        return f"fleet: {log.read_text(errors='replace')[-2000:]}" if log.exists() else "no fleet"

    async def _until_known(self, node_id: str) -> None:
        """Wait until the server has applied the changed users."""
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
        """Write no state: the command line of this machine's user must not find this cluster."""


def run_on_cluster(
    story: Callable[[BenchCluster], Awaitable[None]],
    settings: Mapping[str, int] | None = None,
    kind: type[BenchCluster] = BenchCluster,
) -> None:
    """Run a story against a fresh cluster in a temporary directory."""
    folder = Path(tempfile.mkdtemp(prefix="caravan-"))
    try:
        own = {"agents": 0, "appliers": 1, "schedulers": 1, **(settings or {})}
        fsync = os.environ.get("CARAVAN_BENCH_FSYNC", "1") != "0"
        # As the services do: the observer must not be the bottleneck.
        tune_garbage_collector()
        asked = LocalClusterSettings(data_dir=folder / "data", fsync=fsync, **own)  # type: ignore[arg-type]
        with kind(asked) as cluster, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(story, cluster))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(story: Callable[[BenchCluster], Awaitable[None]], cluster: BenchCluster) -> None:
    await story(cluster)


# ---- what processes take ----


class ProcessUsage(msgspec.Struct, frozen=True):
    """CPU seconds since the start, and resident MiB, by process."""

    cpu_s: dict[str, float]
    rss_mib: dict[str, float]


def process_usage(pids: Mapping[str, int]) -> ProcessUsage:
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
    return ProcessUsage(cpu_s, rss_mib)


def cpu_between(before: ProcessUsage, after: ProcessUsage) -> dict[str, float]:
    """CPU seconds by process between two looks; a process that was restarted counts from its start."""
    return {
        name: round(spent - before.cpu_s.get(name, 0.0), 2)
        for name, spent in after.cpu_s.items()
        if spent >= before.cpu_s.get(name, 0.0)
    }


async def wait_until(holds: Callable[[], object], what: str, within_s: float = READY_S) -> None:
    """Wait for a level. Raises TimeoutError that names it."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.005)
