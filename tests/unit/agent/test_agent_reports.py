"""Numbered reports: everything unseen, again and again, until the log has seen it."""

import itertools

from schemas.nodes import ReportNode
from shared.core.runtime import agent_messages
from shared.core.runtime.messages import Reconnected, Send
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json


def keys(report: ReportNode) -> list[int]:
    return [state.key for state in report.states]


def test_an_agent_registers_first() -> None:
    """The first report of a life has number 1, the fingerprint and the host, and is sent at once."""
    (report,) = Story(heard=False).reports()
    assert (report.number, report.node_id, report.host_id, report.boot_id) == (1, "n1", "h1", "b1")
    assert report.spec is not None
    assert report.spec.cpu_mhz == 1000


def test_an_unseen_report_is_sent_again() -> None:
    """Until it is seen a report is sent again under its number, after 0.5 s growing to 5 s."""
    story = Story(heard=False)
    story.reports()
    times = []
    for _ in range(300):
        story.wait(0.1)
        times += [story.now_ns] * len(story.reports())
    gaps = [(b - a) / 1e9 for a, b in itertools.pairwise(times)]
    assert 0.8 <= gaps[0] <= 1.2
    assert all(4.8 <= gap <= 5.2 for gap in gaps[3:])


def test_a_resend_is_the_same_report() -> None:
    """A resend has the number and the states of the first."""
    story = Story().hear(5, alloc()).started().wait(0.1)
    first = story.reports()[-1]
    again = story.wait(3).reports()[0]
    assert again == first


def test_another_applier_gets_the_report_at_once() -> None:
    """When the projection tells of a higher epoch, what was not seen is sent again without waiting for the resend."""
    story = Story().hear(5, alloc(), epoch=3).started().wait(30)
    said = story.reports()[-1]
    assert not story.hear(6, alloc(), epoch=3).wait(0.01).reports()
    assert story.hear(7, alloc(), epoch=7).wait(0.01).reports() == [said]
    story.hear(8, alloc(), epoch=7, reports_seen=said.number)
    assert not story.hear(9, alloc(), epoch=9, reports_seen=said.number).wait(1).reports()


def test_a_seen_report_is_never_sent_again() -> None:
    """Once the projection has seen the number, there is silence until something changes."""
    story = Story().hear(5, alloc()).started().wait(20)
    number = story.reports()[-1].number
    story.hear(6, alloc(), reports_seen=number)
    assert not story.wait(600).reports()
    assert story.exited(1).wait(1).reports()[0].number == number + 1


def test_every_report_carries_all_that_is_unseen() -> None:
    """A later report carries the states of earlier ones that were not seen, so that any of them may be lost."""
    story = Story().hear(5, alloc(1), alloc(2)).wait(1).started(key=1).wait(1).started(key=2)
    last = story.wait(1).reports()[-1]
    assert keys(last) == [1, 2]
    story.hear(6, alloc(1), alloc(2), reports_seen=last.number)
    assert keys(story.exited(1, key=2).wait(1).reports()[0]) == [2]


def test_what_changed_since_is_not_seen() -> None:
    """Seeing a number does not see a state that changed after it was sent."""
    story = Story().hear(5, alloc()).wait(1)
    number = story.reports()[-1].number
    story.started()
    story.hear(6, alloc(), reports_seen=number)
    report = story.wait(1).reports()[-1]
    assert report.number > number
    assert [state.status for state in report.states] == ["running"]


def test_another_boots_numbers_see_nothing() -> None:
    """Numbers are of one boot: what another boot was seen to say is not ours."""
    story = Story(heard=False).hear(5, boot_id="old", reports_seen=99)
    assert story.wait(2).reports()


def test_a_forgotten_node_registers_again() -> None:
    """A newer projection that knows another boot, or none, makes a registered agent register again."""
    story = Story().hear(5, reports_seen=1)
    story.reports()
    assert not story.wait(60).reports()
    story.hear(6, boot_id="")
    assert story.wait(1).reports()[0].spec is not None


