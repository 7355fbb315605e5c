"""Intake's `parse`: a job file becomes JSON, nothing is registered."""

import json

import msgspec
import pytest

from schemas.jobs import ParsedJob
from shared.core.runtime.messages import Ack, Reply
from tests.unit.intake.test_intake import Story

TEXT = b'job "hello" {\n  group "g" {\n    task "t" { driver = "raw_exec" }\n  }\n}\n'


def asked(body: bytes) -> ParsedJob:
    """Ask a new intake to parse; return the answer, which is all that it did."""
    story = Story()
    (effect,) = story.run(story.ask(body, "parse"))
    assert isinstance(effect, Reply)
    return msgspec.json.decode(effect.data, type=ParsedJob)


def test_parse_answers_with_the_job() -> None:
    """HCL in, Nomad's JSON out; what comes out can be submitted."""
    found = asked(TEXT)
    assert found.status == "accepted"
    job = json.loads(bytes(found.job))
    assert job["TaskGroups"][0]["Tasks"] == [{"Name": "t", "Driver": "raw_exec"}]
    story = Story()
    assert story.run(story.ask(json.dumps({"Job": job, "SubmissionID": "s"}).encode()))


@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        (b'job "a" {\n  group "g" {', 2, "not closed"),
        (b'job "a" {\n\n  x = uper("a")\n}', 3, "unknown function uper(); did you mean upper?"),
        (b'job "a" {\n  x = file("/etc/passwd")\n}', 2, "files are not available here"),
        (b'locals {\n  a = local.b\n  b = local.a\n}\njob "a" {}', 2, "in a cycle"),
        (b"\xff", 0, "not UTF-8"),
        (b'{"JobHCL": 1}', 0, "malformed JSON"),
        (b'job "a" { x = [for a in range(999) : range(999)] }', 1, "exceeds the step limit"),
    ],
)
def test_parse_refuses_in_words(body: bytes, line: int, told: str) -> None:
    """What is no job file is refused with the line and the reason."""
    found = asked(body)
    assert (found.status, bytes(found.job)) == ("refused", b"null")
    assert found.error is not None and found.error == found.errors[0]
    assert found.error.line == line
    assert told in found.error.message


def test_parse_asks_for_nothing() -> None:
    """A request without a waiting client is dropped; no command is sent for it."""
    story = Story()
    (effect,) = story.run(story.ask(TEXT, "parse", reply=False))
    assert isinstance(effect, Ack)
    assert story.role.metrics()["caravan_intake_parsed_total"] == 1
    assert story.role.metrics()["caravan_intake_pending_submissions"] == 0
