"""Submissions: the bodies of `jobs.<verb>` and `api.jobs.<verb>`, read strictly, and the commands they become.

Entry points: `read_submission` checks a body and reports all errors at once, `to_command` makes the command. Ids
given by a header or a stream position are set by the caller. `SubmissionCache` speeds up equal jobs under different
names.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from schemas.base import SECOND_NS, JobId
from schemas.jobs import ErrorDetail, EvaluateJob, GroupSpec, RegisterJob, StopJob
from schemas.launches import DispatchJob
from schemas.rollouts import RegisterJobs
from shared.core.decide.deployments.rollout_members import member_fault
from shared.errors import CommandInvalid
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.checks.identifiers import id_error
from shared.jobspec.checks.identities import identity_warnings
from shared.jobspec.checks.job import job_errors
from shared.jobspec.checks.secrets import secret_warnings
from shared.jobspec.checks.services import other_providers
from shared.jobspec.checks.unsupported_fields import (
    ACCEPTED_UNBUILT,
    UnmetFields,
    listed,
    unmet_fields,
)
from shared.jobspec.compile.gates import compile_gates, compile_windows
from shared.jobspec.compile.group_ask import NO_REMOTE_DRIVERS, RemoteDriverMap
from shared.jobspec.compile.groups import compile_groups, compile_memory_limits
from shared.jobspec.compile.launches import compile_parameterized, compile_periodic
from shared.jobspec.dispatch import DispatchRequest, read_dispatch
from shared.jobspec.nomad.job import JOB_DECODER, JobSpec
from shared.jobspec.source import SOURCE_KEY, packed_source
from shared.jobspec.strict_json import JsonObject, canonical_json, read_object
from shared.jobspec.together import read_each, read_together
from shared.jobspec.type_errors import type_errors
from shared.jobspec.version_changes import VERSION_VERBS, VersionChange, read_version_change

#: How long a task may take to end, unless the operator configures another value.
MAX_KILL_TIMEOUT_NS = 600 * SECOND_NS
#: Canonical bytes of a job.
JOB_BYTES_MAX = 256 * 1024
#: submit and validate take a job, the others name one.
JOB_BODY_VERBS = frozenset(("submit", "validate"))
VERBS = JOB_BODY_VERBS | VERSION_VERBS | {"stop", "evaluate", "dispatch", "submit_together"}

#: Of `stop` and `evaluate`, as JobNamed has them; region and tokens of Nomad's requests have no meaning here.
_NAMED_VERBS = frozenset(("stop", "evaluate"))
_NAMED_KEYS = frozenset(
    (
        *("JobID", "SubmissionID", "Purge", "ForceReschedule"),
        *("Region", "Namespace", "AuthToken", "SecretID"),
    )
)
#: Jobs remembered, and bytes of one.
_CACHE_MAX = 256
_CACHE_BYTES_MAX = 16 * 1024
#: Replaces a name; JSON never contains this byte.
_PLACEHOLDER = b"\0"


class JobInvalid(CommandInvalid):
    """A submission with one fault or more; the first one is in `message` and `path`."""

    def __init__(self, errors: tuple[ErrorDetail, ...]) -> None:
        first = errors[0]
        super().__init__(first.code, first.message, first.path)
        self.errors = errors


class ParsedSubmission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A valid submission. `submission_id` is empty when the body names none."""

    verb: str
    job_id: str
    digest: str
    submission_id: str = ""
    job: JobSpec | None = None
    groups: tuple[GroupSpec, ...] = ()
    #: canonical JSON of the job.
    spec: bytes = b"{}"
    #: paths of unsupported fields that the submitter accepted.
    unbuilt: tuple[str, ...] = ()
    #: as in RegisterJob.
    stopped: bool = False
    check_index: int = -1
    purge: bool = False
    #: of an evaluation: replace what failed as well.
    force_reschedule: bool = False
    #: set: a dispatch.
    dispatch: DispatchRequest | None = None
    #: set: a revert, scale or start; its submission id and place in the drop box are open.
    change: VersionChange | None = None
    #: set: jobs of a rollout, its name and order.
    together: tuple["ParsedSubmission", ...] = ()
    rollout: str = ""
    order: str = ""
    warnings: tuple[str, ...] = ()
    #: as in RegisterJob: part of no digest.
    source: bytes = b""


JobCommand = RegisterJob | RegisterJobs | StopJob | EvaluateJob | DispatchJob | VersionChange


