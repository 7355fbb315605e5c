"""Commands waiting for the applier, by kind, each kind with its quota.

Decides what a message may say (the kind of its subject, the node of its subject) and who is served first. Must not
know what a command does. Next: `role.py`.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from schemas.envelope import COMMANDS_DECODER, AnyCommand
from schemas.evaluations import EndEvaluations, WakeEvaluations
from schemas.jobs import EvaluateJob, RegisterJob, SkipSubmission, StopJob
from schemas.nodes import ChangeLiveness, ReportNode
from schemas.plans import SubmitPlan
from schemas.policy import (
    CollectGarbage,
    DeclarePool,
    DrainNode,
    RollLog,
    SetEligibility,
    SetNodeMeta,
    SetPolicy,
    StopAllocation,
)
from shared.bus.names import id_token
from shared.bus.subjects import COMMAND_KINDS, last_token
from shared.core.role import Message
from shared.errors import CommandInvalid

#: What may come on which subject: a report must not smuggle a plan.
ALLOWED: dict[str, tuple[type, ...]] = {
    "plan": (SubmitPlan,),
    "evaluation": (WakeEvaluations, EndEvaluations),
    "job": (RegisterJob, StopJob, EvaluateJob, SkipSubmission),
    "operator": (
        SetPolicy,
        SetEligibility,
        DrainNode,
        SetNodeMeta,
        StopAllocation,
        DeclarePool,
        CollectGarbage,
        RollLog,
    ),
    "liveness": (ChangeLiveness,),
    "report": (ReportNode,),
}
#: Commands of a kind that one round takes before it looks at the next kind, so that no flood starves another.
QUOTA = {"plan": 128, "evaluation": 64, "job": 128, "operator": 16, "liveness": 16, "report": 64}


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """One command that waits; `token` is its message's, set on the last command of a message."""

    command: AnyCommand
    #: its share of the message, for the size of the transaction.
    size: int
    token: int | None


class Inbox:
    """Queues by kind."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Waiting]] = {kind: deque() for kind in COMMAND_KINDS}
        #: how many wait in all: asked several times a step.
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def depth(self, kind: str) -> int:
        """Commands of one kind that wait."""
        return len(self._queues[kind])

    def put(self, message: Message) -> None:
        """Queue the commands of a message. Raises CommandInvalid: nothing of it was queued."""
        try:
            batch = COMMANDS_DECODER.decode(message.data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as err:
            raise CommandInvalid("invalid", f"does not decode: {err}") from err
        commands = batch.commands
        if not commands:
            raise CommandInvalid("invalid", "a batch without commands")
        kinds = set(map(type, commands))
        if ReportNode in kinds or not kinds.issubset(ALLOWED[message.source]):
            _check(message, commands)
        size = len(message.data) // len(commands) + 1
        queue = self._queues[message.source]
        self._waiting += len(commands)
        queue.extend([Waiting(command, size, None) for command in commands[:-1]])
        queue.append(Waiting(commands[-1], size, message.token))

    def take(self, commands_max: int, bytes_max: int) -> Iterator[Waiting]:
        """Yield what the next transaction takes, in rounds over the kinds, until a bound is reached."""
        taken = 0
        size = 0
        while len(self):
            for kind in COMMAND_KINDS:
                queue = self._queues[kind]
                for _ in range(min(QUOTA[kind], len(queue))):
                    full = taken >= commands_max or (taken and size + queue[0].size > bytes_max)
                    if full:
                        return
                    waiting = queue.popleft()
                    self._waiting -= 1
                    taken += 1
                    size += waiting.size
                    yield waiting

    def take_roll(self) -> Waiting | None:
        """Take an order to roll the log out of its turn: a full log takes nothing else."""
        queue = self._queues["operator"]
        for at, waiting in enumerate(queue):
            if isinstance(waiting.command, RollLog):
                del queue[at]
                self._waiting -= 1
                return waiting
        return None

    def clear(self) -> None:
        """Forget everything: whoever sent it sends it again."""
        for queue in self._queues.values():
            queue.clear()
        self._waiting = 0


def _check(message: Message, commands: Iterable[AnyCommand]) -> None:
    """Raise CommandInvalid for the first command that must not come on this subject."""
    for command in commands:
        if not isinstance(command, ALLOWED[message.source]):
            kind = type(command).__name__
            raise CommandInvalid("forbidden", f"{kind} must not come on {message.subject}")
        if isinstance(command, ReportNode) and not _is_own(command, message.subject):
            raise CommandInvalid("forbidden", f"{command.node_id!r} on {message.subject}")


def _is_own(command: ReportNode, subject: str) -> bool:
    try:
        return id_token(command.node_id) == last_token(subject)
    except ValueError:
        return False
