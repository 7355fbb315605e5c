"""Every command may come to the applier on the subject of its kind, and on no other."""

import contextlib
from typing import get_args

import pytest

from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from schemas.nodes import ReportNode
from schemas.remotes import ReportRemoteEnded
from services.plan_applier.command_queue import ALLOWED, CommandQueue
from shared.core.runtime.messages import Message
from shared.errors import CommandInvalid
from shared.protocol import subjects
from tests.golden.filled import fill

COMMANDS = get_args(AnyCommand)


def message(kind: str, command: AnyCommand) -> Message:
    """The command as its sender puts it on the subject of a kind."""
    is_own = isinstance(command, ReportNode | ReportRemoteEnded)
    node = command.node_id if is_own else "n1"
    subject = subjects.report(node) if kind == "report" else subjects.command(kind)
    return Message(kind, subject, ENCODER.encode(CommandBatch(sender="s", commands=(command,))), 1)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: str(one.__name__))
def test_a_command_is_queued_from_one_subject(command: type) -> None:
    """A command that no kind allows would be refused forever; one that two allow has two senders."""
    taken = []
    for kind in ALLOWED:
        queue = CommandQueue()
        with contextlib.suppress(CommandInvalid):
            queue.put(message(kind, fill(command)))
        taken += [kind] * len(queue)
    assert len(taken) == 1, taken
