"""Compilation: what scheduling needs of a valid job, taken out of it once.

Decides a group's ask (`asking.py`), its ports, its constraints (job's, group's and tasks' together), its drivers, and
its digest: what forces a replacement when it changes. Must not know the state: versions and fences are the applier's.
"""

from hashlib import blake2b

import msgspec

from schemas import jobs
from shared.core.operators import DISTINCT, DISTINCT_HOSTS, DISTINCT_PROPERTY, FALSE
from shared.jobspec.asking import NO_REMOTES, Remotes, group_ask
from shared.jobspec.defaults import RESCHEDULES, disconnect_of, reschedule_of
from shared.jobspec.nomad_json import Affinity, Constraint, Job, Spread, TaskGroup
from shared.jobspec.ports import dynamic_ports, has_networks, held_ports, networks_of
from shared.jobspec.strict import JsonObject, canonical

#: Parts of a group and of a task that change without a restart.
_GROUP_IN_PLACE = frozenset(
    (
        *("Count", "Constraints", "Affinities", "Spreads", "Update", "ReschedulePolicy"),
        *("Migrate", "Scaling", "Tasks", "Disconnect", "MaxClientDisconnect"),
        *("StopAfterClientDisconnect", "PreventRescheduleOnLost", "RestartPolicy"),
        *("ShutdownDelay", "MaxRunDuration"),
    )
)
#: What a group without tasks needs of a node.
GATEWAY_DRIVER = "connect_gateway"
_TASK_IN_PLACE = frozenset(
    (
        *("Constraints", "Affinities", "RestartPolicy", "KillTimeout", "KillSignal"),
        *("ShutdownDelay", "LogConfig"),
    )
)


def compile_groups(
    job: Job, value: JsonObject, remotes: Remotes = NO_REMOTES
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
                group_digest(text, meta, _remotes_of(group, remotes) if remotes else None),
                remotes,
            )
            for group, text in zip(job.groups, value["TaskGroups"], strict=True)
        ]
    )


def group_digest(
    group: JsonObject, job_meta: JsonObject | None, remotes: JsonObject | None = None
) -> str:
    """Hash the canonical JSON of a group without what is updated in place: 32 hex digits.

    `remotes`: the policy's drivers that its tasks use; what they take would change with them.
    """
    kept = {key: item for key, item in group.items() if key not in _GROUP_IN_PLACE}
    kept["Tasks"] = [
        task if _TASK_IN_PLACE.isdisjoint(task) else _restarting_parts(task)
        for task in group.get("Tasks", ())
    ]
    if job_meta:
        kept["JobMeta"] = job_meta
    if remotes:
        kept["RemoteDrivers"] = remotes
    return blake2b(canonical(kept), digest_size=16).hexdigest()


def _restarting_parts(task: JsonObject) -> JsonObject:
    """Leave out what a running task can take over; whether it has logs at all is no such thing."""
    kept = {key: item for key, item in task.items() if key not in _TASK_IN_PLACE}
    logs = task.get("LogConfig") or {}
    if logs.get("Disabled") or logs.get("Enabled") is False:
        kept["LogConfig"] = {"Disabled": True}
    return kept


def _remotes_of(group: TaskGroup, remotes: Remotes) -> JsonObject:
    used = {task.driver for task in group.tasks if task.driver in remotes}
    return {name: msgspec.to_builtins(remotes[name]) for name in sorted(used)}


def _compile(job: Job, group: TaskGroup, digest: str, remotes: Remotes) -> jobs.GroupSpec:
    constraints = job.constraints + group.constraints
    affinities = job.affinities + group.affinities
    for task in group.tasks:
        constraints += task.constraints
        affinities += task.affinities
    ask = group_ask(group, remotes)
    has_ports = has_networks(group)
    if has_ports:
        constraints += _needed_networks(group)
    plain = job.reschedule is None and group.reschedule is None
    return jobs.GroupSpec(
        name=group.name,
        count=group.count,
        cpu_mhz=ask.cpu_mhz,
        memory_mib=ask.memory_mib,
        disk_mib=group.ephemeral_disk.size_mib,
        alternatives=ask.alternatives,
        static_ports=held_ports(group) if has_ports else (),
        dynamic_ports=len(dynamic_ports(group)) if has_ports else 0,
        constraints=_constraints(constraints) if constraints else (),
        affinities=_affinities(affinities) if affinities else (),
        spreads=_spreads(job.spreads + group.spreads),
        distinct_hosts=_distinct_hosts(job, constraints) if constraints else "",
        distinct_properties=_distinct_properties(job, constraints) if constraints else (),
        algorithm=job.scheduler_algorithm,
        drivers=_drivers(group),
        reschedule=RESCHEDULES[job.type] if plain else reschedule_of(job, group),
        disconnect=disconnect_of(group),
        digest=digest,
    )


def _needed_networks(group: TaskGroup) -> tuple[Constraint, ...]:
    """Networks by name are a node's: one that has none of that name cannot run the group."""
    found = {
        f"${{attr.host_network.{port.host_network}}}"
        for _, network in networks_of(group)
        for port in (*network.reserved_ports, *network.dynamic_ports)
        if port.host_network not in {"", "default"}
    }
    found |= {
        f"${{attr.network.{network.mode}}}"
        for network in group.networks
        if network.mode.startswith("cni/")
    }
    return tuple(Constraint(left=left, operator="is_set") for left in sorted(found))


def _drivers(group: TaskGroup) -> tuple[str, ...]:
    if not group.tasks:
        # Only a gateway: nobody runs it yet, so the group waits and says why.
        return (GATEWAY_DRIVER,)
    if len(group.tasks) == 1:
        return (group.tasks[0].driver,)
    return tuple(sorted({task.driver for task in group.tasks}))


def _constraints(found: tuple[Constraint, ...]) -> tuple[jobs.Constraint, ...]:
    """Take what one node alone can answer, each once."""
    kept = [
        jobs.Constraint(left=one.left, operator=one.operator, right=one.right)
        for one in found
        if one.operator not in DISTINCT
    ]
    return tuple(dict.fromkeys(kept))


def _affinities(found: tuple[Affinity, ...]) -> tuple[jobs.Affinity, ...]:
    return tuple(
        [
            jobs.Affinity(left=one.left, operator=one.operator, right=one.right, weight=one.weight)
            for one in found
        ]
    )


def _spreads(found: tuple[Spread, ...]) -> tuple[jobs.Spread, ...]:
    return tuple(
        [
            jobs.Spread(
                attribute=one.attribute,
                weight=one.weight,
                targets=tuple(
                    [
                        jobs.SpreadTarget(value=target.value, percent=target.percent)
                        for target in one.targets
                    ]
                ),
            )
            for one in found
        ]
    )


def _distinct_hosts(job: Job, found: tuple[Constraint, ...]) -> str:
    """Which allocations must not share a node: the job's say covers the group's."""

    def is_asked(constraints: tuple[Constraint, ...]) -> bool:
        return any(one.operator == DISTINCT_HOSTS and one.right not in FALSE for one in constraints)

    if not is_asked(found):
        return ""
    return "job" if is_asked(job.constraints) else "group"


def _distinct_properties(
    job: Job, found: tuple[Constraint, ...]
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
