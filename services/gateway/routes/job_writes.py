"""`/v1/jobs` and `/v1/job/<id>/…`: what changes jobs, and what plans or checks them.

Each request goes to intake or the view with the login of its caller.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.base import JobId
from schemas.job_answers import GroupPlan, PlanAnswer
from schemas.projections import PlanQuery
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.nomad.evaluations import metric
from services.gateway.nomad.job_diff import job_diff
from services.gateway.nomad.jobs import canonical_job, nomad_job, with_absent_fields
from services.gateway.nomad.source import Object
from services.gateway.nomad.times import UNSET, rfc3339
from services.gateway.routes.lookup import find_job
from shared.core.state.ids import eval_id
from shared.core.state.tables.jobs import Job
from shared.cron.instants import next_launch
from shared.errors import CommandInvalid
from shared.jobspec.compile.launches import compile_periodic
from shared.jobspec.submission import ParsedSubmission, read_submission
from shared.protocol import subjects

#: Of a `Submission`, with their defaults.
_SOURCE_FIELDS = {"Source": "", "Format": "hcl2", "VariableFlags": {}, "Variables": ""}
_INDEX_TEXT = "Enforcing job modify index"


def field(body: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field of a body by its name in any case, as Go reads it; null counts as absent."""
    found = body.get(name)
    if found is None:
        lower = name.lower()
        found = next((value for key, value in body.items() if key.lower() == lower), None)
    return default if found is None else found


def submission_id(call: Call) -> str:
    """The id of a submission: of a header `Idempotency-Key`, else drawn."""
    return call.connection.headers.get("idempotency-key", "") or secrets.token_hex(16)


def _job_of(body: Mapping[str, Any]) -> Object:
    found = field(body, "Job")
    if not isinstance(found, dict):
        raise HttpFault(400, "Job must be specified")
    if not isinstance(job_id := found.get("ID"), str) or not job_id:
        raise HttpFault(400, "Job ID hasn't been provided")
    return found


async def register(call: Call) -> object:
    """Register a job, or a new version of it."""
    return await _register(call, await call.body())


async def update(call: Call) -> object:
    """Register the job of the path. Raises HttpFault 400: the body has another one."""
    body = await call.body()
    if _job_of(body)["ID"] != call.path["job"]:
        raise HttpFault(400, "Job ID does not match name")
    return await _register(call, body)


async def _register(call: Call, body: Object) -> Object:
    job = _job_of(body)
    is_checked = bool(field(body, "EnforceIndex", False))
    index = int(field(body, "JobModifyIndex", 0) or 0)
    request = {
        "Job": _same_text(call, job) or job,
        "SubmissionID": submission_id(call),
        "EnforceIndex": is_checked,
        "JobModifyIndex": index,
        # Nomad ignores keys that it does not know, and its clients send some.
        "accept_unknown": True,
        "accept_unbuilt": call.flag("accept_unbuilt"),
    }
    source = field(body, "Submission")
    if source is not None:
        is_object = isinstance(source, dict)
        request["Submission"] = _source_of(source) if is_object else source
    try:
        verdict = await call.write(subjects.api_jobs("submit"), request)
    except HttpFault as err:
        raise _index_fault(call, str(job["ID"]), index, err) if is_checked else err from err
    return _registered(verdict)


def _source_of(given: Mapping[str, Any]) -> Object:
    """The fields of a `Submission`; what Nomad's clients send beside them is what they were shown."""
    return {name: field(given, name, default) for name, default in _SOURCE_FIELDS.items()}


def _same_text(call: Call, job: Object) -> msgspec.Raw | None:
    """The stored text of a job that was read from here and is registered again: its defaults are not a new version."""
    known = call.role.state.jobs.by_id.get(JobId(job["ID"]))
    text = call.role.state.jobs.spec(known.id, known.version) if known is not None else None
    # Nomad's clients send what they were shown back with its state.
    if text is None or known is None or known.stopped or "CreateIndex" not in job:
        return None
    try:
        parsed = _stored(call, msgspec.json.encode(job))
    except CommandInvalid:
        return None
    same = canonical_job(bytes(parsed.spec)) == canonical_job(text)
    return msgspec.Raw(text) if same else None


