"""Health of an allocation: decided once from its tasks' states, then kept until its job version changes.

Decides when an allocation is healthy or unhealthy, and why. Times are instants of the caller's steady clock. Source:
Nomad's allocation health tracker; the differences are in docs/fidelity.md. Must not know reports, timers or the
journal. Next: `health_monitor.py`.
"""

from collections.abc import Sequence

import msgspec

from schemas.base import SECOND_NS
from services.agent.tasks import lifecycle
from services.agent.tasks.resolved_group import ResolvedHealth
from services.agent.tasks.runtime_state import END_HOOKS, AllocRuntime, TaskPhase, TaskRuntime
from shared.core.runtime.agent_messages import HealthKept

UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2
#: Of `HealthKept.reason`, as reports carry it.
REASON_MAX = 200
#: Causes of an end that say nothing about health: it is not wanted, its node has no contact, its agent ends.
_SILENT_ENDS = (lifecycle.ORDERED, lifecycle.SILENCE, lifecycle.EXPIRED, lifecycle.AGENT)
_ONCE_HOOKS = ("prestart", "poststart")


def is_decidable(alloc: AllocRuntime) -> bool:
    """Say whether its health may still be decided: it is wanted, has a policy, and has no health yet."""
    if policy_of(alloc) is None or alloc.stopping:
        return False
    if alloc.end is not None and alloc.end.cause in _SILENT_ENDS:
        return False
    return alloc.health is None or not is_decided(alloc.health, alloc)


def policy_of(alloc: AllocRuntime) -> ResolvedHealth | None:
    """Find the rules of its group; None: its health is never decided here."""
    found = alloc.plan.health if alloc.plan is not None else None
    return None if found is None or found.is_manual else found


def is_decided(kept: HealthKept, alloc: AllocRuntime) -> bool:
    """Say whether this health is final for the job version that the allocation runs."""
    return kept.version == alloc.desired.version and kept.health != UNKNOWN


def next_health(
    alloc: AllocRuntime, now_ns: int, failing_checks: Sequence[str] = ()
) -> HealthKept | None:
    """Return its health as of `now_ns`; the same object where nothing changed.

    `failing_checks`: for each check that does not pass, what people read about it. None: its clocks have not begun.
    """
    policy, kept = policy_of(alloc), alloc.health
    if policy is None or not is_decidable(alloc):
        return kept
    if kept is None or kept.version != alloc.desired.version:
        if (
            alloc.waits
            or alloc.crowded
            or alloc.held
            or alloc.plan_version != alloc.desired.version
        ):
            return kept
        checks = {} if kept is None else kept.checks
        kept = HealthKept(
            key=alloc.key, version=alloc.desired.version, began_ns=now_ns, checks=checks
        )
    tasks = watched_tasks(alloc)
    ended = [task for task in tasks if _end_text(task)]
    if ended:
        # Where one failed, the others were ended because of it.
        guilty = [task for task in ended if task.failed] or ended
        return _decided(kept, UNHEALTHY, [_end_text(task) for task in guilty])
    if any(task.phase is TaskPhase.RECOVERING for task in tasks):
        # Whether it runs is known in a moment; nothing is decided meanwhile.
        return kept
    kept = _followed(kept, tasks, now_ns, is_passing=not failing_checks)
    if kept.ready_ns and kept.passing_ns:
        since_ns = max(kept.ready_ns, kept.passing_ns)
        if now_ns >= since_ns + policy.min_healthy_ns:
            return _decided(kept, HEALTHY, ())
    if now_ns >= kept.began_ns + policy.deadline_ns:
        return _decided(kept, UNHEALTHY, _late_texts(kept, tasks, policy, failing_checks))
    return kept


def due_ns(alloc: AllocRuntime) -> int:
    """Say when its health may change without anything happening; 0: never."""
    policy, kept = policy_of(alloc), alloc.health
    if policy is None or kept is None or not is_decidable(alloc):
        return 0
    last_ns = kept.began_ns + policy.deadline_ns
    if kept.ready_ns and kept.passing_ns:
        return min(max(kept.ready_ns, kept.passing_ns) + policy.min_healthy_ns, last_ns)
    return last_ns


