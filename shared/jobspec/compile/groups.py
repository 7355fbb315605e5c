"""Compiles a valid job to what scheduling needs of it.

Of each group: its ask (`group_ask.py`), ports, constraints (of job, group and tasks together), drivers, and its digest,
whose change forces a replacement.
"""

from hashlib import blake2b

import msgspec

from schemas import jobs
from shared.core.constraints.operators import (
    DISTINCT,
    DISTINCT_HOSTS,
    DISTINCT_PROPERTY,
    FALSE,
)
from shared.jobspec.compile.group_ask import (
    NO_REMOTE_DRIVERS,
    RemoteDriverMap,
    group_ask,
    to_compiled,
)
from shared.jobspec.compile.ports import (
    dynamic_ports,
    group_networks,
    has_networks,
    reserved_port_numbers,
)
from shared.jobspec.compile.volumes import (
    indexed_volumes,
    volume_constraints,
    with_volume_asks,
)
from shared.jobspec.drivers.switches import (
    log_switches,
    needed_switches,
    secret_switches,
    template_switches,
    vault_switches,
)
from shared.jobspec.network_modes import BRIDGE, BRIDGE_ATTRIBUTE, NFT
from shared.jobspec.nomad.defaults import (
    RESCHEDULE_DEFAULTS,
    migrate_policy,
    resolve_disconnect,
    resolve_reschedule,
    update_policy,
)
from shared.jobspec.nomad.job import JobSpec, TaskGroup
from shared.jobspec.nomad.placement import ConstraintBlock
from shared.jobspec.strict_json import JsonObject, canonical_json

#: Parts of a group and of a task that change without a restart.
_GROUP_IN_PLACE_FIELDS = frozenset(
    (
        *("Count", "Constraints", "Affinities", "Spreads", "Update", "ReschedulePolicy"),
        *("Migrate", "Scaling", "Tasks", "Disconnect", "MaxClientDisconnect"),
        *("StopAfterClientDisconnect", "PreventRescheduleOnLost", "RestartPolicy"),
        *("ShutdownDelay", "MaxRunDuration", "Services"),
    )
)
#: Driver of a group without tasks.
GATEWAY_DRIVER = "connect_gateway"
_TASK_IN_PLACE_FIELDS = frozenset(
    (
        *("Constraints", "Affinities", "RestartPolicy", "KillTimeout", "KillSignal"),
        *("ShutdownDelay", "LogConfig", "Services", "Actions", "ScalingPolicies"),
    )
)


def compile_groups(
    job: JobSpec, value: JsonObject, remotes: RemoteDriverMap = NO_REMOTE_DRIVERS
) -> tuple[jobs.GroupSpec, ...]:
    """Compile all groups of a valid job; `value` is the decoded JSON that it was read from.

    `remotes` are the policy's: drivers whose tasks run elsewhere, by name.
    """
    meta = value.get("Meta")
    return tuple(
        [
            _compile(
                job,
                group,
                group_digest(text, meta, _used_remote_drivers(group, remotes) if remotes else None),
                remotes,
            )
            for group, text in zip(job.groups, value["TaskGroups"], strict=True)
        ]
    )


def compile_memory_limits(job: JobSpec) -> tuple[jobs.MemoryLimit, ...]:
    """Return the tasks of a valid job that may grow to so many MiB: the scheduler counts none of it."""
    return tuple(
        [
            jobs.MemoryLimit(
                group=group.name, task=task.name, memory_max_mib=task.resources.memory_max_mib
            )
            for group in job.groups
            for task in group.tasks
            if task.resources.memory_max_mib > 0
        ]
    )


def group_digest(
    group: JsonObject, job_meta: JsonObject | None, remotes: JsonObject | None = None
) -> str:
    """Hash the canonical JSON of a group without what is updated in place: 32 hex digits.

    `remotes`: the policy's remote drivers that its tasks use; they determine the resources of these tasks.
    """
    kept = {key: item for key, item in group.items() if key not in _GROUP_IN_PLACE_FIELDS}
    kept["Tasks"] = [
        task if _TASK_IN_PLACE_FIELDS.isdisjoint(task) else _restarting_parts(task)
        for task in group.get("Tasks", ())
    ]
    if given := _given_identities(group):
        kept["ServiceIdentities"] = given
    if job_meta:
        kept["JobMeta"] = job_meta
    if remotes:
        kept["RemoteDrivers"] = remotes
    return blake2b(canonical_json(kept), digest_size=16).hexdigest()


def _restarting_parts(task: JsonObject) -> JsonObject:
    """Drop the fields that are updated in place; disabling logs needs a restart, and shipping them another node."""
    kept = {key: item for key, item in task.items() if key not in _TASK_IN_PLACE_FIELDS}
    logs = task.get("LogConfig") or {}
    if logs.get("Disabled") or logs.get("Enabled") is False:
        kept["LogConfig"] = {"Disabled": True}
    elif logs.get("Ship"):
        kept["LogConfig"] = {"Ship": True}
    return kept


def _given_identities(group: JsonObject) -> list[JsonObject]:
    """List the services whose identity gives a task a token: a task gets tokens when it starts."""
    found: list[JsonObject] = []
    for block in (group, *(group.get("Tasks") or ())):
        for service in block.get("Services") or ():
            identity = service.get("Identity") or {}
            if identity.get("Env") or identity.get("File"):
                names = ("Name", "PortLabel", "TaskName", "Identity")
                found.append(
                    {
                        "In": block.get("Name", ""),
                        **{key: service[key] for key in names if key in service},
                    }
                )
    return found


