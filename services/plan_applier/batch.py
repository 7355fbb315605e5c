"""Decides the waiting commands: the events of one transaction.

Decides how many commands one transaction takes, and that new work waits while the log is nearly full. The events of a
single command are decided by shared/core/decide. Independent of leadership and of how a record is written. Next:
`role.py`.
"""

from hashlib import blake2b

import msgspec

from schemas.base import Event, NodeId
from schemas.envelope import ENCODER, AnyCommand
from schemas.evaluations import EvaluationsCreated
from schemas.job_versions import RevertJob, ScaleJob, StartJob
from schemas.jobs import EvaluateJob, RegisterJob
from schemas.launches import DispatchJob, LaunchDue
from schemas.nodes import ReportNode
from schemas.policy import BeginIncarnation, RollLog
from schemas.rollouts import RegisterJobs
from schemas.variables import PutVariable
from services.plan_applier.command_queue import CommandQueue, QueuedCommand
from shared.core.decide.consequences import apply_facts
from shared.core.decide.garbage import LogTimeIndex
from shared.core.decide.nodes.registration import decide_reports, is_plain
from shared.core.decide.operator import decide_roll
from shared.core.decide.refusals import refuse_command
from shared.core.decide.route import decide
from shared.core.runtime.failures import describe_failure
from shared.core.state.state import State
from shared.errors import CaravanError, LogError
from shared.protocol.operator_verbs import COMMANDS

#: Bounds of one transaction. Commands and their events are of similar size; the rest is headroom.
COMMANDS_MAX = 256
BYTES_MAX = 400 * 1024
#: Once so many evaluations were created, no further command is taken (one creates at most 1,500).
EVALUATIONS_MAX = 1_000
#: Commands that are not taken while the log is nearly full.
NEW_WORK = (
    RegisterJob,
    RegisterJobs,
    EvaluateJob,
    DispatchJob,
    RevertJob,
    ScaleJob,
    StartJob,
    LaunchDue,
    PutVariable,
)


#: Number of poison commands remembered. Each caused a rebuild of the state, so thousands in one tenure are an attack.
#: The oldest is dropped, and causes one more rebuild if it is sent again. 16 bytes each.
POISON_MAX = 10_000
#: Size of the facts of one command: with the rest of its transaction it stays below the limit of a record.
EVENTS_BYTES_MAX = 500 * 1024
#: The facts of commands from this size on, and of short commands that may make long facts, are measured.
MEASURED_BYTES = 64 * 1024
_MEASURED = frozenset(
    {*COMMANDS, LaunchDue, RegisterJobs, DispatchJob, RevertJob, ScaleJob, StartJob}
)


class DecidedBatch(msgspec.Struct):
    """Events of a transaction, and the commands it took; without events no record is written."""

    events: list[Event]
    #: tokens of the messages whose last command was taken.
    tokens: list[int]
    commands: int = 0
    #: size of the facts if measured, else of the commands.
    bytes: int = 0
    #: commands that could not be decided, with the reason; they are refused if their kind has a refusal event.
    failed: list[tuple[AnyCommand, str]] = []
    #: commands of the last round, which made the events.
    taken: list[AnyCommand] = []
    #: a command to roll the log, which becomes a record of its own.
    roll: RollLog | None = None
    #: a node has seen records that the log does not hold; its events are a transaction of their own.
    ahead: BeginIncarnation | None = None


class BatchFailed(CaravanError):
    """An exception was raised while the facts of a batch were applied: the state is invalid."""

    def __init__(self, taken: list[AnyCommand], reason: str) -> None:
        super().__init__(reason)
        self.taken = taken
        self.reason = reason


