"""`caravan job run`: submit a job, and follow it until it runs, is complete, failed, or can only wait.

A version with a deployment is followed until the deployment ended, or waits for an operator or for capacity. Without
one a job runs when its `rollout` says so (shared/query/job_progress.py), after its tasks ran for 10 s: a task that
ends at once and is started again is no success. A failed allocation is shown with the last event of its failed task.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Unpack
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from schemas.answers import DeploymentAnswer
from schemas.job_answers import JobAnswer
from schemas.jobs import Verdict
from schemas.projections import (
    AllocSummary,
    DeploymentLine,
    EvalSummary,
    GroupSummary,
    Query,
    Rollout,
)
from services.cli.deployment import monitor
from services.cli.deployment.display import RolloutDisplay, health_rows, status_rows
from services.cli.deployment.follow import exit_code
from services.cli.job import files
from services.cli.job.run_together import run_together
from services.cli.job.submission import (
    EVAL_DONE_STATUSES,
    POLL_INTERVAL_S,
    WAIT_TIMEOUT_S,
    evaluation_error,
    get_evaluation,
    submit_request,
)
from services.cli.runtime.bus_client import query_view, with_bus
from services.cli.runtime.output import (
    CliError,
    CommandOutput,
    ErrorFields,
    result_from,
    short_id,
)
from shared.bus.connection.public_client import Client
from shared.cron.spec import parse_cron, reading
from shared.display.formats import format_age, format_time_and_age
from shared.jobspec.strict_json import RAW_BYTES_MAX

#: Allocations among which failed ones are looked for.
_SHOWN = 1_000
#: Pause between queries, as a multiple of the time that a query takes.
_PAUSE_FACTOR = 5
#: What the end of a deployment means for the job.
_OUTCOMES = {"successful": "running", "cancelled": "failed"}


class WaitingGroup(msgspec.Struct, frozen=True):
    """Allocations of a group that could not be placed."""

    n: int
    wait_class: str = msgspec.field(name="class")
    reasons: tuple[str, ...]


class JobRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job run --json`."""

    #: the job was accepted, but its evaluation failed (code evaluation), its deployment did (code deployment), or it
    #: does not run (code rollout).
    error: ErrorFields | UnsetType = UNSET
    job: str
    version: int
    modify_index: int
    eval_id: str
    eval_status: str
    placed: dict[str, int]
    waiting: dict[str, WaitingGroup]
    warnings: tuple[str, ...]
    #: counts of the new version by group.
    states: dict[str, GroupSummary]
    rollout: Rollout
    #: of the submitted version; null: it has none.
    deployment: DeploymentLine | None
    submission_id: str
    seq: int


class JobProgress(msgspec.Struct, kw_only=True):
    """What is known of a submission so far."""

    verdict: Verdict
    evaluation: EvalSummary | None = None
    placed: dict[str, int] = {}
    waiting: dict[str, WaitingGroup] = {}
    states: dict[str, GroupSummary] = {}
    rollout: Rollout = Rollout()
    #: of the submitted version, also after a newer one took its place.
    followed: DeploymentAnswer | None = None
    failed: tuple[AllocSummary, ...] = ()
    seq: int = 0
    in_time: bool = True
    #: restarts before this submission could have caused any.
    restarts_before: int = 0
    #: a look saw the evaluation at its end.
    is_decided: bool = False
    #: wait until the tasks have run for some time.
    must_settle: bool = True

    @property
    def deployment(self) -> DeploymentLine | None:
        """The deployment of the submitted version; None: it has none."""
        return self.followed.deployment if self.followed is not None else None

    @property
    def is_deployed(self) -> bool:
        """Whether the end of a deployment decides: not where an old one succeeded and nothing was changed."""
        line = self.deployment
        return line is not None and (self.rollout.changed or line.status != "successful")

    @property
    def progress(self) -> int:
        """Allocations of the version that became healthy or unhealthy."""
        groups = self.deployment.groups.values() if self.deployment is not None else ()
        return sum(one.healthy + one.unhealthy for one in groups)

    @property
    def has_crashed(self) -> bool:
        """Whether a task ended and was started again, or is about to be."""
        is_between = self.rollout.status == "progressing" and self.rollout.retry_at_ns > 0
        return is_between or self.rollout.restarts > self.restarts_before

    def outcome(self) -> str:
        """Return `running`, `complete`, `stopped`, `waiting` or `failed`; empty: not decided yet."""
        one = self.evaluation
        if one is None or not (one.status in EVAL_DONE_STATUSES or one.parked):
            return ""
        if self.followed is not None and self.is_deployed:
            end = "failed" if one.status == "failed" else monitor.outcome_of(self.followed)
            return _OUTCOMES.get(end, end)
        status = self.rollout.status
        if one.status in {"failed", "canceled"} or status == "failed" or self.has_crashed:
            return "failed"
        if one.parked:
            return "waiting"
        if self.rollout.settles_at_ns and not self.must_settle:
            return "running"
        return "" if status == "progressing" else status


