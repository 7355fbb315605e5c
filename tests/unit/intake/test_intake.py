"""Intake: one verdict a submission, whatever the wires lose; bad input is answered or put aside."""

import json
from typing import Any

import msgspec
import pytest

from schemas.base import EvalKey, Event, JobId
from schemas.dead_letter import DeadLetter
from schemas.envelope import COMMANDS_DECODER, AnyCommand
from schemas.jobs import (
    IntakeAdvanced,
    JobRegistered,
    JobStopped,
    RegisterJob,
    SkipSubmission,
    StopJob,
    SubmissionRefused,
    Verdict,
)
from schemas.policy import Policy, PolicyChanged, RemoteDriver
from services.intake.role import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Intake
from shared.core.runtime.messages import (
    Ack,
    CaughtUp,
    Close,
    Effect,
    LeadershipLost,
    LeadershipWon,
    LogSpace,
    Message,
    Open,
    Purge,
    Reconnected,
    Reply,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from shared.core.runtime.role import Input
from tests.unit.core.state.written_log import WrittenLog

SECOND = 1_000_000_000


def a_body(job_id: str = "hello", submission_id: str = "", **more: Any) -> bytes:
    group = {"Name": "g", "Tasks": [{"Name": "t", "Driver": "any", "Config": {}}]}
    body: dict[str, Any] = {"Job": {"ID": job_id, "TaskGroups": [group], **more}}
    if submission_id:
        body["SubmissionID"] = submission_id
    return json.dumps(body).encode()


class Story:
    """An intake that has caught up, the log it reads, and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.log = WrittenLog()
        self.role = Intake(instance="intake-1", **settings)
        self.now = 1000 * SECOND
        self.tokens = 0
        self.timer = 0
        self.run(*self.log.records, CaughtUp(self.log.seq), Reconnected())

    def run(self, *inputs: Input, after: int = 0) -> list[Effect]:
        """Step once, `after` ns later."""
        self.now += after
        effects = self.role.step(list(inputs), self.now)
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timer = effect.at_ns
        return effects

    def fire(self) -> list[Effect]:
        """Let the armed timer fire, when it is due."""
        assert self.timer, "no timer is armed"
        deadline, self.timer = self.timer, 0
        self.now = max(self.now, deadline)
        return self.run(Timer("intake", deadline))

    def ask(
        self, body: bytes, verb: str = "submit", msg_id: str = "", *, reply: bool = True
    ) -> Message:
        """Make a request at the fast door."""
        self.tokens += 1
        return Message(
            "api", f"api.jobs.{verb}", body, token=self.tokens, reply=reply, msg_id=msg_id
        )

    def drop(self, seq: int, body: bytes, verb: str = "submit", msg_id: str = "") -> Message:
        """Make a message of the drop box."""
        self.tokens += 1
        return Message(
            "jobs", f"jobs.{verb}", body, token=self.tokens, stream_seq=seq, msg_id=msg_id
        )

    def lead(self) -> list[Effect]:
        return self.run(LeadershipWon())


def commands(effects: list[Effect]) -> list[AnyCommand]:
    found: list[AnyCommand] = []
    for effect in effects:
        if isinstance(effect, Send) and effect.subject == "cmd.job":
            found += COMMANDS_DECODER.decode(effect.data).commands
    return found


def registers(effects: list[Effect]) -> list[RegisterJob]:
    found = commands(effects)
    assert all(isinstance(one, RegisterJob) for one in found)
    return [one for one in found if isinstance(one, RegisterJob)]


def replies(effects: list[Effect]) -> dict[int, Verdict]:
    return {
        one.token: msgspec.json.decode(one.data, type=Verdict)
        for one in effects
        if isinstance(one, Reply)
    }


def accepted(command: AnyCommand, version: int = 0, *also: Event) -> tuple[Event, ...]:
    assert isinstance(command, RegisterJob)
    registered = JobRegistered(
        submission_id=command.submission_id,
        digest=command.digest,
        job_id=command.job_id,
        version=version,
        groups=command.groups,
        spec=command.spec,
        evaluation=EvalKey(77),
        warnings=command.warnings,
    )
    return (registered, *also)


def test_a_verdict_follows_the_log() -> None:
    """A valid request is asked for at once and answered only when the log shows its effect."""
    story = Story()
    asked = story.ask(a_body(submission_id="s-1"))
    effects = story.run(asked)
    (command,) = registers(effects)
    assert (command.submission_id, command.job_id, command.jobs_seq) == ("s-1", "hello", 0)
    assert not replies(effects)
    verdict = replies(story.run(story.log.tx(*accepted(command))))[asked.token]
    assert (verdict.status, verdict.submission_id, verdict.seq) == ("accepted", "s-1", 3)
    assert (verdict.job_id, verdict.version, verdict.modify_index) == ("hello", 0, 3)
    assert verdict.cluster_id == "c1"
    assert len(verdict.eval_id) == 36


def test_a_refusal_in_the_log_is_the_verdict() -> None:
    """A refusal by the plan applier reaches the submitter with its code and reason."""
    story = Story()
    asked = story.ask(b'{"JobID":"gone","SubmissionID":"s-1"}', "stop")
    (command,) = commands(story.run(asked))
    assert isinstance(command, StopJob)
    refused = SubmissionRefused(
        submission_id="s-1",
        digest=command.digest,
        verb="stop",
        job_id=JobId("gone"),
        code="not_found",
        reason="no such job",
    )
    verdict = replies(story.run(story.log.tx(refused)))[asked.token]
    assert verdict.status == "refused"
    assert verdict.error is not None
    assert (verdict.error.code, verdict.error.message) == ("not_found", "no such job")


def test_commands_are_sent_again_until_the_log_shows_them() -> None:
    """A command is sent again after half a second, then more rarely, and no more once the log has it."""
    story = Story()
    (command,) = registers(story.run(story.ask(a_body(submission_id="s-1"))))
    gaps = []
    for _ in range(3):
        before = story.now
        again = registers(story.fire())
        assert [one.submission_id for one in again] == [command.submission_id]
        gaps.append((story.now - before) / SECOND)
    assert gaps == [0.5, 1.0, 2.0]
    story.run(story.log.tx(*accepted(command)))
    assert not commands(story.run(Timer("intake", story.now), after=60 * SECOND))


def test_silence_of_the_log_is_answered_pending() -> None:
    """After five seconds the asker hears `pending` with the id, once; asking again is answered by the log."""
    story = Story()
    asked = story.ask(a_body(submission_id="s-1"))
    (command,) = registers(story.run(asked))
    told: dict[int, Verdict] = {}
    started = story.now
    while not told:
        told = replies(story.fire())
    assert story.now - started == 5 * SECOND
    assert (told[asked.token].status, told[asked.token].submission_id) == ("pending", "s-1")
    again = story.ask(a_body(submission_id="s-1"))
    assert not commands(story.run(again))
    found = replies(story.run(story.log.tx(*accepted(command))))
    assert set(found) == {again.token}


def test_an_abandoned_command_is_given_up() -> None:
    """A command whose outcome never appears in the log is not resent forever: its submitter was asked to retry."""
    story = Story()
    story.run(story.ask(a_body(submission_id="s-1")))
    started = story.now
    while story.timer:
        story.fire()
    assert story.now - started < 70 * SECOND
    assert story.role.metrics()["caravan_intake_pending_submissions"] == 0


def test_a_known_submission_is_answered_from_state() -> None:
    """The same id and content again is answered at once; the same id with other content is a conflict."""
    story = Story()
    (command,) = registers(story.run(story.ask(a_body(submission_id="s-1"))))
    story.run(story.log.tx(*accepted(command)))
    same, other = story.ask(a_body(submission_id="s-1")), story.ask(a_body("x", "s-1"))
    effects = story.run(same, other)
    assert not commands(effects)
    found = replies(effects)
    assert found[same.token].status == "accepted"
    error = found[other.token].error
    assert error is not None
    assert error.code == "conflict"


def test_an_id_used_twice_at_once_is_a_conflict() -> None:
    """While a submission waits, its id with the same content waits along and with other content is refused."""
    story = Story()
    first, same, other = (
        story.ask(a_body(submission_id="s-1")),
        story.ask(a_body(submission_id="s-1")),
        story.ask(a_body("x", "s-1")),
    )
    effects = story.run(first, same, other)
    (command,) = registers(effects)
    error = replies(effects)[other.token].error
    assert error is not None
    assert error.code == "conflict"
    assert set(replies(story.run(story.log.tx(*accepted(command))))) == {first.token, same.token}


def test_an_id_that_another_intake_used_is_a_conflict() -> None:
    """When the log has our id with another content, our client gets a conflict."""
    story = Story()
    asked = story.ask(a_body(submission_id="s-1"))
    story.run(asked)
    other = Story()
    (command,) = registers(other.run(other.ask(a_body("x", "s-1"))))
    error = replies(story.run(story.log.tx(*accepted(command))))[asked.token].error
    assert error is not None
    assert error.code == "conflict"


def test_two_submits_of_one_job_in_one_batch_are_both_asked_for() -> None:
    """Two submissions of one job travel in one message, in their order; the plan applier judges them."""
    story = Story()
    effects = story.run(story.ask(a_body(Priority=1)), story.ask(a_body(Priority=2)))
    assert len([one for one in effects if isinstance(one, Send)]) == 1
    assert [one.priority for one in registers(effects)] == [1, 2]
    assert len({one.submission_id for one in registers(effects)}) == 2


def test_ids_come_from_body_header_or_are_made() -> None:
    """The body's id wins over the header's; without both the id is new and legal."""
    story = Story()
    effects = story.run(
        story.ask(a_body(submission_id="in-body"), msg_id="in-header"),
        story.ask(a_body(), msg_id="in-header"),
        story.ask(a_body()),
        story.ask(a_body()),
    )
    first, second, third, fourth = [one.submission_id for one in registers(effects)]
    assert (first, second) == ("in-body", "in-header")
    assert third != fourth


@pytest.mark.parametrize("bad", ["a b", "jobs-7", "*", "x" * 200])
def test_ids_that_could_be_mistaken_are_refused(bad: str) -> None:
    """Neither body nor header may name an id that is illegal or belongs to the drop box."""
    story = Story()
    effects = story.run(story.ask(a_body(submission_id=bad)), story.ask(a_body(), msg_id=bad))
    assert not commands(effects)
    assert {one.status for one in replies(effects).values()} == {"refused"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid"),
        (b'{"Job":{"ID":"a","ID":"b"}}', "invalid"),
        (b"\xff" * 10, "invalid"),
        (b'{"Job":' * 1000, "invalid"),
        (b"x" * (1 << 20) + b"x", "too_large"),
        (a_body("a b"), "invalid"),
    ],
)
def test_bad_input_is_answered_and_nothing_else_happens(body: bytes, code: str) -> None:
    """What is no submission is refused at the fast door without a command; others in the batch continue."""
    story = Story()
    bad, good = story.ask(body), story.ask(a_body())
    effects = story.run(bad, good)
    assert len(registers(effects)) == 1
    verdict = replies(effects)[bad.token]
    assert verdict.status == "refused"
    assert verdict.error is not None
    assert verdict.error.code == code


def test_all_faults_are_in_the_verdict() -> None:
    """A refusal names every fault with its path."""
    story = Story()
    asked = story.ask(b'{"Job":{"ID":"a b","Priority":101}}')
    paths = [one.path for one in replies(story.run(asked))[asked.token].errors]
    assert paths == ["Job.ID", "Job.Priority", "Job.TaskGroups"]


def test_a_refusal_names_the_submission() -> None:
    """A body refused for its faults is refused under the id that it gave itself, else under its header's."""
    story = Story()
    own = story.ask(b'{"Job":{"ID":"a b"},"SubmissionID":"mine"}', msg_id="header")
    header = story.ask(b'{"Job":{"ID":"a b"}}', msg_id="header")
    unreadable = story.ask(b"{")
    stop = story.ask(b'{"JobID":"","SubmissionID":"mine-too"}', "stop")
    found = replies(story.run(own, header, unreadable, stop))
    ids = [found[one.token].submission_id for one in (own, header, unreadable, stop)]
    assert ids == ["mine", "header", "", "mine-too"]


def test_validate_and_unknown_verbs_ask_for_nothing() -> None:
    """`validate` is answered without a command, an unknown verb is refused."""
    story = Story()
    check = story.ask(a_body(VaultToken="x"), "validate")
    strange = story.ask(a_body(), "explode")
    effects = story.run(check, strange)
    assert not commands(effects)
    found = replies(effects)
    assert (found[check.token].status, found[check.token].job_id) == ("accepted", "hello")
    assert "Job.VaultToken" in found[check.token].warnings[0]
    assert found[strange.token].status == "refused"


def test_too_many_waiting_are_turned_away() -> None:
    """Beyond the bound a submission is refused as unavailable, and is not asked for."""
    story = Story(pending_max=2)
    asked = [story.ask(a_body(f"j{n}")) for n in range(3)]
    effects = story.run(*asked)
    assert len(registers(effects)) == 2
    error = replies(effects)[asked[2].token].error
    assert error is not None
    assert error.code == "unavailable"


def test_batches_keep_within_their_bounds() -> None:
    """A message holds at most 256 commands and stays below its size, and everything is sent in order."""
    story = Story()
    many = [story.ask(a_body(f"j{n}")) for n in range(BATCH_COMMANDS_MAX + 10)]
    big = [story.ask(a_body(f"b{n}", Meta={"a": "x" * 200_000})) for n in range(3)]
    effects = story.run(*many, *big)
    sends = [one for one in effects if isinstance(one, Send)]
    sizes = [len(COMMANDS_DECODER.decode(one.data).commands) for one in sends]
    assert max(sizes) <= BATCH_COMMANDS_MAX
    assert all(len(one.data) < BATCH_BYTES_MAX + 200 for one in sends)
    assert [one.job_id for one in registers(effects)] == [
        *[f"j{n}" for n in range(BATCH_COMMANDS_MAX + 10)],
        *[f"b{n}" for n in range(3)],
    ]


def test_jobs_are_compiled_under_the_policy_in_force() -> None:
    """A task of a remote driver asks for the driver's pools from the moment on that the policy calls it so."""
    story = Story()

    def alternatives(job_id: str) -> list[list[str]]:
        (command,) = registers(story.run(story.ask(a_body(job_id))))
        return [[one.pool for one in asks] for asks in command.groups[0].alternatives]

    assert alternatives("before") == []
    story.run(story.log.tx(PolicyChanged(policy=Policy(remote_drivers={"any": RemoteDriver()}))))
    assert alternatives("after") == [["any.cpu", "any.memory"]]


def test_a_command_too_long_for_a_message_is_refused() -> None:
    """Compiled groups that outgrow a message are refused, not sent."""
    story = Story()
    groups = [{"Name": f"g{n}", "Tasks": [{"Name": "t", "Driver": "any"}]} for n in range(50)]
    wide = [{"LTarget": "${meta.a}", "RTarget": f"{n}" + "x" * 1000} for n in range(100)]
    asked = story.ask(a_body(TaskGroups=groups, Constraints=wide))
    effects = story.run(asked)
    error = replies(effects)[asked.token].error
    assert error is not None
    assert error.code == "too_large"
    assert not commands(effects)


def test_the_fast_door_needs_no_leadership_and_no_listener() -> None:
    """A request without a reply subject is asked for all the same, and its credit given back."""
    story = Story()
    asked = story.ask(a_body(), reply=False)
    effects = story.run(asked)
    assert len(registers(effects)) == 1
    assert Ack(asked.token) in effects


def test_a_nearly_full_log_takes_only_stops() -> None:
    """New work is refused at the door with the reason, the drop box waits; both continue when there is room."""
    story = Story()
    story.run(LeadershipWon())
    full = story.run(LogSpace(bytes=95, bytes_max=100, last_seq=10**6))
    assert Close("jobs") in full
    effects = story.run(story.ask(a_body(submission_id="new")))
    (refused,) = replies(effects).values()
    assert refused.status == "refused" and refused.error is not None
    assert refused.error.code == "log_full" and "95 % full" in refused.error.message
    assert not commands(effects)
    stopping = story.run(story.ask(b'{"JobID": "hello"}', verb="stop"))
    assert [type(command) for command in commands(stopping)] == [StopJob]
    story.run(Timer("open", 0), after=SECOND)
    again = story.run(LogSpace(bytes=10, bytes_max=100, last_seq=10**6))
    assert any(isinstance(effect, Open) for effect in again)
    assert registers(story.run(story.ask(a_body(submission_id="new"))))


def test_a_log_that_cannot_be_written_answers_at_once() -> None:
    """Who waits gets "pending" with the reason; what is new is refused, stops too, until it is written again."""
    story = Story()
    story.run(LeadershipWon())
    waiting = story.ask(a_body(submission_id="waits"))
    assert not replies(story.run(waiting))
    failed = LogSpace(bytes=5, bytes_max=100, last_seq=10**6, is_write_failed=True)
    effects = story.run(failed)
    assert Close("jobs") in effects
    told = replies(effects)[waiting.token]
    assert told.status == "pending" and told.error is not None
    assert "disk is full" in told.error.message
    for asked in (
        story.ask(a_body(submission_id="new")),
        story.ask(b'{"JobID": "x"}', verb="stop"),
    ):
        refused = replies(story.run(asked))[asked.token]
        assert refused.status == "refused" and refused.error is not None
        assert refused.error.code == "log_full" and "nothing was kept" in refused.error.message
    story.run(LogSpace(bytes=5, bytes_max=100, last_seq=10**6))
    assert registers(story.run(story.ask(a_body(submission_id="new"))))


def test_the_drop_box_is_read_by_the_leader_from_the_logged_position() -> None:
    """The drop box is opened behind the logged position, only when leading and caught up, and closed after."""
    story = Story()
    story.run(story.log.tx(IntakeAdvanced(jobs_seq=41)))
    assert Open("jobs", 42) in story.lead()
    assert Close("jobs") in story.run(LeadershipLost())
    fresh = Intake(instance="intake-2")
    assert not [one for one in fresh.step([LeadershipWon()], 1) if isinstance(one, Open)]
    assert Open("jobs", 1) in fresh.step([CaughtUp(0)], 2)


def test_drop_box_commands_name_their_place() -> None:
    """Each command names its position and the one before; ids fall back to header and position."""
    story = Story()
    story.lead()
    effects = story.run(
        story.drop(3, a_body()), story.drop(4, a_body(), msg_id="m-1"), story.drop(9, a_body())
    )
    found = registers(effects)
    assert [(one.jobs_prev, one.jobs_seq) for one in found] == [(0, 3), (3, 4), (4, 9)]
    assert [one.submission_id for one in found] == ["jobs-3", "m-1", "jobs-9"]


def test_drop_box_credit_comes_back_with_the_logged_position() -> None:
    """A message is acknowledged once the log stands behind it; what is behind is purged later, the rest sent again."""
    story = Story()
    story.lead()
    first, second = story.drop(1, a_body()), story.drop(2, a_body("b"))
    sent = registers(story.run(first, second))
    effects = story.run(story.log.tx(*accepted(sent[0], 0, IntakeAdvanced(jobs_seq=1))))
    assert Ack(first.token) in effects
    assert Ack(second.token) not in effects
    again: list[AnyCommand] = []
    purged: list[Effect] = []
    for _ in range(3):
        effects = story.fire()
        again += commands(effects)
        purged += [one for one in effects if isinstance(one, Purge)]
    assert again[0] == sent[1]
    assert purged == [Purge("jobs", 2)]


def test_a_message_read_twice_is_asked_for_once() -> None:
    """A message at or below the newest position taken gives its credit back and nothing else."""
    story = Story()
    story.lead()
    story.run(story.drop(5, a_body()))
    twice = story.drop(5, a_body())
    effects = story.run(twice)
    assert not commands(effects)
    assert Ack(twice.token) in effects


def test_bad_messages_of_the_drop_box_are_put_aside() -> None:
    """What cannot be read becomes a dead letter and a skip in its place; the ones behind it continue."""
    story = Story()
    story.lead()
    bad, strange, good = (
        story.drop(1, b'{"Job":{"ID":"a","TaskGroups":NaN}}'),
        story.drop(2, a_body(), verb="validate"),
        story.drop(3, a_body()),
    )
    effects = story.run(bad, strange, good)
    letters = [
        msgspec.json.decode(one.data, type=DeadLetter)
        for one in effects
        if isinstance(one, Send) and one.subject.startswith("dead.")
    ]
    assert [one.subject for one in letters] == ["jobs.submit", "jobs.validate"]
    assert "malformed" in letters[0].reason
    first, second, third = commands(effects)
    assert first == SkipSubmission(jobs_seq=1, jobs_prev=0)
    assert second == SkipSubmission(jobs_seq=2, jobs_prev=1)
    assert isinstance(third, RegisterJob)
    assert third.jobs_prev == 2


def test_a_reconnect_sends_again_and_reads_on() -> None:
    """After the bus was away all that is on the way is sent again at once; reading continues behind it."""
    story = Story()
    story.lead()
    story.run(story.ask(a_body(submission_id="s-1")), story.drop(1, a_body()))
    effects = story.run(Reconnected())
    assert [one.submission_id for one in registers(effects)] == ["s-1", "jobs-1"]
    assert not [one for one in effects if isinstance(one, Open)]
    (command,) = registers(story.run(story.drop(2, a_body())))
    assert command.jobs_prev == 1


def test_the_drop_box_is_not_reopened_in_one_breath() -> None:
    """Leadership lost and won at once: late messages of the first reading are not taken for the next one's."""
    story = Story()
    story.lead()
    story.run(story.drop(1, a_body()))
    effects = story.run(LeadershipLost(), LeadershipWon())
    assert Close("jobs") in effects
    assert not [one for one in effects if isinstance(one, Open)]
    late = story.drop(7, a_body())
    assert not commands(story.run(late))
    assert Open("jobs", 1) in story.run(Timer("open", story.now), after=SECOND)
    assert [one.jobs_seq for one in registers(story.run(story.drop(1, a_body())))] == [1]


def test_a_clock_set_back_delays_nothing() -> None:
    """When the clock goes back by an hour, what waits is sent again within half a second of the new time."""
    story = Story()
    story.run(story.ask(a_body(submission_id="s-1")))
    story.now -= 3600 * SECOND
    story.run(CaughtUp(2))
    assert story.timer <= story.now + SECOND


def test_stop_is_asked_for_while_anything_else_waits() -> None:
    """A stop of a job whose registration still waits is sent behind it and answered by its own effect."""
    story = Story()
    run = story.ask(a_body(submission_id="s-1"))
    stop = story.ask(b'{"JobID":"hello","SubmissionID":"s-2"}', "stop")
    first, second = commands(story.run(run, stop))
    assert isinstance(second, StopJob)
    stopped = JobStopped(submission_id="s-2", digest=second.digest, job_id=second.job_id)
    found = replies(story.run(story.log.tx(*accepted(first)), story.log.tx(stopped)))
    assert {token: one.status for token, one in found.items()} == {
        run.token: "accepted",
        stop.token: "accepted",
    }


def test_a_damaged_log_stops_the_role() -> None:
    """A record that breaks the chain stops the process instead of guessing."""
    story = Story()
    record = story.log.tx(IntakeAdvanced(jobs_seq=1))
    broken = msgspec.structs.replace(
        record, data=record.data.replace(b'"jobs_seq":1', b'"jobs_seq":2')
    )
    assert any(isinstance(one, Stop) for one in story.run(broken))
