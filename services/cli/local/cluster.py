"""A whole cluster on this machine: one data directory, one bus, every role a supervised child process.

Starts lock, identity, bus and roles in this order and stops in reverse, tasks first. Supervision runs in a thread of
its own.

    DIR/up.lock           held while a cluster runs here       DIR/cluster.json    identity of the cluster
    DIR/credentials.json  passwords of the bus's users         DIR/bus/            the server's config and streams
    DIR/credentials/      one file per process                 DIR/up.json         running processes
    DIR/credentials/public  password of clients, the user's own
    DIR/agents/NODE/      an agent's journal and allocations   DIR/logs/NAME.log   output of each process
    DIR/keeper/kek        wraps all keys of variables: without it no value can be read
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.envelope import CORE_VERSION
from services.cli.local.agent_ends import END_TASKS_LIMIT_S, LIMIT_VARIABLE, AgentLog, end_agents
from services.cli.local.health_watch import HealthWatch
from services.cli.local.processes import SERVICES, SupervisedProcess, kill_leftover_services
from services.cli.local.restart_beats import RESTART_S, RestartBeats
from services.cli.runtime import local_clusters
from shared.bus.connection.nats_client import Login, connect, url_with_login
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.core.runtime.chain import core_order
from shared.errors import BusUnavailable, ConfigInvalid
from shared.machine_lock import kernel_boot, machine_id, take_file_lock, take_machine_lock

#: Incremented when older releases can no longer use the directory.
DATA_DIR_FORMAT = 1
#: Marks the directory of a removed node: the next start does not run it.
ENDED_MARK = "ended"
_RETIRE_S = 30.0
_TICK_S = 0.05
_SERVICES_S = 15.0


class LocalClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `port` 0: a free one."""

    data_dir: Path
    port: int = 0
    schedulers: int = 2
    agents: int = 1
    #: also run the nodes that the directory had beside these; else the tasks of those are ended.
    former_agents: bool = False
    intakes: int = 1
    views: int = 1
    appliers: int = 2
    timekeepers: int = 1
    #: 0: no HTTP.
    gateways: int = 1
    #: all roles but agents share a process, each once.
    one_process: bool = False
    #: tasks that run as the user of this process, without isolation.
    raw_exec: bool = False
    keep_tasks: bool = False
    #: False only for measuring: a power failure may lose acknowledged writes.
    fsync: bool = True


class ClusterIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster.json`. `core`: of the newest release that ran here. `bootstrapped`: the log was created, once."""

    format: int
    cluster_id: str
    core: str = ""
    bootstrapped: bool = False


def write_identity(path: Path, identity: ClusterIdentity) -> None:
    """Write `cluster.json`; it is replaced as a whole."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(msgspec.json.encode(identity) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)


def complete_credentials(
    folder: Path,
    node_ids: Sequence[str],
    clients: Sequence[str] = (),
    *,
    has_routes: bool = False,
) -> accounts.Credentials:
    """Read `credentials.json`, if it exists, add what is missing, and write it."""
    path = folder / "credentials.json"
    known = accounts.read_credentials(path) if path.exists() else accounts.new_credentials()
    if has_routes and accounts.ROUTE not in known.users:
        users = {**known.users, accounts.ROUTE: secrets.token_hex(16)}
        known = msgspec.structs.replace(known, users=users)
    known = known.with_later_users()
    for node_id in node_ids:
        known = known.with_node(node_id)
    for name in clients:
        known = known.with_client(name)
    accounts.write_credentials(path, known)
    return known


class LocalCluster:
    """One cluster. `report` is called from any thread with one line per incident."""

    def __init__(self, settings: LocalClusterSettings, report: Callable[[str], None]) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.absolute()
        self.identity = ClusterIdentity(format=DATA_DIR_FORMAT, cluster_id="")
        self.children: list[SupervisedProcess] = []
        self.restarts = 0
        self._report = report
        self._server: NatsServer | None = None
        self._lock_fd = -1
        #: nodes of the directory beyond the requested number.
        self._former: list[str] = []
        self._machine_lock: socket.socket | None = None
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._restart_beats = RestartBeats(self._node_login)
        self._bus_retry_s = 0.1
        self._bus_due_s = 0.0
        #: pids have changed since they were last written down.
        self._is_record_due = False

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._server is not None, "not started"
        return self._server.url

    @property
    def client_url(self) -> str:
        """Where clients of PUBLIC connect, user and password inside: not to be shown."""
        known = accounts.read_credentials(self.data_dir / "credentials.json")
        return url_with_login(self.url, *known.login(accounts.PUBLIC))

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ids of the agents' nodes."""
        wanted = [f"node-{number}" for number in range(1, self.settings.agents + 1)]
        return tuple(wanted + (self._former if self.settings.former_agents else []))

    def _former_nodes(self) -> list[str]:
        """Nodes of the directory beyond the requested number that were not removed."""
        wanted = {f"node-{number}" for number in range(1, self.settings.agents + 1)}
        found = [
            one.name
            for one in (self.data_dir / "agents").glob("node-*")
            if (one / "agent.json").exists() and not (one / ENDED_MARK).exists()
        ]
        # node-10 behind node-9.
        return sorted(set(found) - wanted, key=lambda name: (len(name), name))

    def agent_dir(self, node_id: str) -> Path:
        """Data directory of a node's agent."""
        return self.data_dir / "agents" / node_id

    def start(self) -> None:
        """Start everything; returns when all processes are started, before they are ready.

        Raises ConfigInvalid (directory of another release, in use) or BusUnavailable (port in use).
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "logs").mkdir(exist_ok=True)
        self._take_lock()
        try:
            self._read_identity()
            self._refuse_second_copy()
            kill_leftover_services(self.data_dir, self._report)
            self._former = self._former_nodes()
            credentials = self._credentials()
            bus = ServerSettings(
                data_dir=self.data_dir / "bus", port=self.settings.port, fsync=self.settings.fsync
            )
            self._server = self._new_server(bus, credentials)
            self._server.start()
            if not self.identity.bootstrapped:
                asyncio.run(self._bootstrap(credentials))
                self.identity = msgspec.structs.replace(self.identity, bootstrapped=True)
                write_identity(self.data_dir / "cluster.json", self.identity)
            if self.identity.core != CORE_VERSION:
                self.identity = msgspec.structs.replace(self.identity, core=CORE_VERSION)
                write_identity(self.data_dir / "cluster.json", self.identity)
            self.children = self._plan()
            if self._former and not self.settings.former_agents:
                self._end_former_tasks()
            for child in self.children:
                child.start()
        except BaseException:
            self.stop()
            raise
        self._write_state()
        self._watcher.start()

    def stop(self, is_hurried: Callable[[], bool] = lambda: False) -> int:
        """Stop everything: agents with their tasks (unless they are kept), then services, then the bus.

        Tasks take the time that their jobs give them, until `is_hurried`. Returns how many processes had to be killed.
        """
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._restart_beats.stop()
        agents = [child for child in self.children if child.role == "agent"]
        others = [child for child in self.children if child.role != "agent"]
        killed = end_agents(
            agents,
            [AgentLog(self.data_dir / "logs" / f"{child.name}.log") for child in agents],
            limit_s=float(os.environ.get(LIMIT_VARIABLE) or END_TASKS_LIMIT_S),
            report=self._report,
            is_hurried=is_hurried,
        )
        if not self.settings.keep_tasks:
            # An agent that is stopped while it starts has not seen its tasks yet.
            for child in agents:
                if child.was_killed:
                    self._retire(_node_of(child))
        killed += _stop_processes(others, _SERVICES_S)
        if self._server is not None:
            self._server.stop()
        local_clusters.remove_record(os.getpid(), self.data_dir)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._machine_lock is not None:
            self._machine_lock.close()
        return killed

    def pids(self) -> dict[str, int]:
        """Processes that run now, by name."""
        found = {"bus": self._server.pid if self._server is not None else 0}
        found |= {child.name: child.pid for child in self.children}
        return {name: pid for name, pid in found.items() if pid}

    def failures(self) -> dict[str, str]:
        """Processes that ended since the start, by name, with the reason."""
        return {child.name: child.failure for child in self.children if child.failure}

    def is_applier(self, instance: str) -> bool:
        """Return whether this instance of the plan applier is a process of this cluster that runs."""
        pids = [child.pid for child in self._appliers() if child.pid]
        return instance.startswith(tuple(f"plan_applier-{pid}-" for pid in pids))

    def is_refused(self) -> bool:
        """Return whether every plan applier ended because it refuses the log or the bus."""
        return all(child.failure for child in self._appliers())

    def _appliers(self) -> list[SupervisedProcess]:
        return [child for child in self.children if "plan_applier" in child.role.split(",")]

    # ---- before ----

    def _new_server(self, bus: ServerSettings, credentials: accounts.Credentials) -> NatsServer:
        return NatsServer(bus, credentials)

    def _take_lock(self) -> None:
        text = f"data directory {self.data_dir} is in use by another `caravan up`"
        self._lock_fd = take_file_lock(self.data_dir / "up.lock", text)

    def _refuse_second_copy(self) -> None:
        """Make sure that no copy of the directory runs, here or where it was not shut down. Raises ConfigInvalid."""
        cluster_id, left = self.identity.cluster_id, local_clusters.read_record(self.data_dir)
        if left is not None and left.machine not in ("", machine_id()):
            raise ConfigInvalid(
                f"data directory {self.data_dir} was in use on another machine, by pid {left.pid}, and not shut "
                f"down: if no cluster runs on it there, delete {self.data_dir / 'up.json'} and start again"
            )
        others = [up for up in local_clusters.running_clusters() if up.cluster_id == cluster_id]
        where = f" from {others[-1].data_dir}, pid {others[-1].pid}" if others else ""
        text = f"cluster {cluster_id} already runs on this machine{where}: {self.data_dir} is a copy of its directory"
        self._machine_lock = take_machine_lock(f"up-{cluster_id}", text)

    def _read_identity(self) -> None:
        path = self.data_dir / "cluster.json"
        if path.exists():
            try:
                found = msgspec.json.decode(path.read_bytes(), type=ClusterIdentity)
            except msgspec.MsgspecError as err:
                raise ConfigInvalid(f"{path} cannot be read: {err}") from err
            if found.format > DATA_DIR_FORMAT:
                text = f"data directory {self.data_dir} has format {found.format}, written by {found.core}"
                raise ConfigInvalid(
                    f"{text}; this release supports {DATA_DIR_FORMAT}: use the newer one"
                )
            if core_order(found.core) > core_order(CORE_VERSION):
                text = f"data directory {self.data_dir} was written by core {found.core}"
                raise ConfigInvalid(
                    f"{text}, this release has {CORE_VERSION}: use the newer release"
                )
            self.identity = found
        else:
            strange = [
                one.name for one in self.data_dir.iterdir() if one.name not in {"up.lock", "logs"}
            ]
            if strange:
                text = f"{self.data_dir} holds {strange[0]!r} but no cluster.json: not a data directory"
                raise ConfigInvalid(text)
            self.identity = ClusterIdentity(
                format=DATA_DIR_FORMAT, cluster_id=str(uuid4()), core=CORE_VERSION
            )
            write_identity(path, self.identity)

    def _credentials(self) -> accounts.Credentials:
        known = complete_credentials(self.data_dir, self.node_ids)
        own = self.data_dir / "credentials"
        own.mkdir(mode=0o700, exist_ok=True)
        for role in accounts.ROLES:
            accounts.write_credentials(own / f"{role}.json", known.only_user(role))
        if self.settings.one_process:
            roles = [role for role in accounts.ROLES if role != "gateway" or self.settings.gateways]
            accounts.write_credentials(own / f"{SERVICES}.json", known.only_users(roles))
        for node_id in self.node_ids:
            accounts.write_credentials(own / f"agent-{node_id}.json", known.of_node(node_id))
        accounts.write_password(local_clusters.password_file(self.data_dir), known, accounts.PUBLIC)
        return known

    async def _bootstrap(self, credentials: accounts.Credentials) -> None:
        user, password = credentials.login(accounts.ADMIN)
        client = await connect(Login(url=self.url, user=user, password=password))
        try:
            await streams.bootstrap(client)
        finally:
            await client.end()

    # ---- children ----

    def _plan(self) -> list[SupervisedProcess]:
        """The processes to run; those that others wait for come first."""
        wanted = self.settings
        counts = {
            "plan_applier": wanted.appliers,
            "view": wanted.views,
            "eval_broker": 1,
            "scheduler": wanted.schedulers,
            "intake": wanted.intakes,
            "heartbeat": 1,
            "timekeeper": wanted.timekeepers,
            "gateway": wanted.gateways,
            "keeper": 1,
        }
        out = [self._agent(node_id) for node_id in self.node_ids]
        if self.settings.one_process:
            roles = ",".join(role for role, count in counts.items() if count)
            return [*out, self._child(roles, SERVICES)]
        for role, count in counts.items():
            names = [role] if count == 1 else [f"{role}-{n}" for n in range(1, count + 1)]
            out += [self._child(role, name) for name in names]
        return out

    def _agent(self, node_id: str) -> SupervisedProcess:
        (self.agent_dir(node_id) / ENDED_MARK).unlink(missing_ok=True)
        return self._child(
            "agent",
            f"agent-{node_id}",
            CARAVAN_CREDENTIALS=str(self.data_dir / "credentials" / f"agent-{node_id}.json"),
            CARAVAN_AGENT_NODE_ID=node_id,
            CARAVAN_AGENT_DATA_DIR=str(self.agent_dir(node_id)),
            CARAVAN_AGENT_RAW_EXEC="1" if self.settings.raw_exec else "0",
            CARAVAN_AGENT_END_TASKS="0" if self.settings.keep_tasks else "1",
            # The data directory must be removable: nothing is mounted in it.
            CARAVAN_AGENT_SECRETS_MEMORY=os.environ.get("CARAVAN_AGENT_SECRETS_MEMORY", "0"),
            # Agents share the resources of the machine.
            CARAVAN_AGENT_SHARES=str(len(self.node_ids)),
            CARAVAN_AGENT_SHARE=str(self.node_ids.index(node_id)),
            **({"CARAVAN_AGENT_NAME": node_id} if len(self.node_ids) > 1 else {}),
        )

    def _end_former_tasks(self) -> None:
        """End the tasks of removed nodes, and report it."""
        for node_id in self._former:
            what = "its tasks were ended" if self._retire(node_id) else "its tasks may still run"
            (self.agent_dir(node_id) / ENDED_MARK).touch()
            self._report(f"{node_id} is not among the {self.settings.agents} agents: {what}")

    def _retire(self, node_id: str) -> bool:
        """End the tasks of a node without an agent. Returns whether that was done."""
        env = {
            **os.environ,
            "CARAVAN_NATS_URL": self.url,
            "CARAVAN_AGENT_NODE_ID": node_id,
            "CARAVAN_AGENT_DATA_DIR": str(self.agent_dir(node_id)),
            "CARAVAN_AGENT_RETIRE": "1",
        }
        command = (*_caravan_command(), "run", "agent")
        with (self.data_dir / "logs" / f"agent-{node_id}.log").open("ab") as log:
            done = subprocess.run(
                command, env=env, stdout=log, stderr=log, timeout=_RETIRE_S, check=False
            )
        return done.returncode == 0

    def _child(self, role: str, name: str, **more: str) -> SupervisedProcess:
        user = SERVICES if "," in role else role
        env = {
            **os.environ,
            "CARAVAN_NATS_URL": self.url,
            "CARAVAN_CREDENTIALS": str(self.data_dir / "credentials" / f"{user}.json"),
            "CARAVAN_CLUSTER_ID": self.identity.cluster_id,
            # The applier refuses a bus without fsync unless this is set.
            **({} if self.settings.fsync else {"CARAVAN_DEV": "1"}),
            "CARAVAN_HEALTH_PORT_FILE": str(self.data_dir / "logs" / f"{name}.port"),
            "CARAVAN_GATEWAY_URL_FILE": str(self.data_dir / "logs" / "gateway.url"),
            "CARAVAN_GATEWAY_ANY_PORT": "1",
            "CARAVAN_GATEWAY_STATE_DIR": str(self.data_dir / "gateway"),
            "CARAVAN_KEEPER_DIR": str(self.data_dir / "keeper"),
            **more,
        }
        return SupervisedProcess(
            name=name,
            role=role,
            command=(*_caravan_command(), "run", role),
            env=env,
            log_path=self.data_dir / "logs" / f"{name}.log",
        )

    def _watch(self) -> None:
        health = HealthWatch(self.data_dir, [child.name for child in self.children])
        fault = ""
        while not self._ending.wait(_TICK_S):
            try:
                self._supervise(health, time.monotonic())
                fault = ""
            except OSError as err:
                # A full disk above all: with this thread would end what restarts the bus when there is room.
                is_new, fault = str(err) != fault, str(err)
                with contextlib.suppress(OSError):
                    if is_new:
                        self._report(f"supervisor: {fault}; it tries again")

    def _supervise(self, health: HealthWatch, now_s: float) -> None:
        """Look at the disk, the bus and each process once. Raises OSError: what it could not write is due next time."""
        for text in health.look(now_s):
            self._report(f"bus: {text}")
        if health.is_restart_due and self._server is not None:
            self._report("bus: restarting, since it has stopped writing")
            self._server.stop()
        self._is_record_due |= self._watch_bus(now_s)
        for child in self.children:
            try:
                text = child.look(now_s)
            except OSError as err:
                text = f"start failed: {err}"
            if text:
                self._is_record_due = True
                self.restarts += text.startswith("restarted")
                if child.role == "agent":
                    self._restart_beats.send_until(
                        _node_of(child), child.failing_since_s + RESTART_S
                    )
                self._report(f"{child.name}: {text}")
        if self._is_record_due:
            self._write_state()
            self._is_record_due = False

    def _node_login(self, node_id: str) -> Login:
        known = accounts.read_credentials(self.data_dir / "credentials.json")
        user, password = known.node_login(node_id)
        return Login(url=self.url, user=user, password=password)

    def _watch_bus(self, now_s: float) -> bool:
        server = self._server
        if server is None or server.pid or now_s < self._bus_due_s:
            return False
        try:
            server.start()
        except (BusUnavailable, OSError) as err:
            self._bus_due_s = now_s + self._bus_retry_s
            self._bus_retry_s = min(2 * self._bus_retry_s, 5.0)
            self._report(f"bus: start failed: {err}")
            return False
        self._bus_retry_s = 0.1
        self._report("bus: restarted")
        return True

    def _write_state(self) -> None:
        local_clusters.write_record(
            local_clusters.LocalClusterRecord(
                pid=os.getpid(),
                url=self.url,
                data_dir=str(self.data_dir),
                cluster_id=self.identity.cluster_id,
                started_ns=time.time_ns(),
                agents={node_id: str(self.agent_dir(node_id)) for node_id in self.node_ids},
                services=self.pids(),
                machine=machine_id(),
                boot=kernel_boot(),
            )
        )


def _node_of(agent: SupervisedProcess) -> str:
    return agent.name.removeprefix("agent-")


def _caravan_command() -> tuple[str, ...]:
    """Command of this program: the script beside this Python, else the module, without the working directory."""
    script = Path(sys.executable).with_name("caravan")
    if script.exists():
        return (str(script),)
    return (sys.executable, "-P", "-m", "services.cli")


def _stop_processes(children: list[SupervisedProcess], within_s: float) -> int:
    """Stop children by SIGTERM, then SIGKILL. Returns how many were killed."""
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + within_s
    return sum(child.wait_or_kill(max(0.0, deadline - time.monotonic())) for child in children)