def run(
    out: CommandOutput,
    *,
    file: Sequence[str],
    detach: bool,
    check_index: int,
    submission_id: str,
    together: str,
    in_order: bool,
    **options: Unpack[files.JobFileOptions],
) -> int:
    """Submit a job file; follow it until it runs, is complete, failed, or waits. Several files: a rollout."""
    if together:
        if check_index >= 0:
            raise CliError("usage", "--check-index is for one job, not with --together")
        return run_together(
            out,
            file,
            name=together,
            in_order=in_order,
            detach=detach,
            submission_id=submission_id,
            **options,
        )
    if in_order or len(file) > 1:
        text = "several files, and --in-order, need --together NAME"
        raise CliError("usage", text)
    loaded = files.read_valid_job_file(out, file[0], **options)
    body = msgspec.json.decode(loaded.body)
    body["SubmissionID"] = submission_id or body.get("SubmissionID") or str(uuid4())
    if check_index >= 0:
        body |= {"EnforceIndex": True, "JobModifyIndex": check_index}
    warnings = files.add_source(body, loaded, RAW_BYTES_MAX)

    async def work(client: Client) -> int:
        verdict = await submit_request(client, "submit", body)
        return await report_rollout(client, out, verdict, warnings=warnings, detach=detach)

    return with_bus(work)


async def report_rollout(
    client: Client,
    out: CommandOutput,
    verdict: Verdict,
    *,
    warnings: Sequence[str] = (),
    detach: bool,
) -> int:
    """Follow an accepted submission unless `detach`, and print what became of it. Returns the exit code."""
    seen = JobProgress(verdict=verdict, seq=verdict.seq)
    warned = tuple(dict.fromkeys((*warnings, *verdict.warnings)))
    for warning in warned:
        out.line(f"warning: {warning}", "yellow")
    if verdict.eval_id and not detach:
        await follow_rollout(client, out, seen)
    found = seen.failed[: monitor.FAILURES_MAX]
    failures = [await monitor.failure_reason(client, one) for one in found]
    code = _print_result(out, seen, warned, failures)
    if not verdict.eval_id:
        await _tell_of_pattern(client, out, verdict)
    return code


async def _tell_of_pattern(client: Client, out: CommandOutput, verdict: Verdict) -> None:
    """Say when a job that runs nothing itself is launched."""
    query = Query(id=verdict.job_id, limit=0, min_seq=verdict.seq)
    answer = await query_view(client, "job", JobAnswer, query)
    if answer.parameterized is not None and not answer.job.stopped:
        out.line(f"caravan job dispatch {verdict.job_id} runs it")
    if answer.periodic is None or answer.job.stopped:
        return
    when = answer.periodic.problem or f"never; {_readings(answer.periodic.crons)}"
    if answer.periodic.next_ns:
        when = format_time_and_age(answer.periodic.next_ns, time.time_ns())
    when = when if answer.periodic.enabled else "disabled"
    out.line(f"next launch: {when}")


def _readings(crons: Sequence[str]) -> str:
    """Say what cron specs mean, when none of them fires again."""
    return "; ".join(f"{one!r} says: {reading(parse_cron(one))}" for one in crons)


