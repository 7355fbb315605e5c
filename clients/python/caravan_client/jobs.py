"""Submissions: register, stop, dispatch and change jobs, follow one, wait for its newest version.

A submission is sent again, with the same bytes, until there is a verdict: its `submission_id` makes that harmless.
"""

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from caravan_client.connection import PAUSE_S, Connection, token
from caravan_client.errors import ClusterChanged, JobFailed, NoAnswer, Refused
from caravan_client.messages import ErrorDetail, JobProjection, ParsedJob, Verdict

#: A job in Nomad's JSON shape: an object, or its text.
Job = Mapping[str, Any] | str | bytes
#: Seconds until a submission without a verdict raises NoAnswer.
VERDICT_S = 60.0
#: Updates are not stored: after so many seconds without one the last value is read again.
_SILENCE_S = 5.0
#: What ends a wait: `rollout.status` of a job whose version runs, and of one that will not run any more.
RUNNING, OVER = ("running",), ("complete", "stopped")


class Jobs:
    """Requests about jobs. Every one that changes something returns the accepted verdict, or raises `Refused`."""

    def __init__(self, connection: Connection) -> None:
        """Send them on this connection."""
        self._connection = connection

    async def submit(
        self,
        job: Job,
        *,
        submission_id: str = "",
        modify_index: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Verdict:
        """Register a job, or its next version; with `modify_index` only if the job is at it (0: only if it is new).

        `source`: the file that the job was made of, kept beside it: `Source`, `Format` (hcl2), `VariableFlags`,
        `Variables`.
        """
        body: dict[str, Any] = {"Job": _job(job)}
        if source is not None:
            body["Submission"] = source
        if modify_index is not None:
            body |= {"EnforceIndex": True, "JobModifyIndex": modify_index}
        return await self._decide("submit", body, submission_id)

    async def stop(self, job_id: str, *, purge: bool = False, submission_id: str = "") -> Verdict:
        """Stop a job; with `purge` it is also forgotten once its allocations have ended."""
        return await self._decide("stop", {"JobID": job_id, "Purge": purge}, submission_id)

    async def start(self, job_id: str, *, submission_id: str = "") -> Verdict:
        """Run a stopped job again, as its next version."""
        return await self._decide("start", {"JobID": job_id}, submission_id)

    async def evaluate(
        self, job_id: str, *, force_reschedule: bool = False, submission_id: str = ""
    ) -> Verdict:
        """Have a job evaluated again; with `force_reschedule` what failed past its attempts is replaced as well."""
        body = {"JobID": job_id, "ForceReschedule": force_reschedule}
        return await self._decide("evaluate", body, submission_id)

    async def scale(
        self, job_id: str, count: int, *, group: str = "", submission_id: str = ""
    ) -> Verdict:
        """Change the count of a group; an empty `group` is the only one of the job."""
        body = {"JobID": job_id, "Group": group, "Count": count}
        return await self._decide("scale", body, submission_id)

    async def revert(
        self, job_id: str, *, version: int = -1, tag: str = "", submission_id: str = ""
    ) -> Verdict:
        """Register the text of an older version again, by its number or its tag, as the next version."""
        body = {"JobID": job_id, "JobVersion": version, "VersionTag": tag}
        return await self._decide("revert", body, submission_id)

    async def dispatch(
        self,
        job_id: str,
        payload: bytes = b"",
        *,
        meta: Mapping[str, str] | None = None,
        token: str = "",
        priority: int = 0,
        submission_id: str = "",
    ) -> Verdict:
        """Make a child of a parameterized job; the verdict's `job_id` is the child.

        payload: at most 16 KiB.
        token: a second dispatch with it is the same child, while that is known.
        priority: 0: the parent's.
        """
        body = {
            "JobID": job_id,
            "Payload": base64.b64encode(payload).decode(),
            "Meta": dict(meta or {}),
            "IdempotencyToken": token,
            "Priority": priority,
        }
        return await self._decide("dispatch", body, submission_id)

    async def validate(self, job: Job) -> Verdict:
        """Check a job without registering it; raises `Refused` with all faults in `errors`."""
        return await self._decide("validate", {"Job": _job(job)}, "")

    async def parse(self, hcl: str, *, variables: str = "") -> dict[str, Any]:
        """Turn a job file into the JSON that `submit` takes; `variables` is the text of a file of variables."""
        body = msgspec.json.encode({"JobHCL": hcl, "Variables": variables})
        reply = await self._connection.ask_bytes("api.jobs.parse", body)
        parsed = msgspec.json.decode(reply, type=ParsedJob)
        if parsed.status == "refused":
            raise Refused(_reason(parsed.error), parsed.errors)
        return dict(parsed.job)

    async def follow(self, job_id: str, *, after_seq: int = 0) -> AsyncIterator[JobProjection]:
        """Yield the job's numbers at every change, from the first value at or above `after_seq` on; never ends.

        Raises `ClusterChanged` when another cluster answers.
        """
        subject = f"view.job.{token(job_id)}"
        updates = await self._connection.nats.subscribe(subject)
        seq, cluster = after_seq, ""
        try:
            data = await self._connection.last_value(subject)
            while True:
                if data:
                    job = msgspec.json.decode(data, type=JobProjection)
                    if cluster not in {"", job.cluster_id}:
                        raise ClusterChanged(f"cluster {job.cluster_id} instead of {cluster}")
                    cluster = job.cluster_id
                    if job.seq >= seq:
                        seq = job.seq + 1
                        yield job
                try:
                    data = (await updates.next_msg(timeout=_SILENCE_S)).data
                except TimeoutError:
                    data = await self._connection.last_value(subject)
        finally:
            await updates.unsubscribe()

    async def wait(
        self, verdict: Verdict, *, until: tuple[str, ...] = RUNNING, timeout_s: float | None = None
    ) -> JobProjection:
        """Wait until the version of a verdict runs (or is `until=OVER`); raises `JobFailed` when it failed.

        A failed allocation that will be replaced is not a failure yet. `timeout_s` raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            async for job in self.follow(verdict.job_id, after_seq=verdict.seq):
                rollout = job.rollout
                if rollout is None:
                    continue
                if rollout.status in until or (rollout.status in OVER and until == RUNNING):
                    return job
                if rollout.status == "failed" and not rollout.retry_at_ns:
                    raise JobFailed(job)
        raise AssertionError("follow never ends")

    async def _decide(self, verb: str, body: dict[str, Any], submission_id: str) -> Verdict:
        """Send a submission until it is decided."""
        body = {**body, "SubmissionID": submission_id or f"client-{uuid.uuid4()}"}
        if verb == "validate":
            del body["SubmissionID"]
        data = msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + VERDICT_S
        while True:
            try:
                reply = await self._connection.ask_bytes(f"api.jobs.{verb}", data)
            except NoAnswer:
                if loop.time() > deadline:
                    raise
                continue
            verdict = msgspec.json.decode(reply, type=Verdict)
            if verdict.status == "accepted":
                return verdict
            reason = _reason(verdict.error)
            if verdict.status == "refused" and reason.code != "unavailable":
                raise Refused(reason, verdict.errors)
            if loop.time() > deadline:
                raise NoAnswer(f"no verdict on {body.get('SubmissionID')} within {VERDICT_S:g} s")
            await asyncio.sleep(PAUSE_S)


def _job(job: Job) -> Any:
    if isinstance(job, (str, bytes)):
        job = json.loads(job)
    assert isinstance(job, Mapping)
    # `nomad job run -output` wraps the job.
    return job["Job"] if set(job) == {"Job"} else job


def _reason(error: ErrorDetail | None) -> ErrorDetail:
    return error or ErrorDetail(code="failed", message="refused without a reason")
