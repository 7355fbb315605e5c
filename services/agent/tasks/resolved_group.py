"""What an agent keeps of a job: one group's tasks, with every default resolved.

Decides which fields of Nomad's JSON matter on a node. Must not know how a driver uses them. The compiled form stands
in the agent's own journal (`AllocKept.plan`), so that tasks start again without the bus. Next: `environment.py`.
"""

from typing import NamedTuple

import msgspec

from schemas.base import MIB, Wire
from schemas.jobs import FINITE_JOB_TYPES
from services.agent.tasks.resolved_checks import ResolvedCheck, resolve_checks
from services.agent.tasks.resolved_inputs import (
    NONE_LEFT_OUT,
    LeftOutInputs,
    ResolvedInput,
    inputs_left_out,
    resolve_inputs,
)
from shared.errors import CommandInvalid
from shared.jobspec.checks.volumes import mount_place
from shared.jobspec.compile.group_ask import InstanceRanges, task_instance_ranges
from shared.jobspec.identities import DeclaredIdentity, accepted_without, group_identities
from shared.jobspec.nomad.defaults import resolve_health, resolve_restart
from shared.jobspec.nomad.job import JOB_DECODER, JobSpec, TaskGroup, TaskSpec, merged_meta
from shared.jobspec.nomad.placement import Dns, Network


class ResolvedRestartPolicy(Wire, frozen=True, kw_only=True):
    """How often, and when, a task is started again in place."""

    attempts: int
    interval_ns: int
    delay_ns: int
    #: fail or delay: what happens when the attempts of an interval are used up.
    mode: str
    #: whether exit 0 is a reason to start again (service), or the end (batch).
    on_success: bool


class ResolvedVolume(Wire, frozen=True, kw_only=True):
    """A host volume in a task: read only where the request or the mount says so."""

    source: str
    target: str
    read_only: bool = False
    #: the allocation's index follows the source, in brackets.
    per_alloc: bool = False
    #: empty: private.
    propagation: str = ""
    label: str = ""


class ResolvedAction(Wire, frozen=True, kw_only=True):
    """A command that people may run in the task. References in its words are resolved when it runs."""

    name: str
    words: tuple[str, ...]


class ResolvedTask(Wire, frozen=True, kw_only=True):
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
    spans: tuple[InstanceRanges, ...] = ()
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
    #: each line goes to the bus, too.
    log_ship: bool = False
    #: below `local/`: gets the payload that the job was dispatched with; empty: no file does.
    payload_file: str = ""
    #: what else it is given before it starts, in the order of the job.
    inputs: tuple[ResolvedInput, ...] = ()
    volumes: tuple[ResolvedVolume, ...] = ()
    actions: tuple[ResolvedAction, ...] = ()
    restart: ResolvedRestartPolicy


class ResolvedPort(Wire, frozen=True, kw_only=True):
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


class ResolvedNetwork(Wire, frozen=True, kw_only=True):
    """What the group says of its network. `mode`: host, bridge, none or cni/NAME."""

    mode: str = "host"
    hostname: str = ""
    dns_servers: tuple[str, ...] = ()
    dns_searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()


class ResolvedHealth(Wire, frozen=True, kw_only=True):
    """When an allocation is healthy: what Nomad's `update` block says, or `migrate` where there is no deployment."""

    min_healthy_ns: int = 10_000_000_000
    deadline_ns: int = 300_000_000_000
    #: checks of services count too, not only states of tasks.
    uses_checks: bool = True
    #: an operator says it: the agent does not.
    is_manual: bool = False


class ResolvedGroup(Wire, frozen=True, kw_only=True):
    """One group of one job version."""

    job_name: str
    #: the job that launched or dispatched it; empty: none did.
    job_parent: str = ""
    #: what the job was dispatched with.
    payload: bytes = b""
    #: empty: compiled by an older release, which did not know all fields.
    job_type: str = ""
    tasks: tuple[ResolvedTask, ...]
    #: those that the cluster picks stand in the order in which it does.
    ports: tuple[ResolvedPort, ...] = ()
    network: ResolvedNetwork = ResolvedNetwork()
    #: prestart tasks run one after another: first or failed, where they begin again; empty: all at once.
    restart_from: str = ""
    #: between the order to end, or the end of the prestop tasks, and the first kill signal.
    shutdown_delay_ns: int = 0
    #: 0: forever.
    max_run_ns: int = 0
    #: 0: never.
    stop_after_silence_ns: int = 0
    disk_mib: int = 0
    #: takes over the data of the allocation that it replaces.
    inherits: bool = False
    #: also where that one was on another node.
    migrates: bool = False
    #: an index is one instance at the most, with a host name of its own.
    stateful: bool = False
    #: None: of a batch job, which has no health.
    health: ResolvedHealth | None = None
    checks: tuple[ResolvedCheck, ...] = ()