def _used_remote_drivers(group: TaskGroup, remotes: RemoteDriverMap) -> JsonObject:
    used = {task.driver for task in group.tasks if task.driver in remotes}
    return {name: msgspec.to_builtins(remotes[name]) for name in sorted(used)}


def _compile(
    job: JobSpec, group: TaskGroup, digest: str, remotes: RemoteDriverMap
) -> jobs.GroupSpec:
    constraints = job.constraints + group.constraints
    affinities = job.affinities + group.affinities
    for task in group.tasks:
        constraints += task.constraints
        affinities += task.affinities
    spreads = job.spreads + group.spreads
    ask = group_ask(group, remotes)
    has_ports = has_networks(group)
    if has_ports:
        constraints += _network_constraints(group)
    constraints += _switch_constraints(group)
    if group.volumes:
        constraints += volume_constraints(group)
    plain = job.reschedule is None and group.reschedule is None
    return jobs.GroupSpec(
        name=group.name,
        count=group.count,
        cpu_mhz=ask.cpu_mhz,
        memory_mib=ask.memory_mib,
        disk_mib=group.ephemeral_disk.size_mib,
        alternatives=with_volume_asks(group, ask.alternatives),
        static_ports=reserved_port_numbers(group) if has_ports else (),
        dynamic_ports=len(dynamic_ports(group)) if has_ports else 0,
        constraints=_node_constraints(constraints) if constraints else (),
        affinities=to_compiled(affinities, tuple[jobs.Affinity, ...]) if affinities else (),
        spreads=to_compiled(spreads, tuple[jobs.Spread, ...]) if spreads else (),
        distinct_hosts=_distinct_hosts(job, constraints) if constraints else "",
        distinct_properties=_distinct_properties(job, constraints) if constraints else (),
        algorithm=job.scheduler_algorithm,
        drivers=_drivers(group),
        reschedule=RESCHEDULE_DEFAULTS[job.type] if plain else resolve_reschedule(job, group),
        disconnect=resolve_disconnect(group),
        digest=digest,
        update=update_policy(job, group),
        migrate=migrate_policy(job, group),
        sticky=group.ephemeral_disk.sticky,
        volumes=indexed_volumes(group),
        stateful=group.stateful,
    )


def _network_constraints(group: TaskGroup) -> tuple[ConstraintBlock, ...]:
    """Make constraints of the host networks that the group names, and of mode bridge."""
    found = {
        f"${{attr.host_network.{port.host_network}}}"
        for _, network in group_networks(group)
        for port in (*network.reserved_ports, *network.dynamic_ports)
        if port.host_network not in {"", "default"}
    }
    named = tuple(ConstraintBlock(left=left, operator="is_set") for left in sorted(found))
    if not any(network.mode == BRIDGE for network in group.networks):
        return named
    bridge = ConstraintBlock(left=f"${{attr.{BRIDGE_ATTRIBUTE}}}", operator="=", right=NFT)
    return (*named, bridge)


def _switch_constraints(group: TaskGroup) -> tuple[ConstraintBlock, ...]:
    """Make constraints of what only some operators offer; each names the setting of the node that offers it."""
    return tuple(
        ConstraintBlock(left=f"${{attr.{one.attribute}}}", operator="is_set", right=one.setting)
        for task in group.tasks
        for one in (
            *needed_switches(task.driver, task.config, task.resources.memory_max_mib),
            *template_switches(task.templates),
            *secret_switches(task.secrets),
            *vault_switches(task.vault),
            *log_switches(task.logs),
        )
    )


def _drivers(group: TaskGroup) -> tuple[str, ...]:
    if not group.tasks:
        # A gateway alone is not supported yet: no node has this driver, so the group waits, with the reason.
        return (GATEWAY_DRIVER,)
    if len(group.tasks) == 1:
        return (group.tasks[0].driver,)
    return tuple(sorted({task.driver for task in group.tasks}))


def _node_constraints(found: tuple[ConstraintBlock, ...]) -> tuple[jobs.Constraint, ...]:
    """Compile the constraints that are checked against one node, without duplicates."""
    kept = tuple(dict.fromkeys(one for one in found if one.operator not in DISTINCT))
    return to_compiled(kept, tuple[jobs.Constraint, ...])


def _distinct_hosts(job: JobSpec, found: tuple[ConstraintBlock, ...]) -> str:
    """Return the scope of distinct_hosts: job, group, or empty for none."""

    def is_set(constraints: tuple[ConstraintBlock, ...]) -> bool:
        return any(one.operator == DISTINCT_HOSTS and one.right not in FALSE for one in constraints)

    if not is_set(found):
        return ""
    return "job" if is_set(job.constraints) else "group"


def _distinct_properties(
    job: JobSpec, found: tuple[ConstraintBlock, ...]
) -> tuple[jobs.DistinctProperty, ...]:
    kept = [
        jobs.DistinctProperty(
            attribute=one.left,
            limit=int(one.right or 1),
            job_wide=at < len(job.constraints),
        )
        for at, one in enumerate(found)
        if one.operator == DISTINCT_PROPERTY
    ]
    return tuple(dict.fromkeys(kept))
