"""Validation of when tasks run: hooks, sidecars, leaders, and how long an allocation may last.

Decides what of it is possible together. Next: `check_resources.py`.
"""

from shared.jobspec.faults import Faults
from shared.jobspec.nomad_json import Job, Task, TaskGroup

#: When a task that is no main task runs. Nomad's are prestart, poststart and poststop.
HOOKS = ("prestart", "poststart", "prestop", "poststop", "postfail")
#: Hooks whose tasks may live as long as the main tasks do.
SIDECAR_HOOKS = ("prestart", "poststart")
RESTARTS_FROM = ("", "first", "failed")
_FINITE = ("batch", "sysbatch")


def check_lifecycle(faults: Faults, job: Job, group: TaskGroup, path: str) -> None:
    """Find what is impossible in the life of a group's allocations."""
    leaders = [at for at, task in enumerate(group.tasks) if task.leader]
    for at in leaders[1:]:
        faults.add(f"{path}.Tasks[{at}].Leader", "another task is the leader, there can be one")
    for at, task in enumerate(group.tasks):
        _task(faults, task, f"{path}.Tasks[{at}]")
    if group.restart_from not in RESTARTS_FROM:
        text = f"must be first or failed, was {group.restart_from[:80]!r}"
        faults.add(f"{path}.RestartFrom", text)
    if group.max_run_duration_ns is not None:
        if job.type not in _FINITE:
            faults.add(f"{path}.MaxRunDuration", f"is for batch and sysbatch, not {job.type}")
        elif group.max_run_duration_ns <= 0:
            faults.add(f"{path}.MaxRunDuration", "must be longer than nothing")
    if group.shutdown_delay_ns < 0:
        faults.add(f"{path}.ShutdownDelay", "must not be negative")


def _task(faults: Faults, task: Task, path: str) -> None:
    if task.shutdown_delay_ns < 0:
        faults.add(f"{path}.ShutdownDelay", "must not be negative")
    life = task.lifecycle
    if life is None:
        return
    if life.hook not in HOOKS:
        text = f"must be one of {', '.join(HOOKS)}, was {life.hook[:80]!r}"
        faults.add(f"{path}.Lifecycle.Hook", text)
    elif life.sidecar and life.hook not in SIDECAR_HOOKS:
        text = f"a {life.hook} task has nothing to live beside: only {' and '.join(SIDECAR_HOOKS)}"
        faults.add(f"{path}.Lifecycle.Sidecar", text)
    if task.leader and life.hook not in SIDECAR_HOOKS:
        faults.add(f"{path}.Leader", f"a {life.hook} task cannot lead the others")