class _NamedJob(msgspec.Struct, gc=False):
    job_id: str = msgspec.field(name="ID")
    name: str = msgspec.field(name="Name")


class _Names(msgspec.Struct, gc=False):
    """The names in which equal bodies may differ."""

    job: _NamedJob = msgspec.field(name="Job")
    submission_id: str = msgspec.field(name="SubmissionID", default="")


_NAMES = msgspec.json.Decoder(_Names)


class _CachedSubmission(msgspec.Struct, frozen=True):
    """A valid submission, and its job's canonical JSON before, between and after ID and name."""

    submission: ParsedSubmission
    spec: tuple[bytes, bytes, bytes]


class SubmissionCache:
    """Results for recent bodies: a body that differs from one only in its names is not checked again.

    The key is the body without its job's ID and name and its submission id, which no check and no compilation reads,
    except for the rules of ids. A body matches only if each of the three occurs unescaped, and no other string is equal
    to it: then bodies with equal keys are valid together (form, unique keys, values). Evicts the least recently used.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _CachedSubmission] = {}
        self._remotes: RemoteDriverMap = NO_REMOTE_DRIVERS

    def __len__(self) -> int:
        return len(self._known)

    def get(self, rest: bytes, remotes: RemoteDriverMap) -> _CachedSubmission | None:
        """Return the cached result for a key."""
        if remotes is not self._remotes and remotes != self._remotes:
            self._known.clear()
        self._remotes = remotes
        known = self._known.pop(rest, None)
        if known is not None:
            self._known[rest] = known
        return known

    def put(self, rest: bytes, names: _Names, submission: ParsedSubmission) -> None:
        """Remember a valid submission."""
        spec = _without_names(submission.spec, (names.job.job_id, names.job.name)).split(
            _PLACEHOLDER
        )
        if len(spec) == 3:
            # Keys are sorted: the ID comes before the name.
            self._known[rest] = _CachedSubmission(submission, (spec[0], spec[1], spec[2]))
            if len(self._known) > _CACHE_MAX:
                del self._known[next(iter(self._known))]


def read_submission(
    body: bytes,
    verb: str,
    remotes: RemoteDriverMap = NO_REMOTE_DRIVERS,
    memo: SubmissionCache | None = None,
) -> ParsedSubmission:
    """Read a body; `remotes` are the policy's remote drivers, `memo` is a cache without effect on the result.

    Raises CommandInvalid (JobInvalid where there may be more than one fault).
    """
    if memo is None or verb not in JOB_BODY_VERBS or (names := _names_of(body)) is None:
        return _read_uncached(body, verb, remotes)
    found = (names.job.job_id, names.job.name, names.submission_id)
    rest = _without_names(body, found if names.submission_id else found[:2])
    if not rest:
        return _read_uncached(body, verb, remotes)
    known = memo.get(rest, remotes)
    if known is not None:
        return _from_cached(known, names, verb)
    submission = _read_uncached(body, verb, remotes)
    if not submission.unbuilt and not _depends_on_names(submission):
        # The text of the others is not what was submitted: it says what is missing.
        memo.put(rest, names, submission)
    return submission


def _depends_on_names(submission: ParsedSubmission) -> bool:
    """Tell whether the id of a job decides if it is valid: children have it, and variables are named after it."""
    job = submission.job
    return job is not None and (
        job.periodic is not None
        or job.parameterized is not None
        or any(task.secrets or task.templates for group in job.groups for task in group.tasks)
    )


def _read_uncached(body: bytes, verb: str, remotes: RemoteDriverMap) -> ParsedSubmission:
    """Read a body of which nothing is known. Raises CommandInvalid."""
    if verb not in VERBS:
        raise CommandInvalid("invalid", f"unknown verb {verb!r}")
    value, text = read_object(body, SOURCE_KEY if verb in JOB_BODY_VERBS else "")
    submission_id = value.get("SubmissionID", "")
    if submission_id:
        _check_id(submission_id, "SubmissionID")
    elif submission_id != "":
        raise CommandInvalid("invalid", "must be a string", "SubmissionID")
    try:
        if verb in JOB_BODY_VERBS:
            return _read_job(value, verb, submission_id, remotes)
        if verb == "submit_together":
            return _read_together(value, text, submission_id, remotes)
        return _read_named(value, text, verb, submission_id)
    except CommandInvalid as fault:
        fault.submission_id = submission_id
        raise


def read_job(value: JsonObject, unbuilt: list[ErrorDetail] | None = None) -> tuple[JobSpec, bytes]:
    """Type and validate a decoded job. Returns it and its canonical JSON. Raises CommandInvalid.

    `unbuilt`: gets what is not built in values of supported fields.
    """
    spec = canonical_json(value)
    if len(spec) > JOB_BYTES_MAX:
        raise CommandInvalid(
            "too_large",
            f"the job has {len(spec)} bytes, at most {JOB_BYTES_MAX} are allowed",
            "Job",
        )
    try:
        job = JOB_DECODER.decode(spec)
    except msgspec.ValidationError:
        raise JobInvalid(type_errors(value)) from None
    faults = job_errors(job, unbuilt)
    if faults:
        raise JobInvalid(faults)
    return job, spec


def check_kill_timeouts(job: JobSpec, most_ns: int) -> None:
    """Raise JobInvalid for tasks whose kill_timeout is longer than the operator allows."""
    # Every submission comes here, hardly one has an error.
    if not any(task.kill_timeout_ns > most_ns for group in job.groups for task in group.tasks):
        return
    text = f"must be at most {most_ns / SECOND_NS:g} s, a limit set by the operator (CARAVAN_MAX_KILL_TIMEOUT_S)"
    errors = [
        ErrorDetail(
            code="invalid", message=text, path=f"Job.TaskGroups[{at}].Tasks[{number}].KillTimeout"
        )
        for at, group in enumerate(job.groups)
        for number, task in enumerate(group.tasks)
        if task.kill_timeout_ns > most_ns
    ]
    raise JobInvalid(tuple(errors[:ERRORS_MAX]))


def accepted_unbuilt(spec: bytes) -> tuple[str, ...]:
    """List the unsupported fields of a registered job: JSON paths. Raises msgspec.DecodeError."""
    value: JsonObject = msgspec.json.decode(spec)
    if ACCEPTED_UNBUILT in value:
        return tuple(value[ACCEPTED_UNBUILT])
    # Registered before unbuilt fields were refused.
    return tuple([one.path for one in unmet_fields(value, {}).unbuilt])


def _to_evaluation(submission: ParsedSubmission, own: dict[str, Any]) -> EvaluateJob:
    return EvaluateJob(
        digest=submission.digest,
        job_id=JobId(submission.job_id),
        force_reschedule=submission.force_reschedule,
        **own,
    )


def to_command(
    submission: ParsedSubmission, submission_id: str, *, jobs_seq: int = 0, jobs_prev: int = 0
) -> JobCommand:
    """Create the command to the plan applier."""
    job = submission.job
    if job is None:
        own = {"submission_id": submission_id, "jobs_seq": jobs_seq, "jobs_prev": jobs_prev}
        if submission.change is not None:
            return msgspec.structs.replace(submission.change, **own)
        if submission.together:
            return _to_rollout(submission, submission_id)
        if submission.dispatch is not None:
            return DispatchJob(
                submission_id=submission_id,
                digest=submission.digest,
                job_id=JobId(submission.job_id),
                payload=submission.dispatch.payload,
                meta=submission.dispatch.meta,
                token=submission.dispatch.token,
                priority=submission.dispatch.priority,
                jobs_seq=jobs_seq,
                jobs_prev=jobs_prev,
            )
        if submission.verb == "stop":
            return StopJob(
                submission_id=submission_id,
                digest=submission.digest,
                job_id=JobId(submission.job_id),
                purge=submission.purge,
                jobs_seq=jobs_seq,
                jobs_prev=jobs_prev,
            )
        return _to_evaluation(submission, own)
    return RegisterJob(
        submission_id=submission_id,
        digest=submission.digest,
        job_id=JobId(job.id),
        job_type=job.type,
        priority=job.priority or 50,
        datacenters=job.datacenters or ("*",),
        node_pool=job.node_pool,
        all_at_once=job.all_at_once,
        groups=submission.groups,
        spec=msgspec.Raw(submission.spec),
        warnings=submission.warnings,
        stopped=submission.stopped,
        periodic=compile_periodic(job),
        parameterized=compile_parameterized(job),
        gates=compile_gates(job),
        windows=compile_windows(job),
        memory_limits=compile_memory_limits(job),
        source=submission.source,
        check_index=submission.check_index,
        jobs_seq=jobs_seq,
        jobs_prev=jobs_prev,
    )


def _to_rollout(submission: ParsedSubmission, submission_id: str) -> RegisterJobs:
    jobs = (to_command(one, "") for one in submission.together)
    return RegisterJobs(
        submission_id=submission_id,
        digest=submission.digest,
        rollout=submission.rollout,
        order=submission.order,
        jobs=tuple([one for one in jobs if isinstance(one, RegisterJob)]),
    )


def _names_of(body: bytes) -> _Names | None:
    """Find the names in a body; None: it is too long for the cache, or a name is invalid."""
    if len(body) > _CACHE_BYTES_MAX or b"\\" in body:
        return None
    try:
        names = _NAMES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    submission_id = names.submission_id
    if id_error(names.job.job_id) or (submission_id and id_error(submission_id)):
        return None
    return names


def _without_names(text: bytes, names: tuple[str, ...]) -> bytes:
    """Replace the names in JSON without escapes; empty: another string is equal to one of them."""
    left, last = text, None
    for name in names:
        if name != last:
            left = left.replace(b'"%b"' % name.encode(), _PLACEHOLDER)
        last = name
    # Two equal names in a row are replaced together.
    return left if left.count(_PLACEHOLDER) == len(names) else b""


def _from_cached(known: _CachedSubmission, names: _Names, verb: str) -> ParsedSubmission:
    """Create a submission from a cached one and its own names."""
    first, job_id, name = known.submission, names.job.job_id, names.job.name
    head, middle, tail = known.spec
    spec = b'%b"%b"%b"%b"%b' % (head, job_id.encode(), middle, name.encode(), tail)
    assert first.job is not None
    return ParsedSubmission(
        verb=verb,
        job_id=job_id,
        digest=_digest(_digest_prefix(first.check_index), spec),
        submission_id=names.submission_id,
        job=msgspec.structs.replace(first.job, id=job_id, name=name),
        groups=first.groups,
        spec=spec,
        check_index=first.check_index,
        stopped=first.stopped,
        warnings=first.warnings,
        source=first.source,
    )


def _read_job(
    value: JsonObject, verb: str, submission_id: str, remotes: RemoteDriverMap
) -> ParsedSubmission:
    inner = value.get("Job")
    if type(inner) is not dict:
        raise CommandInvalid("invalid", "expected an object", "Job")
    inner.pop(ACCEPTED_UNBUILT, None)
    _fill_counts(inner)
    in_values: list[ErrorDetail] = []
    unmet = unmet_fields(inner, value)
    try:
        job, spec = read_job(inner, in_values)
    except JobInvalid as fault:
        unmet = unmet._replace(unbuilt=(*unmet.unbuilt, *in_values))
        raise JobInvalid((*fault.errors, *_refused(unmet, value))[:ERRORS_MAX]) from None
    if in_values:
        unmet = unmet._replace(unbuilt=(*unmet.unbuilt, *in_values))
    if refused := _refused(unmet, value):
        raise JobInvalid(refused[:ERRORS_MAX])
    unbuilt = tuple([one.path for one in unmet.unbuilt])
    check_index = _check_index(value)
    return ParsedSubmission(
        verb=verb,
        job_id=job.id,
        # Without what is missing, which the release decides: sent again after an upgrade it is the same content.
        digest=_digest(_digest_prefix(check_index), spec),
        submission_id=submission_id,
        job=job,
        groups=compile_groups(job, inner, remotes),
        spec=canonical_json({**inner, ACCEPTED_UNBUILT: unbuilt}) if unbuilt else spec,
        unbuilt=unbuilt,
        stopped=_flag(inner, "Stop"),
        check_index=check_index,
        warnings=_warnings(job, unmet),
        source=packed_source(value) if SOURCE_KEY in value else b"",
    )


def _read_together(
    value: JsonObject, text: bytes, submission_id: str, remotes: RemoteDriverMap
) -> ParsedSubmission:
    """Read the jobs of a rollout. Raises JobInvalid with the errors of all of them."""
    body = read_together(value)
    if submission_id:
        text = canonical_json({key: item for key, item in value.items() if key != "SubmissionID"})
    digest = _digest(b"submit_together", text)
    jobs: list[ParsedSubmission] = []

    def read(one: JsonObject) -> None:
        if one.get("SubmissionID"):
            raise CommandInvalid("invalid", "the rollout has it, not a job", "SubmissionID")
        jobs.append(_read_job(one, "submit", "", remotes))
        _check_member(jobs)

    if errors := read_each(body.jobs, read):
        raise JobInvalid(errors)
    return ParsedSubmission(
        verb="submit_together",
        job_id=jobs[0].job_id,
        digest=digest,
        submission_id=submission_id,
        together=tuple(jobs),
        rollout=body.name,
        order=body.order,
    )


def _check_member(jobs: list[ParsedSubmission]) -> None:
    """Raise CommandInvalid where the last of these jobs cannot be in a rollout, or is listed twice."""
    last = to_command(jobs[-1], "")
    assert isinstance(last, RegisterJob)
    if any(one.job_id == last.job_id for one in jobs[:-1]):
        raise CommandInvalid(
            "invalid", f"job {last.job_id!r} is listed twice in the rollout", "Job.ID"
        )
    if fault := member_fault(last):
        raise CommandInvalid("invalid", fault, "Job.Type")


def _fill_counts(job: JsonObject) -> None:
    """Set the count of a group without one to the minimum of its scaling block, as Nomad does."""
    groups = job.get("TaskGroups")
    for group in groups if isinstance(groups, list) else ():
        scaling = group.get("Scaling") if isinstance(group, dict) else None
        if isinstance(scaling, dict) and "Count" not in group and type(scaling.get("Min")) is int:
            group["Count"] = scaling["Min"]


def _refused(unmet: UnmetFields, around: JsonObject) -> tuple[ErrorDetail, ...]:
    """Return the fields that are not built and the keys that are not fields, unless the submitter accepts them."""
    accepts_unknown = _flag(around, "accept_unknown")
    accepts_unbuilt = _flag(around, "accept_unbuilt")
    unknown = () if accepts_unknown else unmet.unknown
    return unknown if accepts_unbuilt else unknown + unmet.unbuilt


def _warnings(job: JobSpec, unmet: UnmetFields) -> tuple[str, ...]:
    """Return at most one warning about an accepted job."""
    parts = [
        f"group {group.name!r} has no main task (a task without lifecycle): it ends when the others have run"
        for group in job.groups
        if group.tasks and all(task.lifecycle is not None for task in group.tasks)
    ]
    if others := other_providers(job):
        providers = " and ".join(others)
        parts.append(
            f"services of provider {providers} are served by Caravan, without contact to it"
        )
    parts += identity_warnings(job)
    parts += secret_warnings(job)
    if unmet.unbuilt:
        names = tuple([one.path for one in unmet.unbuilt])
        parts.append("not built yet, accepted without effect: " + listed(names))
    if unmet.unknown:
        names = tuple([one.path for one in unmet.unknown])
        parts.append("unknown, accepted without effect: " + listed(names))
    if unmet.without_effect:
        parts.append("without effect, as in Nomad: " + listed(unmet.without_effect))
    return ("; ".join(parts),) if parts else ()


def _digest_prefix(check_index: int) -> bytes:
    """What the digest of a job begins with."""
    return b"submit" if check_index < 0 else b"submit %d" % check_index


def _read_named(value: JsonObject, text: bytes, verb: str, submission_id: str) -> ParsedSubmission:
    job_id = value.get("JobID")
    _check_id(job_id, "JobID")
    if verb in _NAMED_VERBS and (unknown := sorted(value.keys() - _NAMED_KEYS)):
        raise CommandInvalid("invalid", "unknown parameter", unknown[0][:60])
    purge = _flag(value, "Purge")
    if submission_id:
        text = canonical_json({key: item for key, item in value.items() if key != "SubmissionID"})
    digest = _digest(verb.encode(), text)
    is_change = verb in VERSION_VERBS
    return ParsedSubmission(
        verb=verb,
        change=read_version_change(value, verb, digest) if is_change else None,
        dispatch=read_dispatch(value) if verb == "dispatch" else None,
        job_id=str(job_id),
        digest=digest,
        submission_id=submission_id,
        purge=purge,
        force_reschedule=_flag(value, "ForceReschedule"),
    )


def _check_id(text: object, path: str) -> None:
    if not isinstance(text, str):
        raise CommandInvalid("invalid", "must be a string", path)
    if fault := id_error(text):
        raise CommandInvalid("invalid", fault, path)


def _flag(value: JsonObject, key: str) -> bool:
    flag = value.get(key, False)
    if type(flag) is not bool:
        raise CommandInvalid("invalid", "must be true or false", key)
    return flag


def _check_index(value: JsonObject) -> int:
    enforce = _flag(value, "EnforceIndex")
    index = value.get("JobModifyIndex", 0)
    if type(index) is not int or index < 0:
        raise CommandInvalid("invalid", "must be a whole number from 0", "JobModifyIndex")
    return index if enforce else -1


def _digest(mark: bytes, text: bytes) -> str:
    return blake2b(mark + b"\0" + text, digest_size=16).hexdigest()
