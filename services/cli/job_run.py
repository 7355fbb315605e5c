"""`caravan job run`: submit, follow the evaluation, follow the allocations until they run.

Decides when following is over: nothing of the new version is pending any more. What cannot start is told by its last
event, because a person would look there next.
"""

import asyncio
import time
from collections.abc import Sequence
from uuid import uuid4

import msgspec

from schemas.answers import AllocAnswer, JobAnswer
from schemas.jobs import Verdict
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, Query
from services.cli import job_files
from services.cli.asking import ask, with_bus
from services.cli.output import Output, short
from services.cli.rollout import Rollout, is_settled
from services.cli.submitting import (
    ENDED,
    POLL_S,
    WAIT_S,
    evaluation_fault,
    evaluation_of,
    submit,
)
from shared.bus.client import Client

#: Allocations looked at to count the new version's states; of a larger job those of all versions are counted.
_SHOWN = 1_000
#: A look that takes long is followed by a longer pause: others ask, too.
_PAUSE_FACTOR = 5
#: Troubles told in words.
_TROUBLES_MAX = 3


class Seen(msgspec.Struct, kw_only=True):
    """What is known of a submission so far."""

    verdict: Verdict
    evaluation: EvalSummary | None = None
    placed: dict[str, int] = {}
    waiting: dict[str, dict[str, object]] = {}
    states: dict[str, GroupSummary] = {}
    troubled: tuple[AllocSummary, ...] = ()
    seq: int = 0
    in_time: bool = True
    #: until then what is pending may still come.
    deadline_s: float = 0.0


def run(
    out: Output,
    *,
    file: str,
    detach: bool,
    check_index: int,
    submission_id: str,
    var: Sequence[str],
    var_file: Sequence[str],
) -> int:
    """Submit a job file; follow it until what found a place runs."""
    loaded = job_files.read_valid(out, file, var=var, var_file=var_file)
    body = msgspec.json.decode(loaded.body)
    body["SubmissionID"] = submission_id or body.get("SubmissionID") or str(uuid4())
    if check_index >= 0:
        body |= {"EnforceIndex": True, "JobModifyIndex": check_index}

    async def work(client: Client) -> int:
        verdict = await submit(client, "submit", msgspec.json.encode(body))
        seen = Seen(verdict=verdict, seq=verdict.seq)
        warnings = tuple(dict.fromkeys((*loaded.warnings, *verdict.warnings)))
        for warning in warnings:
            out.line(f"warning: {warning}", "yellow")
        if verdict.eval_id and not detach:
            await follow(client, out, seen)
        troubles = [await _trouble(client, one) for one in seen.troubled[:_TROUBLES_MAX]]
        return _end(out, seen, warnings, troubles)

    return with_bus(work)


async def follow(client: Client, out: Output, seen: Seen) -> None:
    """Look until the evaluation has its outcome and nothing of the version is pending, or WAIT_S passed."""
    verdict = seen.verdict
    title = f"job {verdict.job_id}, version {verdict.version}"
    seen.deadline_s = time.monotonic() + WAIT_S
    if not out.is_live:
        out.progress(f"{title}: accepted")
    with Rollout(out, title) as picture:
        while True:
            began = time.monotonic()
            await _look(client, seen)
            pause = max(POLL_S, _PAUSE_FACTOR * (time.monotonic() - began))
            status = seen.evaluation.status if seen.evaluation is not None else "pending"
            waits = {name: _count(one) for name, one in seen.waiting.items()}
            picture.show(status, seen.states, waits)
            is_known = status in ENDED or (seen.evaluation is not None and seen.evaluation.parked)
            if is_known and all(is_settled(one) for one in seen.states.values()):
                return
            if time.monotonic() > seen.deadline_s:
                seen.in_time = False
                await _look(client, seen)
                return
            await asyncio.sleep(min(pause, 1.0))


