"""Intake under overload: what goes in is bounded by what workers get through, and turning away is cheap."""

from schemas.envelope import ENCODER
from schemas.evaluations import Presence
from schemas.jobs import StopJob
from services.intake.credit import WAITING_MAX
from shared.core.role import Close, LeadershipWon, Message, Open, Timer
from tests.unit.test_intake import SECOND, Story, a_body, commands, registers, replies


def backlog(waiting: int) -> Message:
    """The eval broker's word."""
    body = Presence(role="eval_broker", instance="b1", waiting=waiting)
    return Message("backlog", "presence.eval_broker.backlog", ENCODER.encode(body), token=0)


def names(story: Story, *submission_ids: str) -> list[Message]:
    return [story.ask(a_body(one, submission_id=one)) for one in submission_ids]


def test_what_workers_have_enough_of_is_held_back() -> None:
    """While the backlog is at its bound nothing new is sent; as it falls so many go on as bring it there, in order."""
    story = Story()
    story.run(backlog(WAITING_MAX))
    assert not registers(story.run(*names(story, "a", "b", "c")))
    assert not registers(story.run(backlog(WAITING_MAX + 5_000), after=SECOND // 10))
    sent = registers(story.run(backlog(WAITING_MAX - 2), after=SECOND // 10))
    assert [one.submission_id for one in sent] == ["a", "b"]
    assert not registers(story.run(*names(story, "d")))
    sent = registers(story.run(backlog(0), after=SECOND // 10))
    assert [one.submission_id for one in sent] == ["c", "d"]


def test_a_broker_that_says_nothing_closes_no_door() -> None:
    """A second after its last word everything goes on, by timer."""
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
