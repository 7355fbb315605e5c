"""A whole cluster on this machine: one data directory, one bus, every role a child that is restarted when it dies.

Decides layout and order: lock, identity, bus, roles; and back in reverse, tasks first. Must not know what a role does.
Used by `up.py` and `demo.py`. Supervision runs in a thread of its own, so that whoever uses it can wait for anything.

    DIR/up.lock         held as long as a cluster runs here       DIR/cluster.json    whose directory this is
    DIR/credentials.json  passwords of the bus's users            DIR/bus/            the server's config and streams
    DIR/credentials/      for each process only its own           DIR/up.json         what runs now
    DIR/agents/NODE/    an agent's journal and allocations        DIR/logs/NAME.log   what each process wrote
"""

import asyncio
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.envelope import CORE_VERSION
from services.cli import running_ups
from services.cli.children import Child, end_leftovers
from shared.bus import accounts, streams
from shared.bus.connect import Login, connect
from shared.bus.server import NatsServer, ServerSettings
from shared.errors import BusUnavailable, ConfigInvalid

#: Raised when an older release could not use the directory any more.
FORMAT = 1
_TICK_S = 0.05
_TASKS_S = 15.0
_SERVICES_S = 5.0


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `port` 0: a free one."""

    data_dir: Path
    port: int = 0
    schedulers: int = 2
    agents: int = 1
    intakes: int = 1
    views: int = 1
    appliers: int = 2
    raw_exec: bool = True
    keep_tasks: bool = False
    #: False only for measuring: what the bus acknowledged may be lost with the machine.
    fsync: bool = True


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster.json`. `bootstrapped`: the log was created; from then on nobody may create it again."""

    format: int
    cluster_id: str
    core: str = ""
    bootstrapped: bool = False