async def _look(client: Client, seen: Seen) -> None:
    verdict = seen.verdict
    if seen.evaluation is None or seen.evaluation.status not in ENDED:
        seen.evaluation = await evaluation_of(client, verdict.eval_id, verdict.seq)
    query = Query(id=verdict.job_id, limit=_SHOWN, min_seq=seen.evaluation.modify_seq)
    job = await ask(client, "job", JobAnswer, query)
    seen.seq, seen.placed = job.seq, job.placed
    seen.waiting = {
        one.group: {"n": one.n, "class": one.wait_class, "reasons": one.reasons}
        for one in job.waiting
    }
    mine = [
        one
        for one in job.allocations
        if one.version == verdict.version and one.desired_status == "run"
    ]
    is_whole = len(job.allocations) == job.allocations_total
    seen.states = _states(job, mine) if is_whole else job.groups
    wrong = ("failed",) if time.monotonic() < seen.deadline_s else ("failed", "pending")
    seen.troubled = tuple(one for one in mine if one.client_status in wrong)


def _states(job: JobAnswer, mine: Sequence[AllocSummary]) -> dict[str, GroupSummary]:
    """Count the present version's allocations by group and client status."""
    counts: dict[str, dict[str, int]] = {name: {} for name in job.groups}
    for one in mine:
        of = counts.setdefault(one.group, {})
        of[one.client_status] = of.get(one.client_status, 0) + 1
    return {
        name: GroupSummary(desired=job.groups[name].desired, **of)
        for name, of in counts.items()
        if name in job.groups and (of or job.groups[name].desired)
    }


def _count(waiting: dict[str, object]) -> int:
    n = waiting["n"]
    return n if isinstance(n, int) else 0


async def _trouble(client: Client, one: AllocSummary) -> str:
    """Say why an allocation failed: the last word of its first failed task."""
    answer = await ask(client, "alloc", AllocAnswer, Query(id=one.id))
    for name, task in sorted(answer.tasks.items()):
        if task.failed:
            said = [e for e in task.events if e.kind not in ("Killing", "Not Restarting")]
            last = f": {said[-1].kind}: {said[-1].message}" if said else ""
            return f"{short(one.id)} {one.name}: task {name} failed{last}"
    return f"{short(one.id)} {one.name}: {answer.why}"


def _end(out: Output, seen: Seen, warnings: tuple[str, ...], troubles: Sequence[str]) -> int:
    verdict, evaluation = seen.verdict, seen.evaluation
    fault = evaluation_fault(evaluation)
    out.result(
        {
            **(fault.as_object() if fault is not None else {}),
            "job": verdict.job_id,
            "version": verdict.version,
            "modify_index": verdict.modify_index,
            "eval_id": verdict.eval_id,
            "eval_status": evaluation.status if evaluation is not None else "",
            "placed": seen.placed,
            "waiting": seen.waiting,
            "warnings": warnings,
            "states": seen.states,
            "submission_id": verdict.submission_id,
            "seq": seen.seq,
        }
    )
    if evaluation is None:
        known = short(verdict.eval_id) or "none"
        out.line(
            f"job {verdict.job_id}, version {verdict.version}: evaluation {known}, not followed"
        )
        return 0
    for group, one in sorted(seen.waiting.items()):
        reasons = one["reasons"]
        text = "; ".join(reasons) if isinstance(reasons, tuple) and reasons else str(one["class"])
        out.line(f"{one['n']} of {group} wait: {text}", "yellow")
    for trouble in troubles:
        out.line(trouble, "red")
    if not seen.in_time:
        out.line(f"not everything runs after {WAIT_S:.0f} s; it goes on without being followed")
    if fault is not None:
        if out.is_json:
            return 1
        raise fault
    _next_steps(out, verdict.job_id, seen)
    return 2 if seen.waiting else 0


def _next_steps(out: Output, job_id: str, seen: Seen) -> None:
    running = sum(one.running for one in seen.states.values())
    done = sum(one.complete for one in seen.states.values())
    wanted = sum(one.desired for one in seen.states.values())
    word = "complete" if done and not running else "running"
    style = "green" if running + done == wanted else ""
    out.line(f"{running + done} of {wanted} {word}; caravan job status {job_id} shows more", style)
