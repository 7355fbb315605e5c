"""What comes next in the life of an allocation: which tasks start, which end, which are never needed.

Decides the order: prestart tasks, main tasks, poststart tasks; at the end prestop tasks, the leader, the other tasks,
sidecars; when all of these are dead postfail tasks (a main one failed), then poststop tasks. Everything follows from
where the tasks stand and from why the allocation ends, both of which are in the journal: an agent that is killed at any
point goes on from there. Must not know effects or drivers. Source: Nomad's task hook coordinator. Next: `supervise.py`.
"""

from services.agent.workload import Alloc, Phase, Task

#: Why an allocation ends, beside an order of the cluster.
FAILED = "failed"
LEADER = "leader"
DONE = "done"
EXPIRED = "expired"
SILENCE = "silence"
DISK = "disk"
ORDER = "order"

_ALIVE = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)


def ending(alloc: Alloc) -> tuple[str, str] | None:
    """Say why its own tasks end an allocation: cause and words for people; None: they do not."""
    body = alloc.body()
    if any(task.failed for task in body):
        return FAILED, "Sibling Task Failed"
    if any(task.plan.leader and task.phase is Phase.DEAD for task in body):
        return LEADER, "Leader Task Dead"
    once = [task for task in body if not task.plan.sidecar]
    if all(task.phase is Phase.DEAD for task in once) and len(once) < len(body):
        return DONE, "Main Tasks Dead"
    return None


def due_starts(alloc: Alloc) -> list[Task]:
    """List the tasks whose turn to start has come."""
    if _is_body_dead(alloc):
        return _after(alloc)
    if alloc.end is not None:
        mains = alloc.hooked("")
        is_first = not any(task.stopping for task in mains) and not _is_any_unknown(mains)
        is_up = any(task.phase is Phase.RUNNING for task in mains)
        return _idle(alloc.hooked("prestop")) if is_first and is_up else []
    if alloc.held or alloc.waits or alloc.crowded or alloc.stopping:
        return []
    starts = _prestarts(alloc)
    is_open = all(_is_passed(task) for task in alloc.hooked("prestart"))
    mains = alloc.hooked("")
    starts += [task for task in _idle(mains) if is_open or task.run]
    if all(task.phase in (Phase.RUNNING, Phase.DEAD) for task in mains):
        is_over = all(task.phase is Phase.DEAD for task in mains)
        posts = _idle(alloc.hooked("poststart"))
        starts += [task for task in posts if not (is_over and task.plan.sidecar)]
    else:
        starts += [task for task in _idle(alloc.hooked("poststart")) if task.run]
    return starts


def due_stops(alloc: Alloc, now_ns: int) -> list[Task]:
    """List the tasks that are told to end now. Source: Nomad allocRunner.killTasks."""
    if alloc.end is None:
        return []
    body = [task for task in alloc.body() if task.phase is not Phase.DEAD]
    # What is not up needs no farewell.
    down = (Phase.IDLE, Phase.WAITING, Phase.STARTING)
    stops = [task for task in body if task.phase in down and not task.stopping]
    prestops = alloc.hooked("prestop")
    if any(_is_alive(task) and not task.stopping for task in prestops):
        return stops
    if _idle(prestops) and _is_any_unknown(alloc.hooked("")):
        # Whether there is anything to prepare turns out in a moment.
        return stops
    if now_ns < delay_ends_ns(alloc):
        return stops
    for stage in (
        [task for task in body if task.plan.leader],
        [task for task in body if not task.plan.sidecar],
        body,
    ):
        alive = [task for task in stage if _is_alive(task)]
        if alive:
            return stops + [task for task in alive if not task.stopping and task not in stops]
    return stops


def delay_ends_ns(alloc: Alloc) -> int:
    """Say when the group's pause before the first kill signal is over; 0: there is none (any more)."""
    if alloc.end is None or alloc.plan is None or not alloc.plan.shutdown_delay_ns:
        return 0
    mains = alloc.hooked("")
    if any(task.stopping and _is_alive(task) for task in mains) or not _is_any_main_alive(alloc):
        return 0
    return alloc.end.at_ns + alloc.plan.shutdown_delay_ns


def skipped(alloc: Alloc) -> list[Task]:
    """List the tasks that never started and never will."""
    if not _is_body_dead(alloc):
        return []
    idle = _idle(alloc.hooked("prestop"))
    if not _has_after(alloc):
        return idle + _idle(alloc.hooked("postfail")) + _idle(alloc.hooked("poststop"))
    return idle if _failed_mains(alloc) else idle + _idle(alloc.hooked("postfail"))


def failed_main(alloc: Alloc) -> Task | None:
    """Find the main task that failed for good, for the environment of postfail tasks."""
    return next(iter(_failed_mains(alloc)), None)


def chain_before(alloc: Alloc, task: Task) -> list[Task]:
    """List what is done again when a step of a chain fails: the steps before it, in order; none: only itself."""
    if alloc.plan is None or alloc.plan.restart_from != "first" or task.plan.hook != "prestart":
        return []
    steps = [one for one in alloc.hooked("prestart") if not one.plan.sidecar]
    return steps[: steps.index(task)] if task in steps else []


# ---- inside ----


def _prestarts(alloc: Alloc) -> list[Task]:
    tasks = alloc.hooked("prestart")
    if alloc.plan is None or not alloc.plan.restart_from:
        return _idle(tasks)
    for task in tasks:
        if not _is_passed(task):
            # A sidecar that ran before comes back whatever the chain does.
            ran = [one for one in tasks if one is task or (one.plan.sidecar and one.run)]
            return _idle(ran)
    return []


def _is_passed(task: Task) -> bool:
    """Say whether what comes after a prestart task may start."""
    if task.plan.sidecar:
        return task.phase is Phase.RUNNING
    return task.phase is Phase.DEAD and not task.failed


def _after(alloc: Alloc) -> list[Task]:
    """Postfail tasks, and when they are dead poststop tasks."""
    if not _has_after(alloc) or any(_is_alive(task) for task in alloc.hooked("prestop")):
        return []
    fails = alloc.hooked("postfail") if _failed_mains(alloc) else []
    if any(task.phase is not Phase.DEAD for task in fails):
        return _idle(fails)
    return _idle(alloc.hooked("poststop"))


def _has_after(alloc: Alloc) -> bool:
    """Say whether there is anything to look after: a task ran, and its time was not simply up."""
    is_expired = alloc.end is not None and alloc.end.cause == EXPIRED
    return not is_expired and any(task.run for task in alloc.body())


def _failed_mains(alloc: Alloc) -> list[Task]:
    return [task for task in alloc.hooked("") if task.failed]


def _is_body_dead(alloc: Alloc) -> bool:
    return all(task.phase is Phase.DEAD for task in alloc.body())


def _is_any_main_alive(alloc: Alloc) -> bool:
    return any(_is_alive(task) for task in alloc.hooked(""))


def _is_any_unknown(tasks: list[Task]) -> bool:
    return any(task.phase is Phase.RECOVERING and not task.stopping for task in tasks)


def _is_alive(task: Task) -> bool:
    return task.phase in _ALIVE


def _idle(tasks: list[Task]) -> list[Task]:
    return [task for task in tasks if task.phase is Phase.IDLE and not task.stopping]
