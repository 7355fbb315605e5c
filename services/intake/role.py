"""Intake: answers every submission with a verdict, from requests and from the drop box.

It decodes and validates submissions, asks the plan applier until the log shows the effect or the refusal, and answers.
Versions, fences and capacity are decided by the plan applier against the state, so that two intakes and two submissions
of one job need no agreement here.

- Requests (`api.jobs.<verb>`) are served by every instance, leading or not, each message by one of them.
- The drop box (`jobs.<verb>`) is read by the leader, from the position that the log knows.
- What does not decode or validate is answered (request) or becomes a dead letter and a skip (drop box).

Beside it: `pending_submissions.py` and `drop_box.py` (commands on their way), `admission.py`, `verdicts.py`.
"""

from collections.abc import Sequence
from typing import cast, get_args

import msgspec

from schemas import envelope
from schemas.envelope import ENCODER
from schemas.jobs import (
    JobEvaluated,
    JobRegistered,
    JobStopped,
    RegisterJob,
    SkipSubmission,
    SubmissionRefused,
)
from schemas.policy import RemoteDriver
from schemas.rollouts import RolloutStarted
from services.intake import verdicts
from services.intake.admission import Admission
from services.intake.drop_box import DropBox
from services.intake.pending_submissions import PendingSubmission, PendingSubmissions
from shared.core.runtime.counters import Counters
from shared.core.runtime.deadline_timer import earliest
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.runtime.messages import (
    Ack,
    CaughtUp,
    Close,
    LeadershipLost,
    LeadershipWon,
    Listen,
    LogSpace,
    Message,
    Open,
    Purge,
    Read,
    Reconnected,
    Replay,
    Reply,
    Send,
    SetTimer,
    Source,
    Timer,
)
from shared.core.runtime.replica import Replica, ReplicaFactory
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.role import Input
from shared.core.runtime.step import Step
from shared.core.state.ids import eval_id, eval_ids
from shared.core.state.tables.jobs import SubmissionRecord as Entry
from shared.errors import CommandInvalid
from shared.jobspec.checks.identifiers import id_error
from shared.jobspec.files.load import parse_request
from shared.jobspec.plugin_drivers import check_plugin_drivers
from shared.jobspec.source import without_source
from shared.jobspec.submission import (
    MAX_KILL_TIMEOUT_NS,
    ParsedSubmission,
    SubmissionCache,
    check_kill_timeouts,
    read_submission,
    to_command,
)
from shared.protocol import subjects
from shared.protocol.id_tokens import id_token
from shared.protocol.trace_context import parent_span

#: More waiting submissions than this are turned away: nothing is kept, the submitter asks again.
PENDING_MAX = 20_000
#: And more bytes of them: a command may have 440 KiB.
PENDING_BYTES_MAX = 256 * 1024 * 1024
#: One transaction of the log takes as many; bytes leave room below its 512 KiB.
BATCH_COMMANDS_MAX = 256
BATCH_BYTES_MAX = 480 * 1024
#: The compiled groups may be longer than the text they come from.
COMMAND_BYTES_MAX = 440 * 1024
#: Pause between closing the drop box and reading it again.
REOPEN_NS = 500_000_000

_REOPEN = "open"
_API = "api"
_PARSE = "parse"
_BOX = "jobs"
_BACKLOG = "backlog"
_VerdictEvent = JobRegistered | JobStopped | JobEvaluated | RolloutStarted | SubmissionRefused
_VERDICT_EVENTS = frozenset(get_args(_VerdictEvent))