def _index_fault(call: Call, job_id: str, index: int, err: HttpFault) -> HttpFault:
    """Nomad's text for a check-and-set that failed: clients look for it."""
    if "index" not in err.text.lower():
        return err
    job = call.role.state.jobs.by_id.get(JobId(job_id))
    if job is None:
        return HttpFault(500, f"{_INDEX_TEXT} {index}: job does not exist")
    if index == 0:
        return HttpFault(500, f"{_INDEX_TEXT} 0: job already exists")
    text = f"job exists with conflicting job modify index: {job.modify_seq}"
    return HttpFault(500, f"{_INDEX_TEXT} {index}: {text}")


def _registered(verdict: Object) -> Object:
    seq = int(verdict.get("seq", 0))
    return {
        "EvalID": verdict.get("eval_id", ""),
        "EvalCreateIndex": seq if verdict.get("eval_id") else 0,
        "JobModifyIndex": int(verdict.get("modify_index", 0)),
        "Warnings": "\n".join(verdict.get("warnings") or ()),
        "Index": seq,
        "LastContact": 0,
        "KnownLeader": False,
    }


async def plan(call: Call) -> object:
    """Describe what registering a job would do. Raises HttpFault 400."""
    body = await call.body()
    job = _job_of(body)
    if job["ID"] != call.path["job"]:
        raise HttpFault(400, "Job ID does not match")
    raw = msgspec.json.encode(job)
    answer = call.role.answers.plan(
        PlanQuery(
            job=msgspec.Raw(raw), accept_unknown=True, accept_unbuilt=call.flag("accept_unbuilt")
        )
    )
    old = call.role.state.jobs.by_id.get(JobId(job["ID"]))
    diff = None
    if field(body, "Diff", False):
        diff = _diff(call, old, raw, answer)
    call.index = answer.modify_index
    return {
        "Annotations": {
            "DesiredTGUpdates": {name: _updates(one) for name, one in answer.groups.items()},
            "PreemptedAllocs": [
                {"ID": one.alloc, "JobID": one.job, "TaskGroup": one.group, "NodeID": one.node}
                for one in answer.victims
            ]
            or None,
        },
        "FailedTGAllocs": {
            name: metric(one.n, one.reasons, "default") for name, one in answer.unplaced.items()
        }
        or None,
        "JobModifyIndex": answer.modify_index,
        "CreatedEvals": None,
        "Diff": diff,
        "NextPeriodicLaunch": _next_launch(call, raw),
        "Warnings": "\n".join(answer.warnings),
        "Index": max(answer.modify_index, 1),
        "LastContact": 0,
        "KnownLeader": False,
    }


def _stored(call: Call, raw: bytes) -> ParsedSubmission:
    """A job as it would be stored: what a client wrote is checked and reduced the same way. Raises CommandInvalid."""
    given = {"Job": msgspec.Raw(raw), "accept_unknown": True, "accept_unbuilt": True}
    remotes = call.role.state.policy.policy.remote_drivers
    return read_submission(msgspec.json.encode(given), "submit", remotes)


def _next_launch(call: Call, raw: bytes) -> str:
    """The first launch of a periodic job that is planned, as a time."""
    job = _stored(call, raw).job
    block = compile_periodic(job) if job is not None else None
    if block is None or not block.enabled:
        return UNSET
    now_ns = call.role.clock.now_ns or call.role.state.t_ns
    return rfc3339(next_launch(block.crons, block.time_zone, now_ns))


def _diff(call: Call, old: Job | None, raw: bytes, answer: PlanAnswer) -> Object:
    spec = bytes(_stored(call, raw).spec)
    before = nomad_job(call.role.source, old) if old is not None else None
    found = job_diff(before, canonical_job(spec))
    for group in found["TaskGroups"] or ():
        one = answer.groups.get(group["Name"])
        group["Updates"] = _update_words(one) if one is not None else None
    return found


