"""Why a task ended and when it starts again, read from its events. Needs no arrays, so that commands start fast."""

import re
from collections.abc import Iterable, Mapping

from schemas.node_answers import TaskEventShown, TaskShown

#: Events about the end itself; the reason is before them.
_END_EVENTS = frozenset({"Killing", "Killed", "Not Restarting", "Restarting"})
_DELAY = re.compile(r"in (\d+(?:\.\d+)?) s\b")


def failure_text(tasks: Mapping[str, TaskShown]) -> str:
    """The first failed task and the event with the reason; empty: none failed."""
    for name, task in sorted(tasks.items()):
        if task.failed:
            cause = last_cause(task.events)
            return f"task {name} failed" + (f": {cause}" if cause else "")
    return ""


def last_cause(events: Iterable[TaskEventShown]) -> str:
    """The last event with the reason of a task's end, as `Terminated: Exit Code: 3`; empty: none."""
    causes = [one for one in events if one.kind not in _END_EVENTS]
    return f"{causes[-1].kind}: {causes[-1].message}".removesuffix(": ") if causes else ""


def restart_ns(event: TaskEventShown) -> int:
    """When a task starts again, by its agent's clock; 0: the event does not say."""
    delay = _DELAY.match(event.message)
    return event.t_ns + int(float(delay[1]) * 1e9) if delay else 0


def unhealthy_text(tasks: Mapping[str, TaskShown]) -> str:
    """Name the tasks that have not started and the checks that do not pass; empty: none is known."""
    texts = [wait_text(name, one) for name, one in sorted(tasks.items()) if one.state == "pending"]
    texts += [
        f"check {check} is {status}"
        for _, one in sorted(tasks.items())
        for check, status in sorted(one.checks.items())
        if status != "passing"
    ]
    return ", ".join(texts)


def wait_text(name: str, task: TaskShown) -> str:
    """What a task that has not started waits for, and why it ended before."""
    event = task.events[-1] if task.events else TaskEventShown()
    said = f"{event.kind} {event.message}".strip()
    if event.kind == "Restarting":
        return f"task {name} ended: " + "; ".join(filter(None, (last_cause(task.events), said)))
    return f"task {name} has not started" + (f": {said}" if said else "")
