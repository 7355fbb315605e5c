"""Compilation: what scheduling needs of a valid job, taken out of it once.

Decides a group's ask (the sum over its tasks), its constraints (job's, group's and tasks' together), its drivers, and
its digest: what forces a replacement when it changes. Must not know the state: versions and fences are the applier's.
"""

from hashlib import blake2b

from schemas import jobs
from shared.jobspec.defaults import RESCHEDULES, reschedule_of
from shared.jobspec.nomad_json import Constraint, Job, TaskGroup
from shared.jobspec.strict import JsonObject, canonical
from shared.jobspec.validate import BUILT_OPERATORS

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
    for task in group.tasks:
        cpu_mhz += task.resources.cpu_mhz
        memory_mib += task.resources.memory_mib
        constraints += task.constraints
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
        drivers=drivers,
        reschedule=RESCHEDULES[job.type] if plain else reschedule_of(job, group),
        digest=digest,
    )


def _constraints(found: tuple[Constraint, ...]) -> tuple[jobs.Constraint, ...]:
    """Take what feasibility can answer, each once; the others are named in the warning."""
    kept = [
        jobs.Constraint(left=one.left, operator=one.operator, right=one.right)
        for one in found
        if one.operator in BUILT_OPERATORS
    ]
    return tuple(dict.fromkeys(kept))
