"""Next versions out of kept ones: revert, scale, start.

Decides which text and groups the next version has, or why there is none; how it is registered is that of any submission
(`submissions.py`). Reads of a job's text only counts and the bounds of the scaling block.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.base import JobId
from schemas.job_versions import RevertJob, ScaleJob, StartJob
from schemas.jobs import SYSTEM_JOB_TYPES, RegisterJob
from shared.core.decide.job_fields import command_of
from shared.core.decide.submission_fault import SPEC_BYTES_MAX, SubmissionFault
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job, JobVersion

#: Allocations of all groups of a job together, as at its submission.
COUNT_MAX = 1_000_000
VersionCommand = RevertJob | ScaleJob | StartJob


class _Scaling(msgspec.Struct, frozen=True):
    min: int | None = msgspec.field(name="Min", default=None)
    max: int | None = msgspec.field(name="Max", default=None)


class _Group(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="Name", default="")
    count: int = msgspec.field(name="Count", default=1)
    scaling: _Scaling | None = msgspec.field(name="Scaling", default=None)


class _Stop(msgspec.Struct, frozen=True):
    stop: bool = msgspec.field(name="Stop", default=False)


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BLOCKS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_GROUP = msgspec.json.Decoder(_Group)
_STOP = msgspec.json.Decoder(_Stop)


def next_version(state: State, command: VersionCommand, job: Job | None) -> RegisterJob:
    """Return what to register. Raises SubmissionFault."""
    if job is None:
        raise SubmissionFault("not_found", f"there is no job {command.job_id!r}")
    if job.parent:
        raise SubmissionFault(
            "invalid", f"job {job.id!r} is a child of {job.parent!r}: it has one version"
        )
    if command.check_index not in {-1, job.modify_seq}:
        text = f"job {job.id!r} is at modify index {job.modify_seq}, not {command.check_index}"
        raise SubmissionFault("conflict", text)
    match command:
        case RevertJob():
            return _reverted(state, command, job)
        case ScaleJob():
            return _scaled(state, command, job)
        case StartJob():
            return _started(state, command, job)


def _reverted(state: State, command: RevertJob, job: Job) -> RegisterJob:
    if command.check_version not in {-1, job.version}:
        text = f"job {job.id!r} is at version {job.version}, not {command.check_version}"
        raise SubmissionFault("conflict", text)
    target = _target(state, command, job)
    if target.version == job.version:
        text = f"can't revert to the current version {job.version} of job {job.id!r}"
        raise SubmissionFault("invalid", text)
    if target.job is None:
        text = (
            f"version {target.version} of job {job.id!r} was kept by an older release, as text only"
        )
        raise SubmissionFault("invalid", f"{text}: submit what job inspect prints")
    return _registration(command, target.job, target.spec)


def _target(state: State, command: RevertJob, job: Job) -> JobVersion:
    """Find the version to go back to."""
    if command.version >= 0:
        found = state.jobs.version(job.id, command.version)
        if found is None:
            text = f"job {job.id!r} has no stored version {command.version}"
            raise SubmissionFault("not_found", text)
        return found
    for kept in state.jobs.versions.get(job.id, ()):
        if kept.tag and kept.tag == command.version_tag:
            return kept
    text = f"job {job.id!r} has no version with the tag {command.version_tag!r}"
    raise SubmissionFault("not_found", text)


def _scaled(state: State, command: ScaleJob, job: Job) -> RegisterJob:
    if job.stopped:
        raise SubmissionFault("invalid", f"job {job.id!r} is stopped: start it first")
    names = [group.name for group in job.groups]
    if not command.group and len(names) != 1:
        text = f"job {job.id!r} has several groups: name one of {', '.join(names)}"
        raise SubmissionFault("invalid", text[:600])
    name = command.group or names[0]
    if name not in names:
        raise SubmissionFault("not_found", f"job {job.id!r} has no group {name!r}")
    if state.deployments.active_of(job.id) is not None:
        raise SubmissionFault("conflict", "job scaling blocked due to active deployment")
    groups = tuple(
        [replace(one, count=command.count) if one.name == name else one for one in job.groups]
    )
    kept = state.jobs.spec(job.id, job.version) or b"{}"
    return _registration(
        command, replace(job, groups=groups), _scaled_text(job, kept, name, command.count)
    )


def _scaled_text(job: Job, text: bytes, name: str, count: int) -> bytes:
    """Put a count into a job's text. Raises SubmissionFault where its scaling block forbids it."""
    fields = _FIELDS.decode(text)
    blocks: list[dict[str, Any]] = _BLOCKS.decode(fields.get("TaskGroups", b"[]"))
    for nth, block in enumerate(blocks):
        before = _GROUP.decode(msgspec.json.encode(block))
        if before.name != name:
            continue
        own: dict[str, Any] = {"Count": count}
        scaling = before.scaling
        _check_count(job, name, count, scaling or _Scaling())
        if scaling is not None and scaling.min is None:
            # It was the count of the text that was submitted: it must not follow the count.
            bounds = _FIELDS.decode(block["Scaling"])
            own["Scaling"] = _in_order({**bounds, "Min": before.count})
            _check_count(job, name, count, _Scaling(before.count, scaling.max))
        blocks[nth] = _in_order({**block, **own})
    return _encoded({**fields, "TaskGroups": blocks})


def _check_count(job: Job, name: str, count: int, scaling: _Scaling) -> None:
    """Raise SubmissionFault for a count outside of the group's bounds, or of the job's."""
    least, most = scaling.min, scaling.max
    if job.job_type in SYSTEM_JOB_TYPES and count > 1:
        raise SubmissionFault("invalid", f"a job of type {job.job_type} has a count of 0 or 1")
    if least is not None and count < least:
        text = f"group {name!r} count was less than scaling minimum: {count} < {least}"
        raise SubmissionFault("invalid", text)
    if most is not None and count > most:
        text = f"group {name!r} count was greater than scaling maximum: {count} > {most}"
        raise SubmissionFault("invalid", text)
    total = count + sum(group.count for group in job.groups if group.name != name)
    if count < 0 or total > COUNT_MAX:
        text = f"count {count} makes {total} allocations, it may be 0 to {COUNT_MAX} in all"
        raise SubmissionFault("invalid", text)


def _started(state: State, command: StartJob, job: Job) -> RegisterJob:
    if not job.stopped:
        raise SubmissionFault("invalid", f"job {job.id!r} has not been stopped")
    text = state.jobs.spec(job.id, job.version) or b"{}"
    fields = _FIELDS.decode(text)
    if fields.pop("Stop", None) is not None:
        text = _encoded(fields)
    return _registration(command, job, text)


def _in_order(fields: dict[str, Any]) -> dict[str, Any]:
    """Sort keys, as a canonical text has them."""
    return dict(sorted(fields.items()))


def _encoded(fields: dict[str, Any]) -> bytes:
    text = msgspec.json.encode(_in_order(fields))
    if len(text) > SPEC_BYTES_MAX:
        fault = f"the job has {len(text)} bytes, at most {SPEC_BYTES_MAX} are allowed"
        raise SubmissionFault("too_large", fault)
    return text


def _registration(command: VersionCommand, job: Job, spec: bytes) -> RegisterJob:
    """Make the registration of groups and a text; it runs unless the text itself says that it does not."""
    return command_of(
        # What is submitted has no parent.
        replace(job, stopped=_STOP.decode(spec).stop, parent=JobId("")),
        job.id,
        spec,
        submission_id=command.submission_id,
        digest=command.digest,
    )
