"""Validation of task lifecycles: hooks, sidecars, leaders, and the maximum run time of an allocation."""

from schemas.jobs import FINITE_JOB_TYPES
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec

#: When a task that is not a main task runs. Nomad's are prestart, poststart and poststop.
HOOKS = ("prestart", "poststart", "prestop", "poststop", "postfail")
#: Hooks whose tasks may live as long as the main tasks do.
SIDECAR_HOOKS = ("prestart", "poststart")
RESTART_FROM_VALUES = ("", "first", "failed")


def check_lifecycle(faults: ErrorList, job: JobSpec, group: TaskGroup, path: str) -> None:
    """Find what is impossible in the life of a group's allocations."""
    leaders = [at for at, task in enumerate(group.tasks) if task.leader]
    for at in leaders[1:]:
        faults.add(
            f"{path}.Tasks[{at}].Leader", "another task is already the leader; only one is allowed"
        )
    for at, task in enumerate(group.tasks):
        _task(faults, task, f"{path}.Tasks[{at}]")
    if group.restart_from not in RESTART_FROM_VALUES:
        text = f"must be first or failed, was {group.restart_from[:80]!r}"
        faults.add(f"{path}.RestartFrom", text)
    if group.max_run_duration_ns is not None:
        if job.type not in FINITE_JOB_TYPES:
            faults.add(
                f"{path}.MaxRunDuration", f"is only for batch and sysbatch jobs, not {job.type}"
            )
        elif group.max_run_duration_ns <= 0:
            faults.add(f"{path}.MaxRunDuration", "must be more than 0")
    if group.shutdown_delay_ns < 0:
        faults.add(f"{path}.ShutdownDelay", "must not be negative")


def _task(faults: ErrorList, task: TaskSpec, path: str) -> None:
    if task.shutdown_delay_ns < 0:
        faults.add(f"{path}.ShutdownDelay", "must not be negative")
    life = task.lifecycle
    if life is None:
        return
    if life.hook not in HOOKS:
        text = f"must be one of {', '.join(HOOKS)}, was {life.hook[:80]!r}"
        faults.add(f"{path}.Lifecycle.Hook", text)
    elif life.sidecar and life.hook not in SIDECAR_HOOKS:
        text = f"a {life.hook} task cannot be a sidecar; only tasks with hook {' and '.join(SIDECAR_HOOKS)}"
        faults.add(f"{path}.Lifecycle.Sidecar", text)
    if task.leader and life.hook not in SIDECAR_HOOKS:
        faults.add(f"{path}.Leader", f"a {life.hook} task cannot be the leader")