def test_who_registers_again_tells_everything_again() -> None:
    """What the log knows of its allocations may be a late word of an earlier boot: all states go with it."""
    story = Story().hear(5, alloc(7), reports_seen=1).wait(1)
    story.started(key=7)
    story.wait(1)
    seen = story.reports()[-1].number
    story.hear(6, alloc(7), reports_seen=seen).wait(60)
    story.reports()
    story.hear(7, alloc(7), boot_id="an earlier one", reports_seen=99).wait(1)
    (again, *_) = story.reports()
    assert again.spec is not None and keys(again) == [7]


def test_changes_at_once_travel_together() -> None:
    """Many changes within a moment make two reports: the first at once, the rest together."""
    story = Story().hear(5, *(alloc(key) for key in range(1, 51))).wait(1)
    story.reports()
    for key in range(1, 51):
        story.started(key=key)
    reports = story.wait(0.03).reports()
    assert len(reports) <= 2
    assert keys(reports[-1]) == list(range(1, 51))


def test_a_flood_stays_below_the_message_limit() -> None:
    """Reports stay below 512 KiB; the rest follows once the log has seen the first, and nothing is left out."""
    job = job_json(*(task_json(f"task-{n}") for n in range(10)))
    story = Story(job=job).hear(5, *(alloc(key) for key in range(1, 121)))
    for key in range(1, 121):
        events = [
            agent_messages.TaskStartFailed(key=key, task=f"task-{n}", run=1, reason="x" * 400)
            for n in range(10)
        ]
        story.step(*events)
    seen: set[int] = set()
    seq = 6
    while story.agent.metrics()["caravan_agent_reports_unseen"]:
        sent = [one for one in story.wait(6).done if isinstance(one, Send)]
        assert max(len(one.data) for one in sent) < 512 * 1024
        report = story.reports()[-1]
        seen |= set(keys(report))
        seq += 1
        allocs = [alloc(key) for key in range(1, 121)]
        story.hear(seq, *allocs, reports_seen=report.number)
        assert seq < 60
    assert seen == set(range(1, 121))


def test_an_allocation_of_very_many_tasks_fits() -> None:
    """One allocation whose tasks' lives fill more than a message is reported without them."""
    names = [f"task-{n}" for n in range(300)]
    job = job_json(*(task_json(name) for name in names), restart={"Attempts": 2, "Delay": 1000})
    story = Story(job=job).hear(5, alloc())
    for run in (1, 2, 3):
        reason = {"key": 7, "run": run, "reason": "x" * 490}
        failed = [agent_messages.TaskStartFailed(task=name, **reason) for name in names]  # type: ignore[arg-type]
        story.step(*failed).wait(1)
    sent = [one for one in story.done if isinstance(one, Send)]
    assert max(len(one.data) for one in sent) < 512 * 1024
    (state,) = story.wait(6).reports()[-1].states
    assert (state.status, len(state.tasks)) == ("failed", 300)


def test_the_bus_is_back_reports_go_at_once() -> None:
    """After a reconnect what is unseen is sent at once, however long the pauses had become."""
    story = Story(heard=False).wait(60)
    story.reports()
    assert story.step(Reconnected()).reports()


def test_an_hour_without_the_bus_is_told_in_one_report() -> None:
    """What happened while the bus was away is in the first report after it."""
    job = job_json(restart={"Attempts": 0})
    story = Story(job=job).hear(5, alloc(1), alloc(2)).started(key=1).started(key=2).wait(1800)
    story.exited(9, key=1).wait(1800)
    story.reports()
    (report,) = story.step(Reconnected()).reports()
    told = {state.key: (state.status, state.tasks["main"].exit_code) for state in report.states}
    assert told == {1: ("failed", 9), 2: ("running", None)}


def test_heartbeats_go_on() -> None:
    """A heartbeat each second, with the boot and the newest projection followed."""
    story = Story().hear(9)
    story.did(Send)
    beats = [one for one in story.wait(10).done if isinstance(one, Send) and "hb" in one.subject]
    assert len(beats) == 10
    assert b'"boot_id":"b1"' in beats[-1].data
    assert b'"seq":9' in beats[-1].data
