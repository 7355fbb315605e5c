"""`caravan job restart`: restart the running allocations of a job, batch by batch.

A loop of this command alone: nothing of it is in the log but the stops of `--reschedule`. It ends where a deployment of
the job is active, which would count what it does as failures of the new version.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import ceil

import msgspec

from schemas.job_answers import JobAnswer
from schemas.node_answers import AllocsAnswer
from schemas.node_rpc import TaskAnswer, TaskAsk
from schemas.operator import OperatorVerdict, StopRequest
from schemas.projections import AllocSummary, Query
from services.cli.deployment import monitor
from services.cli.job.submission import POLL_INTERVAL_S
from services.cli.runtime.bus_client import (
    query_once,
    query_pages,
    query_view,
    request_until_decided,
    resolve_job,
    with_bus,
)
from services.cli.runtime.node_client import request_node
from services.cli.runtime.output import CliError, CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.durations import parse_duration
from shared.protocol import subjects

#: How long the replacement of a stopped allocation may take until it runs.
REPLACEMENT_WAIT_S = 300.0
_STOP_WAIT_S = 30.0
_STOP_VERDICT_S = 8.0
_ALLOCS_MAX = 1_000_000
_POLL_MAX_S = 0.5


class JobRestartResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job restart --json`."""

    job: str
    #: allocations that were restarted or rescheduled.
    restarted: tuple[str, ...]
    #: allocations that were not, each with the reason.
    failed: dict[str, str]
    #: allocations that were left: an operator or an error ended the command.
    left: int


class RestartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with each allocation, and between batches."""

    job: str
    tasks: tuple[str, ...]
    reschedule: bool
    #: a batch waits for an answer of the operator.
    asks_before_batch: bool
    wait_s: float
    asks_on_error: bool
    #: errors are listed at the end, the other batches follow.
    ignores_errors: bool


def restart(
    out: CommandOutput,
    *,
    job_id: str,
    batch_size: str,
    batch_wait: str,
    group: Sequence[str],
    task: Sequence[str],
    reschedule: bool,
    on_error: str,
    yes: bool,
) -> int:
    """Restart what runs of a job. Returns 0 also where nothing runs, or the operator said no."""
    if reschedule and task:
        raise CliError("usage", "--task cannot be used with --reschedule: allocations are replaced")
    name = with_bus(lambda client: resolve_job(client, job_id))
    plan = _plan(name, batch_wait, on_error, tasks=tuple(task), reschedule=reschedule, is_yes=yes)
    found = _running(_checked_job(plan), group, plan.tasks)
    size = batch_count(batch_size, len(found))
    batches = [found[at : at + size] for at in range(0, len(found), size)]
    restarted: list[str] = []
    failed: dict[str, str] = {}
    ended = ""
    for nth, batch in enumerate(batches):
        if nth and (ended := _between(out, plan, nth, len(batches))):
            break
        out.progress(f"batch {nth + 1} of {len(batches)}: {len(batch)} of {len(found)} allocations")
        errors = with_bus(partial(_restart_batch, out=out, plan=plan, batch=batch))
        restarted += [one.id for one in batch if one.id not in errors]
        failed |= errors
        for text in errors.values():
            out.line(text, "red")
        if errors and not plan.ignores_errors and not (plan.asks_on_error and _agrees("Continue?")):
            break
    left = len(found) - len(restarted) - len(failed)
    out.result(JobRestartResult(job=name, restarted=tuple(restarted), failed=failed, left=left))
    if not found:
        out.line(f"job {name}: no running allocations to restart")
        return 0
    word = "rescheduled" if reschedule else "restarted"
    rest = f", {len(failed)} failed" if failed else ""
    rest += f", {left} left as they are" if left else ""
    style = "red" if failed or ended == _ACTIVE else "" if left else "green"
    out.line(f"job {name}: {len(restarted)} of {len(found)} allocations {word}{rest}", style)
    if ended == _ACTIVE:
        out.line(f"a deployment of job {name} became active", "red")
    return 1 if failed or ended == _ACTIVE else 0


_ACTIVE = "deployment"
_CANCELLED = "cancelled"


def _plan(
    job: str,
    batch_wait: str,
    on_error: str,
    *,
    tasks: tuple[str, ...],
    reschedule: bool,
    is_yes: bool,
) -> RestartPlan:
    """Read the options. Raises CliError."""
    is_terminal = sys.stdin.isatty()
    if on_error not in {"", "ask", "fail"}:
        raise CliError("usage", f"--on-error is ask or fail, was {on_error[:80]!r}")
    asks = batch_wait == "ask"
    if (asks or on_error == "ask") and not is_terminal and not is_yes:
        raise CliError("usage", "ask needs a terminal: use fail or a duration, or --yes")
    wait_s = 0.0
    if not asks:
        try:
            wait_s = parse_duration(batch_wait) / 1e9
        except ValueError as err:
            text = f"--batch-wait {batch_wait[:80]!r} is neither ask nor a duration such as 10s"
            raise CliError("usage", text) from err
        if wait_s < 0:
            raise CliError("usage", "--batch-wait must not be negative")
    return RestartPlan(
        job=job,
        tasks=tasks,
        reschedule=reschedule,
        asks_before_batch=asks and not is_yes,
        wait_s=wait_s,
        asks_on_error=on_error != "fail" and is_terminal and not is_yes,
        ignores_errors=on_error != "fail" and is_yes,
    )


def batch_count(text: str, total: int) -> int:
    """Read how many allocations a batch has: a number, or a percentage of all, rounded up. Raises CliError."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number)):
        raise CliError(
            "usage", f"--batch-size {text[:80]!r} is not a number from 1 or a percentage"
        )
    if not text.endswith("%"):
        return int(number)
    if int(number) > 100:
        raise CliError("usage", f"--batch-size {text} is more than 100%")
    return max(1, ceil(int(number) * total / 100))