class BatchDecider:
    """Decides batches for one applier. Remembers commands that broke the state."""

    def __init__(self) -> None:
        #: digests of commands that broke the state or the bounds of a record when they were decided alone.
        #: Oldest first.
        self._poison: dict[bytes, None] = {}
        #: number of commands to decide one by one, to find the one that breaks the state.
        self._alone = 0

    def blame(self, taken: list[AnyCommand]) -> list[AnyCommand]:
        """Record a failed batch. Returns its command if there was only one; else each is decided alone."""
        if len(taken) > 1:
            self._alone = 4 * len(taken)
            return []
        for command in taken:
            self._poison[_digest(command)] = None
        while len(self._poison) > POISON_MAX:
            del self._poison[next(iter(self._poison))]
        return taken

    def decide(
        self,
        state: State,
        inbox: CommandQueue,
        horizon: LogTimeIndex,
        now_ns: int,
        *,
        no_new_work: bool,
    ) -> DecidedBatch:
        """Take commands and decide each on the state that the ones before it made; the state evolves.

        Continues until there are events or no command waits. Raises LogError; BatchFailed: drop the state.
        """
        batch = DecidedBatch([], [])
        while len(inbox) and not batch.events:
            batch.taken.clear()
            try:
                self._decide_round(
                    state, inbox, horizon, now_ns, batch=batch, no_new_work=no_new_work
                )
            except LogError:
                raise
            except Exception as err:
                raise BatchFailed(batch.taken, describe_failure(err)) from err
        return batch

    def _decide_round(
        self,
        state: State,
        inbox: CommandQueue,
        horizon: LogTimeIndex,
        now_ns: int,
        *,
        batch: DecidedBatch,
        no_new_work: bool,
    ) -> None:
        created = 0
        #: reports that are decided together, by node.
        reports: dict[NodeId, ReportNode] = {}
        most = 1 if self._alone else COMMANDS_MAX
        for waiting in inbox.take(most, BYTES_MAX):
            if self._alone:
                self._alone -= 1
            batch.commands += 1
            if waiting.token is not None:
                batch.tokens.append(waiting.token)
            command = waiting.command
            if no_new_work and isinstance(command, NEW_WORK):
                # Its sender keeps it, and sends it again.
                continue
            batch.taken.append(command)
            if isinstance(command, RollLog):
                if decide_roll(state, command):
                    batch.roll = command
                continue
            if isinstance(command, BeginIncarnation):
                batch.ahead = command
                continue
            if isinstance(command, ReportNode) and _can_join(state, reports, command):
                reports[command.node_id] = command
                continue
            if reports:
                created += _decide_joined_reports(state, reports, batch, now_ns)
            events = self._decide_one(state, waiting, horizon, now_ns, batch=batch)
            created += _apply_events(state, events, batch, now_ns)
            if created > EVALUATIONS_MAX or batch.bytes > BYTES_MAX:
                # A few commands made many or long facts.
                break
        _decide_joined_reports(state, reports, batch, now_ns)

    def _decide_one(
        self,
        state: State,
        waiting: QueuedCommand,
        horizon: LogTimeIndex,
        now_ns: int,
        *,
        batch: DecidedBatch,
    ) -> list[Event]:
        """Decide a command; one that cannot be decided is refused alone."""
        command, size = waiting.command, waiting.size
        code, reason = "invalid", ""
        events: list[Event] = []
        if self._poison and _digest(command) in self._poison:
            reason = "it cannot be applied"
        else:
            try:
                events = decide(state, command, now_ns, horizon)
            except LogError:
                raise
            except Exception as err:  # noqa: BLE001 - no command may end the process.
                reason = describe_failure(err)
        if events and (size >= MEASURED_BYTES or type(command) in _MEASURED):
            size = len(ENCODER.encode(events))
            if size > EVENTS_BYTES_MAX:
                code, reason = "too_large", _too_large(size)
        if reason:
            batch.failed.append((command, reason))
            events = refuse_command(state, command, code, reason)
            size = len(ENCODER.encode(events))
        batch.bytes += size
        return events


def _too_large(size: int) -> str:
    return f"its facts have {size} bytes, at most {EVENTS_BYTES_MAX} are written for one command"


def _digest(command: AnyCommand) -> bytes:
    return blake2b(ENCODER.encode(command), digest_size=16).digest()


def _can_join(state: State, reports: dict[NodeId, ReportNode], report: ReportNode) -> bool:
    """Return whether a report can be decided together with these: of another node, and about allocations alone."""
    return report.node_id not in reports and is_plain(state, report)


def _decide_joined_reports(
    state: State, reports: dict[NodeId, ReportNode], batch: DecidedBatch, now_ns: int
) -> int:
    """Decide the joined reports; returns how many evaluations they create."""
    if not reports:
        return 0
    said = list(reports.values())
    reports.clear()
    return _apply_events(state, decide_reports(state, said, now_ns), batch, now_ns)


def _apply_events(state: State, events: list[Event], batch: DecidedBatch, now_ns: int) -> int:
    """Apply events and what follows, for the transaction; returns how many evaluations they create."""
    applied = apply_facts(state, events, now_ns)
    batch.events += applied
    if len(applied) > len(events):
        known = set(map(id, events))
        batch.bytes += sum(len(ENCODER.encode(one)) for one in applied if id(one) not in known)
    created = 0
    for event in applied:
        if type(event) is EvaluationsCreated:
            created += len(event.evaluations)
    return created
