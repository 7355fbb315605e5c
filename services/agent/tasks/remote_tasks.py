"""Tasks of drivers whose tasks run elsewhere: what is said before a start, and what becomes of it at an end.

Decides which attempt of a slot a start is, that the log knows of it before it is made, and whether an end ends what
runs elsewhere or only stops to track it. What is not known to have ended is never forgotten: the log has it, and
the cluster orders a node to end it.
"""

import msgspec

from schemas.nodes import NodeSpec
from schemas.remotes import RemoteTask
from services.agent.reports import Reports
from services.agent.tasks.lifecycle import is_left
from services.agent.tasks.runtime_state import AllocRuntime, TaskRuntime
from shared.core.runtime.agent_messages import (
    KillTask,
    TaskExited,
    TaskGone,
    TaskStarted,
    TaskStartFailed,
)
from shared.core.runtime.remote_messages import (
    DetachTask,
    RemoteKept,
    RemoteRun,
    run_token,
    slot_name,
)
from shared.core.state.ids import ORDINAL_BITS
from shared.jobspec.drivers.config_schema import driver_attribute


def runs_elsewhere(task: TaskRuntime, node: NodeSpec) -> bool:
    """Say whether a task is of a remote driver; what has begun elsewhere is, whatever its driver says now."""
    if task.remote is not None:
        return True
    words = node.attributes.get(driver_attribute(task.plan.driver, "capabilities"), "")
    return "remote" in words.split(",")


def announce(alloc: AllocRuntime, task: TaskRuntime) -> bool:
    """Settle which attempt the next start is; says whether the log has to be told of it."""
    kept = task.remote
    if kept is not None and kept.state != "ended":
        return False
    wanted = alloc.desired.remote
    handed = wanted.tasks.get(task.plan.name) if wanted is not None and kept is None else None
    if handed is not None and handed.state != "ended":
        task.remote = RemoteKept(attempt=handed.attempt, state=handed.state, handle=handed.handle)
        return True
    last = kept.attempt if kept is not None else handed.attempt if handed is not None else 0
    task.remote = RemoteKept(attempt=last + 1, state="starting")
    return True


def may_start(
    alloc: AllocRuntime, task: TaskRuntime, node: NodeSpec, reports: Reports
) -> tuple[bool, bool]:
    """Say whether a task may start, and whether its entry in the journal changed. The log must know of it first."""
    if not runs_elsewhere(task, node):
        return True, False
    if announce(alloc, task):
        reports.touch(alloc.key)
        return False, True
    return reports.is_seen(alloc.key), False


def remote_run(cluster_id: str, alloc: AllocRuntime, task: TaskRuntime) -> RemoteRun | None:
    """Name what runs elsewhere for a task; None: it runs here."""
    if task.remote is None:
        return None
    wanted = alloc.desired.remote
    generation = (wanted.generation if wanted is not None else 0) or alloc.key
    slot = slot_name(cluster_id, generation, task.plan.name)
    return RemoteRun(
        token=run_token(slot, task.remote.attempt),
        slot=slot,
        epoch=alloc.key >> ORDINAL_BITS,
        generation=generation,
        attempt=task.remote.attempt,
        state=task.remote.state,
        handle=task.remote.handle,
    )


def take_start(task: TaskRuntime, event: TaskStarted) -> None:
    """Note that an attempt runs."""
    if task.remote is not None:
        handle = task.remote.handle if bytes(event.handle) == b"null" else event.handle
        task.remote = msgspec.structs.replace(task.remote, state="running", handle=handle)


def take_end(task: TaskRuntime, event: TaskStartFailed | TaskExited | TaskGone) -> None:
    """Note that an attempt has ended, unless that is not known."""
    if task.remote is None:
        return
    is_left = event.is_detached if isinstance(event, TaskExited) else event.is_open
    never = isinstance(event, TaskGone) and not event.started
    if not (is_left or never):
        task.remote = RemoteKept(attempt=task.remote.attempt, state="ended")


def kill_of(alloc: AllocRuntime, task: TaskRuntime) -> type[KillTask | DetachTask]:
    """Return the effect that ends a run here."""
    return DetachTask if is_left(alloc, task) else KillTask


def reported_remotes(alloc: AllocRuntime) -> dict[str, RemoteTask]:
    """Return what the report of an allocation says of its remote tasks."""
    return {
        name: RemoteTask(
            driver=task.plan.driver,
            attempt=task.remote.attempt,
            state=task.remote.state,
            handle=task.remote.handle,
        )
        for name, task in sorted(alloc.tasks.items())
        if task.remote is not None
    }
