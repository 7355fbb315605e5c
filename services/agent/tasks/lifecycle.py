"""Task order of an allocation: which tasks start, which end, which never run.

Decides the order: prestart tasks, main tasks, poststart tasks; at the end prestop tasks, the leader, the other tasks,
sidecars; when all of these are dead postfail tasks (a main one failed), then poststop tasks. Everything follows from
the phases of the tasks and the cause of the end, both of which are in the journal: an agent that is killed at any point
continues from there. Source: Nomad's task hook coordinator. Next: `supervisor.py`.
"""

from services.agent.tasks.runtime_state import (
    AGENT_END_CAUSE,
    AllocRuntime,
    TaskPhase,
    TaskRuntime,
)

#: Why an allocation ends, beside an order of the cluster.
FAILED = "failed"
LEADER = "leader"
DONE = "done"
EXPIRED = "expired"
SILENCE = "silence"
DISK = "disk"
NETWORK = "network"
ORDERED = "order"
#: with this life of the agent: the next one takes the end back and continues (`agent_end.py`).
AGENT = AGENT_END_CAUSE

#: ends that say nothing of what runs elsewhere: the job may want it all the same.
_LEAVES = (SILENCE, AGENT)
_ALIVE = (TaskPhase.PREPARING, TaskPhase.STARTING, TaskPhase.RECOVERING, TaskPhase.RUNNING)


def is_left(alloc: AllocRuntime, task: TaskRuntime) -> bool:
    """Say whether the end of a task leaves what runs elsewhere alone: only the log can order to end that."""
    if task.remote is None or alloc.end is None:
        return False
    if alloc.stopping or alloc.end.cause == ORDERED:
        return alloc.desired.remote is None or not alloc.desired.remote.ends
    return alloc.end.cause in _LEAVES


def end_cause(alloc: AllocRuntime) -> tuple[str, str] | None:
    """Say why its own tasks end an allocation: cause and words for people; None: they do not."""
    body = alloc.body()
    if any(task.failed for task in body):
        return FAILED, "Sibling Task Failed"
    if any(task.plan.leader and _is_over(task) for task in body):
        return LEADER, "Leader Task Dead"
    once = [task for task in body if not task.plan.sidecar]
    if all(_is_over(task) for task in once) and len(once) < len(body):
        return DONE, "Main Tasks Dead"
    return None


def tasks_to_start(alloc: AllocRuntime) -> list[TaskRuntime]:
    """List the tasks that start now."""
    if _is_body_dead(alloc):
        return _tasks_after_body(alloc)
    if alloc.end is not None:
        mains = alloc.tasks_with_hook("")
        if any(is_left(alloc, task) for task in mains):
            return []
        is_first = not any(task.stopping for task in mains) and not _is_any_unknown(mains)
        is_up = any(task.phase is TaskPhase.RUNNING for task in mains)
        return _idle(alloc.tasks_with_hook("prestop")) if is_first and is_up else []
    if alloc.held or alloc.waits or alloc.crowded or alloc.stopping or _to_restart(alloc):
        return []
    starts = _prestarts(alloc)
    is_open = all(_is_passed(task) for task in alloc.tasks_with_hook("prestart"))
    mains = alloc.tasks_with_hook("")
    starts += [task for task in _idle(mains) if is_open or (task.run and not task.ordered)]
    if all(task.phase in (TaskPhase.RUNNING, TaskPhase.DEAD) for task in mains):
        is_over = all(task.phase is TaskPhase.DEAD for task in mains)
        posts = _idle(alloc.tasks_with_hook("poststart"))
        starts += [task for task in posts if not (is_over and task.plan.sidecar)]
    else:
        posts = _idle(alloc.tasks_with_hook("poststart"))
        starts += [task for task in posts if task.run and not task.ordered]
    return starts


def tasks_to_stop(alloc: AllocRuntime, now_ns: int) -> list[TaskRuntime]:
    """List the tasks that are stopped now. Source: Nomad allocRunner.killTasks."""
    if alloc.end is None:
        return []
    body = [task for task in alloc.body() if task.phase is not TaskPhase.DEAD]
    # Tasks that are not up need no signal.
    down = (TaskPhase.IDLE, TaskPhase.WAITING, TaskPhase.PREPARING, TaskPhase.STARTING)
    stops = [task for task in body if task.phase in down and not task.stopping]
    prestops = alloc.tasks_with_hook("prestop")
    if any(_is_alive(task) and not task.stopping for task in prestops):
        return stops
    if _idle(prestops) and _is_any_unknown(alloc.tasks_with_hook("")):
        # Recovery will tell in a moment whether a main task runs.
        return stops
    if now_ns < delay_ends_ns(alloc):
        return stops
    for stage in _stages(body):
        alive = [task for task in stage if _is_alive(task)]
        if alive:
            return stops + [task for task in alive if not task.stopping and task not in stops]
    return stops


def tasks_to_restart(alloc: AllocRuntime, now_ns: int) -> list[TaskRuntime]:
    """List the tasks that end now because the whole allocation restarts; they end as those of a stop."""
    if now_ns < alloc.restart_ns:
        return []
    for stage in _stages(_to_restart(alloc)):
        if stage:
            return [task for task in stage if not task.restarting]
    return []


