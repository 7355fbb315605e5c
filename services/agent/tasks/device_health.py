"""Devices that become unhealthy, healthy again, or vanish while tasks hold them: an event of each such task.

Decides what is an event; a task is never ended for it. Nothing new is placed on an unhealthy device
(`shared/core/resources/offers.py`). Next: `task_resources.py`.
"""

from collections.abc import Iterable

from schemas.nodes import NodeSpec
from services.agent.reports import Reports
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import AgentStep
from services.agent.tasks.task_resources import task_devices

UNHEALTHY = "Device Unhealthy"
HEALTHY = "Device Healthy"
VANISHED = "the node does not have it any more"


def note_device_health(
    allocs: Iterable[AllocRuntime],
    before: NodeSpec | None,
    now: NodeSpec,
    *,
    reports: Reports,
    turn: AgentStep,
) -> None:
    """Add events to tasks whose devices changed. `before` None: a new life of the agent, which repeats no event."""
    was, known = _states(before) if before is not None else {}, _states(now)
    if before is not None and was == known:
        return
    for alloc in allocs:
        for task in alloc.tasks.values():
            if task.phase is TaskPhase.DEAD:
                continue
            old = was if before is not None else None
            if _note_task(alloc, task, was=old, known=known, now_ns=turn.now_ns):
                turn.keep(task.kept(alloc.key))
                reports.touch(alloc.key)


def _states(node: NodeSpec) -> dict[tuple[str, str], str]:
    """Return (pool, instance) -> why it is unhealthy; empty: it is healthy."""
    return {(pool.name, one.id): one.unhealthy for pool in node.pools for one in pool.instances}


def _note_task(
    alloc: AllocRuntime,
    task: TaskRuntime,
    *,
    was: dict[tuple[str, str], str] | None,
    known: dict[tuple[str, str], str],
    now_ns: int,
) -> bool:
    """Note what changed of a task's devices; returns whether anything did."""
    changed = False
    for pool, ids in sorted(task_devices(alloc.desired, task.plan).items()):
        for one in ids:
            name = (pool, one)
            if was is None:
                # What an operator declared is not in the fingerprint: an absent one is not known to have vanished.
                reason, before = known.get(name, ""), ""
            elif name in was or name in known:
                reason, before = known.get(name, VANISHED), was.get(name, VANISHED)
            else:
                continue
            kind = UNHEALTHY if reason else HEALTHY
            text = f"{pool} {one}" + (f": {reason}" if reason else "")
            is_repeated = was is None and any(text[:500] == event.message for event in task.events)
            if reason != before and not is_repeated:
                task.note(kind, text, now_ns)
                changed = True
    return changed
