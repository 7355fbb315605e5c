"""Commands waiting for the applier, by kind, each kind with its quota.

Decides which commands a message may hold (by the kind and the node of its subject), and the order of service. Must
not know what a command does. Next: `role.py`.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import get_args

import msgspec

from schemas.deployments import DeploymentDue
from schemas.envelope import COMMANDS_DECODER, AnyCommand
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.gates import GateDue
from schemas.identities import CreateSigningKey, RemoveSigningKey
from schemas.jobs import SkipSubmission
from schemas.launches import LaunchDue
from schemas.nodes import ChangeLiveness, ReportNode
from schemas.plans import SubmitPlan
from schemas.policy import BeginIncarnation, RollLog
from schemas.remotes import ReportRemoteEnded
from schemas.variables import (
    CreateKey,
    DeleteVariable,
    ExpireLock,
    LockVariable,
    PutVariable,
    ReleaseLock,
    ShredVariables,
)
from shared.core.decide.jobs.submissions import SubmissionCommand
from shared.core.runtime.messages import Message
from shared.errors import CommandInvalid
from shared.protocol.id_tokens import id_token
from shared.protocol.operator_verbs import COMMANDS
from shared.protocol.subjects import COMMAND_KINDS, last_token

#: Command types allowed on each subject: a report must not contain a plan.
ALLOWED: dict[str, tuple[type, ...]] = {
    "plan": (SubmitPlan,),
    "evaluation": (WakeEvaluations, EndEvaluations),
    "job": (*get_args(SubmissionCommand), SkipSubmission),
    "operator": COMMANDS,
    "variable": (
        *(PutVariable, DeleteVariable, ShredVariables, CreateKey),
        *(LockVariable, ReleaseLock, ExpireLock),
        *(CreateSigningKey, RemoveSigningKey),
    ),
    "liveness": (ChangeLiveness, BeginIncarnation),
    "report": (ReportNode, ReportRemoteEnded),
    "timer": (DeploymentDue, LaunchDue, GateDue),
}
_OF_NODES = frozenset({ReportNode, ReportRemoteEnded})
#: Commands of a kind that one round takes before it looks at the next kind, so that no kind starves another.
QUOTA = {
    "plan": 128,
    "evaluation": 64,
    "job": 128,
    "operator": 16,
    "variable": 16,
    "liveness": 16,
    "report": 64,
    "timer": 64,
}


#: In messages up to this size the size of a command is estimated by the mean.
AVERAGED_BYTES_MAX = 32 * 1024


class QueuedCommand(msgspec.Struct, frozen=True, gc=False):
    """One command that waits; `token` is its message's, set on the last command of a message."""

    command: AnyCommand
    #: bytes of the command, for the size of the transaction.
    size: int
    token: int | None


class CommandQueue:
    """Queues by kind."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[QueuedCommand]] = {kind: deque() for kind in COMMAND_KINDS}
        #: total number of waiting commands: read several times a step.
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def depth(self, kind: str) -> int:
        """Commands of one kind that wait."""
        return len(self._queues[kind])

    def put(self, message: Message) -> None:
        """Queue the commands of a message. Raises CommandInvalid; then no command of it is queued."""
        try:
            batch = COMMANDS_DECODER.decode(message.data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as err:
            raise CommandInvalid("invalid", f"does not decode: {err}") from err
        commands = batch.commands
        if not commands:
            raise CommandInvalid("invalid", "a batch without commands")
        kinds = set(map(type, commands))
        if kinds & _OF_NODES or not kinds.issubset(ALLOWED[message.source]):
            _check_allowed(message, commands)
        sizes = _sizes(message.data, len(commands))
        queue = self._queues[message.source]
        self._waiting += len(commands)
        last = len(commands) - 1
        queue.extend(map(QueuedCommand, commands[:last], sizes, repeat(None)))
        queue.append(QueuedCommand(commands[last], sizes[last], message.token))

    def take(self, commands_max: int, bytes_max: int) -> Iterator[QueuedCommand]:
        """Yield the commands of the next transaction, in rounds over the kinds, until a bound is reached."""
        taken = 0
        size = 0
        while len(self):
            for kind in COMMAND_KINDS:
                queue = self._queues[kind]
                if kind == "timer" and self._queues["report"]:
                    # A report that waits may be what a deadline waited for.
                    continue
                for _ in range(min(QUOTA[kind], len(queue))):
                    full = taken >= commands_max or (taken and size + queue[0].size > bytes_max)
                    if full:
                        return
                    waiting = queue.popleft()
                    self._waiting -= 1
                    taken += 1
                    size += waiting.size
                    yield waiting

    def take_roll_command(self) -> QueuedCommand | None:
        """Take a command to roll the log out of turn: a full log accepts no other."""
        queue = self._queues["operator"]
        for at, waiting in enumerate(queue):
            if isinstance(waiting.command, RollLog):
                del queue[at]
                self._waiting -= 1
                return waiting
        return None

    def clear(self) -> None:
        """Drop all commands: their senders send them again."""
        for queue in self._queues.values():
            queue.clear()
        self._waiting = 0


class _RawBatch(msgspec.Struct, frozen=True):
    commands: tuple[msgspec.Raw, ...]


_RAW_DECODER = msgspec.json.Decoder(_RawBatch)


def _sizes(data: bytes, count: int) -> list[int]:
    """Bytes of each command of a message. A small message uses the mean; a large one may hold one huge command."""
    if count == 1 or len(data) <= AVERAGED_BYTES_MAX:
        return [len(data) // count + 1] * count
    return [len(bytes(one)) for one in _RAW_DECODER.decode(data).commands]


def _check_allowed(message: Message, commands: Iterable[AnyCommand]) -> None:
    """Raise CommandInvalid for the first command that must not come on this subject."""
    for command in commands:
        if not isinstance(command, ALLOWED[message.source]):
            kind = type(command).__name__
            raise CommandInvalid("forbidden", f"{kind} must not come on {message.subject}")
        if isinstance(command, (ReportNode, ReportRemoteEnded)) and not _is_own(
            command, message.subject
        ):
            raise CommandInvalid("forbidden", f"{command.node_id!r} on {message.subject}")


def _is_own(command: ReportNode | ReportRemoteEnded, subject: str) -> bool:
    try:
        return id_token(command.node_id) == last_token(subject)
    except ValueError:
        return False