def shifted(kept: HealthKept, by_ns: int) -> HealthKept:
    """Return it with its instants moved: time that the clock jumped over counts for nothing."""
    return msgspec.structs.replace(
        kept,
        began_ns=kept.began_ns + by_ns,
        ready_ns=kept.ready_ns and kept.ready_ns + by_ns,
        passing_ns=kept.passing_ns and kept.passing_ns + by_ns,
    )


def watched_tasks(alloc: AllocRuntime) -> list[TaskRuntime]:
    """List the tasks that decide its health: those around its end do not."""
    return [task for task in alloc.tasks.values() if task.plan.hook not in END_HOOKS]


def late_tasks(alloc: AllocRuntime) -> list[TaskRuntime]:
    """List the tasks that an allocation missed its deadline for; all where its checks or its time are the reason.

    Empty where a task ended: its own events say so.
    """
    tasks = watched_tasks(alloc)
    if any(map(_end_text, tasks)):
        return []
    return [task for task in tasks if not _is_started(task)] or tasks


# ---- inside ----


def _runs_once(task: TaskRuntime) -> bool:
    return task.plan.hook in _ONCE_HOOKS and not task.plan.sidecar


def _is_started(task: TaskRuntime) -> bool:
    """Say whether a task runs, or ran to a good end where it should end."""
    if task.phase is TaskPhase.DEAD:
        return _runs_once(task) and not task.failed
    return task.phase is TaskPhase.RUNNING


def _end_text(task: TaskRuntime) -> str:
    """Say how a task ended that should not have; empty: it did not."""
    if task.phase is not TaskPhase.DEAD or _is_started(task):
        return ""
    if not task.failed:
        return f"task {task.plan.name!r} ended"
    kinds = ("Terminated", "Driver Failure", "Failed Validation")
    causes = [event.message for event in task.events if event.kind in kinds]
    return f"task {task.plan.name!r} failed" + (f": {causes[-1]}" if causes else "")


def _followed(
    kept: HealthKept, tasks: Sequence[TaskRuntime], now_ns: int, *, is_passing: bool
) -> HealthKept:
    """Note since when all tasks have run and all checks have passed: any start begins the tasks' time again."""
    runs = sum(task.run for task in tasks)
    if not all(map(_is_started, tasks)):
        ready_ns = 0
    elif kept.ready_ns and kept.runs == runs:
        ready_ns = kept.ready_ns
    else:
        ready_ns = now_ns
    passing_ns = (kept.passing_ns or now_ns) if is_passing else 0
    if (ready_ns, passing_ns) == (kept.ready_ns, kept.passing_ns):
        return kept
    return msgspec.structs.replace(kept, ready_ns=ready_ns, runs=runs, passing_ns=passing_ns)


def _late_texts(
    kept: HealthKept,
    tasks: Sequence[TaskRuntime],
    policy: ResolvedHealth,
    failing_checks: Sequence[str],
) -> list[str]:
    """Say what was missing at the deadline: one text for each task, or for each check."""
    by = f"by the healthy_deadline of {_seconds(policy.deadline_ns)}"
    late = [task for task in tasks if not _is_started(task)]
    if late:
        return [f"task {task.plan.name!r} was not running {by}" for task in late]
    if failing_checks:
        return [f"{text}, {by}" for text in failing_checks]
    least = f"for the min_healthy_time of {_seconds(policy.min_healthy_ns)} {by}"
    if kept.ready_ns > kept.passing_ns:
        names = [task.plan.name for task in tasks if task.phase is TaskPhase.RUNNING]
        return [f"task {name!r} was not running {least}" for name in names]
    return [f"checks did not pass {least}"]


def _decided(kept: HealthKept, health: int, texts: Sequence[str]) -> HealthKept:
    return msgspec.structs.replace(kept, health=health, reason="; ".join(texts)[:REASON_MAX])


def _seconds(ns: int) -> str:
    return f"{ns / SECOND_NS:g} s"
