"""The header `traceparent` of a submission reaches the command, and from there the fact, or is ignored."""

import pytest

from schemas.envelope import COMMANDS_DECODER
from schemas.jobs import JobRegistered, RegisterJob
from shared.bus.shell.sources import read_message
from shared.core.decide.jobs.submissions import decide_submission
from shared.core.runtime.messages import Send
from shared.protocol import subjects
from tests.unit.intake.test_intake import Story, a_body

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def commanded(header: bytes) -> RegisterJob:
    """The command that a submission with this header block becomes."""
    story = Story()
    subject = subjects.api_jobs("submit").encode()
    block = b"NATS/1.0\r\n" + header + b"\r\n\r\n"
    message = read_message("api", subject, block, a_body("web", "s-1"), token=1, reply=True)
    sent = [one for one in story.run(message) if isinstance(one, Send)]
    (command,) = COMMANDS_DECODER.decode(sent[0].data).commands
    assert isinstance(command, RegisterJob)
    return command


@pytest.mark.parametrize("name", [b"traceparent", b"Traceparent"])
def test_the_span_of_a_submission_is_in_the_fact(name: bytes) -> None:
    """As it was written; the job itself and its digest are the same as without it."""
    command, plain = commanded(name + b": " + PARENT.encode()), commanded(b"X: y")
    assert (command.traceparent, plain.traceparent) == (PARENT, "")
    assert command.digest == plain.digest
    events = decide_submission(Story().role.replica.state, command)
    assert [one.traceparent for one in events if isinstance(one, JobRegistered)] == [PARENT]


@pytest.mark.parametrize(
    "text", [b"nonsense", b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", b"\xff"]
)
def test_what_names_no_span_is_ignored(text: bytes) -> None:
    """A wrong header refuses nothing, as the specification of Trace Context says."""
    assert commanded(b"traceparent: " + text).traceparent == ""
