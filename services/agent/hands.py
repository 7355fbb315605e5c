"""Orders of an operator to tasks: restart and signal, on `hands.<node>.restart|signal`.

Decides which tasks are meant and what is said when they cannot be told. A restart by hand is free: it is no failure,
and no attempt of the restart policy. Must not know the bus: what only looks is answered by `edge_hands.py`.
"""

import signal
from collections.abc import Callable, Iterable

import msgspec

from schemas.envelope import ENCODER
from schemas.hands import TaskAnswer, TaskAsk
from schemas.jobs import ErrorDetail
from services.agent.supervise import Supervisor, Turn
from services.agent.workload import Alloc, Phase, Task
from shared.bus import subjects
from shared.core.role import Ack, Message, Reply
from shared.core.tasks import SignalTask
from shared.errors import CommandInvalid

#: Verbs that the role answers; all others are the edge's.
ORDERS = ("restart", "signal")
SOURCE = "hands"
#: Those that only an end can follow are a task's to send to itself; STOP and CONT are nobody's business.
_SIGNALS = frozenset(one.name for one in signal.Signals)


def take_order(
    message: Message,
    allocs: Iterable[Alloc],
    supervisor: Supervisor,
    *,
    touch: Callable[[int], None],
    turn: Turn,
) -> None:
    """Do what an operator wants of tasks, and answer."""
    try:
        ask = msgspec.json.decode(message.data, type=TaskAsk)
        alloc = _find(ask, allocs)
        if subjects.last_token(message.subject) == "restart":
            told = _restart(alloc, ask, supervisor, turn)
        else:
            told = _signal(alloc, ask, touch, turn)
        answer = TaskAnswer(tasks=told)
    except CommandInvalid as fault:
        detail = ErrorDetail(code=fault.code, message=fault.message, path=fault.path)
        answer = TaskAnswer(error=detail)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        answer = TaskAnswer(error=ErrorDetail(code="invalid", message=str(err)))
    turn.act(Reply(message.token, ENCODER.encode(answer)) if message.reply else Ack(message.token))


def _find(ask: TaskAsk, allocs: Iterable[Alloc]) -> Alloc:
    for alloc in allocs:
        if alloc.desired.alloc_id == ask.alloc_id:
            if ask.task and ask.task not in alloc.tasks:
                known = ", ".join(sorted(alloc.tasks)) or "none yet"
                raise CommandInvalid("not_found", f"no task {ask.task!r}, it has {known}", "task")
            return alloc
    text = f"allocation {ask.alloc_id[:40]!r} is not on this node"
    raise CommandInvalid("not_found", text, "alloc_id")


def _meant(alloc: Alloc, ask: TaskAsk) -> list[Task]:
    return [alloc.tasks[ask.task]] if ask.task else list(alloc.tasks.values())


def _restart(alloc: Alloc, ask: TaskAsk, supervisor: Supervisor, turn: Turn) -> tuple[str, ...]:
    meant = _meant(alloc, ask)
    if not ask.task:
        # What ran once and is over is not begun again.
        meant = [task for task in meant if task.phase in (Phase.RUNNING, Phase.WAITING)]
    told = [task.plan.name for task in meant if supervisor.restart(alloc, task, turn)]
    return _told(told, alloc, ask)


def _signal(
    alloc: Alloc, ask: TaskAsk, touch: Callable[[int], None], turn: Turn
) -> tuple[str, ...]:
    name = ask.signal.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in _SIGNALS:
        raise CommandInvalid("invalid", f"there is no signal {ask.signal!r}", "signal")
    told = [task for task in _meant(alloc, ask) if task.phase is Phase.RUNNING]
    for task in told:
        task.note("Signaling", f"an operator sends {name}", turn.now_ns)
        turn.act(SignalTask(key=alloc.key, task=task.plan.name, run=task.run, signal=name))
        touch(alloc.key)
    return _told([task.plan.name for task in told], alloc, ask)


def _told(names: list[str], alloc: Alloc, ask: TaskAsk) -> tuple[str, ...]:
    if names:
        return tuple(names)
    if ask.task:
        task = alloc.tasks[ask.task]
        ending = " and ends" if task.stopping or alloc.end is not None else ""
        text = f"task {ask.task!r} does not run: it is {task.phase.value}{ending}"
        raise CommandInvalid("not_running", text, "task")
    raise CommandInvalid("not_running", "no task of the allocation runs", "alloc_id")
