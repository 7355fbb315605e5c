"""Intake under overload: what goes in is bounded by what workers get through, and turning away is cheap."""

from schemas.envelope import ENCODER
from schemas.evaluations import Presence
from schemas.jobs import RegisterJob, StopJob
from services.intake.admission import UNCONFIRMED_MAX, WAITING_MAX
from shared.core.runtime.messages import Close, LeadershipWon, Message, Open, Record, Timer
from tests.unit.intake.test_intake import (
    SECOND,
    Story,
    a_body,
    accepted,
    commands,
    registers,
    replies,
)


def backlog(waiting: int) -> Message:
    """The eval broker's word."""
    body = Presence(role="eval_broker", instance="b1", waiting=waiting)
    return Message("backlog", "presence.eval_broker.backlog", ENCODER.encode(body), token=0)


def names(story: Story, *submission_ids: str) -> list[Message]:
    return [story.ask(a_body(one, submission_id=one)) for one in submission_ids]


def shown(story: Story, some: list[RegisterJob]) -> Record:
    """The log shows these commands."""
    return story.log.tx(*(event for one in some for event in accepted(one)))  # type: ignore[arg-type]


def test_what_workers_have_enough_of_is_held_back() -> None:
    """While the backlog is at its bound nothing new is sent; as it falls, submissions refill it, in order."""
    story = Story()
    story.run(backlog(WAITING_MAX))
    assert not registers(story.run(*names(story, "a", "b", "c")))
    assert not registers(story.run(backlog(WAITING_MAX + 5_000), after=SECOND // 10))
    sent = registers(story.run(backlog(WAITING_MAX - 2), after=SECOND // 10))
    assert [one.submission_id for one in sent] == ["a", "b"]
    assert not registers(story.run(*names(story, "d")))
    sent = registers(story.run(backlog(0), after=SECOND // 10))
    assert [one.submission_id for one in sent] == ["c", "d"]


def test_what_is_under_way_counts_as_waiting() -> None:
    """The broker's word knows only what is in the log: what was sent and is not there yet is taken off."""
    story = Story()
    sent = registers(story.run(*names(story, "a", "b")))
    story.run(backlog(WAITING_MAX - 3))
    assert [one.submission_id for one in registers(story.run(*names(story, "c", "d")))] == ["c"]
    assert not registers(story.run(shown(story, sent[:2])))
    sent = registers(story.run(backlog(WAITING_MAX - 2), after=SECOND // 10))
    assert [one.submission_id for one in sent] == ["d"]


def test_a_log_that_is_slow_gathers_no_crowd() -> None:
    """Without any word, too, only so many are under way; as the log shows them the next continue, oldest first."""
    story = Story()
    wanted = [f"s{number:05d}" for number in range(UNCONFIRMED_MAX + 3)]
    sent = registers(story.run(*names(story, *wanted)))
    assert [one.submission_id for one in sent] == wanted[:UNCONFIRMED_MAX]
    assert not registers(story.run(*names(story, "late")))
    again = registers(story.run(shown(story, sent[:2])))
    assert [one.submission_id for one in again] == wanted[UNCONFIRMED_MAX : UNCONFIRMED_MAX + 2]


def test_what_was_sent_goes_again_without_credit() -> None:
    """A command that may be lost is repeated in time, however much waits: it is counted already."""
    story = Story()
    story.run(*names(story, "a"))
    story.run(backlog(WAITING_MAX + 1))
    assert [one.submission_id for one in registers(story.fire())] == ["a"]


def test_a_broker_that_says_nothing_closes_no_door() -> None:
    """A second after its last word everything continues, by timer."""
    story = Story()
    story.run(backlog(WAITING_MAX))
    assert not registers(story.run(*names(story, "a")))
    assert story.timer - story.now == SECOND
    assert [one.submission_id for one in registers(story.fire())] == ["a"]


def test_a_stop_never_waits_behind_new_work() -> None:
    """What takes work away is sent whatever waits for workers."""
    story = Story()
    story.run(backlog(WAITING_MAX))
    stop = story.ask(b'{"JobID":"hello","SubmissionID":"s-9"}', "stop")
    [command] = commands(story.run(stop))
    assert isinstance(command, StopJob)


def test_a_stop_is_not_turned_away() -> None:
    """With the door full of new work a stop is taken; as many stops again, and the next is refused for now."""
    story = Story(pending_max=2)
    story.run(*names(story, "a", "b"))
    stops = [
        story.ask(b'{"JobID":"hello","SubmissionID":"s-%d"}' % number, "stop")
        for number in range(3)
    ]
    effects = story.run(*stops)
    assert [type(one) for one in commands(effects)] == [StopJob, StopJob]
    assert set(replies(effects)) == {stops[2].token}


def test_the_drop_box_opens_again_without_a_word() -> None:
    """A broker that dies behind a high word must not leave the box closed: the end of its word opens it."""
    story = Story()
    story.run(LeadershipWon())
    story.run(backlog(WAITING_MAX))
    story.run(Timer("open", story.now), after=SECOND // 2)
    assert Open("jobs", 1) in story.fire()


def test_the_drop_box_waits_too() -> None:
    """At the bound the box is closed with all that is in it, and read on from the log's position afterwards."""
    story = Story()
    story.run(LeadershipWon())
    assert Close("jobs") in story.run(backlog(WAITING_MAX))
    assert Open("jobs", 1) not in story.run(Timer("open", story.now), after=SECOND // 2)
    assert Open("jobs", 1) in story.run(backlog(0))


def test_who_is_known_gets_an_answer_while_others_are_turned_away() -> None:
    """With the door full a new name is refused for now, whatever its body says; one that waits is no new one."""
    story = Story(pending_max=1)
    [known] = names(story, "a")
    story.run(known)
    strange = story.ask(b'{"SubmissionID":"b","Job":17}')
    [again] = names(story, "a")
    found = replies(story.run(strange, again))
    assert set(found) == {strange.token}
    verdict = found[strange.token]
    assert verdict.submission_id == "b"
    assert verdict.error is not None
    assert verdict.error.code == "unavailable"


def test_what_is_no_word_of_the_broker_is_passed_over() -> None:
    """Garbage on its subject holds nothing back."""
    story = Story()
    for garbage in (b"\xff{", b'{"x":' + b"[" * 100_000, b'{"waiting":"many"}'):
        story.run(Message("backlog", "presence.eval_broker.backlog", garbage, token=0))
    assert len(registers(story.run(*names(story, "a")))) == 1