class JobOrigin(NamedTuple):
    """Who made a job, and what of."""

    #: the job that launched or dispatched it; empty: it was submitted.
    parent: str = ""
    #: what it was dispatched with.
    payload: bytes = b""


NO_ORIGIN = JobOrigin()
RESOLVED_GROUP_DECODER = msgspec.json.Decoder(ResolvedGroup)


def resolve_group(spec: bytes, group: str, origin: JobOrigin = NO_ORIGIN) -> ResolvedGroup:
    """Compile a group of a job. Raises CommandInvalid for a text that is not a job or lacks the group or task."""
    try:
        job = JOB_DECODER.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise CommandInvalid("invalid", f"job cannot be read: {err}") from err
    found = next((one for one in job.groups if one.name == group), None)
    if found is None:
        raise CommandInvalid("invalid", f"job {job.id} has no group {group!r}")
    names = [task.name for task in found.tasks]
    if not names or "" in names or len(set(names)) != len(names):
        raise CommandInvalid(
            "invalid", f"group {group!r} needs tasks with different names, was {names}"
        )
    ways = task_instance_ranges(found)
    accepted = _accepted_inputs(spec, job, found)
    disconnect = found.disconnect
    silence_ns = None if disconnect is None else disconnect.stop_on_client_after_ns
    return ResolvedGroup(
        job_name=job.name or job.id,
        job_parent=origin.parent,
        payload=origin.payload if any(task.dispatch_payload for task in found.tasks) else b"",
        job_type=job.type,
        tasks=tuple(
            _resolve_task(
                job, found, task, spans=tuple(way[at] for way in ways), accepted=accepted[at]
            )
            for at, task in enumerate(found.tasks)
        ),
        ports=_ports(found),
        network=_network(found),
        restart_from=found.restart_from,
        shutdown_delay_ns=max(found.shutdown_delay_ns, 0),
        max_run_ns=max(found.max_run_duration_ns or 0, 0) if job.type in FINITE_JOB_TYPES else 0,
        stop_after_silence_ns=max(silence_ns or found.stop_after_client_disconnect_ns or 0, 0),
        disk_mib=found.ephemeral_disk.size_mib,
        inherits=found.ephemeral_disk.sticky or found.ephemeral_disk.migrate,
        migrates=found.ephemeral_disk.migrate,
        stateful=found.stateful,
        health=_health(job, found),
        checks=resolve_checks(job, found),
    )


def _ports(group: TaskGroup) -> tuple[ResolvedPort, ...]:
    """List all ports. The order of the picked ones is that of shared/jobspec/compile/ports.py."""
    owners: list[tuple[str, Network]] = [("", network) for network in group.networks]
    for task in group.tasks:
        owners += [(task.name, network) for network in task.resources.networks]
    return tuple(
        ResolvedPort(
            label=port.label,
            number=port.static if is_static else 0,
            to=port.to,
            task=owner,
            shared=port.ignore_collision,
            host_network=port.host_network,
        )
        for owner, network in owners
        for is_static, ports in ((True, network.reserved_ports), (False, network.dynamic_ports))
        for port in ports
    )


def _health(job: JobSpec, group: TaskGroup) -> ResolvedHealth | None:
    rules = resolve_health(job, group)
    if rules is None:
        return None
    return ResolvedHealth(
        min_healthy_ns=max(rules.min_healthy_time_ns, 0),
        deadline_ns=max(rules.healthy_deadline_ns, 0),
        uses_checks=rules.health_check == "checks",
        is_manual=rules.health_check == "manual",
    )


def _network(group: TaskGroup) -> ResolvedNetwork:
    if not group.networks:
        return ResolvedNetwork()
    found = group.networks[0]
    dns = found.dns or Dns()
    return ResolvedNetwork(
        mode=found.mode or "host",
        hostname=found.hostname,
        dns_servers=dns.servers,
        dns_searches=dns.searches,
        dns_options=dns.options,
    )


