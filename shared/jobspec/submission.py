"""Submissions: the bodies of `jobs.<verb>` and `api.jobs.<verb>`, read strictly, and the commands they become.

Decides what a body must be, what is wrong with it (all faults at once), its digest, and its command. Must not know the
bus or the state: ids given by a header or a stream position are the caller's matter. The way in: `read_submission`,
then `command_of`. Many a submitter sends the same job again and again under other names: `Memo` knows them.
"""

import re
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from schemas.base import JobId
from schemas.jobs import ErrorDetail, EvaluateJob, GroupSpec, RegisterJob, StopJob
from shared.errors import CommandInvalid
from shared.jobspec.asking import NO_REMOTES, Remotes
from shared.jobspec.compiling import compile_groups
from shared.jobspec.faults import FAULTS_MAX
from shared.jobspec.identifiers import id_fault
from shared.jobspec.nomad_json import JOB_DECODER, Job
from shared.jobspec.strict import JsonObject, canonical, read_object
from shared.jobspec.unbuilt import warnings_of
from shared.jobspec.validate import faults_of

#: Canonical bytes of a job.
JOB_BYTES_MAX = 256 * 1024
#: submit and validate take a job, stop and evaluate name one.
JOB_VERBS = frozenset(("submit", "validate"))
VERBS = JOB_VERBS | {"stop", "evaluate"}

#: Keys of Nomad's own request that ask for nothing we lack.
_QUIET = frozenset(
    (
        *("Job", "SubmissionID", "EnforceIndex", "JobModifyIndex", "Submission"),
        *("JobID", "Purge", "Region", "Namespace", "AuthToken", "SecretID"),
    )
)
#: Jobs remembered, and bytes of one.
_MEMO_MAX = 256
_MEMO_BYTES_MAX = 16 * 1024
#: Stands where a name was cut out; JSON never holds it as it is.
_CUT = b"\0"
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_AT = re.compile(r"(.*?)(?: - at `(.*)`)?\Z", re.DOTALL)


class JobInvalid(CommandInvalid):
    """A submission with one fault or more; the first one stands in `message` and `path`."""

    def __init__(self, errors: tuple[ErrorDetail, ...]) -> None:
        first = errors[0]
        super().__init__(first.code, first.message, first.path)
        self.errors = errors


class Submission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A valid submission. `submission_id` is empty when the body names none."""

    verb: str
    job_id: str
    digest: str
    submission_id: str = ""
    job: Job | None = None
    groups: tuple[GroupSpec, ...] = ()
    #: canonical JSON of the job.
    spec: bytes = b"{}"
    #: as in RegisterJob.
    check_index: int = -1
    purge: bool = False
    warnings: tuple[str, ...] = ()


Command = RegisterJob | StopJob | EvaluateJob


class _NamedJob(msgspec.Struct, gc=False):
    job_id: str = msgspec.field(name="ID")
    name: str = msgspec.field(name="Name")


class _Names(msgspec.Struct, gc=False):
    """What bodies that are alike may differ in."""

    job: _NamedJob = msgspec.field(name="Job")
    submission_id: str = msgspec.field(name="SubmissionID", default="")


_NAMES = msgspec.json.Decoder(_Names)


class _Known(msgspec.Struct, frozen=True):
    """A valid submission, and its job's canonical JSON before, between and after ID and name."""

    submission: Submission
    spec: tuple[bytes, bytes, bytes]


