"""Defaults that depend on the job's type: restart in place, reschedule elsewhere.

Source: Nomad's job specification (reference defaults exact). Pure lookups and merges: inner block over outer block over
the type's default, field by field.
"""

from typing import TypeVar

import msgspec

from schemas import jobs
from shared.jobspec.nomad_json import (
    SECOND_NS,
    Job,
    ReschedulePolicy,
    RestartPolicy,
    Task,
    TaskGroup,
)

HOUR_NS = 3600 * SECOND_NS


_Policy = TypeVar("_Policy", bound=msgspec.Struct)


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A restart policy with nothing left open."""

    attempts: int
    interval_ns: int
    delay_ns: int
    mode: str


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """How a version replaces another, with nothing left open."""

    stagger_ns: int = 30 * SECOND_NS
    max_parallel: int = 1
    health_check: str = "checks"
    min_healthy_time_ns: int = 10 * SECOND_NS
    healthy_deadline_ns: int = 300 * SECOND_NS
    #: 0: the first allocation that is not healthy ends the rollout.
    progress_deadline_ns: int = 600 * SECOND_NS
    canary: int = 0
    auto_revert: bool = False
    auto_promote: bool = False


class Migrate(msgspec.Struct, frozen=True, kw_only=True):
    """How allocations leave a node, with nothing left open."""

    max_parallel: int = 1
    health_check: str = "checks"
    min_healthy_time_ns: int = 10 * SECOND_NS
    healthy_deadline_ns: int = 300 * SECOND_NS


_RESTART_SERVICE = Restart(
    attempts=2, interval_ns=HOUR_NS // 2, delay_ns=15 * SECOND_NS, mode="fail"
)
_RESTART_BATCH = Restart(attempts=3, interval_ns=24 * HOUR_NS, delay_ns=15 * SECOND_NS, mode="fail")
#: job type -> restart policy.
RESTARTS = {
    "service": _RESTART_SERVICE,
    "system": _RESTART_SERVICE,
    "batch": _RESTART_BATCH,
    "sysbatch": _RESTART_BATCH,
}

NO_DISCONNECT = jobs.Disconnect()

#: Nothing is replaced elsewhere: a system job has its place on each node.
_NEVER = jobs.ReschedulePolicy(delay_ns=0, max_delay_ns=0, unlimited=False)
#: job type -> reschedule policy.
RESCHEDULES = {
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


def restart_of(job_type: str, group: TaskGroup, task: Task | None = None) -> Restart:
    """Resolve the restart policy of a task: its own block over the group's over the type's default."""
    found = RESTARTS.get(job_type, _RESTART_SERVICE)
    found = _over(found, group.restart)
    return _over(found, task.restart) if task is not None else found


def reschedule_of(job: Job, group: TaskGroup) -> jobs.ReschedulePolicy:
    """Resolve the reschedule policy of a group: its own block over the job's over the type's default.

    A block that sets attempts and says nothing of `Unlimited` means a limit.
    """
    found = RESCHEDULES.get(job.type, _NEVER)
    for block in (job.reschedule, group.reschedule):
        if block is not None:
            found = _rescheduled(found, block)
    return found


def update_of(job: Job, group: TaskGroup) -> Update:
    """Resolve the update strategy of a group: its own block over the job's over the default, field by field."""
    return _filled(_filled(Update(), job.update), group.update)


def migrate_of(job: Job, group: TaskGroup) -> Migrate:
    """Resolve how a group's allocations leave a node: its own block over the job's over the default."""
    return _filled(_filled(Migrate(), job.migrate), group.migrate)


def disconnect_of(group: TaskGroup) -> jobs.Disconnect:
    """Say what becomes of a group's allocations on a silent node: its block, or what old files say instead."""
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


def _filled(base: _Policy, block: msgspec.Struct | None) -> _Policy:
    """Put what a block says over what stands; its fields have the names of the policy's."""
    if block is None:
        return base
    said = {name: getattr(block, name) for name in block.__struct_fields__}
    return msgspec.structs.replace(
        base, **{name: value for name, value in said.items() if value is not None}
    )


def _over(base: Restart, block: RestartPolicy | None) -> Restart:
    if block is None:
        return base
    return Restart(
        attempts=base.attempts if block.attempts is None else block.attempts,
        interval_ns=base.interval_ns if block.interval_ns is None else block.interval_ns,
        delay_ns=base.delay_ns if block.delay_ns is None else block.delay_ns,
        mode=base.mode if block.mode is None else block.mode,
    )


def _rescheduled(base: jobs.ReschedulePolicy, block: ReschedulePolicy) -> jobs.ReschedulePolicy:
    unlimited = block.unlimited
    if unlimited is None:
        unlimited = base.unlimited and not block.attempts
    attempts = base.attempts if block.attempts is None else block.attempts
    if block.unlimited and block.attempts is None:
        attempts = 0
    return jobs.ReschedulePolicy(
        attempts=attempts,
        interval_ns=base.interval_ns if block.interval_ns is None else block.interval_ns,
        delay_ns=base.delay_ns if block.delay_ns is None else block.delay_ns,
        delay_function=block.delay_function or base.delay_function,
        max_delay_ns=base.max_delay_ns if block.max_delay_ns is None else block.max_delay_ns,
        unlimited=unlimited,
    )
