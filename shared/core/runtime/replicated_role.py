"""The skeleton of a role that follows the log: replay, leadership, deadline timer, dead letters, stop on log damage.

A role overrides the hooks below, in the order in which a step calls them:

    take_inputs ─┬─▶ on_record ──▶ on_applied      each record of the log, applied to `replica`
                 │           └───▶ _on_new_writer   before it, where the record is the lease of another applier
                 ├─▶ on_message                    each message of another source
                 └─▶ on_input                      every other input; flags and timer are up to date already
    finish                                         after the inputs of the step
    before_stop                                    only when the log is damaged: last effects, then Stop

A damaged log ends the step: what was emitted before stays, Stop is the last effect. Nothing else stops a role: a
message during whose handling anything is raised is refused (`_on_failed`), counted, and not tried again.
"""

from base64 import b64encode
from collections.abc import Callable

import msgspec

from schemas import envelope
from schemas.dead_letter import BODY_BYTES_MAX, DeadLetter
from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail
from shared.core.runtime.deadline_timer import DeadlineTimer
from shared.core.runtime.failures import describe_failure
from shared.core.runtime.messages import (
    Ack,
    CaughtUp,
    Effect,
    LeadershipLost,
    LeadershipWon,
    Message,
    PutDone,
    Record,
    Reply,
    Send,
    Stop,
    Timer,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.state.state import TABLES, State
from shared.errors import LogError
from shared.protocol import subjects

_REASON_CHARS_MAX = 1000
#: A dead letter that cannot be read gets none of its own: it would come back.
_DEAD = "dead."


class Refusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a request that could not be handled; the field of every other refusal."""

    status: str = "refused"
    error: ErrorDetail


class ReplicatedRole:
    """Base of every role that replays the log. `tables`: what its decisions read."""

    name = ""
    #: leadership it competes for; empty: every instance is active.
    leader_key = ""
    #: name of the timer that `self.timer` sets.
    timer_name = "due"

    def __init__(
        self,
        instance: str,
        tables: frozenset[str] = TABLES,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        self.instance = instance
        self.make_replica = replicas
        self.replica = replicas(tables)
        self.timer = DeadlineTimer(self.timer_name)
        self.is_leader = False
        self.is_caught_up = False
        #: messages that could not be handled: unreadable ones, and those during which something was raised.
        self.failed_messages = 0
        #: sees each record of the log while this instance acts; decides nothing. Set by the process, for its log lines.
        self.observe: Callable[[State, envelope.LogRecord, int], None] | None = None

    @property
    def next_seq(self) -> int:
        """First seq of the log that is not applied yet."""
        return self.replica.next_seq

    @property
    def is_acting(self) -> bool:
        """Leads, and has read the log to its end."""
        return self.is_leader and self.is_caught_up

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take the inputs in order, return the effects in order."""
        step = Step(now_ns, self.timer.read(now_ns))
        try:
            self.take_inputs(inputs, step)
            self.finish(step)
        except LogError as err:
            self.before_stop(step)
            step.emit(Stop(str(err)))
        return step.effects

    # ---- hooks ----

    def take_inputs(self, inputs: list[Input], step: Step) -> None:
        """Take all inputs of a step."""
        for item in inputs:
            self.take(item, step)

    def on_record(self, record: Record, step: Step) -> None:
        """Apply a record of the log. Raises LogError."""
        decoded = self.replica.apply(record)
        if decoded is not None:
            if decoded.lease is not None:
                self._on_new_writer(step)
            self.on_applied(decoded, record.seq, step)
            if self.observe is not None and self.is_acting:
                self.observe(self.replica.state, decoded, record.seq)

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Act on a record that the tables include now; foreign records are left out."""

    def _on_new_writer(self, step: Step) -> None:
        """Send again at once what the log does not show: what the former applier was sent may wait in its queue."""

    def on_message(self, message: Message, step: Step) -> None:
        """Take a message of a source other than the log."""

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Refuse a message that cannot be handled: answer it, and keep it where it can be looked at."""
        if not message.subject.startswith(_DEAD):
            step.emit(self.dead_letter(message, reason, step.now_ns))
        if message.reply:
            error = ErrorDetail(code="invalid", message=reason[:_REASON_CHARS_MAX])
            answer = Refusal(error=error)
            step.emit(Reply(message.token, ENCODER.encode(answer)))
        else:
            step.emit(Ack(message.token))

    def on_input(self, item: Input, step: Step) -> None:
        """Take any other input."""

    def finish(self, step: Step) -> None:
        """Act after the inputs: decide, send, set timers."""

    def before_stop(self, step: Step) -> None:
        """Emit what others must know before this role stops."""

    # ---- for subclasses ----

    def take(self, item: Input, step: Step) -> None:
        """Pass one input to its hook."""
        kind = type(item)
        if kind is Record:
            self.on_record(item, step)  # type: ignore[arg-type]
        elif kind is Message:
            self._take_message(item, step)  # type: ignore[arg-type]
        else:
            # A view gets a PutDone for each value that it publishes.
            if kind is not PutDone:
                self._learn_of(item)
            self.on_input(item, step)

    def _learn_of(self, item: Input) -> None:
        match item:
            case Restored():
                self.replica.begin_at(item.replica)
            case CaughtUp():
                self.replica.refuse_lost_end(item.seq, item.once_reached)
                self.is_caught_up = True
            case LeadershipWon():
                self.is_leader = True
            case LeadershipLost():
                self.is_leader = False
            case Timer(name=name) if name == self.timer_name:
                self.timer.fired()
            case _:
                pass

    def _take_message(self, message: Message, step: Step) -> None:
        """Pass a message to its hook. It cannot end the role: what it emitted before it failed is taken back."""
        reason = message.fault
        if not reason:
            emitted = len(step.effects)
            try:
                self.on_message(message, step)
            except LogError:
                raise
            except Exception as err:  # noqa: BLE001 - no request may end a role, whatever is raised.
                del step.effects[emitted:]
                reason = describe_failure(err)
        if reason:
            self.failed_messages += 1
            self._on_failed(message, reason, step)

    def dead_letter(self, message: Message, reason: str, now_ns: int) -> Send:
        """Write down a message that cannot be processed, with the reason."""
        letter = DeadLetter(
            subject=message.subject,
            reason=reason[:_REASON_CHARS_MAX].encode(errors="replace").decode(),
            at_ns=now_ns,
            body_base64=b64encode(message.data[:BODY_BYTES_MAX]).decode("ascii"),
            role=self.name,
            instance=self.instance,
        )
        return Send(subjects.dead(message.subject), ENCODER.encode(letter))
