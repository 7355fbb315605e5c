"""`caravan job usage`: what the tasks of a job used in the last hour, against what it asks for.

The agents of its nodes are asked; their counts are added for each task of a group. What a task uses now:
`services/cli/alloc/actions.py`.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from schemas.base import MIB
from schemas.node_answers import AllocsAnswer
from schemas.node_rpc import StatsAnswer, StatsAsk, TaskHistory
from schemas.projections import AllocSummary, Query
from services.cli.runtime.bus_client import query_view, resolve_job, with_bus
from services.cli.runtime.node_client import request_node
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.usage_histogram import bucket_top, from_wire, merged, percentile

#: Running allocations that are asked, the newest version first, and how many at a time.
ALLOCS_MAX = 200
_AT_ONCE = 16
_QUERY_MAX = 1_000
#: A request that leaves this much, in percent, above what was used.
CPU_HEADROOM, MEMORY_HEADROOM = 15, 20
#: Steps that a suggested request is rounded up to, and Nomad's least ones.
_CPU_STEP_MHZ, _MEMORY_STEP_MIB = 10, 8
_CPU_MHZ_MIN, _MEMORY_MIB_MIN = 20, 16


class UsageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a task: MHz or MiB of one allocation."""

    asked: int
    p50: int
    p95: int
    peak: int
    suggested: int


class TaskUsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a group, over all allocations that answered. `samples`: ten seconds each."""

    group: str
    task: str
    allocations: int
    samples: int
    cpu_mhz: UsageFigures
    memory_mib: UsageFigures
    throttled_ns: int
    oom_kills: int


class JobUsageResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job usage --json`. `unread`: allocations whose node did not answer, and why."""

    job: str
    tasks: tuple[TaskUsageLine, ...]
    unread: tuple[str, ...]


_Answer = tuple[AllocSummary, StatsAnswer]


def usage(out: CommandOutput, *, job_id: str) -> int:
    """Show what the tasks of a job used in the last hour; 1: no node answered."""

    async def work(client: Client) -> tuple[str, list[_Answer | str]]:
        job = await resolve_job(client, job_id)
        answer = await query_view(
            client, "allocs", AllocsAnswer, Query(job_id=job, limit=_QUERY_MAX)
        )
        found = [one for one in answer.allocations if one.client_status == "running"]
        if not found:
            raise CliError("not_found", f"no allocation of job {job} is running")
        found.sort(key=lambda one: (-one.version, one.group, one.index))
        gate = asyncio.Semaphore(_AT_ONCE)
        return job, list(
            await asyncio.gather(*(_ask(client, one, gate) for one in found[:ALLOCS_MAX]))
        )

    job, answers = with_bus(work)
    unread = tuple(one for one in answers if isinstance(one, str))
    heard = [one for one in answers if not isinstance(one, str)]
    lines = usage_lines(heard)
    out.result(JobUsageResult(job=job, tasks=lines, unread=unread))
    columns = "GROUP|TASK|ALLOCS>|RESOURCE|ASKED>|P50>|P95>|PEAK>|SUGGESTED>"
    rows = [
        (line.group, line.task, line.allocations, name, *msgspec.structs.astuple(figures))
        for line in lines
        for name, figures in (("CPU MHz", line.cpu_mhz), ("memory MiB", line.memory_mib))
    ]
    out.table(columns, rows)
    if heard and not lines:
        out.line("no samples yet: tasks are sampled every ten seconds")
    for line in lines:
        if line.oom_kills or line.throttled_ns:
            waited = line.throttled_ns / 1e9
            text = f"{line.oom_kills} kills for lack of memory, throttled for {waited:.1f} s"
            out.line(f"{line.group}/{line.task}: {text}")
    for text in unread:
        out.note(text)
    return 0 if heard else 1


async def _ask(client: Client, one: AllocSummary, gate: asyncio.Semaphore) -> _Answer | str:
    ask = StatsAsk(alloc_id=one.id, history=True)
    try:
        async with gate:
            return one, await request_node(client, one.node, "stats", ask, answer=StatsAnswer)
    except CliError as err:
        return f"allocation {short_id(one.id)}: {err.message}"


def usage_lines(answers: Iterable[_Answer]) -> tuple[TaskUsageLine, ...]:
    """Add the answers of the nodes of a job, for each task of a group."""
    parts: dict[tuple[str, str], list[tuple[TaskHistory, int, int, int]]] = {}
    for alloc, answer in answers:
        asked = {
            one.task: (one.asked_cpu_mhz, one.asked_memory_mib, answer.core_mhz or 1_000)
            for one in answer.tasks
        }
        for history in answer.history:
            place = parts.setdefault((alloc.group, history.task), [])
            place.append((history, *asked.get(history.task, (0, 0, answer.core_mhz or 1_000))))
    return tuple(_line(*name, found) for name, found in sorted(parts.items()))


def _line(group: str, task: str, found: list[tuple[TaskHistory, int, int, int]]) -> TaskUsageLine:
    histories = [one[0] for one in found]
    # Nodes may differ in their clocks: shares of a core are added, and shown in MHz of the fastest.
    core_mhz = max(one[3] for one in found)
    cpu = merged(from_wire(one.cpu_millicores) for one in histories)
    memory = merged(from_wire(one.memory_bytes) for one in histories)
    kills = sum(one.oom_kills for one in histories)
    return TaskUsageLine(
        group=group,
        task=task,
        allocations=len(found),
        samples=sum(one.samples for one in histories),
        cpu_mhz=_cpu_figures(
            cpu, core_mhz, asked=found[0][1], peak=max(one.cpu_peak_millicores for one in histories)
        ),
        memory_mib=_memory_figures(memory, asked=found[0][2], was_killed=kills > 0),
        throttled_ns=sum(one.throttled_ns for one in histories),
        oom_kills=kills,
    )


def _cpu_figures(counts: dict[int, int], core_mhz: int, *, asked: int, peak: int) -> UsageFigures:
    p50, p95 = (percentile(counts, one) * core_mhz // 1_000 for one in (50, 95))
    needed = max(p95 * (100 + CPU_HEADROOM) // 100, _CPU_MHZ_MIN)
    return UsageFigures(
        asked=asked,
        p50=p50,
        p95=p95,
        peak=peak * core_mhz // 1_000,
        suggested=_rounded(needed, _CPU_STEP_MHZ) if counts else asked,
    )


def _memory_figures(counts: dict[int, int], *, asked: int, was_killed: bool) -> UsageFigures:
    p50, p95 = (-(-percentile(counts, one) // MIB) for one in (50, 95))
    peak = -(-bucket_top(max(counts, default=0)) // MIB)
    needed = max(peak * (100 + MEMORY_HEADROOM) // 100, _MEMORY_MIB_MIN)
    if was_killed:
        # What was used stayed below the limit that ended it.
        needed = max(needed, asked * (100 + MEMORY_HEADROOM) // 100)
    return UsageFigures(
        asked=asked,
        p50=p50,
        p95=p95,
        peak=peak,
        suggested=_rounded(needed, _MEMORY_STEP_MIB) if counts else asked,
    )


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step