async def follow_rollout(client: Client, out: CommandOutput, seen: JobProgress) -> None:
    """Follow until the outcome is known; at most WAIT_TIMEOUT_S without a deployment, or in one that only crashes."""
    verdict = seen.verdict
    title = f"job {verdict.job_id}, version {verdict.version}"
    progress, since_s = 0, time.monotonic()
    if not out.is_live:
        out.progress(f"{title}: accepted")
    with RolloutDisplay(out, title) as picture:
        while True:
            began = time.monotonic()
            await _refresh(client, seen)
            pause = max(POLL_INTERVAL_S, _PAUSE_FACTOR * (time.monotonic() - began))
            outcome = seen.outcome()
            if seen.progress != progress or (seen.is_deployed and not seen.has_crashed):
                progress, since_s = seen.progress, time.monotonic()
            seen.in_time = time.monotonic() <= since_s + WAIT_TIMEOUT_S
            _show(picture, seen, outcome if seen.in_time else "failed", is_live=out.is_live)
            if outcome or not seen.in_time:
                break
            await asyncio.sleep(min(pause, 1.0))
    if seen.followed is not None:
        # The counts of the job are as new as the end of its deployment.
        await _refresh(client, seen)
    if outcome in {"", "failed"}:
        seen.failed = await _failed_allocs(client, seen)


def _show(picture: RolloutDisplay, seen: JobProgress, outcome: str, *, is_live: bool) -> None:
    status = seen.evaluation.status if seen.evaluation is not None else "pending"
    waits = {name: one.n for name, one in seen.waiting.items()}
    head = "" if status == "pending" and not is_live else f"evaluation {status}"
    line = seen.deployment
    if line is None or not seen.is_deployed or status == "pending":
        picture.show(head, status_rows(seen.states, waits), outcome)
        return
    head = f"deployment {short_id(line.id)} {line.status}"
    note = seen.rollout.reason if seen.has_crashed and not outcome else ""
    picture.show(head, health_rows(line, waits), outcome, note=note)


async def _refresh(client: Client, seen: JobProgress) -> None:
    verdict = seen.verdict
    if seen.evaluation is None or seen.evaluation.status not in EVAL_DONE_STATUSES:
        seen.evaluation = await get_evaluation(client, verdict.eval_id, verdict.seq)
    known = seen.followed.seq if seen.followed is not None else 0
    query = Query(id=verdict.job_id, limit=0, min_seq=max(seen.evaluation.modify_seq, known))
    job = await query_view(client, "job", JobAnswer, query)
    seen.seq, seen.placed, seen.rollout = job.seq, job.placed, job.rollout
    seen.waiting = {
        one.group: WaitingGroup(one.n, one.wait_class, one.reasons) for one in job.waiting
    }
    seen.states = job.rollout.groups
    await _refresh_deployment(client, seen, job.seq)
    if not seen.is_decided:
        # Tasks of an update in place, which join this version with the plan, may have been started again long ago.
        is_first = job.rollout.changed and not verdict.version
        seen.restarts_before = 0 if is_first else job.rollout.restarts
        seen.is_decided = seen.evaluation.status in EVAL_DONE_STATUSES


async def _refresh_deployment(client: Client, seen: JobProgress, seq: int) -> None:
    """Look at the deployment of the submitted version; the job may have a newer one, of a revert."""
    line, newest, version = seen.deployment, seen.rollout.deployment, seen.verdict.version
    if line is None and newest is not None:
        is_ours = newest.version == version
        line = newest if is_ours else await monitor.find_deployment(client, newest.job, version)
    if line is not None:
        seen.followed = await monitor.query_deployment(client, line.id, seq)


