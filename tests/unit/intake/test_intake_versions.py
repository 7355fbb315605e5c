"""Revert, scale and start at the intake: by both doors, answered with the new version."""

import json

import msgspec
import pytest

from schemas.base import Command
from schemas.job_versions import RevertJob, ScaleJob, StartJob
from schemas.jobs import JobRegistered, Verdict
from shared.core.runtime.messages import Reply
from tests.unit.intake.test_intake import Story, commands


@pytest.mark.parametrize(
    ("verb", "fields", "kind"),
    [
        ("revert", {"JobVersion": 0}, RevertJob),
        ("scale", {"Count": 3}, ScaleJob),
        ("start", {}, StartJob),
    ],
)
def test_a_change_of_versions_comes_by_both_doors(
    verb: str, fields: dict[str, int], kind: type[Command]
) -> None:
    """The request waits for the record with the new version; in the drop box it has its place."""
    story = Story()
    story.lead()
    body = json.dumps({"JobID": "app", "SubmissionID": "v1", **fields}).encode()
    (command,) = commands(story.run(story.ask(body, verb)))
    assert isinstance(command, kind)
    digest: str = command.digest  # type: ignore[attr-defined]
    event = JobRegistered(submission_id="v1", digest=digest, job_id="app", version=4)
    (reply,) = [one for one in story.run(story.log.tx(event)) if isinstance(one, Reply)]
    verdict = msgspec.json.decode(reply.data, type=Verdict)
    assert (verdict.status, verdict.job_id, verdict.version) == ("accepted", "app", 4)
    (again,) = [one for one in story.run(story.ask(body, verb)) if isinstance(one, Reply)]
    assert msgspec.json.decode(again.data, type=Verdict).version == 4
    other = json.dumps({"JobID": "app", "SubmissionID": "v2", **fields}).encode()
    (dropped,) = commands(story.run(story.drop(1, other, verb)))
    assert isinstance(dropped, kind)
