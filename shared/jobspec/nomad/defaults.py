"""Defaults that depend on the job's type: restart in place, reschedule elsewhere.

Source: Nomad's job specification (reference defaults exact). Pure lookups and merges: inner block over outer block over
the type's default, field by field.
"""

from typing import TypeVar

import msgspec

from schemas import jobs
from schemas.base import SECOND_NS
from schemas.jobs import SERVICE_JOB_TYPES
from shared.jobspec.nomad.base import HOUR_NS
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.policies import MigrateStrategy, RescheduleBlock, UpdateStrategy

_Policy = TypeVar("_Policy", bound=msgspec.Struct)


class ResolvedRestart(msgspec.Struct, frozen=True, kw_only=True):
    """A restart policy with nothing left open."""

    attempts: int
    interval_ns: int
    delay_ns: int
    mode: str


_RESTART_SERVICE = ResolvedRestart(
    attempts=2, interval_ns=HOUR_NS // 2, delay_ns=15 * SECOND_NS, mode="fail"
)
_RESTART_BATCH = ResolvedRestart(
    attempts=3, interval_ns=24 * HOUR_NS, delay_ns=15 * SECOND_NS, mode="fail"
)
#: job type -> restart policy.
RESTART_DEFAULTS = {
    "service": _RESTART_SERVICE,
    "system": _RESTART_SERVICE,
    "batch": _RESTART_BATCH,
    "sysbatch": _RESTART_BATCH,
}

UPDATE_DEFAULTS = UpdateStrategy(
    stagger_ns=30 * SECOND_NS,
    max_parallel=1,
    health_check="checks",
    min_healthy_time_ns=10 * SECOND_NS,
    healthy_deadline_ns=300 * SECOND_NS,
    progress_deadline_ns=600 * SECOND_NS,
    canary=0,
    auto_revert=False,
    auto_promote=False,
)

MIGRATE_DEFAULTS = MigrateStrategy(
    max_parallel=1,
    health_check="checks",
    min_healthy_time_ns=10 * SECOND_NS,
    healthy_deadline_ns=300 * SECOND_NS,
)
#: The policies of a group without blocks.
PLAIN_UPDATE = jobs.UpdatePolicy()
PLAIN_MIGRATE = jobs.MigratePolicy()

NO_DISCONNECT = jobs.Disconnect()

#: Nothing is replaced elsewhere: a system job has its place on each node.
_NEVER = jobs.ReschedulePolicy(delay_ns=0, max_delay_ns=0, unlimited=False)
#: job type -> reschedule policy.
RESCHEDULE_DEFAULTS = {
    "service": jobs.ReschedulePolicy(),
    "batch": jobs.ReschedulePolicy(
        attempts=1,
        interval_ns=24 * HOUR_NS,
        delay_ns=5 * SECOND_NS,
        delay_function="constant",
        max_delay_ns=0,
        unlimited=False,
    ),
    "system": _NEVER,
    "sysbatch": _NEVER,
}


def resolve_restart(
    job_type: str, group: TaskGroup, task: TaskSpec | None = None
) -> ResolvedRestart:
    """Resolve the restart policy of a task: its own block over the group's over the type's default."""
    found = RESTART_DEFAULTS.get(job_type, _RESTART_SERVICE)
    found = _merge_block(found, group.restart)
    return _merge_block(found, task.restart) if task is not None else found


def resolve_reschedule(job: JobSpec, group: TaskGroup) -> jobs.ReschedulePolicy:
    """Resolve the reschedule policy of a group: its own block over the job's over the type's default.

    A block that sets attempts and leaves `Unlimited` unset is limited.
    """
    found = RESCHEDULE_DEFAULTS.get(job.type, _NEVER)
    for block in (job.reschedule, group.reschedule):
        if block is not None:
            found = _merge_reschedule(found, block)
    return found


def sets_nothing(block: UpdateStrategy | MigrateStrategy | None) -> bool:
    """Tell whether a block is absent, empty, or the zeros that Nomad's server prints where there is none."""
    if block is None:
        return True
    values = [getattr(block, name) for name in block.__struct_fields__]
    return not any(values) and (block.health_check == "" or all(one is None for one in values))


def resolve_update(job: JobSpec, group: TaskGroup) -> UpdateStrategy:
    """Resolve the update block of a group of a service or system job: its own over the job's over the default."""
    return _merge_levels(UPDATE_DEFAULTS, job.update, group.update)


def resolve_migrate(job: JobSpec, group: TaskGroup) -> MigrateStrategy:
    """Resolve the migrate block of a group of a service job: its own over the job's over the default."""
    return _merge_levels(MIGRATE_DEFAULTS, job.migrate, group.migrate)


def update_policy(job: JobSpec, group: TaskGroup) -> jobs.UpdatePolicy | None:
    """Return how a new version of a group is rolled out; None: without a deployment, as its type has none."""
    if job.type not in SERVICE_JOB_TYPES:
        return None
    return _merge_levels(PLAIN_UPDATE, job.update, group.update)


def migrate_policy(job: JobSpec, group: TaskGroup) -> jobs.MigratePolicy | None:
    """Return how the allocations of a group leave a draining node; None: at once, as its type has no pace."""
    if job.type != "service":
        return None
    return _merge_levels(PLAIN_MIGRATE, job.migrate, group.migrate)


def resolve_health(job: JobSpec, group: TaskGroup) -> jobs.UpdatePolicy | jobs.MigratePolicy | None:
    """Return the rules of health of a group: of its updates, or of its moves where updates make no deployment.

    None: of a batch job, whose allocations have no health.
    """
    update, migrate = update_policy(job, group), migrate_policy(job, group)
    return migrate if update is not None and not update.max_parallel and migrate else update


def _merge_levels(
    base: _Policy,
    outer: UpdateStrategy | MigrateStrategy | None,
    inner: UpdateStrategy | MigrateStrategy | None,
) -> _Policy:
    """Override a policy by the job's block, then by the group's, field by field."""
    for block in (outer, inner):
        if block is not None and not sets_nothing(block):
            base = _merge_block(base, block)
    return base


def resolve_disconnect(group: TaskGroup) -> jobs.Disconnect:
    """Return the disconnect policy of a group: its block, or the older fields that it replaces.

    What is stateful is not replaced while its node may come back, whatever the block says.
    """
    if group.stateful:
        return jobs.Disconnect(replace=False)
    block = group.disconnect
    if block is None:
        lost_after_ns = group.max_client_disconnect_ns or 0
        if not lost_after_ns and not group.prevent_reschedule_on_lost:
            return NO_DISCONNECT
        return jobs.Disconnect(
            lost_after_ns=lost_after_ns, replace=not group.prevent_reschedule_on_lost
        )
    return jobs.Disconnect(
        lost_after_ns=block.lost_after_ns or 0, replace=block.replace, reconcile=block.reconcile
    )


def _merge_block(base: _Policy, block: msgspec.Struct | None) -> _Policy:
    """Override the fields of a policy by those that a block sets; both use the same names."""
    found = {name: getattr(block, name, None) for name in base.__struct_fields__}
    return msgspec.structs.replace(
        base, **{name: value for name, value in found.items() if value is not None}
    )


def _merge_reschedule(base: jobs.ReschedulePolicy, block: RescheduleBlock) -> jobs.ReschedulePolicy:
    found = _merge_block(base, block)
    if block.unlimited is None:
        unlimited = base.unlimited and not block.attempts
        return msgspec.structs.replace(found, unlimited=unlimited)
    if block.unlimited and block.attempts is None:
        return msgspec.structs.replace(found, attempts=0)
    return found
