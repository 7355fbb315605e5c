"""What an agent keeps of a job: one group's tasks, with every default resolved.

Decides which fields of Nomad's JSON matter on a node. Must not know how a driver uses them. The compiled form stands
in the agent's own journal (`AllocKept.plan`), so that tasks start again without the bus. Next: `environment.py`.
"""

import contextlib
from typing import Any

import msgspec

from schemas.base import Wire
from shared.errors import CommandInvalid
from shared.jobspec.asking import Spans, spans_of
from shared.jobspec.defaults import restart_of
from shared.jobspec.nomad_json import JOB_DECODER, Job, Task, TaskGroup, meta_of
from shared.jobspec.nomad_placement import Dns, Network

#: An agent waits at most this long between the kill signal and the kill (Nomad's max_kill_timeout).
KILL_TIMEOUT_MAX_NS = 30_000_000_000
MIB = 1024 * 1024
#: Types whose tasks are done when they exit with 0.
_FINITE = ("batch", "sysbatch")


class RestartPlan(Wire, frozen=True, kw_only=True):
    """How often, and when, a task is started again in place."""

    attempts: int
    interval_ns: int
    delay_ns: int
    #: fail or delay: what happens when the attempts of an interval are used up.
    mode: str
    #: whether exit 0 is a reason to start again (service), or the end (batch).
    on_success: bool


class TaskPlan(Wire, frozen=True, kw_only=True):
    """One task. Units: MHz, MiB."""

    name: str
    driver: str
    config: msgspec.Raw = msgspec.Raw(b"{}")
    env: dict[str, str] = {}
    meta: dict[str, str] = {}
    user: str = ""
    leader: bool = False
    #: prestart, poststart, prestop, poststop or postfail; empty: a main task.
    hook: str = ""
    #: runs as long as the main tasks.
    sidecar: bool = False
    cpu_mhz: int = 0
    memory_mib: int = 0
    memory_max_mib: int = 0
    #: by the group's alternatives: pool -> first and number of those of the allocation's instances that are its own.
    spans: tuple[Spans, ...] = ()
    secrets_mib: int = 0
    kill_timeout_ns: int = 5_000_000_000
    #: between the order to end and the kill signal.
    shutdown_delay_ns: int = 0
    #: empty: the driver's own.
    kill_signal: str = ""
    #: of each output: files kept, size of one, or nothing at all.
    log_files: int = 10
    log_file_bytes: int = 10 * MIB
    log_disabled: bool = False
    restart: RestartPlan


class PortPlan(Wire, frozen=True, kw_only=True):
    """One port of the group. `number` 0: the cluster picks it."""

    label: str
    number: int = 0
    #: inside the task's own network: 0: the same, -1: the one it got.
    to: int = 0
    #: the task that alone has it, as old files say it; empty: all of the group.
    task: str = ""
    #: others may hold it too: it is not checked.
    shared: bool = False
    #: name of the node's network that it is in; empty: all.
    host_network: str = ""
    #: in mode bridge: the task that publishes it because none names it.
    publisher: str = ""


class NetworkPlan(Wire, frozen=True, kw_only=True):
    """What the group says of its network. `mode`: host, bridge, none or cni/NAME."""

    mode: str = "host"
    hostname: str = ""
    dns_servers: tuple[str, ...] = ()
    dns_searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()


class GroupPlan(Wire, frozen=True, kw_only=True):
    """One group of one job version."""

    job_name: str
    tasks: tuple[TaskPlan, ...]
    #: those that the cluster picks stand in the order in which it does.
    ports: tuple[PortPlan, ...] = ()
    network: NetworkPlan = NetworkPlan()
    #: prestart tasks run one after another: first or failed, where they begin again; empty: all at once.
    restart_from: str = ""
    #: between the order to end, or the end of the prestop tasks, and the first kill signal.
    shutdown_delay_ns: int = 0
    #: 0: for ever.
    max_run_ns: int = 0
    #: 0: never.
    stop_after_silence_ns: int = 0
    disk_mib: int = 0
    #: takes over the data of the allocation that it replaces.
    inherits: bool = False


PLAN_DECODER = msgspec.json.Decoder(GroupPlan)


