"""Dispatches at the intake: read like submissions, answered with the child."""

import json

import msgspec

from schemas.jobs import JobRegistered, Verdict
from schemas.launches import DispatchJob
from shared.core.runtime.messages import Reply
from tests.unit.intake.test_intake import Story, commands


def test_a_dispatch_comes_by_both_doors_and_its_verdict_names_the_child() -> None:
    """The request waits for the record that registers the child; in the drop box it has its place."""
    story = Story()
    story.lead()
    body = json.dumps({"JobID": "render", "Payload": "AAE=", "SubmissionID": "d1"}).encode()
    (command,) = commands(story.run(story.ask(body, "dispatch")))
    assert isinstance(command, DispatchJob) and command.payload == b"\x00\x01"
    child = JobRegistered(
        submission_id="d1", digest=command.digest, job_id="render/dispatch-9-0", version=0
    )
    (reply,) = [one for one in story.run(story.log.tx(child)) if isinstance(one, Reply)]
    verdict = msgspec.json.decode(reply.data, type=Verdict)
    assert (verdict.status, verdict.job_id) == ("accepted", "render/dispatch-9-0")
    other = json.dumps({"JobID": "render", "SubmissionID": "d2"}).encode()
    (dropped,) = commands(story.run(story.drop(1, other, "dispatch")))
    assert isinstance(dropped, DispatchJob) and dropped.jobs_seq == 1
    bad = json.dumps({"JobID": "render", "Payload": "%"}).encode()
    (reply,) = [one for one in story.run(story.ask(bad, "dispatch")) if isinstance(one, Reply)]
    refused = msgspec.json.decode(reply.data, type=Verdict)
    assert refused.error is not None and refused.error.path == "Payload"
