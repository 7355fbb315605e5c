"""`caravan alloc stop|restart|signal|stats`.

Stopping is an event in the log; the rest is a request to the node's agent.
"""

import msgspec

from schemas.node_rpc import StatsAnswer, StatsAsk, TaskAnswer, TaskAsk, TaskUse
from schemas.operator import StopRequest
from schemas.projections import AllocSummary
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.node_client import A, T, request_alloc
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput, short_id
from shared.display.formats import format_mib, format_size


class AllocStopResult(OperatorResult, frozen=True):
    """`alloc stop --json`."""

    allocation: str


class AllocRestartResult(msgspec.Struct, frozen=True):
    """`alloc restart --json`."""

    allocation: str
    node: str
    tasks: tuple[str, ...]


class AllocSignalResult(AllocRestartResult, frozen=True):
    """`alloc signal --json`."""

    signal: str


class AllocStatsResult(msgspec.Struct, frozen=True):
    """`alloc stats --json`."""

    allocation: str
    node: str
    tasks: tuple[TaskUse, ...]
    disk_mib: int


def stop(out: CommandOutput, *, alloc_id: str) -> int:
    """Stop an allocation; its job replaces it."""
    verdict = request_operator(out, StopRequest(alloc_id=alloc_id), AllocStopResult)
    text = "stopping, its job replaces it" if verdict.changed else "already stopping or ended"
    out.line(f"allocation {short_id(verdict.alloc_id)}: {text}")
    return 0


def restart(out: CommandOutput, *, alloc_id: str, task: str) -> int:
    """Restart the tasks of an allocation in place."""
    ask = TaskAsk(alloc_id="", task=task)
    one, answer = _request(alloc_id, "restart", ask, TaskAnswer)
    out.result(AllocRestartResult(one.id, one.node, answer.tasks))
    text = f"{', '.join(answer.tasks)} restarted"
    out.line(f"allocation {short_id(one.id)} on {one.node}: {text}")
    return 0


def send_signal(out: CommandOutput, *, alloc_id: str, task: str, signal: str) -> int:
    """Send a signal to the tasks of an allocation."""
    ask = TaskAsk(alloc_id="", task=task, signal=signal)
    one, answer = _request(alloc_id, "signal", ask, TaskAnswer)
    out.result(AllocSignalResult(one.id, one.node, answer.tasks, signal))
    text = f"{signal} sent to {', '.join(answer.tasks)}"
    out.line(f"allocation {short_id(one.id)} on {one.node}: {text}")
    return 0


def stats(out: CommandOutput, *, alloc_id: str) -> int:
    """Show the current resource use of an allocation's tasks."""
    one, found = _request(alloc_id, "stats", StatsAsk(), StatsAnswer)
    disk = found.disk_mib.get(one.id, 0)
    out.result(AllocStatsResult(one.id, one.node, found.tasks, disk))
    print_usage(out, found.tasks, of_node=False)
    out.line(f"directories: {format_mib(disk)}" + ("" if found.tasks else "; no task is running"))
    return 0


def _request(alloc_id: str, verb: str, ask: A, answer: type[T]) -> tuple[AllocSummary, T]:
    return with_bus(lambda client: request_alloc(client, alloc_id, verb, ask, answer=answer))


def print_usage(out: CommandOutput, tasks: tuple[TaskUse, ...], *, of_node: bool) -> None:
    """Print the resource use of tasks."""
    rows = [
        (
            short_id(one.alloc_id) if of_node else "",
            one.task,
            one.driver,
            f"{one.cpu_millicores / 10:.1f}%",
            f"{one.cpu_ns / 1e9:.1f}s",
            format_size(one.memory_bytes),
            one.problem,
        )
        for one in tasks
    ]
    out.table(
        "ALLOCATION|TASK|DRIVER|CPU>|CPU TIME>|MEMORY>|PROBLEM", rows, "Use" if of_node else ""
    )