def group_plan(spec: bytes, group: str) -> GroupPlan:
    """Compile a group of a job. Raises CommandInvalid when the text is no job or has no such group or task."""
    try:
        job = JOB_DECODER.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise CommandInvalid("invalid", f"job cannot be read: {err}") from err
    found = next((one for one in job.groups if one.name == group), None)
    if found is None:
        raise CommandInvalid("invalid", f"job {job.id} has no group {group!r}")
    names = [task.name for task in found.tasks]
    if not names or "" in names or len(set(names)) != len(names):
        raise CommandInvalid(
            "invalid", f"group {group!r} needs tasks with different names, was {names}"
        )
    ways = spans_of(found)
    disconnect = found.disconnect
    silence_ns = None if disconnect is None else disconnect.stop_on_client_after_ns
    return GroupPlan(
        job_name=job.name or job.id,
        tasks=tuple(
            _task_plan(job, found, task, tuple(way[at] for way in ways))
            for at, task in enumerate(found.tasks)
        ),
        ports=_ports(found),
        network=_network(found),
        restart_from=found.restart_from,
        shutdown_delay_ns=max(found.shutdown_delay_ns, 0),
        max_run_ns=max(found.max_run_duration_ns or 0, 0) if job.type in _FINITE else 0,
        stop_after_silence_ns=max(silence_ns or found.stop_after_client_disconnect_ns or 0, 0),
        disk_mib=found.ephemeral_disk.size_mib,
        inherits=found.ephemeral_disk.sticky or found.ephemeral_disk.migrate,
    )


def _ports(group: TaskGroup) -> tuple[PortPlan, ...]:
    """List all ports. The order of the picked ones is that of shared/jobspec/ports.py."""
    publisher, named = _publishing(group)
    owners: list[tuple[str, Network]] = [("", network) for network in group.networks]
    for task in group.tasks:
        owners += [(task.name, network) for network in task.resources.networks]
    return tuple(
        PortPlan(
            label=port.label,
            number=port.static if is_static else 0,
            to=port.to,
            task=owner,
            shared=port.ignore_collision,
            host_network=port.host_network,
            publisher=publisher if not owner and port.label not in named else "",
        )
        for owner, network in owners
        for is_static, ports in ((True, network.reserved_ports), (False, network.dynamic_ports))
        for port in ports
    )


def _network(group: TaskGroup) -> NetworkPlan:
    if not group.networks:
        return NetworkPlan()
    found = group.networks[0]
    dns = found.dns or Dns()
    return NetworkPlan(
        mode=found.mode or "host",
        hostname=found.hostname,
        dns_servers=dns.servers,
        dns_searches=dns.searches,
        dns_options=dns.options,
    )


class _Publishing(msgspec.Struct):
    ports: Any = ()
    port_map: Any = ()


def _publishing(group: TaskGroup) -> tuple[str, frozenset[str]]:
    """Say who publishes what no container names, and what they name: in Nomad's bridge the group does that itself."""
    boxes = [task for task in group.tasks if task.driver == "docker"]
    mains = [task.name for task in boxes if task.lifecycle is None]
    if not group.networks or group.networks[0].mode != "bridge" or not mains:
        return "", frozenset()
    named: set[str] = set()
    for task in boxes:
        with contextlib.suppress(msgspec.MsgspecError):
            said = msgspec.json.decode(task.config, type=_Publishing)
            for part in (said.ports, said.port_map):
                named |= {one for one in part if isinstance(one, str)} if part else set()
    return mains[0], frozenset(named)


def _on_success(job: Job, task: Task) -> bool:
    """Say whether exit 0 is a reason to start again. Source: Nomad newRestartTracker."""
    if task.lifecycle is None:
        return job.type not in _FINITE
    return task.lifecycle.sidecar and task.lifecycle.hook in {"prestart", "poststart"}


def _task_plan(job: Job, group: TaskGroup, task: Task, spans: tuple[Spans, ...]) -> TaskPlan:
    restart = restart_of(job.type, group, task)
    hook = task.lifecycle.hook if task.lifecycle is not None else ""
    return TaskPlan(
        name=task.name,
        driver=task.driver,
        config=msgspec.Raw(bytes(task.config)),
        env=task.env,
        meta=meta_of(job, group, task),
        user=task.user,
        leader=task.leader,
        hook=hook,
        sidecar=task.lifecycle is not None and task.lifecycle.sidecar,
        cpu_mhz=task.resources.cpu_mhz,
        memory_mib=task.resources.memory_mib,
        memory_max_mib=task.resources.memory_max_mib,
        spans=spans,
        secrets_mib=task.resources.secrets_mib,
        kill_timeout_ns=min(max(task.kill_timeout_ns, 0), KILL_TIMEOUT_MAX_NS),
        shutdown_delay_ns=max(task.shutdown_delay_ns, 0),
        kill_signal=task.kill_signal,
        log_files=max(task.logs.max_files, 1),
        log_file_bytes=max(task.logs.max_file_size_mb, 1) * MIB,
        log_disabled=task.logs.disabled or task.logs.enabled is False,
        restart=RestartPlan(
            # A stop waits for its prestop tasks: they have one try.
            attempts=0 if hook == "prestop" else restart.attempts,
            interval_ns=restart.interval_ns,
            delay_ns=restart.delay_ns,
            mode=restart.mode,
            on_success=_on_success(job, task),
        ),
    )
