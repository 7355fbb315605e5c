"""`caravan alloc stop|restart|signal|stats`.

Stopping is an event in the log; the rest is a request to the node's agent.
"""

import asyncio

import msgspec

from schemas.node_rpc import StatsAnswer, StatsAsk, TaskAnswer, TaskAsk, TaskUse
from schemas.operator import StopRequest
from schemas.projections import AllocSummary
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.node_client import A, T, find_alloc, request_alloc, request_node
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.display.formats import format_mib, format_size

#: Between two looks with --follow.
_FOLLOW_S = 2.0


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


def stats(out: CommandOutput, *, alloc_id: str, follow: bool) -> int:
    """Show the current resource use of an allocation's tasks; with `follow` until its tasks have ended."""
    if follow and out.is_json:
        raise CliError("usage", "--json cannot be combined with --follow")

    async def work(client: Client) -> None:
        one = (await find_alloc(client, alloc_id)).allocation
        ask = StatsAsk(alloc_id=one.id)
        while True:
            found = await request_node(client, one.node, "stats", ask, answer=StatsAnswer)
            disk = found.disk_mib.get(one.id, 0)
            out.result(AllocStatsResult(one.id, one.node, found.tasks, disk))
            print_usage(out, found.tasks, of_node=False)
            text = "" if found.tasks else "; no task is running"
            out.line(f"directories: {format_mib(disk)}{text}")
            if not follow or not found.tasks:
                return
            out.line("")
            await asyncio.sleep(_FOLLOW_S)

    with_bus(work)
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
            f"{one.asked_cpu_mhz} MHz" if one.asked_cpu_mhz else "",
            f"{one.cpu_ns / 1e9:.1f}s",
            f"{one.throttled_ns / 1e9:.1f}s" if one.throttled_ns else "",
            format_size(one.memory_bytes),
            format_size(one.memory_peak_bytes) if one.memory_peak_bytes else "",
            format_mib(one.asked_memory_mib) if one.asked_memory_mib else "",
            one.oom_kills or "",
            one.pids or "",
            one.problem,
        )
        for one in tasks
    ]
    columns = "CPU>|ASKED>|CPU TIME>|THROTTLED>|MEMORY>|PEAK>|ASKED>|OOM>|PIDS>"
    out.table(f"ALLOCATION|TASK|DRIVER|{columns}|PROBLEM", rows, "Use" if of_node else "")