def delay_ends_ns(alloc: AllocRuntime) -> int:
    """Say when the group's pause before the first kill signal is over; 0: there is none (any more)."""
    if alloc.end is None or alloc.plan is None or not alloc.plan.shutdown_delay_ns:
        return 0
    mains = alloc.tasks_with_hook("")
    if any(task.stopping and _is_alive(task) for task in mains) or not _is_any_main_alive(alloc):
        return 0
    return alloc.end.at_ns + alloc.plan.shutdown_delay_ns


def tasks_never_started(alloc: AllocRuntime) -> list[TaskRuntime]:
    """List the tasks that never started and never will."""
    if not _is_body_dead(alloc):
        return []
    idle = _idle(alloc.tasks_with_hook("prestop"))
    if not _runs_after_body(alloc):
        return (
            idle
            + _idle(alloc.tasks_with_hook("postfail"))
            + _idle(alloc.tasks_with_hook("poststop"))
        )
    return idle if _failed_mains(alloc) else idle + _idle(alloc.tasks_with_hook("postfail"))


def failed_main(alloc: AllocRuntime) -> TaskRuntime | None:
    """Find the main task that failed for good, for the environment of postfail tasks."""
    return next(iter(_failed_mains(alloc)), None)


def chain_steps_before(alloc: AllocRuntime, task: TaskRuntime) -> list[TaskRuntime]:
    """List the steps of a chain before a failed one, in order: they run again with it."""
    if alloc.plan is None or alloc.plan.restart_from != "first" or task.plan.hook != "prestart":
        return []
    steps = [one for one in alloc.tasks_with_hook("prestart") if not one.plan.sidecar]
    before = steps[: steps.index(task)] if task in steps else []
    # A new version of the job may have made a chain of tasks that run side by side: those continue.
    return [one for one in before if one.phase is TaskPhase.DEAD]


# ---- inside ----


def _stages(tasks: list[TaskRuntime]) -> tuple[list[TaskRuntime], ...]:
    """The order in which tasks end: each stage when the one before is over."""
    return (
        [task for task in tasks if task.plan.leader],
        [task for task in tasks if not task.plan.sidecar],
        tasks,
    )


def _to_restart(alloc: AllocRuntime) -> list[TaskRuntime]:
    """List the tasks that have not ended yet for a restart of the whole allocation."""
    if alloc.end is not None:
        return []
    ups = (TaskPhase.RUNNING, TaskPhase.WAITING)
    return [task for task in alloc.body() if task.ordered and task.phase in ups]


def _prestarts(alloc: AllocRuntime) -> list[TaskRuntime]:
    tasks = alloc.tasks_with_hook("prestart")
    if alloc.plan is None or not alloc.plan.restart_from:
        return _idle(tasks)
    for task in tasks:
        if not _is_passed(task):
            # A sidecar that ran before comes back whatever the chain does.
            ran = [one for one in tasks if one is task or (one.plan.sidecar and one.run)]
            return _idle(ran)
    return []


def _is_passed(task: TaskRuntime) -> bool:
    """Say whether what comes after a prestart task may start."""
    if task.plan.sidecar:
        return task.phase is TaskPhase.RUNNING
    return task.phase is TaskPhase.DEAD and not task.failed


def _tasks_after_body(alloc: AllocRuntime) -> list[TaskRuntime]:
    """Postfail tasks, and when they are dead poststop tasks."""
    if not _runs_after_body(alloc) or any(
        _is_alive(task) for task in alloc.tasks_with_hook("prestop")
    ):
        return []
    fails = alloc.tasks_with_hook("postfail") if _failed_mains(alloc) else []
    if any(task.phase is not TaskPhase.DEAD for task in fails):
        return _idle(fails)
    return _idle(alloc.tasks_with_hook("poststop"))


def _runs_after_body(alloc: AllocRuntime) -> bool:
    """Say whether there is anything to look after: a task ran, its time was not simply up, and it has its network."""
    is_cut = alloc.end is not None and alloc.end.cause in (EXPIRED, NETWORK)
    # What runs on elsewhere has not ended.
    is_cut = is_cut or any(is_left(alloc, task) for task in alloc.body())
    return not is_cut and any(task.run for task in alloc.body())


def _failed_mains(alloc: AllocRuntime) -> list[TaskRuntime]:
    return [task for task in alloc.tasks_with_hook("") if task.failed]


def _is_body_dead(alloc: AllocRuntime) -> bool:
    return all(task.phase is TaskPhase.DEAD for task in alloc.body())


def _is_any_main_alive(alloc: AllocRuntime) -> bool:
    return any(_is_alive(task) for task in alloc.tasks_with_hook(""))


def _is_any_unknown(tasks: list[TaskRuntime]) -> bool:
    return any(task.phase is TaskPhase.RECOVERING and not task.stopping for task in tasks)


def _is_over(task: TaskRuntime) -> bool:
    """Say whether a task ended by itself: one that ends with its agent is not over."""
    return task.phase is TaskPhase.DEAD and not task.stopping


def _is_alive(task: TaskRuntime) -> bool:
    return task.phase in _ALIVE


def _idle(tasks: list[TaskRuntime]) -> list[TaskRuntime]:
    return [task for task in tasks if task.phase is TaskPhase.IDLE and not task.stopping]