class Cluster:
    """One cluster. `told` hears, from any thread, what happens: one line each."""

    def __init__(self, settings: ClusterSettings, told: Callable[[str], None]) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.absolute()
        self.identity = Identity(format=FORMAT, cluster_id="")
        self.children: list[Child] = []
        self.restarts = 0
        self._told = told
        self._server: NatsServer | None = None
        self._lock_fd = -1
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._bus_retry_s = 0.1
        self._bus_due_s = 0.0

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._server is not None, "not started"
        return self._server.url

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ids of the agents' nodes."""
        return tuple(f"node-{number}" for number in range(1, self.settings.agents + 1))

    def agent_dir(self, node_id: str) -> Path:
        """Data directory of a node's agent."""
        return self.data_dir / "agents" / node_id

    def start(self) -> None:
        """Start everything; returns when all processes were started, not yet when they are ready.

        Raises ConfigInvalid (directory of another release, in use) or BusUnavailable (port in use).
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "logs").mkdir(exist_ok=True)
        self._take_lock()
        try:
            self._read_identity()
            end_leftovers(self.data_dir, self._told)
            credentials = self._credentials()
            bus = ServerSettings(
                data_dir=self.data_dir / "bus", port=self.settings.port, fsync=self.settings.fsync
            )
            self._server = self._new_server(bus, credentials)
            self._server.start()
            if not self.identity.bootstrapped:
                asyncio.run(self._bootstrap(credentials))
            self.children = self._plan()
            for child in self.children:
                child.start()
        except BaseException:
            self.stop()
            raise
        self._write_state()
        self._watcher.start()

    def stop(self) -> int:
        """End everything: tasks with their agents (unless they are kept), then services, then the bus.

        Returns how many processes had to be killed.
        """
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        agents = [child for child in self.children if child.role == "agent"]
        others = [child for child in self.children if child.role != "agent"]
        killed = _end(agents, _TASKS_S) + _end(others, _SERVICES_S)
        if self._server is not None:
            self._server.stop()
        running_ups.remove(os.getpid(), self.data_dir)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        return killed

    def pids(self) -> dict[str, int]:
        """Processes that run now, by name."""
        found = {"bus": self._server.pid if self._server is not None else 0}
        found |= {child.name: child.pid for child in self.children}
        return {name: pid for name, pid in found.items() if pid}

    # ---- before ----

    def _new_server(self, bus: ServerSettings, credentials: accounts.Credentials) -> NatsServer:
        return NatsServer(bus, credentials)

    def _take_lock(self) -> None:
        path = self.data_dir / "up.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            text = f"data directory {self.data_dir} is in use by another `caravan up`, pid {holder}"
            raise ConfigInvalid(text) from err
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._lock_fd = fd

    def _read_identity(self) -> None:
        path = self.data_dir / "cluster.json"
        if path.exists():
            try:
                found = msgspec.json.decode(path.read_bytes(), type=Identity)
            except msgspec.MsgspecError as err:
                raise ConfigInvalid(f"{path} cannot be read: {err}") from err
            if found.format > FORMAT:
                text = f"data directory {self.data_dir} has format {found.format}, written by {found.core}"
                raise ConfigInvalid(f"{text}; this release knows {FORMAT}: use the newer one")
            self.identity = found
        else:
            strange = [
                one.name for one in self.data_dir.iterdir() if one.name not in {"up.lock", "logs"}
            ]
            if strange:
                text = f"{self.data_dir} holds {strange[0]!r} but no cluster.json: not a data directory"
                raise ConfigInvalid(text)
            self._write_identity(
                Identity(format=FORMAT, cluster_id=str(uuid4()), core=CORE_VERSION)
            )

    def _write_identity(self, identity: Identity) -> None:
        self.identity = identity
        path = self.data_dir / "cluster.json"
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as out:
            out.write(msgspec.json.encode(identity) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(path)

    def _credentials(self) -> accounts.Credentials:
        path = self.data_dir / "credentials.json"
        known = accounts.read_credentials(path) if path.exists() else accounts.new_credentials()
        known = known.with_fleet()
        for node_id in self.node_ids:
            known = known.with_node(node_id)
        accounts.write_credentials(path, known)
        own = self.data_dir / "credentials"
        own.mkdir(mode=0o700, exist_ok=True)
        for role in accounts.ROLES:
            accounts.write_credentials(own / f"{role}.json", known.of_user(role))
        for node_id in self.node_ids:
            accounts.write_credentials(own / f"agent-{node_id}.json", known.of_node(node_id))
        return known

    async def _bootstrap(self, credentials: accounts.Credentials) -> None:
        user, password = credentials.login(accounts.ADMIN)
        client = await connect(Login(url=self.url, user=user, password=password))
        try:
            await streams.bootstrap(client)
        finally:
            await client.end()
        self._write_identity(msgspec.structs.replace(self.identity, bootstrapped=True))

    # ---- children ----

    def _plan(self) -> list[Child]:
        """Say which processes there are: what others wait for comes first."""
        wanted = self.settings
        counts = {
            "plan_applier": wanted.appliers,
            "view": wanted.views,
            "eval_broker": 1,
            "scheduler": wanted.schedulers,
            "intake": wanted.intakes,
            "heartbeat": 1,
        }
        out = [self._agent(node_id) for node_id in self.node_ids]
        for role, count in counts.items():
            names = [role] if count == 1 else [f"{role}-{n}" for n in range(1, count + 1)]
            out += [self._child(role, name) for name in names]
        return out

    def _agent(self, node_id: str) -> Child:
        return self._child(
            "agent",
            f"agent-{node_id}",
            CARAVAN_CREDENTIALS=str(self.data_dir / "credentials" / f"agent-{node_id}.json"),
            CARAVAN_AGENT_NODE_ID=node_id,
            CARAVAN_AGENT_DATA_DIR=str(self.agent_dir(node_id)),
            CARAVAN_AGENT_RAW_EXEC="1" if self.settings.raw_exec else "0",
            CARAVAN_AGENT_END_TASKS="0" if self.settings.keep_tasks else "1",
            # Its directories are thrown away by whoever likes to: nothing is mounted in them.
            CARAVAN_AGENT_SECRETS_MEMORY=os.environ.get("CARAVAN_AGENT_SECRETS_MEMORY", "0"),
            # Together they have what the machine has.
            CARAVAN_AGENT_SHARES=str(self.settings.agents),
            CARAVAN_AGENT_SHARE=str(self.node_ids.index(node_id)),
            **({"CARAVAN_AGENT_NAME": node_id} if self.settings.agents > 1 else {}),
        )

    def _child(self, role: str, name: str, **more: str) -> Child:
        env = {
            **os.environ,
            "CARAVAN_NATS_URL": self.url,
            "CARAVAN_CREDENTIALS": str(self.data_dir / "credentials" / f"{role}.json"),
            "CARAVAN_CLUSTER_ID": self.identity.cluster_id,
            # The applier writes to no bus that may forget, unless it is told to.
            **({} if self.settings.fsync else {"CARAVAN_DEV": "1"}),
            "CARAVAN_HEALTH_PORT_FILE": str(self.data_dir / "logs" / f"{name}.port"),
            **more,
        }
        return Child(
            name=name,
            role=role,
            command=(*_caravan(), "run", role),
            env=env,
            log_path=self.data_dir / "logs" / f"{name}.log",
        )

    def _watch(self) -> None:
        while not self._ending.wait(_TICK_S):
            now_s = time.monotonic()
            changed = self._watch_bus(now_s)
            for child in self.children:
                said = child.look(now_s)
                if said:
                    self.restarts += said.startswith("restarted")
                    self._told(f"{child.name}: {said}")
                    changed = True
            if changed:
                self._write_state()

    def _watch_bus(self, now_s: float) -> bool:
        server = self._server
        if server is None or server.pid or now_s < self._bus_due_s:
            return False
        try:
            server.start()
        except BusUnavailable as err:
            self._bus_due_s = now_s + self._bus_retry_s
            self._bus_retry_s = min(2 * self._bus_retry_s, 5.0)
            self._told(f"bus: does not start: {err}")
            return False
        self._bus_retry_s = 0.1
        self._told("bus: restarted")
        return True

    def _write_state(self) -> None:
        running_ups.write(
            running_ups.RunningUp(
                pid=os.getpid(),
                url=self.url,
                data_dir=str(self.data_dir),
                cluster_id=self.identity.cluster_id,
                started_ns=time.time_ns(),
                agents={node_id: str(self.agent_dir(node_id)) for node_id in self.node_ids},
                services=self.pids(),
            )
        )


def _caravan() -> tuple[str, ...]:
    """How to start ourselves again: the script beside this Python, else the module, without the working directory."""
    script = Path(sys.executable).with_name("caravan")
    if script.exists():
        return (str(script),)
    return (sys.executable, "-P", "-m", "services.cli")


def _end(children: list[Child], within_s: float) -> int:
    """End children gently, all at once, then by force. Returns how many needed force."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + within_s
    return sum(child.wait_or_kill(max(0.0, deadline - time.monotonic())) for child in children)
