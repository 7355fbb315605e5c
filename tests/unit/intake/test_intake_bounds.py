"""What intake holds is bounded, and what it cannot read holds nothing up."""

import json
import random
from base64 import b85encode

import msgspec

from schemas.jobs import IntakeAdvanced
from shared.core.runtime.messages import Reply, Send
from tests.unit.intake.test_intake import (
    SECOND,
    Story,
    a_body,
    accepted,
    commands,
    registers,
    replies,
)


def test_submissions_are_weighed() -> None:
    """What waits for the log is bounded in bytes: more is turned away until the log shows some of it."""
    story = Story(pending_bytes_max=4_000)
    large = [a_body(f"job-{n}", f"s-{n}", Meta={"text": "x" * 3_000}) for n in range(3)]
    effects = story.run(*(story.ask(body) for body in large))
    (verdict,) = replies(effects).values()
    assert verdict.error is not None and verdict.error.code == "unavailable"
    assert story.role.metrics()["caravan_intake_pending_bytes"] >= 4_000
    for command in registers(effects):
        story.run(story.log.tx(*accepted(command)))
    assert story.role.metrics()["caravan_intake_pending_bytes"] == 0


def test_the_drop_box_is_weighed() -> None:
    """What came in the drop box counts with its bytes, too, until the log shows it: the asked door turns more away."""
    story = Story(pending_bytes_max=4_000)
    story.lead()
    large = [a_body(f"box-{n}", f"s-box-{n}", Meta={"text": "x" * 3_000}) for n in range(2)]
    effects = story.run(*(story.drop(n, body) for n, body in enumerate(large, 1)))
    assert story.role.metrics()["caravan_intake_pending_bytes"] >= 6_000
    asked = story.run(story.ask(a_body("asked", "s-asked")))
    (verdict,) = replies(asked).values()
    assert verdict.error is not None and verdict.error.code == "unavailable"
    for number, command in enumerate(registers(effects), 1):
        story.run(story.log.tx(*accepted(command), IntakeAdvanced(jobs_seq=number)))
    assert story.role.metrics()["caravan_intake_pending_bytes"] == 0
    assert registers(story.run(story.ask(a_body("later", "s-later"))))


def test_what_cannot_be_read_holds_nothing_up() -> None:
    """A message of the drop box with a garbled header block is skipped; a deep file is an answer, not an end."""
    story = Story()
    story.lead()
    garbled = msgspec.structs.replace(story.drop(1, b"{}"), fault="the header block does not begin")
    effects = story.run(garbled, story.drop(2, a_body("good", "s-good")))
    assert [type(one).__name__ for one in commands(effects)] == ["SkipSubmission", "RegisterJob"]
    (letter,) = [one for one in effects if isinstance(one, Send) and one.subject.startswith("dead")]
    assert b"the header block" in letter.data
    deep = b'{"X":' + b'{"a":' * 2_000 + b"1" + b"}" * 2_001
    (reply,) = [one for one in story.run(story.ask(deep, "parse")) if isinstance(one, Reply)]
    answer = msgspec.json.decode(reply.data)
    assert (answer["status"], answer["error"]["code"]) == ("refused", "invalid")


def test_a_kill_timeout_is_bounded_by_the_operator() -> None:
    """What exceeds the operator's bound is refused with its path, in both doors alike; the bound itself is taken."""
    story = Story(max_kill_timeout_ns=60 * 10**9)
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "true"}}
    bodies = [
        a_body(
            f"j{seconds}",
            TaskGroups=[{"Name": "g", "Tasks": [task | {"KillTimeout": seconds * 10**9}]}],
        )
        for seconds in (60, 61)
    ]
    taken, refused = (story.ask(body) for body in bodies)
    effects = story.run(taken, refused)
    assert len(registers(effects)) == 1
    error = replies(effects)[refused.token].error
    assert error is not None
    assert error.path == "Job.TaskGroups[0].Tasks[0].KillTimeout"
    assert "at most 60 s" in error.message


def test_a_takeover_is_sent_everything_at_once() -> None:
    """The former applier may hold commands that it will never decide: the next one must not wait for a resend."""
    story = Story()
    story.lead()
    story.run(story.ask(a_body(submission_id="s-1")), story.drop(1, a_body("other")))
    for _ in range(8):
        story.fire()
    again = registers(story.run(story.log.takeover(), after=SECOND // 100))
    assert {one.job_id for one in again} == {"hello", "other"}


def test_a_file_too_long_for_a_command_is_left_out() -> None:
    """The job is registered without its file, with a warning; a file that is short when compressed stays."""
    story = Story()
    noise = b85encode(random.Random(1).randbytes(600_000)).decode()
    source = {"Source": noise}
    body = json.dumps({**json.loads(a_body("long")), "Submission": source}).encode()
    (command,) = registers(story.run(story.ask(body)))
    assert command.source == b""
    assert any(one.startswith("job source too large: ") for one in command.warnings)
    body = json.dumps({**json.loads(a_body("short")), "Submission": {"Source": "x" * 900_000}})
    (command,) = registers(story.run(story.ask(body.encode())))
    assert command.source
    assert not any(one.startswith("job source") for one in command.warnings)
