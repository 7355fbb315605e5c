"""Orders of an operator to tasks: restart and signal, on `hands.<node>.restart|signal`.

Decides which tasks are selected, and the error when none can take the order. A restart by an operator is neither a
failure nor an attempt of the restart policy. Read-only requests are answered by `node_rpc/server.py`.
"""

from collections.abc import Callable, Iterable

import msgspec

from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from schemas.node_rpc import TaskAnswer, TaskAsk
from services.agent.tasks.runtime_state import AllocRuntime, TaskPhase, TaskRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.agent_messages import SignalTask
from shared.core.runtime.messages import Ack, Message, Reply
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import require_known_keys, require_unique_keys
from shared.protocol import subjects
from shared.signal_names import signal_error, signal_name

#: Verbs that the role answers; the node RPC server answers all others.
ORDER_VERBS = ("restart", "signal")
SOURCE = "hands"


def handle_order(
    message: Message,
    allocs: Iterable[AllocRuntime],
    supervisor: Supervisor,
    *,
    touch: Callable[[int], None],
    turn: AgentStep,
) -> None:
    """Do what an operator wants of tasks, and answer."""
    try:
        require_unique_keys(message.data)
        require_known_keys(message.data, TaskAsk)
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


def refuse_order(message: Message, reason: str) -> Reply | Ack:
    """Refuse an order that could not be handled."""
    answer = TaskAnswer(error=ErrorDetail(code="invalid", message=reason))
    return Reply(message.token, ENCODER.encode(answer)) if message.reply else Ack(message.token)


def _find(ask: TaskAsk, allocs: Iterable[AllocRuntime]) -> AllocRuntime:
    for alloc in allocs:
        if alloc.desired.alloc_id == ask.alloc_id:
            if ask.task and ask.task not in alloc.tasks:
                known = ", ".join(sorted(alloc.tasks)) or "none yet"
                raise CommandInvalid(
                    "not_found", f"unknown task {ask.task!r}; expected one of {known}", "task"
                )
            return alloc
    text = f"allocation {ask.alloc_id[:40]!r} not found on this node"
    raise CommandInvalid("not_found", text, "alloc_id")


def _selected_tasks(alloc: AllocRuntime, ask: TaskAsk) -> list[TaskRuntime]:
    return [alloc.tasks[ask.task]] if ask.task else list(alloc.tasks.values())


def _restart(
    alloc: AllocRuntime, ask: TaskAsk, supervisor: Supervisor, turn: AgentStep
) -> tuple[str, ...]:
    if not ask.task:
        # What ran once and is over is not begun again.
        told = [task.plan.name for task in _restart_all(alloc, supervisor, turn)]
    else:
        task = alloc.tasks[ask.task]
        told = [ask.task] if supervisor.restart(alloc, task, turn) else []
    return _require_any(told, alloc, ask)


def _restart_all(alloc: AllocRuntime, supervisor: Supervisor, turn: AgentStep) -> list[TaskRuntime]:
    """Restart what runs of an allocation: after the group's shutdown_delay its tasks end in the order of a stop.

    They start again in the order of a start when all have ended. Returns them.
    """
    ups = (TaskPhase.RUNNING, TaskPhase.WAITING)
    meant = [
        task
        for task in alloc.body()
        if task.phase in ups and not (task.stopping or task.restarting or task.ordered)
    ]
    if alloc.end is not None or alloc.plan is None or not meant:
        return []
    for task in meant:
        task.ordered = True
    alloc.restart_ns = turn.now_ns + alloc.plan.shutdown_delay_ns
    supervisor.advance(alloc, turn)
    return meant


def _signal(
    alloc: AllocRuntime, ask: TaskAsk, touch: Callable[[int], None], turn: AgentStep
) -> tuple[str, ...]:
    name = signal_name(ask.signal)
    if name is None:
        raise CommandInvalid("invalid", signal_error(ask.signal), "signal")
    told = [task for task in _selected_tasks(alloc, ask) if task.phase is TaskPhase.RUNNING]
    for task in told:
        task.note("Signaling", f"signal {name} sent by an operator", turn.now_ns)
        turn.act(SignalTask(key=alloc.key, task=task.plan.name, run=task.run, signal=name))
        touch(alloc.key)
    return _require_any([task.plan.name for task in told], alloc, ask)


def _require_any(names: list[str], alloc: AllocRuntime, ask: TaskAsk) -> tuple[str, ...]:
    if names:
        return tuple(names)
    if ask.task:
        task = alloc.tasks[ask.task]
        ending = ", stopping" if task.stopping or alloc.end is not None else ""
        text = f"task {ask.task!r} is not running (state {task.phase.value}{ending})"
        raise CommandInvalid("not_running", text, "task")
    raise CommandInvalid("not_running", "no task of the allocation is running", "alloc_id")
