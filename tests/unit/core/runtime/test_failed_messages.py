"""One rule for all roles: whatever is raised while one message is handled, only that message is refused."""

import json
from typing import Any

import pytest

from shared.core.runtime.messages import Ack, Message, Reply, Send
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.step import Step
from shared.errors import LogDamaged
from shared.protocol import subjects


class Fragile(ReplicatedRole):
    """Raises what a message names."""

    name = "fragile"

    def on_message(self, message: Message, step: Step) -> None:
        step.emit(Send("half.done", b""))
        found: dict[str, BaseException] = {
            "deep": RecursionError("maximum recursion depth exceeded"),
            "large": OverflowError("int too big"),
            "none": AssertionError(),
            "damage": LogDamaged(7, "a gap"),
        }
        if (err := found.get(message.data.decode())) is not None:
            raise err
        step.emit(Ack(message.token))


def asked(data: bytes, **more: Any) -> Message:
    return Message("api", "api.jobs.parse", data, 5, **more)


@pytest.mark.parametrize("kind", [b"deep", b"large", b"none"])
def test_a_request_that_fails_is_refused_alone(kind: bytes) -> None:
    """It is answered and buried with the place of the failure; what it had emitted is taken back; others are served."""
    role = Fragile("f1")
    effects = role.step([asked(b"ok"), asked(kind, reply=True), asked(b"ok")], 1)
    names = [type(one).__name__ for one in effects]
    assert names == ["Send", "Ack", "Send", "Reply", "Send", "Ack"]
    letter, reply = effects[2], effects[3]
    assert isinstance(letter, Send) and letter.subject == subjects.dead("api.jobs.parse")
    assert b"test_failed_messages.py:" in letter.data
    assert isinstance(reply, Reply) and json.loads(reply.data)["error"]["code"] == "invalid"
    assert role.failed_messages == 1


def test_what_cannot_be_read_never_reaches_the_role() -> None:
    """A message with a fault is refused with it; without a reply subject it is only buried."""
    role = Fragile("f1")
    effects = role.step([asked(b"ok", fault="the header block does not begin")], 1)
    assert [type(one).__name__ for one in effects] == ["Send", "Ack"]
    assert b"the header block" in effects[0].data  # type: ignore[union-attr]
    # A dead letter about a dead letter would come back forever.
    dead = Message("dead", "dead.x", b"deep", 6)
    assert [type(one).__name__ for one in role.step([dead], 1)] == ["Ack"]


def test_damage_of_the_log_stops_the_role() -> None:
    """What is damage stays damage, wherever it is noticed."""
    effects = Fragile("f1").step([asked(b"damage")], 1)
    assert type(effects[-1]).__name__ == "Stop"
