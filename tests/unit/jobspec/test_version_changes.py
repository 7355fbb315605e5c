"""Bodies of revert, scale and start: read strictly, into commands of their own."""

import json
from typing import Any

import pytest

from schemas.base import JobId
from schemas.job_versions import RevertJob, ScaleJob, StartJob
from shared.errors import CommandInvalid
from shared.jobspec.submission import JobCommand, read_submission, to_command


def command(verb: str, **body: Any) -> JobCommand:
    """The command of a body about the job `app`."""
    text = json.dumps({"JobID": "app", **body}).encode()
    submission = read_submission(text, verb)
    assert submission.job is None
    return to_command(submission, "s1", jobs_seq=4, jobs_prev=3)


PLACE = {"submission_id": "s1", "job_id": JobId("app"), "jobs_seq": 4, "jobs_prev": 3}


@pytest.mark.parametrize(
    ("verb", "body", "expected"),
    [
        ("revert", {"JobVersion": 0}, RevertJob(digest="", version=0, **PLACE)),
        ("revert", {"VersionTag": "good"}, RevertJob(digest="", version_tag="good", **PLACE)),
        (
            "revert",
            {"JobVersion": 2, "EnforcePriorVersion": 5, "Namespace": "default"},
            RevertJob(digest="", version=2, check_version=5, **PLACE),
        ),
        (
            "revert",
            {"JobVersion": 2, "EnforceIndex": True, "JobModifyIndex": 7},
            RevertJob(digest="", version=2, check_index=7, **PLACE),
        ),
        ("scale", {"Count": 0}, ScaleJob(digest="", count=0, **PLACE)),
        ("scale", {"Count": 3, "Group": "web"}, ScaleJob(digest="", count=3, group="web", **PLACE)),
        ("start", {}, StartJob(digest="", **PLACE)),
        ("start", {"JobModifyIndex": 7}, StartJob(digest="", **PLACE)),
    ],
)
def test_a_body_becomes_its_command(verb: str, body: dict[str, Any], expected: Any) -> None:
    """Every parameter has its place; the digest is of the body."""
    found: Any = command(verb, **body)
    assert len(found.digest) == 32
    assert type(found) is type(expected)
    assert {**_fields(found), "digest": ""} == _fields(expected)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


@pytest.mark.parametrize(
    ("verb", "body", "path"),
    [
        ("revert", {}, "JobVersion"),
        ("revert", {"JobVersion": 1, "VersionTag": "good"}, "JobVersion"),
        ("revert", {"JobVersion": -1}, "JobVersion"),
        ("revert", {"JobVersion": 1.5}, "JobVersion"),
        ("revert", {"JobVersion": 2**31}, "JobVersion"),
        ("revert", {"VersionTag": 7}, "VersionTag"),
        ("revert", {"VersionTag": "x" * 129}, "VersionTag"),
        ("revert", {"JobVersion": 1, "EnforcePriorVersion": "5"}, "EnforcePriorVersion"),
        ("revert", {"JobVersion": 1, "EnforceIndex": 1}, "EnforceIndex"),
        ("revert", {"JobVersion": 1, "Count": 1}, "Count"),
        ("scale", {}, "Count"),
        ("scale", {"Count": True}, "Count"),
        ("scale", {"Count": -1}, "Count"),
        ("scale", {"Count": 1, "Group": 1}, "Group"),
        ("start", {"Count": 1}, "Count"),
        ("start", {"JobID": ""}, "JobID"),
    ],
)
def test_x1_a_body_that_is_refused(verb: str, body: dict[str, Any], path: str) -> None:
    """The path names the parameter. X1: a scaling without a count changes nothing, so it is refused."""
    with pytest.raises(CommandInvalid) as fault:
        command(verb, **body)
    assert (fault.value.code, fault.value.path) == ("invalid", path)


def test_the_digest_tells_contents_apart() -> None:
    """The same id with another body or verb is a conflict, which the digest shows."""
    found = [
        command("revert", JobVersion=1),
        command("revert", JobVersion=2),
        command("scale", Count=1),
        command("scale", Count=2),
        command("start"),
    ]
    assert len({one.digest for one in found}) == len(found)
    assert command("start", SubmissionID="x").digest == command("start").digest
