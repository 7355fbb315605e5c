"""Launches of periodic jobs as deadlines: which instant is named when, after a takeover and across daylight saving."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from schemas.base import JobId
from schemas.envelope import COMMANDS_DECODER
from schemas.jobs import JobRegistered, JobStopped, PeriodicBlock
from schemas.launches import JobLaunched, LaunchDue
from services.timekeeper.due_heap import GRACE_NS
from services.timekeeper.launches import PeriodicLaunches
from services.timekeeper.role import Timekeeper
from shared.core.runtime.messages import CaughtUp, LeadershipWon, Send, SetTimer, Timer
from shared.core.runtime.role import Input
from tests.unit.core.state.written_log import WrittenLog

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
BEGIN = 1_700_000_040 * SECOND


class Story:
    """A timekeeper with periodic jobs; the log shows every launch that it asks for, if it `launches`."""

    def __init__(self, *, grace_ns: int = 0, launches: bool = True) -> None:
        self.role = Timekeeper(instance="t1", sources=[PeriodicLaunches(grace_ns=grace_ns)])
        self.log = WrittenLog()
        self.now = BEGIN
        self.launches = launches
        self.alarm = 0
        #: (time, command).
        self.asked: list[tuple[int, LaunchDue]] = []

    def lead(self) -> "Story":
        """Read the log, and lead."""
        self.step(*self.log.records, CaughtUp(self.log.seq), LeadershipWon())
        return self

    def job(self, *crons: str, job_id: str = "cron", version: int = 0, **block: Any) -> "Story":
        """Write a version of a periodic job."""
        event = JobRegistered(
            submission_id=f"s{version}-{job_id}",
            digest="d",
            job_id=JobId(job_id),
            version=version,
            periodic=PeriodicBlock(crons=crons, **block),
            launches_after_ns=self.now,
        )
        record = self.log.tx(event)
        if self.role.is_acting:
            self.step(record)
        return self

    def step(self, *inputs: Input) -> None:
        """Take inputs, and let the log answer."""
        for effect in self.role.step(list(inputs), self.now):
            if isinstance(effect, SetTimer):
                self.alarm = effect.at_ns
            elif isinstance(effect, Send):
                for command in COMMANDS_DECODER.decode(effect.data).commands:
                    assert isinstance(command, LaunchDue)
                    self.asked.append((self.now, command))
        if self.launches and self.asked:
            self._show(self.asked[-1][1])

    def _show(self, command: LaunchDue) -> None:
        parent = self.role.replica.state.launches.by_parent[command.parent]
        if parent.handled_ns == command.after_ns:
            child = JobId(f"{command.parent}/periodic-{command.at_ns // SECOND}")
            launched = JobLaunched(
                parent=command.parent, parent_create_seq=1, at_ns=command.at_ns, child_id=child
            )
            self.step(self.log.tx(launched))

    def run(self, seconds: int) -> "Story":
        """Let the clock run from alarm to alarm."""
        end = self.now + seconds * SECOND
        while self.alarm and self.alarm <= end:
            at_ns, self.alarm = self.alarm, 0
            self.now = max(self.now, at_ns)
            self.step(Timer("due", at_ns))
        self.now = end
        return self

    def instants(self) -> list[int]:
        """Planned instants that were named, in seconds since the beginning."""
        return [(command.at_ns - BEGIN) // SECOND for _, command in self.asked]


def test_each_instant_is_named_at_its_time() -> None:
    """One minute after the other, none missed; two specs at one instant are one."""
    story = Story().lead().job("* * * * *", "*/2 * * * *").run(185)
    assert story.instants() == [60, 120, 180]
    assert all(when == command.at_ns and not command.missed for when, command in story.asked)


def test_a_job_that_is_updated_stopped_or_disabled_has_no_old_instants() -> None:
    """P2: the new version's instants count from its registration."""
    story = Story().lead().job("*/5 * * * *").run(30)
    story.job("* * * * *", version=1).run(40)
    assert story.instants() == [60]
    story.job("* * * * *", version=2, enabled=False).run(120)
    assert story.instants() == [60]
    story.job("* * * * *", version=3).run(60)
    assert len(story.asked) == 2
    stopped = JobStopped(submission_id="x", digest="d", job_id=JobId("cron"))
    story.step(story.log.tx(stopped))
    story.run(300)
    assert len(story.asked) == 2


def test_a_spec_that_lies_in_the_past_never_fires_and_is_no_error() -> None:
    """P2: nothing waits."""
    story = Story().lead().job("0 0 1 1 * 2020").run(600)
    assert not story.asked and not story.alarm


def test_a_successor_makes_up_for_what_was_missed_with_one_launch() -> None:
    """P4: named by the newest planned instant, the earlier ones counted; none missed, nothing to do."""
    for seconds, expected in ((30, []), (70, [(60, 0)]), (200, [(180, 2)])):
        story = Story().job("* * * * *")
        story.now += seconds * SECOND
        story.lead()
        found = [((one.at_ns - BEGIN) // SECOND, one.missed) for _, one in story.asked]
        assert found == expected


def test_a_successor_waits_for_reports_that_are_on_their_way() -> None:
    """The grace is over before the first launch, and what came in between is missed, not lost."""
    story = Story(grace_ns=GRACE_NS).job("*/10 * * * * * *", prohibit_overlap=True)
    story.now += 11 * SECOND
    story.lead().run(14)
    assert not story.asked
    story.run(1)
    assert [(one.at_ns - BEGIN) // SECOND for _, one in story.asked] == [20]
    assert story.asked[0][1].missed == 1


def test_a_successor_launches_at_once_what_may_overlap() -> None:
    """Nothing that is on its way decides about it, so no instant is missed either."""
    story = Story(grace_ns=GRACE_NS).job("*/10 * * * * * *")
    story.now += 11 * SECOND
    story.lead().run(10)
    assert [(one.at_ns - BEGIN) // SECOND for _, one in story.asked] == [10, 20]
    assert not any(one.missed for _, one in story.asked)


def test_a_command_that_was_not_seen_is_sent_again_with_what_came_since() -> None:
    """It names the mark that it was read from, so that a late copy of it does nothing."""
    story = Story(launches=False).lead().job("* * * * *").run(130)
    marks = {command.after_ns for _, command in story.asked}
    assert marks == {BEGIN}
    assert story.asked[0][1].at_ns == BEGIN + MINUTE
    assert (story.asked[-1][1].at_ns, story.asked[-1][1].missed) == (BEGIN + 2 * MINUTE, 1)


def test_daylight_saving_skips_and_doubles() -> None:
    """P5: 02:30 in New York does not come on the skipped day; 01:30 comes twice on the doubled one."""
    zone = ZoneInfo("America/New_York")
    for spec, day, expected in (
        ("30 2 * * *", (2026, 3, 8), 0),
        ("30 1 * * *", (2026, 11, 1), 2),
        ("30 1 * * *", (2026, 6, 1), 1),
    ):
        story = Story()
        story.now = int(datetime(*day, tzinfo=zone).timestamp()) * SECOND
        story.lead().job(spec, time_zone="America/New_York").run(86_400 - 3_600)
        assert len(story.asked) == expected, (spec, day)


def test_a_time_zone_that_this_machine_lacks_stops_nothing_else() -> None:
    """Other jobs are launched."""
    story = Story().lead().job("* * * * *", job_id="lost", time_zone="Atlantis/Centre")
    story.job("* * * * *").run(61)
    assert [command.parent for _, command in story.asked] == ["cron"]
