"""Intake: gives every submission its verdict, at both doors.

Decides whether a body is a submission, asks the plan applier for it until the log shows the effect or the refusal, and
answers. Must not know versions, fences or capacity: those are decided against the state by the plan applier, so that
two intakes and two submissions of one job need no agreement here.

- The fast door (`api.jobs.<verb>`) is served by every instance, leading or not, each message by one of them.
- The drop box (`jobs.<verb>`) is read by the leader, from the position that the log knows.
- What does not decode or validate is answered (fast door) or becomes a dead letter and a skip (drop box).

Beside it: `pending.py`, `box.py` (what is on the way), `verdicts.py` (what is told).
"""

from typing import cast, get_args

import msgspec

from schemas import envelope
from schemas.envelope import ENCODER
from schemas.jobs import (
    JobEvaluated,
    JobRegistered,
    JobStopped,
    SkipSubmission,
    SubmissionRefused,
)
from schemas.policy import RemoteDriver
from services.intake import verdicts
from services.intake.box import Box
from services.intake.credit import Credit
from services.intake.pending import Pending, Waiting
from shared.bus import subjects
from shared.bus.names import id_token
from shared.core.dead import dead_letter
from shared.core.ids import eval_id, eval_ids
from shared.core.replica import Replica
from shared.core.role import (
    Ack,
    CaughtUp,
    Close,
    Effect,
    Input,
    LeadershipLost,
    LeadershipWon,
    Listen,
    LogSpace,
    Message,
    Open,
    Purge,
    Read,
    Reconnected,
    Record,
    Replay,
    Reply,
    Restored,
    Send,
    SetTimer,
    Source,
    Stop,
    Timer,
)
from shared.core.tables.jobs import Submission as Entry
from shared.core.waker import earliest
from shared.errors import CommandInvalid, LogError
from shared.jobspec.identifiers import id_fault
from shared.jobspec.load import parse_request
from shared.jobspec.submission import Memo, Submission, command_of, read_submission

#: More waiting submissions than this are turned away: nothing is kept, the submitter asks again.
PENDING_MAX = 20_000
#: One transaction of the log takes as many; bytes leave room below its 512 KiB.
BATCH_COMMANDS_MAX = 256
BATCH_BYTES_MAX = 480 * 1024
#: The compiled groups may be longer than the text they come from.
COMMAND_BYTES_MAX = 440 * 1024
#: A clock set back by more than this makes everything due again.
CLOCK_BACK_NS = 100_000_000

#: Pause between closing the drop box and reading it again.
REOPEN_NS = 500_000_000

_TIMER = "intake"
_REOPEN = "open"
_API = "api"
_PARSE = "parse"
_BOX = "jobs"
_BACKLOG = "backlog"
_Verdict = JobRegistered | JobStopped | JobEvaluated | SubmissionRefused
_VERDICTS = frozenset(get_args(_Verdict))