class Memo:
    """Bodies that were read lately: one that differs in its names alone is not looked through again.

    A body is known by what is left of it where its job's ID and name and its submission id are cut out. Nothing that
    is checked or compiled reads them, but for the rule of ids. It is no match unless each of them stands there as it
    is, without an escape, and nothing else is spelled like it: then what is left says which name stood where, and
    whatever holds for one body (its form, no key twice, every value) holds for all of which the same is left. The body
    that was not met longest is forgotten first.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._remotes: Remotes = NO_REMOTES

    def __len__(self) -> int:
        return len(self._known)

    def get(self, rest: bytes, remotes: Remotes) -> _Known | None:
        """Return what is known of bodies of which this is left."""
        if remotes is not self._remotes and remotes != self._remotes:
            self._known.clear()
        self._remotes = remotes
        known = self._known.pop(rest, None)
        if known is not None:
            self._known[rest] = known
        return known

    def put(self, rest: bytes, names: _Names, submission: Submission) -> None:
        """Remember a valid submission."""
        spec = _without(submission.spec, (names.job.job_id, names.job.name)).split(_CUT)
        if len(spec) == 3:
            # Keys are sorted: the ID comes before the name.
            self._known[rest] = _Known(submission, (spec[0], spec[1], spec[2]))
            if len(self._known) > _MEMO_MAX:
                del self._known[next(iter(self._known))]


def read_submission(
    body: bytes, verb: str, remotes: Remotes = NO_REMOTES, memo: Memo | None = None
) -> Submission:
    """Read a body; `remotes` are the policy's remote drivers, `memo` spares work and changes nothing.

    Raises CommandInvalid (JobInvalid where there may be more than one fault).
    """
    if memo is None or verb not in JOB_VERBS or (names := _names_of(body)) is None:
        return _read_closely(body, verb, remotes)
    found = (names.job.job_id, names.job.name, names.submission_id)
    rest = _without(body, found if names.submission_id else found[:2])
    if not rest:
        return _read_closely(body, verb, remotes)
    known = memo.get(rest, remotes)
    if known is not None:
        return _like(known, names, verb)
    submission = _read_closely(body, verb, remotes)
    memo.put(rest, names, submission)
    return submission


def _read_closely(body: bytes, verb: str, remotes: Remotes) -> Submission:
    """Read a body of which nothing is known. Raises CommandInvalid."""
    if verb not in VERBS:
        raise CommandInvalid("invalid", f"unknown verb {verb!r}")
    value, text = read_object(body)
    submission_id = value.get("SubmissionID", "")
    if submission_id:
        _check_id(submission_id, "SubmissionID")
    elif submission_id != "":
        raise CommandInvalid("invalid", "must be text", "SubmissionID")
    try:
        if verb in JOB_VERBS:
            return _read_job(value, verb, submission_id, remotes)
        return _read_named(value, text, verb, submission_id)
    except CommandInvalid as fault:
        fault.submission_id = submission_id
        raise


def read_job(value: JsonObject) -> tuple[Job, bytes]:
    """Type and validate a decoded job. Returns it and its canonical JSON. Raises CommandInvalid."""
    spec = canonical(value)
    if len(spec) > JOB_BYTES_MAX:
        raise CommandInvalid(
            "too_large",
            f"the job has {len(spec)} bytes, at most {JOB_BYTES_MAX} are allowed",
            "Job",
        )
    try:
        job = JOB_DECODER.decode(spec)
    except msgspec.ValidationError:
        raise JobInvalid(_type_faults(value)) from None
    faults = faults_of(job)
    if faults:
        raise JobInvalid(faults)
    return job, spec


def command_of(
    submission: Submission, submission_id: str, *, jobs_seq: int = 0, jobs_prev: int = 0
) -> Command:
    """Make the command that asks the plan applier for it."""
    job = submission.job
    if job is None:
        named = JobId(submission.job_id)
        if submission.verb == "stop":
            return StopJob(
                submission_id=submission_id,
                digest=submission.digest,
                job_id=named,
                purge=submission.purge,
                jobs_seq=jobs_seq,
                jobs_prev=jobs_prev,
            )
        return EvaluateJob(
            submission_id=submission_id,
            digest=submission.digest,
            job_id=named,
            jobs_seq=jobs_seq,
            jobs_prev=jobs_prev,
        )
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
        check_index=submission.check_index,
        jobs_seq=jobs_seq,
        jobs_prev=jobs_prev,
    )


def _names_of(body: bytes) -> _Names | None:
    """Find the names in a body that may be like others; None: it is long, or its names are not as they should be."""
    if len(body) > _MEMO_BYTES_MAX or b"\\" in body:
        return None
    try:
        names = _NAMES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    submission_id = names.submission_id
    if id_fault(names.job.job_id) or (submission_id and id_fault(submission_id)):
        return None
    return names


def _without(text: bytes, names: tuple[str, ...]) -> bytes:
    """Cut out of JSON without escapes where these names stand; empty: something else there is spelled like one."""
    left, last = text, None
    for name in names:
        if name != last:
            left = left.replace(b'"%b"' % name.encode(), _CUT)
        last = name
    # A name that stands twice in a row was cut out twice at once.
    return left if left.count(_CUT) == len(names) else b""


def _like(known: _Known, names: _Names, verb: str) -> Submission:
    """Make the submission that is like a known one, under its own names."""
    first, job_id, name = known.submission, names.job.job_id, names.job.name
    head, middle, tail = known.spec
    spec = b'%b"%b"%b"%b"%b' % (head, job_id.encode(), middle, name.encode(), tail)
    assert first.job is not None
    return Submission(
        verb=verb,
        job_id=job_id,
        digest=_digest(_mark(first.check_index), spec),
        submission_id=names.submission_id,
        job=msgspec.structs.replace(first.job, id=job_id, name=name),
        groups=first.groups,
        spec=spec,
        check_index=first.check_index,
        warnings=first.warnings,
    )


def _read_job(value: JsonObject, verb: str, submission_id: str, remotes: Remotes) -> Submission:
    inner = value.get("Job")
    if type(inner) is not dict:
        raise CommandInvalid("invalid", "expected an object", "Job")
    job, spec = read_job(inner)
    warnings = warnings_of(job, inner)
    groups = compile_groups(job, inner, remotes)
    if not _QUIET.issuperset(value):
        stray = ", ".join(sorted(key[:60] for key in value if key not in _QUIET and value[key]))
        warnings += (f"not acted on: {stray[:500]}",) if stray else ()
    check_index = _check_index(value)
    return Submission(
        verb=verb,
        job_id=job.id,
        digest=_digest(_mark(check_index), spec),
        submission_id=submission_id,
        job=job,
        groups=groups,
        spec=spec,
        check_index=check_index,
        warnings=warnings,
    )


def _mark(check_index: int) -> bytes:
    """What the digest of a job begins with."""
    return b"submit" if check_index < 0 else b"submit %d" % check_index


def _read_named(value: JsonObject, text: bytes, verb: str, submission_id: str) -> Submission:
    job_id = value.get("JobID")
    _check_id(job_id, "JobID")
    purge = value.get("Purge", False)
    if type(purge) is not bool:
        raise CommandInvalid("invalid", "must be true or false", "Purge")
    if submission_id:
        text = canonical({key: item for key, item in value.items() if key != "SubmissionID"})
    return Submission(
        verb=verb,
        job_id=str(job_id),
        digest=_digest(verb.encode(), text),
        submission_id=submission_id,
        purge=purge,
    )


def _check_id(text: object, path: str) -> None:
    if not isinstance(text, str):
        raise CommandInvalid("invalid", "must be text", path)
    if fault := id_fault(text):
        raise CommandInvalid("invalid", fault, path)


def _check_index(value: JsonObject) -> int:
    enforce = value.get("EnforceIndex", False)
    if type(enforce) is not bool:
        raise CommandInvalid("invalid", "must be true or false", "EnforceIndex")
    index = value.get("JobModifyIndex", 0)
    if type(index) is not int or index < 0:
        raise CommandInvalid("invalid", "must be a whole number from 0", "JobModifyIndex")
    return index if enforce else -1


def _digest(mark: bytes, text: bytes) -> str:
    return blake2b(mark + b"\0" + text, digest_size=16).hexdigest()


def _type_faults(value: JsonObject) -> tuple[ErrorDetail, ...]:
    """Find every fault of a job that holds values of a wrong type.

    The decoder names one; its member is taken out and the rest decoded again. What then remains is validated; a fault
    at or above a member taken out says nothing new.
    """
    found: list[ErrorDetail] = []
    rest: JsonObject = orjson.loads(canonical(value))
    while len(found) < FAULTS_MAX:
        try:
            job = JOB_DECODER.decode(canonical(rest))
        except msgspec.ValidationError as err:
            match = _AT.match(str(err))
            message, path = match.groups() if match else (str(err), "")
            path = (path or "$").removeprefix("$")
            found.append(ErrorDetail(code="invalid", message=message, path=f"Job{path}"))
            if not _take_out(rest, path):
                break
        else:
            gone = {one.path.partition("[...]")[0].removesuffix("]") for one in found}
            found += [one for one in faults_of(job) if not _covered(one.path, gone)]
            break
    return tuple(found[:FAULTS_MAX])


def _covered(path: str, gone: set[str]) -> bool:
    return any(one.startswith(path) or path.startswith(one) for one in gone)


def _take_out(value: JsonObject, path: str) -> bool:
    """Remove the innermost object member on a path like `.TaskGroups[0].Count`."""
    steps = _STEP.findall(path.partition("[...]")[0])
    while steps and not steps[-1][0]:
        steps.pop()
    if not steps:
        return False
    at: Any = value
    for name, number in steps[:-1]:
        at = at[name or int(number)]
    del at[steps[-1][0]]
    return True
