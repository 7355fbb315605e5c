"""Compilation: what scheduling needs of a valid job, taken out of it once.

Decides a group's ask (the sum over its tasks), its constraints (job's, group's and tasks' together), its drivers, and
its digest: what forces a replacement when it changes. Must not know the state: versions and fences are the applier's.
"""

from hashlib import blake2b

from schemas import jobs
from shared.core.operators import DISTINCT, DISTINCT_HOSTS, DISTINCT_PROPERTY, FALSE
from shared.jobspec.defaults import RESCHEDULES, reschedule_of
from shared.jobspec.nomad_json import Affinity, Constraint, Job, Spread, TaskGroup
from shared.jobspec.strict import JsonObject, canonical

#: Parts of a group and of a task that change without a restart.
_GROUP_IN_PLACE = frozenset(
    (
        *("Count", "Constraints", "Affinities", "Spreads", "Update", "ReschedulePolicy"),
        *("Migrate", "Scaling", "Tasks"),
    )
)
#: What a group without tasks needs of a node.
GATEWAY_DRIVER = "connect_gateway"
_TASK_IN_PLACE = frozenset(("Constraints", "Affinities"))


def compile_groups(job: Job, value: JsonObject) -> tuple[jobs.GroupSpec, ...]:
    """Compile all groups of a valid job; `value` is the decoded JSON that it was read from."""
    meta = value.get("Meta")
    return tuple(
        [
            _compile(job, group, group_digest(text, meta))
            for group, text in zip(job.groups, value["TaskGroups"], strict=True)
        ]
    )


def group_digest(group: JsonObject, job_meta: JsonObject | None) -> str:
    """Hash the canonical JSON of a group without what is updated in place: 32 hex digits."""
    kept = {key: item for key, item in group.items() if key not in _GROUP_IN_PLACE}
    kept["Tasks"] = [
        task
        if _TASK_IN_PLACE.isdisjoint(task)
        else {key: item for key, item in task.items() if key not in _TASK_IN_PLACE}
        for task in group.get("Tasks", ())
    ]
    if job_meta:
        kept["JobMeta"] = job_meta
    return blake2b(canonical(kept), digest_size=16).hexdigest()


def _compile(job: Job, group: TaskGroup, digest: str) -> jobs.GroupSpec:
    cpu_mhz = memory_mib = 0
    constraints = job.constraints + group.constraints
    affinities = job.affinities + group.affinities
    for task in group.tasks:
        cpu_mhz += task.resources.cpu_mhz
        memory_mib += task.resources.memory_mib
        constraints += task.constraints
        affinities += task.affinities
    if not group.tasks:
        # Only a gateway: nobody runs it yet, so the group waits and says why.
        drivers: tuple[str, ...] = (GATEWAY_DRIVER,)
    elif len(group.tasks) == 1:
        drivers = (group.tasks[0].driver,)
    else:
        drivers = tuple(sorted({task.driver for task in group.tasks}))
    plain = job.reschedule is None and group.reschedule is None
    return jobs.GroupSpec(
        name=group.name,
        count=group.count,
        cpu_mhz=cpu_mhz,
        memory_mib=memory_mib,
        disk_mib=group.ephemeral_disk.size_mib,
        constraints=_constraints(constraints) if constraints else (),
        affinities=_affinities(affinities) if affinities else (),
        spreads=_spreads(job.spreads + group.spreads),
        distinct_hosts=_distinct_hosts(job, constraints) if constraints else "",
        distinct_properties=_distinct_properties(job, constraints) if constraints else (),
        algorithm=job.scheduler_algorithm,
        drivers=drivers,
        reschedule=RESCHEDULES[job.type] if plain else reschedule_of(job, group),
        digest=digest,
    )


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