def _updates(one: GroupPlan) -> Object:
    return {
        "Ignore": one.ignore,
        "Place": one.place,
        "Migrate": 0,
        "Stop": one.stop,
        "InPlaceUpdate": one.in_place,
        "DestructiveUpdate": one.destructive,
        "Canary": one.canaries,
        "Preemptions": 0,
        "Disconnect": 0,
        "Reconnect": 0,
        "RescheduleNow": one.lost,
        "RescheduleLater": 0,
    }


def _update_words(one: GroupPlan) -> dict[str, int]:
    words = {
        "create": one.place,
        "destroy": one.stop,
        "in-place update": one.in_place,
        "create/destroy update": one.destructive,
        "canary": one.canaries,
        "ignore": one.ignore,
    }
    return {word: count for word, count in words.items() if count}


async def validate(call: Call) -> object:
    """Check a job without registering it: 200 with the faults."""
    job = _job_of(await call.body())
    request = {"Job": job, "accept_unknown": True, "SubmissionID": submission_id(call)}
    faults: list[str] = []
    warnings: tuple[str, ...] = ()
    try:
        answer = await call.request(subjects.api_jobs("validate"), request)
    except HttpFault as err:
        if err.status != 400:
            raise
        faults = err.text.split("\n")
    else:
        warnings = tuple(answer.get("warnings") or ())
        if answer.get("status") == "refused":
            errors = answer.get("errors") or [answer.get("error") or {}]
            faults = [
                f"{one.get('path', '')}: {one.get('message', '')}".lstrip(": ") for one in errors
            ]
    return {
        "DriverConfigValidated": True,
        "ValidationErrors": faults or None,
        "Error": "\n".join(faults),
        "Warnings": "\n".join(warnings),
    }


async def parse(call: Call) -> object:
    """Turn a job file into JSON. Raises HttpFault 400."""
    body = await call.body()
    text = field(body, "JobHCL", "")
    if not isinstance(text, str) or not text:
        raise HttpFault(400, "Job spec is empty")
    is_filled = bool(field(body, "Canonicalize", False))
    request = {
        "JobHCL": text,
        "Variables": str(field(body, "Variables", "")),
        "Canonicalize": is_filled,
        "HCLv1": bool(field(body, "HCLv1", False)),
    }
    answer = await call.request(subjects.api_jobs("parse"), request)
    if answer.get("status") != "accepted":
        errors = answer.get("errors") or [answer.get("error") or {}]
        text = "\n".join(str(one.get("message", "")) for one in errors)
        raise HttpFault(400, f"Failed to parse job: {text}")
    job: Object = answer.get("job") or {}
    return job if is_filled else with_absent_fields(job)


async def stop(call: Call) -> object:
    """Stop a job; with `purge` it is forgotten once its allocations ended."""
    find_job(call)
    request = {
        "JobID": call.path["job"],
        "SubmissionID": submission_id(call),
        "Purge": call.flag("purge"),
    }
    return _registered(await call.write(subjects.api_jobs("stop"), request))


async def evaluate(call: Call) -> object:
    """Create an evaluation of a job. Raises HttpFault 400."""
    find_job(call)
    is_forced = False
    raw = await call.raw_body()
    if raw:
        try:
            options = field(msgspec.json.decode(raw, type=dict[str, Any]), "EvalOptions", {}) or {}
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise HttpFault(400, f"the body is not a JSON object: {err}") from err
        is_forced = isinstance(options, dict) and bool(field(options, "ForceReschedule", False))
    request = {
        "JobID": call.path["job"],
        "SubmissionID": submission_id(call),
        "ForceReschedule": is_forced,
    }
    return _registered(await call.write(subjects.api_jobs("evaluate"), request))


async def revert(call: Call) -> object:
    """Take the text of an older version again."""
    body = await call.body()
    job = find_job(call)
    version = field(body, "JobVersion")
    if not isinstance(version, int) or isinstance(version, bool):
        raise HttpFault(400, "JobVersion must be a number")
    if version == job.version:
        raise HttpFault(500, "can't revert to current version")
    prior = field(body, "EnforcePriorVersion")
    request = {
        "JobID": str(job.id),
        "JobVersion": version,
        "EnforcePriorVersion": prior if isinstance(prior, int) else -1,
        "SubmissionID": submission_id(call),
    }
    return _registered(await call.write(subjects.api_jobs("revert"), request))


