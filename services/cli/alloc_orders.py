"""`caravan alloc stop|restart|signal|stats`: what an operator does to an allocation, and what it uses.

Decides nothing about tasks: stopping is an event in the log, the rest is the agent's.
"""

import msgspec

from schemas.hands import StatsAnswer, StatsAsk, TaskAnswer, TaskAsk, TaskUse
from schemas.operator import StopWish
from services.cli.asking import with_bus
from services.cli.handing import alloc_of, ask_node
from services.cli.lines import mib
from services.cli.output import Column, Output, short
from services.cli.wishing import wish
from shared.bus.client import Client


def stop(out: Output, *, alloc_id: str) -> int:
    """Stop an allocation; its job replaces it."""
    verdict = wish("alloc", "stop", StopWish(alloc_id=alloc_id))
    out.result(
        {
            "allocation": verdict.alloc_id,
            "request_id": verdict.request_id,
            "status": verdict.status,
            "changed": verdict.changed,
            "seq": verdict.seq,
            "cluster_id": verdict.cluster_id,
        }
    )
    said = "stops, and its job replaces it" if verdict.changed else "ends or ended already"
    out.line(f"allocation {short(verdict.alloc_id)}: {said}")
    return 0


def restart(out: Output, *, alloc_id: str, task: str) -> int:
    """Restart the tasks of an allocation, where they are."""
    shown, node, told = _order("restart", alloc_id, TaskAsk(alloc_id="", task=task))
    out.result({"allocation": shown, "node": node, "tasks": told})
    out.line(f"allocation {short(shown)} on {node}: {', '.join(told)} restarted")
    return 0


def send_signal(out: Output, *, alloc_id: str, task: str, signal: str) -> int:
    """Send a signal to the tasks of an allocation."""
    shown, node, told = _order("signal", alloc_id, TaskAsk(alloc_id="", task=task, signal=signal))
    out.result({"allocation": shown, "node": node, "tasks": told, "signal": signal})
    out.line(f"allocation {short(shown)} on {node}: {signal} sent to {', '.join(told)}")
    return 0


def _order(verb: str, alloc_id: str, body: TaskAsk) -> tuple[str, str, tuple[str, ...]]:
    async def work(client: Client) -> tuple[str, str, tuple[str, ...]]:
        one = (await alloc_of(client, alloc_id)).allocation
        ask = msgspec.structs.replace(body, alloc_id=one.id)
        told = await ask_node(client, one.node, verb, ask, answer=TaskAnswer)
        return one.id, one.node, told.tasks

    return with_bus(work)


def stats(out: Output, *, alloc_id: str) -> int:
    """Show what the tasks of an allocation use now."""

    async def work(client: Client) -> tuple[str, str, StatsAnswer]:
        one = (await alloc_of(client, alloc_id)).allocation
        found = await ask_node(
            client, one.node, "stats", StatsAsk(alloc_id=one.id), answer=StatsAnswer
        )
        return one.id, one.node, found

    shown, node, found = with_bus(work)
    disk = found.disk_mib.get(shown, 0)
    out.result({"allocation": shown, "node": node, "tasks": found.tasks, "disk_mib": disk})
    uses(out, found.tasks, of_node=False)
    out.line(f"directories: {mib(disk)}" + ("" if found.tasks else "; no task runs"))
    return 0


def uses(out: Output, tasks: tuple[TaskUse, ...], *, of_node: bool) -> None:
    """Draw what tasks use."""
    columns = [
        *([Column("ALLOCATION")] if of_node else []),
        Column("TASK"),
        Column("DRIVER", 2),
        Column("CPU", right=True),
        Column("CPU TIME", 3, right=True),
        Column("MEMORY", right=True),
        Column("PROBLEM", 1),
    ]
    rows = [
        (
            *((short(one.alloc_id),) if of_node else ()),
            one.task,
            one.driver,
            f"{one.cpu_millicores / 10:.1f}%",
            f"{one.cpu_ns / 1e9:.1f}s",
            mib(-(-one.memory_bytes >> 20)),
            one.problem,
        )
        for one in tasks
    ]
    out.table(columns, rows, "Use" if of_node else "")