class Intake:
    """The role. Replays the tables of jobs and of the policy, under which a job is compiled."""

    name = "intake"
    leader_key = "intake"

    def __init__(self, *, instance: str, pending_max: int = PENDING_MAX) -> None:
        self.instance = instance
        self._pending_max = pending_max
        self._replica = Replica(frozenset({"jobs", "policy"}))
        self._pending = Pending()
        self._memo = Memo()
        self._box = Box()
        self._credit = Credit()
        self._leads = False
        self._caught_up = False
        self._closing = False
        self._now_ns = 0
        self._armed_ns = 0
        self._made_ids = 0
        self._id_prefix = id_token(instance)[:80]
        self._batch_head = b'{"sender":%b,"commands":[' % ENCODER.encode(instance)
        self._outbox: list[bytes] = []
        self._effects: list[Effect] = []
        self._counts = dict.fromkeys(
            (
                *("submissions", "invalid", "refused", "resends", "dead_letters"),
                *("pending_replies", "parsed"),
            ),
            0,
        )

    @property
    def next_seq(self) -> int:
        """First seq of the log not applied yet."""
        return self._replica.next_seq

    @property
    def _remotes(self) -> dict[str, RemoteDriver]:
        return self._replica.state.policy.policy.remote_drivers

    def sources(self) -> tuple[Source, ...]:
        """The log, the fast door shared with the other instances, and the drop box."""
        return (
            Replay(space=True, tables=self._replica.tables),
            Listen(_API, subjects.API_JOBS_ALL, queue="intake"),
            Read(_BOX, "JOBS", subjects.JOBS_ALL),
            Listen(_BACKLOG, subjects.presence("eval_broker", _BACKLOG)),
        )

    def metrics(self) -> dict[str, float]:
        """What waits now, and counts since the start."""
        found = {f"caravan_intake_{name}_total": float(n) for name, n in self._counts.items()}
        found["caravan_intake_pending_submissions"] = len(self._pending)
        found["caravan_intake_drop_box_outstanding_messages"] = len(self._box)
        found["caravan_intake_drop_box_position_seq"] = self._replica.state.jobs.jobs_seq
        return found

    def step(self, inputs: list[Input], now_ns: int) -> list[Effect]:
        """Take what happened, return what shall be done."""
        if now_ns + CLOCK_BACK_NS < self._now_ns:
            self._pending.hurry(now_ns)
            self._box.hurry(now_ns)
        self._now_ns = now_ns
        for item in inputs:
            if type(item) is Message:
                if item.source == _API:
                    self._asked(item)
                elif item.source == _BOX:
                    self._dropped(item)
                else:
                    self._hear_backlog(item)
            elif type(item) is Record:
                if not self._record(item):
                    break
            else:
                self._other(item)
        if self._pending.held:
            self._let_go()
        if self._outbox:
            self._send_out()
        self._arm()
        effects, self._effects = self._effects, []
        return effects

    def _other(self, item: Input) -> None:
        match item:
            case Restored():
                self._replica.begin_at(item.replica)
            case CaughtUp():
                self._caught_up = True
                self._open()
            case LeadershipWon():
                self._leads = True
                self._open()
            case LeadershipLost():
                self._leads = False
                self._shut()
            case LogSpace():
                self._replica.room.learn(item)
                self._breathe()
            case Reconnected():
                # The shell goes on reading behind what it delivered; only sends may be lost.
                self._pending.hurry(self._now_ns)
                self._box.hurry(self._now_ns)
            case Timer(name=name) if name == _REOPEN:
                self._closing = False
                self._open()
            case Timer():
                self._armed_ns = 0
                self._breathe()
            case _:
                pass
        self._resend()

    def _hear_backlog(self, message: Message) -> None:
        """Workers have much to do, or have not any more: what is held back goes on as far as there is credit."""
        self._credit.hear(message.data, self._pending.sent, self._now_ns)
        self._breathe()
        self._resend()

    @property
    def _is_full(self) -> bool:
        """Whether nothing new may go in: the log has no room, or the workers have more than enough."""
        return self._replica.room.is_tight or not self._left

    @property
    def _left(self) -> int:
        """How many submissions may be sent on now."""
        return self._credit.left(self._pending.sent, self._now_ns)

    # ---- the log ----

    def _record(self, record: Record) -> bool:
        """Apply one record; False when the log cannot be followed any more."""
        try:
            decoded = self._replica.apply(record)
        except LogError as err:
            self._effects.append(Stop(str(err)))
            return False
        if decoded is None:
            return True
        if len(self._pending):
            self._settle(decoded)
        if self._box.is_open:
            position = self._replica.state.jobs.jobs_seq
            for token in self._box.advance(position, self._now_ns):
                self._effects.append(Ack(token))
        return True

    def _settle(self, record: envelope.Record) -> None:
        """Answer everybody who waits for a submission that this record shows."""
        pending, submissions = self._pending, self._replica.state.jobs.submissions
        shown: list[tuple[Waiting, Entry]] = []
        for event in record.events:
            # Nearly all of the log is about other things.
            if type(event) not in _VERDICTS:
                continue
            submission_id = cast("_Verdict", event).submission_id
            entry = submissions.get(submission_id)
            waiting = pending.pop(submission_id) if entry is not None else None
            if entry is not None and waiting is not None and waiting.tokens:
                shown.append((waiting, entry))
        cluster_id = self._replica.chain.cluster_id
        ids = eval_ids([entry.evaluation for _, entry in shown])
        for (waiting, entry), evaluation in zip(shown, ids, strict=True):
            if entry.digest == waiting.digest:
                data = verdicts.from_state(waiting.submission_id, entry, cluster_id, evaluation)
            else:
                data = verdicts.conflict(waiting.submission_id, cluster_id)
            self._effects += [Reply(token, data) for token in waiting.tokens]

    # ---- the fast door ----

    def _asked(self, message: Message) -> None:
        """Give a request its verdict, at once where the log is not needed."""
        verb = subjects.last_token(message.subject)
        if verb == _PARSE:
            self._parse(message)
            return
        self._counts["submissions"] += 1
        if len(self._pending) >= self._pending_max and self._is_too_much(message):
            # Before anything is read closely: a flood is turned away at little cost.
            self._counts["refused"] += 1
            self._answer(message, verdicts.unavailable(_named(message), len(self._pending)))
            return
        try:
            submission = read_submission(message.data, verb, self._remotes, self._memo)
            if submission.verb == "validate":
                self._answer(message, verdicts.valid(submission))
                return
            submission_id = self._id_of(submission, message)
            entry = self._replica.state.jobs.submissions.get(submission_id)
            waiting = self._pending.get(submission_id)
            if entry is None and waiting is None:
                self._ask(submission, submission_id, message)
                return
        except CommandInvalid as fault:
            self._counts["invalid"] += 1
            named = fault.submission_id or message.msg_id
            self._answer(message, verdicts.invalid(named, fault))
            return
        cluster_id = self._replica.chain.cluster_id
        known = entry or waiting
        if known is not None and known.digest != submission.digest:
            self._counts["refused"] += 1
            data = verdicts.conflict(submission_id, cluster_id)
        elif entry is not None:
            shown = eval_id(entry.evaluation)
            data = verdicts.from_state(submission_id, entry, cluster_id, shown)
        else:
            assert waiting is not None
            if message.reply:
                self._pending.ask(waiting, message.token, self._now_ns)
                return
            data = b""
        self._answer(message, data)

    def _is_too_much(self, message: Message) -> bool:
        """Whether it is new work of a name that nothing is known of; what has no name is read as ever, so are stops."""
        if subjects.last_token(message.subject) == "stop":
            return False
        named = _named(message)
        known = named in self._replica.state.jobs.submissions
        return bool(named) and not known and self._pending.get(named) is None

    def _parse(self, message: Message) -> None:
        """Turn a job file into JSON: bounded in size and steps, so that nobody waits long behind it."""
        self._counts["parsed"] += 1
        try:
            data = verdicts.parsed(parse_request(message.data))
        except CommandInvalid as fault:
            self._counts["invalid"] += 1
            data = verdicts.unparsed(fault)
        self._answer(message, data)

    def _answer(self, message: Message, data: bytes) -> None:
        """Answer a request, where somebody listens."""
        done = Reply(message.token, data) if message.reply else Ack(message.token)
        self._effects.append(done)

    def _ask(self, submission: Submission, submission_id: str, message: Message) -> None:
        """Ask the plan applier for a submission that nobody asked for before."""
        if self._replica.room.is_tight and submission.verb != "stop":
            self._counts["refused"] += 1
            share = self._replica.room.share
            self._answer(message, verdicts.no_room(submission_id, share))
            return
        # A flood of stops, too, has an end.
        most = self._pending_max * (2 if submission.verb == "stop" else 1)
        if len(self._pending) >= most:
            self._counts["refused"] += 1
            self._answer(message, verdicts.unavailable(submission_id, len(self._pending)))
            return
        data = _encoded(submission, submission_id)
        # What takes work away never waits behind what brings it.
        may_go = submission.verb == "stop" or (not self._pending.held and self._left > 0)
        self._pending.add(
            submission_id,
            submission.digest,
            data,
            token=message.token if message.reply else None,
            now_ns=self._now_ns,
            is_sent=may_go,
        )
        if may_go:
            self._credit.take(1)
            self._outbox.append(data)
        if not message.reply:
            self._effects.append(Ack(message.token))

    def _id_of(self, submission: Submission, message: Message) -> str:
        """Name a submission: by its body, else its header, else where it came in. Raises CommandInvalid."""
        found = submission.submission_id or message.msg_id
        if found:
            if found is message.msg_id and (fault := id_fault(found)):
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

    def _open(self) -> None:
        """Read the drop box from behind the logged position, once leading on a state that is up to date.

        Not at once after a close: a message of the earlier reading that is still on its way to us would be taken for
        the first one, and those before it be skipped.
        """
        may = self._leads and self._caught_up and not self._is_full
        if may and not (self._box.is_open or self._closing):
            self._effects.append(Open(_BOX, self._box.open(self._replica.state.jobs.jobs_seq)))

    def _shut(self) -> None:
        """Stop to read the drop box."""
        if self._box.is_open:
            self._box.close()
            self._closing = True
            self._effects += [Close(_BOX), SetTimer(_REOPEN, self._now_ns + REOPEN_NS)]

    def _breathe(self) -> None:
        """The drop box waits, whole, while there is no room for new work: its order must be kept."""
        if self._is_full:
            self._shut()
        else:
            self._open()

    def _dropped(self, message: Message) -> None:
        """Send the command of one message of the drop box, or put it aside and skip it."""
        if not self._box.is_open:
            return
        position, previous = message.stream_seq, self._box.last
        if position <= previous:
            self._effects.append(Ack(message.token))
            return
        self._counts["submissions"] += 1
        try:
            data = self._read_dropped(message, previous)
        except CommandInvalid as fault:
            self._counts["dead_letters"] += 1
            where = f"{fault.path}: " if fault.path else ""
            letter = dead_letter(self, message, f"{where}{fault.message}", self._now_ns)
            self._effects.append(Send(subjects.dead(message.subject), letter))
            data = ENCODER.encode(SkipSubmission(jobs_seq=position, jobs_prev=previous))
        self._box.add(position, message.token, data, self._now_ns)
        self._outbox.append(data)

    def _read_dropped(self, message: Message, previous: int) -> bytes:
        """Make the encoded command. Raises CommandInvalid."""
        verb = subjects.last_token(message.subject)
        if verb not in subjects.JOB_VERBS:
            raise CommandInvalid("invalid", f"verb {verb!r} is not for the drop box")
        submission = read_submission(message.data, verb, self._remotes, self._memo)
        submission_id = self._id_of(submission, message)
        return _encoded(submission, submission_id, message.stream_seq, previous)

    # ---- sending ----

    def _resend(self) -> None:
        """Send again what the log does not show, and tell those who waited long."""
        now_ns = self._now_ns
        cluster_id = self._replica.chain.cluster_id
        for waiting in self._pending.unanswered(now_ns):
            data = verdicts.pending(waiting.submission_id, cluster_id)
            self._counts["pending_replies"] += len(waiting.tokens)
            self._effects += [Reply(token, data) for token in waiting.tokens]
            waiting.tokens = []
        again = self._pending.due(now_ns)
        again += self._box.due(now_ns)
        self._counts["resends"] += len(again)
        self._outbox += again
        position = self._replica.state.jobs.jobs_seq
        if self._box.purge(position, now_ns):
            self._effects.append(Purge(_BOX, position + 1))

    def _let_go(self) -> None:
        """Send on what was held back, as far as there is credit."""
        gone = self._pending.let_go(self._now_ns, self._left)
        self._credit.take(len(gone))
        self._outbox += gone

    def _send_out(self) -> None:
        """Send the collected commands, in order, in as few messages as their bounds allow."""
        subject = subjects.command("job")
        batch: list[bytes] = []
        size = 0
        for data in self._outbox:
            if len(batch) == BATCH_COMMANDS_MAX or size + len(data) > BATCH_BYTES_MAX:
                self._effects.append(Send(subject, self._batch_head + b",".join(batch) + b"]}"))
                batch, size = [], 0
            batch.append(data)
            size += len(data) + 1
        self._effects.append(Send(subject, self._batch_head + b",".join(batch) + b"]}"))
        self._outbox.clear()

    def _arm(self) -> None:
        """Keep one timer for whatever is due first."""
        # What is held back goes with the next record or word of the broker, or when its last word ends.
        holds = self._pending.held or (self._leads and not self._box.is_open)
        held_ns = self._credit.until_ns(self._now_ns) if holds else 0
        wanted = earliest(self._pending.next_ns(), self._box.next_ns(), held_ns)
        if wanted and (not self._armed_ns or wanted < self._armed_ns):
            self._armed_ns = wanted
            self._effects.append(SetTimer(_TIMER, wanted))


class _Named(msgspec.Struct):
    submission_id: str = msgspec.field(name="SubmissionID", default="")


_NAMED = msgspec.json.Decoder(_Named)


def _named(message: Message) -> str:
    """Name of a submission, at a glance; empty where there is none."""
    try:
        return _NAMED.decode(message.data).submission_id or message.msg_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _encoded(
    submission: Submission, submission_id: str, position: int = 0, previous: int = 0
) -> bytes:
    """Encode a submission's command. Raises CommandInvalid where it is too long for one message."""
    command = command_of(submission, submission_id, jobs_seq=position, jobs_prev=previous)
    data = ENCODER.encode(command)
    if len(data) > COMMAND_BYTES_MAX:
        raise CommandInvalid(
            "too_large",
            f"{len(data)} bytes with its compiled groups, at most {COMMAND_BYTES_MAX} are taken",
            "Job",
        )
    return data