def _on_success(job: JobSpec, task: TaskSpec) -> bool:
    """Say whether exit 0 is a reason to start again. Source: Nomad newRestartTracker."""
    if task.lifecycle is None:
        return job.type not in FINITE_JOB_TYPES
    return task.lifecycle.sidecar and task.lifecycle.hook in {"prestart", "poststart"}


def _accepted_inputs(
    spec: bytes, job: JobSpec, group: TaskGroup
) -> list[tuple[LeftOutInputs, tuple[DeclaredIdentity, ...]]]:
    """List, for each task, the blocks that the job was accepted without, and the identities that it is given."""
    has_any = (
        one.templates or one.secrets or one.identity or one.identities or one.vault or one.services
        for one in group.tasks
    )
    if not (group.services or any(has_any)):
        return [(NONE_LEFT_OUT, ())] * len(group.tasks)
    paths = accepted_without(spec)
    top = f"Job.TaskGroups[{job.groups.index(group)}].Tasks"
    identities = group_identities(job, group, paths)
    return [
        (inputs_left_out(paths, f"{top}[{at}]", task), identities[task.name])
        for at, task in enumerate(group.tasks)
    ]


def _renders_again(group: TaskGroup, task: TaskSpec) -> bool:
    blocks = [one for one in (task.restart, group.restart) if one is not None]
    said = [one.render_templates for one in blocks if one.render_templates is not None]
    return bool(said and said[0])


def _volumes(group: TaskGroup, task: TaskSpec) -> tuple[ResolvedVolume, ...]:
    return tuple(
        ResolvedVolume(
            source=group.volumes[one.volume].source,
            target=mount_place(one.destination),
            read_only=one.read_only or group.volumes[one.volume].read_only,
            per_alloc=group.volumes[one.volume].per_alloc,
            propagation="" if one.propagation_mode == "private" else one.propagation_mode,
            label=one.selinux_label,
        )
        for one in task.volume_mounts
        if one.volume in group.volumes
    )


def _resolve_task(
    job: JobSpec,
    group: TaskGroup,
    task: TaskSpec,
    *,
    spans: tuple[InstanceRanges, ...],
    accepted: tuple[LeftOutInputs, tuple[DeclaredIdentity, ...]],
) -> ResolvedTask:
    restart = resolve_restart(job.type, group, task)
    hook = task.lifecycle.hook if task.lifecycle is not None else ""
    return ResolvedTask(
        name=task.name,
        driver=task.driver,
        config=msgspec.Raw(bytes(task.config)),
        env=task.env,
        meta=merged_meta(job, group, task),
        user=task.user,
        leader=task.leader,
        hook=hook,
        sidecar=task.lifecycle is not None and task.lifecycle.sidecar,
        cpu_mhz=task.resources.cpu_mhz,
        memory_mib=task.resources.memory_mib,
        memory_max_mib=task.resources.memory_max_mib,
        spans=spans,
        secrets_mib=task.resources.secrets_mib,
        kill_timeout_ns=max(task.kill_timeout_ns, 0),
        shutdown_delay_ns=max(task.shutdown_delay_ns, 0),
        kill_signal=task.kill_signal,
        log_files=max(task.logs.max_files, 1),
        log_file_bytes=max(task.logs.max_file_size_mb, 1) * MIB,
        log_disabled=task.logs.disabled or task.logs.enabled is False,
        log_ship=task.logs.ship,
        payload_file=task.dispatch_payload.file if task.dispatch_payload is not None else "",
        inputs=resolve_inputs(
            task,
            declared=accepted[1],
            renders_again=_renders_again(group, task),
            left_out=accepted[0],
        ),
        volumes=_volumes(group, task),
        actions=tuple(
            ResolvedAction(name=one.name, words=(one.command, *one.args)) for one in task.actions
        ),
        restart=ResolvedRestartPolicy(
            # A stop waits for its prestop tasks: they have one try.
            attempts=0 if hook == "prestop" else restart.attempts,
            interval_ns=restart.interval_ns,
            delay_ns=restart.delay_ns,
            mode=restart.mode,
            on_success=_on_success(job, task),
        ),
    )