async def _failed_allocs(client: Client, seen: JobProgress) -> tuple[AllocSummary, ...]:
    """Allocations that failed, are unhealthy, or have not started; in this order."""
    verdict = seen.verdict
    query = Query(id=verdict.job_id, limit=_SHOWN, min_seq=seen.seq)
    job = await query_view(client, "job", JobAnswer, query)
    if seen.is_deployed:
        bad = [one for one in job.allocations if one.version == verdict.version]
        bad = [one for one in bad if monitor.is_bad(one)]
        if bad:
            return tuple(sorted(bad, key=lambda one: one.client_status != "failed"))
    mine = [one for one in job.allocations if one.desired_status == "run"]
    return tuple(
        one
        for status in ("failed", "pending")
        for one in mine
        if one.client_status == status and (status == "failed" or one.version == verdict.version)
    )


def _print_result(
    out: CommandOutput, seen: JobProgress, warnings: tuple[str, ...], failures: Sequence[str]
) -> int:
    verdict, evaluation = seen.verdict, seen.evaluation
    fault = evaluation_error(evaluation)
    if fault is None and evaluation is not None:
        fault = _rollout_error(seen, failures)
    out.result(
        result_from(
            JobRunResult,
            seen,
            verdict,
            error=UNSET if fault is None else fault.as_fields(),
            job=verdict.job_id,
            eval_status=evaluation.status if evaluation is not None else "",
            warnings=warnings,
        )
    )
    if evaluation is None:
        known = f"; evaluation {short_id(verdict.eval_id)}" if verdict.eval_id else ""
        out.line(f"job {verdict.job_id}, version {verdict.version}: accepted{known}")
        return 0
    for group, one in sorted(seen.waiting.items()):
        text = "; ".join(one.reasons) or one.wait_class
        out.line(f"{one.n} of {group} waiting: {text}", "yellow")
    for failure in failures:
        out.line(failure, "red")
    if fault is not None and fault.code == "evaluation" and not out.is_json:
        raise fault
    if seen.followed is not None and seen.is_deployed:
        monitor.print_outcome(out, seen.followed)
    elif fault is not None and not failures:
        out.line(fault.message, "red")
    _next_steps(out, verdict.job_id, seen, is_wrong=fault is not None)
    if fault is not None:
        return 1
    if seen.followed is not None and seen.is_deployed:
        return exit_code(monitor.outcome_of(seen.followed))
    return 2 if seen.waiting else 0


def _rollout_error(seen: JobProgress, failures: Sequence[str]) -> CliError | None:
    """Why the job does not run, though it was placed; None: it runs, is complete, or waits for a place."""
    rollout, line = seen.rollout, seen.deployment
    if line is not None and seen.is_deployed and line.status not in monitor.ACTIVE:
        if line.status == "successful":
            return None
        said = (f"deployment {line.status}: {line.description}", *failures[:1])
        return CliError("deployment", "; ".join(said))
    if line is not None and seen.is_deployed and seen.in_time:
        return None
    if rollout.status == "failed" or seen.has_crashed:
        return CliError("rollout", rollout.reason or f"{rollout.restarts} restarts of its tasks")
    if not seen.in_time:
        return CliError("rollout", rollout.reason or "not everything runs yet")
    return None


def _next_steps(out: CommandOutput, job_id: str, seen: JobProgress, *, is_wrong: bool) -> None:
    running = sum(one.running for one in seen.states.values())
    done = sum(one.complete for one in seen.states.values())
    wanted = sum(one.desired for one in seen.states.values())
    word = "complete" if done and not running else "running"
    if not seen.in_time:
        text = "nothing became healthy for" if seen.is_deployed else "not everything runs after"
        out.line(f"{text} {WAIT_TIMEOUT_S:.0f} s; the rollout continues")
    elif seen.rollout.retry_at_ns:
        when = format_age(seen.rollout.retry_at_ns, time.time_ns())
        out.line(f"next try {when}" if when.startswith("in ") else "the next try is due")
    if not seen.rollout.changed:
        rest = "; nothing was run again" if seen.rollout.status == "complete" else ""
        out.line(f"job {job_id} is unchanged{rest}")
    style = "red" if is_wrong else "green" if running + done == wanted else ""
    line = seen.deployment
    if seen.is_deployed and line is not None and line.status in monitor.ACTIVE:
        # The old ones run, too.
        word = f"of version {line.version} {word}"
    out.line(f"{running + done} of {wanted} {word}; caravan job status {job_id} shows more", style)