def _checked_job(plan: RestartPlan) -> str:
    """Return the job's id. Raises CliError where it must not be restarted now."""
    answer = query_once("job", JobAnswer, Query(id=plan.job, limit=0))
    if plan.reschedule and answer.job.job_type == "sysbatch":
        raise CliError("invalid", "allocations of a sysbatch job cannot be rescheduled")
    if _is_deployed(answer):
        text = f"job {plan.job!r} has an active deployment: wait for its end, or end it first"
        raise CliError("conflict", text)
    return answer.job.id


def _is_deployed(answer: JobAnswer) -> bool:
    line = answer.rollout.deployment
    return line is not None and line.status in monitor.ACTIVE


def _running(job: str, groups: Sequence[str], tasks: Sequence[str]) -> list[AllocSummary]:
    """List the allocations to restart, by name: they run, are wanted, and have such a task."""
    query = Query(job_id=job, status="running", limit=_ALLOCS_MAX)
    answer = query_pages("allocs", AllocsAnswer, query, "allocations")
    found = [one for one in answer.allocations if one.desired_status == "run"]
    if unknown := set(groups) - {one.group for one in found}:
        raise CliError("not_found", f"no allocation of group {min(unknown)!r} of job {job!r} runs")
    found = [one for one in found if not groups or one.group in groups]
    if tasks:
        found = [one for one in found if not set(tasks).isdisjoint(_tasks_of(one))]
        if unknown := set(tasks) - {name for one in found for name in _tasks_of(one)}:
            raise CliError("not_found", f"no allocation of job {job!r} has a task {min(unknown)!r}")
    return sorted(found, key=lambda one: (one.group, one.index, one.key))


def _tasks_of(one: AllocSummary) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(one.tasks, type=dict[str, msgspec.Raw])


def _between(out: CommandOutput, plan: RestartPlan, nth: int, total: int) -> str:
    """Wait before a batch. Returns why it must not begin; empty: it may."""
    if plan.asks_before_batch and not _agrees(f"Restart batch {nth + 1} of {total}?"):
        return _CANCELLED
    if plan.wait_s:
        out.progress(f"waiting {plan.wait_s:g} s")
        time.sleep(plan.wait_s)
    answer = query_once("job", JobAnswer, Query(id=plan.job, limit=0))
    return _ACTIVE if _is_deployed(answer) else ""


def _agrees(question: str) -> bool:
    """Ask the operator on the terminal; no answer is no."""
    try:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return input().strip().lower() in {"y", "yes"}
    except EOFError:
        return False


async def _restart_batch(
    client: Client, out: CommandOutput, plan: RestartPlan, batch: Sequence[AllocSummary]
) -> dict[str, str]:
    """Restart allocations at the same time. Returns the failures: allocation and reason."""

    async def attempt(one: AllocSummary) -> str:
        try:
            text = await (
                _reschedule(client, one) if plan.reschedule else _restart(client, plan, one)
            )
        except CliError as err:
            return f"{short_id(one.id)} {one.name}: {err.message}"
        out.progress(f"  {short_id(one.id)} {one.name}: {text}")
        return ""

    said = await asyncio.gather(*[attempt(one) for one in batch])
    return {one.id: text for one, text in zip(batch, said, strict=True) if text}


async def _restart(client: Client, plan: RestartPlan, one: AllocSummary) -> str:
    """Restart tasks of an allocation where it is. Raises CliError."""
    names = [name for name in plan.tasks if name in _tasks_of(one)] or [""]
    done: list[str] = []
    for name in names:
        ask = TaskAsk(alloc_id=one.id, task=name)
        answer = await request_node(client, one.node, "restart", ask, answer=TaskAnswer)
        done += answer.tasks
    return f"{', '.join(done)} restarted"


async def _reschedule(client: Client, one: AllocSummary) -> str:
    """Stop an allocation, and wait until what replaces it runs. Raises CliError."""
    verdict = (
        await request_until_decided(
            client,
            subjects.api("alloc", "stop"),
            msgspec.json.encode(StopRequest(alloc_id=one.id)),
            OperatorVerdict,
            service="view",
            wait_s=_STOP_WAIT_S,
            verdict_s=_STOP_VERDICT_S,
        )
    )[-1]
    deadline, pause = time.monotonic() + REPLACEMENT_WAIT_S, POLL_INTERVAL_S
    while time.monotonic() < deadline:
        query = Query(job_id=one.job_id, status="running", min_seq=verdict.seq)
        answer = await query_view(client, "allocs", AllocsAnswer, query)
        for other in answer.allocations:
            # Newest first; an allocation of a system job has its name on every node.
            is_next = other.name == one.name and other.create_seq > one.create_seq
            if is_next and (other.previous in {one.id, ""} or other.node == one.node):
                return f"replaced by {short_id(other.id)} on {other.node}"
        await asyncio.sleep(pause)
        pause = min(2 * pause, _POLL_MAX_S)
    raise CliError("pending", f"stopped; nothing replaced it for {REPLACEMENT_WAIT_S:.0f} s")