async def stable(call: Call) -> object:
    """Mark a version stable or unstable."""
    body = await call.body()
    job = find_job(call)
    request = {
        "job_id": str(job.id),
        "version": int(field(body, "JobVersion", job.version)),
        "stable": bool(field(body, "Stable", False)),
    }
    verdict = await call.write(subjects.api("job", "set_stability"), request)
    return {"Index": int(verdict.get("seq", 0))}


async def scale(call: Call) -> object:
    """Change the count of a group. Raises HttpFault 400: an event without a count is not kept."""
    body = await call.body()
    job = find_job(call)
    count = field(body, "Count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise HttpFault(400, "Count must be a number: scaling events alone are not kept")
    target = field(body, "Target", {}) or {}
    request = {
        "JobID": str(job.id),
        "Group": str(field(target, "Group", "")),
        "Count": count,
        "SubmissionID": submission_id(call),
    }
    return _registered(await call.write(subjects.api_jobs("scale"), request))


async def dispatch(call: Call) -> object:
    """Make a child of a parameterized job."""
    body = await call.body()
    return await _dispatch(call, body, str(field(body, "Payload", "") or ""))


async def dispatch_payload(call: Call) -> object:
    """Make a child whose payload is the body."""
    raw = await call.raw_body()
    return await _dispatch(call, {}, base64.b64encode(raw).decode())


async def _dispatch(call: Call, body: Object, payload: str) -> Object:
    job = find_job(call)
    if job.parameterized is None:
        raise HttpFault(500, f'Specified job "{job.id}" is not a parameterized job')
    try:
        base64.b64decode(payload, validate=True)
    except binascii.Error as err:
        raise HttpFault(400, "Payload is not base64") from err
    request = {
        "JobID": str(job.id),
        "Payload": payload,
        "Meta": field(body, "Meta", {}) or {},
        "IdempotencyToken": call.text("idempotency_token"),
        "Priority": int(field(body, "Priority", 0) or 0),
        "SubmissionID": submission_id(call),
    }
    verdict = await call.write(subjects.api_jobs("dispatch"), request)
    found = _registered(verdict)
    child = call.role.state.jobs.by_id.get(JobId(str(verdict.get("job_id", ""))))
    return {
        "DispatchedJobID": verdict.get("job_id", ""),
        "EvalID": found["EvalID"],
        "EvalCreateIndex": found["EvalCreateIndex"],
        "JobCreateIndex": child.create_seq if child is not None else found["Index"],
        "Index": found["Index"],
    }


async def force_launch(call: Call) -> object:
    """Launch a child of a periodic job now."""
    job = find_job(call)
    if job.periodic is None:
        raise HttpFault(500, f'can\'t force launch non-periodic job "{job.id}"')
    verdict = await call.write(subjects.api("job", "force_launch"), {"job_id": str(job.id)})
    child = JobId(str(verdict.get("child_id", "")))
    newest = call.role.histories.newest(child)
    seq = int(verdict.get("seq", 0))
    shown = eval_id(newest.key) if newest is not None else ""
    return {"EvalID": shown, "EvalCreateIndex": seq, "Index": seq}


async def tag(call: Call) -> object:
    """Name a version of a job."""
    body = await call.body()
    job = find_job(call)
    request = {
        "job_id": str(job.id),
        "name": call.path["tag"],
        "version": int(field(body, "Version", -1)),
        "description": str(field(body, "Description", "")),
    }
    verdict = await call.write(subjects.api("job", "tag"), request)
    return {
        "Name": call.path["tag"],
        "Description": request["description"],
        "TaggedTime": call.role.times.at(int(verdict.get("seq", 0))),
        "Index": int(verdict.get("seq", 0)),
    }


async def untag(call: Call) -> object:
    """Take the name of a version away."""
    job = find_job(call)
    request = {"job_id": str(job.id), "name": call.path["tag"], "unset": True}
    verdict = await call.write(subjects.api("job", "tag"), request)
    return {"Index": int(verdict.get("seq", 0))}
