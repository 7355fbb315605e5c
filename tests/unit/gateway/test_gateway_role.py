"""The gateway's role: what wakes a waiting query, followers, times, and one-time codes."""

from schemas.base import JobId
from schemas.envelope import AnyEvent, LogRecord
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import JobRegistered, JobStopped
from schemas.variables import VariableDeleted
from services.gateway import change_index
from services.gateway.edge.one_time_codes import CODES_MAX, OneTimeCodes
from services.gateway.role import Gateway
from shared.core.runtime.messages import CaughtUp
from shared.core.state.state import State
from tests.unit.core.state.written_log import START_NS, WrittenLog
from tests.unit.view.test_view_variables import put


class Story:
    """A gateway that follows a log."""

    def __init__(self) -> None:
        self.log = WrittenLog()
        self.gateway = Gateway(instance="g")
        self.gateway.step(list(self.log.records), 0)
        self.gateway.step([CaughtUp(self.log.seq)], 0)

    def write(self, *events: AnyEvent) -> int:
        """Write a record and apply it."""
        self.gateway.step([self.log.tx(*events)], 0)
        return self.gateway.seq


def registered(job_id: str, submission: str = "s") -> JobRegistered:
    """A job's first version."""
    return JobRegistered(
        submission_id=f"{submission}-{job_id}", digest=job_id, job_id=JobId(job_id), version=0
    )


def test_a_record_wakes_those_who_wait_for_its_job_or_table() -> None:
    """A waiter of another job sleeps on; one of the table, or of the job, is woken once for each record."""
    story = Story()
    woken: list[str] = []
    index = story.gateway.changes
    for name, topic in (
        ("web", change_index.job("web")),
        ("other", change_index.job("other")),
        ("jobs", change_index.table("jobs")),
        ("fleet", change_index.table("fleet")),
    ):
        index.wait([topic], lambda name=name: woken.append(name))  # type: ignore[misc]
    story.write(registered("web"))
    assert sorted(woken) == ["jobs", "web"]
    story.write(JobStopped(submission_id="t", digest="t", job_id=JobId("web"), purge=False))
    assert sorted(woken) == ["jobs", "jobs", "web", "web"]


def test_a_record_about_a_variable_wakes_those_who_wait_for_the_table() -> None:
    """Its put and its end; a job's record does not, and the index of the table is the seq of the last."""
    story = Story()
    woken: list[int] = []
    index = story.gateway.changes
    index.wait([change_index.table("variables")], lambda: woken.append(1))
    story.write(registered("web"))
    assert woken == []
    story.write(put("app/db"))
    ended = story.write(VariableDeleted(path="app/db", incarnation=1))
    assert (len(woken), index.of_table("variables")) == (2, ended)


def test_a_waiter_of_two_topics_is_forgotten_for_both() -> None:
    """What ended its wait is not woken, and leaves nothing behind."""
    story = Story()
    woken: list[int] = []
    topics = (change_index.job("web"), change_index.table("jobs"))
    forget = story.gateway.changes.wait(topics, lambda: woken.append(1))
    assert story.gateway.changes.waiting == 2
    forget()
    forget()
    assert story.gateway.changes.waiting == 0
    story.write(registered("web"))
    assert woken == []


def test_the_index_of_a_table_is_the_seq_of_its_last_record() -> None:
    """A record about jobs moves the index of jobs, and not that of nodes."""
    story = Story()
    nodes = story.gateway.changes.of_table("fleet")
    seq = story.write(registered("web"))
    assert story.gateway.changes.of_table("jobs") == seq
    assert story.gateway.changes.of_table("fleet") == nodes
    assert story.gateway.changes.newest(("fleet", "jobs")) == seq


def test_a_seq_that_is_reached_ends_its_waits() -> None:
    """At once where it is reached already, else with the record, once."""
    story = Story()
    ended: list[str] = []
    story.gateway.when_at(story.gateway.seq, lambda: ended.append("past"))
    story.gateway.when_at(story.gateway.seq + 1, lambda: ended.append("next"))
    story.gateway.when_at(story.gateway.seq + 2, lambda: ended.append("later"))
    assert ended == ["past"]
    story.write(registered("web"))
    assert ended == ["past", "next"]
    story.write(registered("db"))
    assert ended == ["past", "next", "later"]


def test_a_follower_sees_each_record_before_and_after() -> None:
    """In order, with the states around it; after `unfollow` nothing more."""
    story = Story()
    seen: list[tuple[str, int, int]] = []

    class Watcher:
        def begin(self, state: State, seq: int) -> None:
            seen.append(("begin", seq, len(state.jobs.by_id)))

        def before(self, state: State, record: LogRecord, seq: int) -> None:
            seen.append(("before", seq, len(state.jobs.by_id)))

        def after(self, state: State, record: LogRecord, seq: int) -> None:
            seen.append(("after", seq, len(state.jobs.by_id)))

    watcher = Watcher()
    at = story.gateway.seq
    story.gateway.follow(watcher)
    story.write(registered("web"))
    story.gateway.unfollow(watcher)
    story.write(registered("db"))
    assert seen == [("begin", at, 0), ("before", at + 1, 0), ("after", at + 1, 1)]


def test_the_time_of_each_record_is_known() -> None:
    """Of the records that were applied; 0 for a seq that there is not."""
    story = Story()
    seq = story.write(registered("web"))
    assert story.gateway.times.at(seq) == story.gateway.state.t_ns
    assert story.gateway.times.at(seq + 1) == 0
    assert story.gateway.times.at(0) == 0


def test_evaluations_wake_the_waiters_of_their_job() -> None:
    """An evaluation is created for a job: its reader sees it."""
    story = Story()
    story.write(registered("web"))
    woken: list[int] = []
    story.gateway.changes.wait([change_index.job("web")], lambda: woken.append(1))
    new = NewEvaluation(
        job_id=JobId("web"), priority=50, job_type="service", triggered_by="job-register"
    )
    story.write(EvaluationsCreated(evaluations=(new,)))
    assert woken == [1]


def test_a_code_is_good_once() -> None:
    """The second exchange gets nothing, as does a code that was never drawn; the oldest leave a full store."""
    codes = OneTimeCodes()
    code = codes.draw("public:secret")
    assert codes.exchange(code) == "public:secret"
    assert codes.exchange(code) == ""
    assert codes.exchange("") == codes.exchange("made-up") == ""
    drawn = [codes.draw(str(number)) for number in range(CODES_MAX + 1)]
    assert codes.exchange(drawn[0]) == ""
    assert codes.exchange(drawn[-1]) == str(CODES_MAX)


def test_the_last_record_by_a_time_is_found() -> None:
    """Each log time names the last record that was written by then; before the first one there is none."""
    story = Story()
    begin = story.gateway.seq
    for second in (10, 10, 12):
        record = story.log.tx(t_ns=START_NS + second * 1_000_000_000)
        story.gateway.step([record], 0)
    times = story.gateway.times
    found = [times.seq_at(START_NS + second * 1_000_000_000) for second in (9, 10, 11, 12, 99)]
    assert found == [begin, begin + 2, begin + 2, begin + 3, begin + 3]
    assert times.seq_at(START_NS - 1) == 0
