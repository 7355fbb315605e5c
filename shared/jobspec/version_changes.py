"""Revert, scale and start, read strictly from the bodies of their verbs."""

from schemas.base import JobId
from schemas.job_versions import RevertJob, ScaleJob, StartJob
from shared.errors import CommandInvalid
from shared.jobspec.strict_json import JsonObject

VersionChange = RevertJob | ScaleJob | StartJob
VERSION_VERBS = frozenset(("revert", "scale", "start"))
VERSION_MAX = COUNT_MAX = 2**31 - 1
#: Of the name of a version.
TAG_CHARS_MAX = 128
_INDEX_MAX = 2**53
_EVERYWHERE = frozenset(
    {"JobID", "SubmissionID", "EnforceIndex", "JobModifyIndex"}
    # Of Nomad's request, without a meaning here.
    | {"Region", "Namespace", "AuthToken", "SecretID"}
)
_KEYS = {
    "revert": _EVERYWHERE | {"JobVersion", "VersionTag", "EnforcePriorVersion"},
    "scale": _EVERYWHERE | {"Group", "Count"},
    "start": _EVERYWHERE,
}


def read_version_change(value: JsonObject, verb: str, digest: str) -> VersionChange:
    """Read a body into its command, whose submission id is not set yet. Raises CommandInvalid."""
    if unknown := sorted(value.keys() - _KEYS[verb]):
        raise CommandInvalid("invalid", "unknown parameter", unknown[0][:60])
    job_id = JobId(str(value["JobID"]))
    enforced = value.get("EnforceIndex", False)
    if type(enforced) is not bool:
        raise CommandInvalid("invalid", "must be true or false", "EnforceIndex")
    index = _number(value, "JobModifyIndex", 0, _INDEX_MAX)
    check_index = index if enforced else -1
    if verb == "start":
        return StartJob(submission_id="", digest=digest, job_id=job_id, check_index=check_index)
    if verb == "scale":
        if "Count" not in value:
            raise CommandInvalid("invalid", "is required", "Count")
        return ScaleJob(
            submission_id="",
            digest=digest,
            job_id=job_id,
            group=_text(value, "Group"),
            count=_number(value, "Count", 0, COUNT_MAX),
            check_index=check_index,
        )
    tag = _text(value, "VersionTag")
    if ("JobVersion" in value) == bool(tag):
        raise CommandInvalid("invalid", "expected either JobVersion or VersionTag", "JobVersion")
    return RevertJob(
        submission_id="",
        digest=digest,
        job_id=job_id,
        version=-1 if tag else _number(value, "JobVersion", 0, VERSION_MAX),
        version_tag=tag,
        check_version=_number(value, "EnforcePriorVersion", -1, VERSION_MAX),
        check_index=check_index,
    )


def _number(value: JsonObject, key: str, default: int, most: int) -> int:
    """Read a number from 0, or the default. Raises CommandInvalid."""
    found = value.get(key, default)
    if type(found) is not int or not min(0, default) <= found <= most:
        raise CommandInvalid("invalid", f"must be a whole number from 0 to {most}", key)
    return found


def _text(value: JsonObject, key: str) -> str:
    found = value.get(key, "")
    if not isinstance(found, str):
        raise CommandInvalid("invalid", "must be a string", key)
    if len(found) > TAG_CHARS_MAX:
        raise CommandInvalid("invalid", f"may have at most {TAG_CHARS_MAX} characters", key)
    return found