class Intake(ReplicatedRole):
    """The role. Replays the tables of jobs, of the policy for their compilation, and of nodes for their drivers."""

    name = "intake"
    leader_key = "intake"
    timer_name = "intake"

    def __init__(
        self,
        *,
        instance: str,
        pending_max: int = PENDING_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        max_kill_timeout_ns: int = MAX_KILL_TIMEOUT_NS,
        replicas: ReplicaFactory = Replica,
    ) -> None:
        super().__init__(instance, frozenset({"fleet", "jobs", "policy"}), replicas)
        self._pending_max = pending_max
        self._pending_bytes_max = pending_bytes_max
        self._max_kill_timeout_ns = max_kill_timeout_ns
        self._pending = PendingSubmissions()
        self._memo = SubmissionCache()
        self._box = DropBox()
        self._admission = Admission()
        self._closing = False
        self._made_ids = 0
        self._id_prefix = id_token(instance)[:80]
        self._batch_head = b'{"sender":%b,"commands":[' % ENCODER.encode(instance)
        #: encoded commands to send at the end of the step.
        self._outbox: list[bytes] = []
        names = ("submissions", "invalid", "refused", "resends", "dead_letters")
        self._counters = Counters("caravan_intake_", (*names, "pending_replies", "parsed"))

    @property
    def _remotes(self) -> dict[str, RemoteDriver]:
        return self.replica.state.policy.policy.remote_drivers

    def _read_submission(self, body: bytes, verb: str) -> ParsedSubmission:
        """Read a body within the operator's bounds. Raises CommandInvalid."""
        submission = read_submission(body, verb, self._remotes, self._memo)
        for one in (submission, *submission.together):
            if one.job is not None:
                check_kill_timeouts(one.job, self._max_kill_timeout_ns)
        return check_plugin_drivers(submission, self.replica.state.fleet.attributes)

    def sources(self) -> tuple[Source, ...]:
        """The log, the request subjects shared with the other instances, and the drop box."""
        return (
            Replay(space=True, tables=self.replica.tables),
            Listen(_API, subjects.API_JOBS_ALL, queue="intake"),
            Read(_BOX, "JOBS", subjects.JOBS_ALL),
            Listen(_BACKLOG, subjects.presence("eval_broker", _BACKLOG)),
        )

    def metrics(self) -> dict[str, float]:
        """What waits now, and counts since the start."""
        found = self._counters.totals()
        found["caravan_intake_pending_submissions"] = len(self._pending)
        found["caravan_intake_pending_bytes"] = self._pending.bytes + self._box.size()
        found["caravan_intake_drop_box_outstanding_messages"] = len(self._box)
        found["caravan_intake_drop_box_position_seq"] = self.replica.state.jobs.jobs_seq
        return found

    # ---- inputs ----

    def on_message(self, message: Message, step: Step) -> None:
        """Take a request, a message of the drop box, or the broker's backlog."""
        if message.source == _API:
            self._asked(message, step)
        elif message.source == _BOX:
            self._dropped(message, step)
        else:
            self._admission.read_report(message.data, self._pending.sent, step.steady_ns)
            self._update_drop_box(step)
            self._resend(step)

    def _on_failed(self, message: Message, reason: str, step: Step) -> None:
        """Refuse what cannot be handled, in the form of its verb; the drop box moves on behind it."""
        if message.source == _BOX:
            if self._box.is_open and message.stream_seq > self._box.last:
                self._skip(message, reason, step)
            else:
                step.emit(Ack(message.token))
            return
        if message.source == _API and message.reply:
            fault = CommandInvalid("invalid", reason)
            is_parse = subjects.last_token(message.subject) == _PARSE
            data = verdicts.unparsed(fault) if is_parse else verdicts.invalid("", fault)
            step.emit(self.dead_letter(message, reason, step.now_ns))
            self._answer(message, data, step)
            return
        super()._on_failed(message, reason, step)

    def on_input(self, item: Input, step: Step) -> None:
        """Open or close the drop box as leadership and room change; resend what is due."""
        match item:
            case CaughtUp() | LeadershipWon():
                self._open(step)
            case LeadershipLost():
                self._close_drop_box(step)
            case LogSpace():
                was_failed = self.replica.room.is_write_failed
                self.replica.room.learn(item)
                if item.is_write_failed and not was_failed:
                    self._answer_pending(self._pending.all_asked(), step)
                self._update_drop_box(step)
            case Reconnected():
                # The shell continues reading behind what it delivered; only sends may be lost.
                self._pending.hurry(step.steady_ns)
                self._box.hurry(step.steady_ns)
            case Timer(name=name) if name == _REOPEN:
                self._closing = False
                self._open(step)
            case Timer():
                self._update_drop_box(step)
            case _:
                pass
        self._resend(step)

    def finish(self, step: Step) -> None:
        """Send the commands of this step and set the timer for what is due next."""
        if self._pending.held:
            self._let_go(step)
        if self._outbox:
            self._flush_outbox(step)
        # What is held back goes with the next record or backlog report, or when the last report expires.
        holds = self._pending.held or (self.is_leader and not self._box.is_open)
        held_ns = self._admission.until_ns(step.steady_ns) if holds else 0
        self.timer.arm(step, earliest(self._pending.next_ns(), self._box.next_ns(), held_ns))

    def _is_full(self, step: Step) -> bool:
        """Whether no new work may go in: the log has no room, or the workers have enough."""
        room = self.replica.room
        return room.is_write_failed or room.refuses_new_work or not self._left(step)

    def _left(self, step: Step) -> int:
        """Return the number of submissions that may be sent now."""
        return self._admission.left(self._pending.sent, step.steady_ns)

    # ---- the log ----

    def _on_new_writer(self, step: Step) -> None:
        """Send again what the log does not show."""
        self._pending.hurry(step.steady_ns)
        self._box.hurry(step.steady_ns)
        self._resend(step)

    def on_applied(self, record: envelope.LogRecord, seq: int, step: Step) -> None:
        """Answer the submissions that a record shows, and advance the drop box."""
        del seq
        if len(self._pending):
            self._settle(record, step)
        if self._box.is_open:
            position = self.replica.state.jobs.jobs_seq
            for token in self._box.advance(position, step.steady_ns):
                step.emit(Ack(token))

    def _settle(self, record: envelope.LogRecord, step: Step) -> None:
        """Answer the requests that wait for a submission which this record shows."""
        pending, submissions = self._pending, self.replica.state.jobs.submissions
        shown: list[tuple[PendingSubmission, Entry]] = []
        for event in record.events:
            # Nearly all of the log is about other things.
            if type(event) not in _VERDICT_EVENTS:
                continue
            submission_id = cast("_VerdictEvent", event).submission_id
            entry = submissions.get(submission_id)
            waiting = pending.pop(submission_id) if entry is not None else None
            if entry is not None and waiting is not None and waiting.tokens:
                shown.append((waiting, entry))
        cluster_id = self.replica.chain.cluster_id
        ids = eval_ids([entry.evaluation for _, entry in shown])
        for (waiting, entry), evaluation in zip(shown, ids, strict=True):
            if entry.digest == waiting.digest:
                data = verdicts.from_state(waiting.submission_id, entry, cluster_id, evaluation)
            else:
                data = verdicts.conflict(waiting.submission_id, cluster_id)
            step.effects += [Reply(token, data) for token in waiting.tokens]

    # ---- requests ----

    def _asked(self, message: Message, step: Step) -> None:
        """Give a request its verdict, at once where the log is not needed."""
        verb = subjects.last_token(message.subject)
        if verb == _PARSE:
            self._parse(message, step)
            return
        self._counters.add("submissions")
        if self._is_flooded(self._pending_max) and self._is_unknown_work(message):
            # Before anything is read closely: a flood is turned away at little cost.
            self._counters.add("refused")
            self._answer(
                message, verdicts.unavailable(_submission_name(message), len(self._pending)), step
            )
            return
        try:
            submission = self._read_submission(message.data, verb)
            if submission.verb == "validate":
                self._answer(message, verdicts.valid(submission), step)
                return
            submission_id = self._id_of(submission, message)
            entry = self.replica.state.jobs.submissions.get(submission_id)
            waiting = self._pending.get(submission_id)
            if entry is None and waiting is None:
                self._ask(submission, submission_id, message, step)
                return
        except CommandInvalid as fault:
            self._counters.add("invalid")
            named = fault.submission_id or message.msg_id
            self._answer(message, verdicts.invalid(named, fault), step)
            return
        cluster_id = self.replica.chain.cluster_id
        known = entry or waiting
        if known is not None and known.digest != submission.digest:
            self._counters.add("refused")
            data = verdicts.conflict(submission_id, cluster_id)
        elif entry is not None:
            shown = eval_id(entry.evaluation)
            data = verdicts.from_state(submission_id, entry, cluster_id, shown)
        else:
            assert waiting is not None
            if message.reply:
                self._pending.ask(waiting, message.token, step.steady_ns)
                return
            data = b""
        self._answer(message, data, step)

    def _is_flooded(self, most: int) -> bool:
        """Whether as many submissions wait as may, by number or by their bytes in the same proportion."""
        bytes_max = self._pending_bytes_max * most // self._pending_max
        held = self._pending.bytes + self._box.size()
        return len(self._pending) >= most or held >= bytes_max

    def _is_unknown_work(self, message: Message) -> bool:
        """Whether it is new work of a name that nothing is known of; what has no name is read as ever, so are stops."""
        if subjects.last_token(message.subject) == "stop":
            return False
        named = _submission_name(message)
        known = named in self.replica.state.jobs.submissions
        return bool(named) and not known and self._pending.get(named) is None

    def _parse(self, message: Message, step: Step) -> None:
        """Turn a job file into JSON: bounded in size and steps, so that it cannot delay other requests."""
        self._counters.add("parsed")
        try:
            data = verdicts.parsed(parse_request(message.data))
        except CommandInvalid as fault:
            self._counters.add("invalid")
            data = verdicts.unparsed(fault)
        self._answer(message, data, step)

    def _answer(self, message: Message, data: bytes, step: Step) -> None:
        """Answer a request; a message without a reply subject is only acknowledged."""
        done = Reply(message.token, data) if message.reply else Ack(message.token)
        step.emit(done)

    def _ask(
        self, submission: ParsedSubmission, submission_id: str, message: Message, step: Step
    ) -> None:
        """Ask the plan applier for a submission that is new."""
        if self.replica.room.is_write_failed:
            self._counters.add("refused")
            self._answer(message, verdicts.not_written(submission_id), step)
            return
        if self.replica.room.refuses_new_work and submission.verb != "stop":
            self._counters.add("refused")
            share = self.replica.room.share
            self._answer(message, verdicts.no_room(submission_id, share), step)
            return
        # A flood of stops, too, has an end.
        most = self._pending_max * (2 if submission.verb == "stop" else 1)
        if self._is_flooded(most):
            self._counters.add("refused")
            self._answer(message, verdicts.unavailable(submission_id, len(self._pending)), step)
            return
        data = _encoded_command(submission, submission_id, traceparent=message.traceparent)
        # What takes work away never waits behind what brings it.
        may_go = submission.verb == "stop" or (not self._pending.held and self._left(step) > 0)
        self._pending.add(
            submission_id,
            submission.digest,
            data,
            token=message.token if message.reply else None,
            now_ns=step.steady_ns,
            is_sent=may_go,
        )
        if may_go:
            self._admission.take(1)
            self._outbox.append(data)
        if not message.reply:
            step.emit(Ack(message.token))

    def _id_of(self, submission: ParsedSubmission, message: Message) -> str:
        """Name a submission: by its body, else its header, else where it came in. Raises CommandInvalid."""
        found = submission.submission_id or message.msg_id
        if found:
            if found is message.msg_id and (fault := id_error(found)):
                raise CommandInvalid("invalid", fault, "Nats-Msg-Id")
            if found.startswith("jobs-") and found[5:].isdigit():
                raise CommandInvalid(
                    "invalid", "jobs-<number> names a message of the drop box", "SubmissionID"
                )
            return found
        if message.stream_seq:
            return f"jobs-{message.stream_seq}"
        self._made_ids += 1
        return f"{self._id_prefix}-{submission.digest[:8]}-{self._made_ids}"

    # ---- the drop box ----

    def _open(self, step: Step) -> None:
        """Read the drop box from behind the logged position, once leading on a state that is up to date.

        Not at once after a close: a message of the earlier reading that is still on its way to us would be taken for
        the first one, and those before it be skipped.
        """
        may = self.is_leader and self.is_caught_up and not self._is_full(step)
        if may and not (self._box.is_open or self._closing):
            step.emit(Open(_BOX, self._box.open(self.replica.state.jobs.jobs_seq)))

    def _close_drop_box(self, step: Step) -> None:
        """Stop to read the drop box."""
        if self._box.is_open:
            self._box.close()
            self._closing = True
            step.effects += [Close(_BOX), SetTimer(_REOPEN, step.now_ns + REOPEN_NS)]

    def _update_drop_box(self, step: Step) -> None:
        """The drop box waits, whole, while there is no room for new work: its order must be kept."""
        if self._is_full(step):
            self._close_drop_box(step)
        else:
            self._open(step)

    def _dropped(self, message: Message, step: Step) -> None:
        """Send the command of one message of the drop box, or put it aside and skip it."""
        if not self._box.is_open:
            return
        position, previous = message.stream_seq, self._box.last
        if position <= previous:
            step.emit(Ack(message.token))
            return
        self._counters.add("submissions")
        try:
            data = self._read_dropped(message, previous)
        except CommandInvalid as fault:
            where = f"{fault.path}: " if fault.path else ""
            self._skip(message, f"{where}{fault.message}", step)
            return
        self._box.add(position, message.token, data, step.steady_ns)
        self._outbox.append(data)

    def _skip(self, message: Message, reason: str, step: Step) -> None:
        """Put a message of the drop box aside; the log records that its position was passed."""
        self._counters.add("dead_letters")
        step.emit(self.dead_letter(message, reason, step.now_ns))
        position, previous = message.stream_seq, self._box.last
        data = ENCODER.encode(SkipSubmission(jobs_seq=position, jobs_prev=previous))
        self._box.add(position, message.token, data, step.steady_ns)
        self._outbox.append(data)

    def _read_dropped(self, message: Message, previous: int) -> bytes:
        """Make the encoded command. Raises CommandInvalid."""
        verb = subjects.last_token(message.subject)
        if verb not in subjects.DROP_BOX_VERBS:
            raise CommandInvalid("invalid", f"verb {verb!r} is not for the drop box")
        submission = self._read_submission(message.data, verb)
        submission_id = self._id_of(submission, message)
        at = message.stream_seq
        return _encoded_command(
            submission, submission_id, at, previous, traceparent=message.traceparent
        )

    # ---- sending ----

    def _resend(self, step: Step) -> None:
        """Send again what the log does not show, and answer clients that waited long."""
        now_ns = step.steady_ns
        self._answer_pending(self._pending.unanswered(now_ns), step)
        again = self._pending.due(now_ns)
        again += self._box.due(now_ns)
        self._counters.add("resends", len(again))
        self._outbox += again
        position = self.replica.state.jobs.jobs_seq
        if self._box.purge(position, now_ns):
            step.emit(Purge(_BOX, position + 1))

    def _answer_pending(self, submissions: Sequence[PendingSubmission], step: Step) -> None:
        """Answer waiting clients that the log does not show it yet."""
        cluster_id, reason = self.replica.chain.cluster_id, ""
        if self.replica.room.is_write_failed:
            reason = WRITE_FAILED
        for waiting in submissions:
            data = verdicts.pending(waiting.submission_id, cluster_id, reason)
            self._counters.add("pending_replies", len(waiting.tokens))
            step.effects += [Reply(token, data) for token in waiting.tokens]
            waiting.tokens = []

    def _let_go(self, step: Step) -> None:
        """Send on what was held back, as far as there is room for it."""
        gone = self._pending.let_go(step.steady_ns, self._left(step))
        self._admission.take(len(gone))
        self._outbox += gone

    def _flush_outbox(self, step: Step) -> None:
        """Send the collected commands, in order, in as few messages as their bounds allow."""
        subject = subjects.command("job")
        batch: list[bytes] = []
        size = 0
        for data in self._outbox:
            if len(batch) == BATCH_COMMANDS_MAX or size + len(data) > BATCH_BYTES_MAX:
                step.emit(Send(subject, self._batch_head + b",".join(batch) + b"]}"))
                batch, size = [], 0
            batch.append(data)
            size += len(data) + 1
        step.emit(Send(subject, self._batch_head + b",".join(batch) + b"]}"))
        self._outbox.clear()


class _SubmissionName(msgspec.Struct):
    submission_id: str = msgspec.field(name="SubmissionID", default="")


_NAME_DECODER = msgspec.json.Decoder(_SubmissionName)


def _submission_name(message: Message) -> str:
    """Name of a submission, at a glance; empty where there is none."""
    try:
        return _NAME_DECODER.decode(message.data).submission_id or message.msg_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _encoded_command(
    submission: ParsedSubmission,
    submission_id: str,
    position: int = 0,
    previous: int = 0,
    *,
    traceparent: str = "",
) -> bytes:
    """Encode a submission's command. Raises CommandInvalid where it is too long for one message.

    `traceparent`: as the sender wrote it; what is no span of W3C Trace Context is ignored, as that specification says.
    """
    command = to_command(submission, submission_id, jobs_seq=position, jobs_prev=previous)
    if traceparent and isinstance(command, RegisterJob) and parent_span(traceparent) is not None:
        command = msgspec.structs.replace(command, traceparent=traceparent)
    data = ENCODER.encode(command)
    if len(data) > COMMAND_BYTES_MAX and (smaller := without_source(command)) is not command:
        data = ENCODER.encode(smaller)
    if len(data) > COMMAND_BYTES_MAX:
        raise CommandInvalid(
            "too_large",
            f"{len(data)} bytes with its compiled groups, at most {COMMAND_BYTES_MAX} are taken",
            "Job",
        )
    return data
