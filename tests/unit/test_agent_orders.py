"""What is an order to an agent, and what is none."""

from typing import Any

import pytest

from schemas.envelope import ENCODER
from services.agent.desired import Settings
from services.agent.role import Agent
from shared.core import tasks
from shared.core.role import Ack
from shared.core.wanted import DesiredAlloc
from tests.projected import projected
from tests.unit.agent_story import CLUSTER, Story, alloc, job_json, task_json


def running(**more: Any) -> Story:
    """An agent with one running task."""
    story = Story(**more).hear(5, alloc()).started()
    story.did(tasks.StartTask, tasks.SignalTask, tasks.KillTask)
    return story


def test_a_wanted_allocation_is_started() -> None:
    """A projection that names an allocation starts its tasks, each once, the journal first."""
    story = Story().hear(5, alloc()).hear(6, alloc())
    assert story.starts() == [("main", 1)]
    kinds = [type(one) for one in story.agent.step([], story.now_ns)]
    assert tasks.StartTask not in kinds


def test_the_journal_is_on_disk_before_a_start() -> None:
    """The effect before a start writes the run, the allocation and its plan, and waits for the disk."""
    story = Story()
    story.done.clear()
    story.hear(5, alloc())
    order = [one for one in story.done if isinstance(one, tasks.WriteJournal | tasks.StartTask)]
    written, start = order[-2:]
    assert isinstance(start, tasks.StartTask)
    assert written.sync
    kinds = [type(entry) for entry in written.entries]
    assert kinds.index(tasks.AllocKept) < kinds.index(tasks.TaskKept)
    kept = next(entry for entry in written.entries if isinstance(entry, tasks.TaskKept))
    assert (kept.key, kept.task, kept.run, kept.state) == (7, "main", 1, "running")


def test_silence_is_no_order() -> None:
    """An agent that hears nothing for an hour ends nothing."""
    story = running().wait(3600)
    assert not story.did(tasks.SignalTask, tasks.KillTask)
    assert story.state().status == "running"


def test_an_older_projection_is_no_order() -> None:
    """A projection below the newest seq changes nothing, whatever it omits."""
    story = running().hear(4)
    assert not story.did(tasks.SignalTask, tasks.KillTask)


def test_another_clusters_projection_is_no_order() -> None:
    """Once its own cluster was heard, another cluster's projection ends nothing and stops nobody."""
    story = running().hear(99, cluster_id="c2")
    assert not story.did(tasks.SignalTask, tasks.KillTask)
    assert not story.stopped()
    foreign = 'caravan_agent_projections_ignored_total{reason="foreign"}'
    assert story.agent.metrics()[foreign] == 1


@pytest.mark.parametrize("data", [b"", b"{", b'{"seq": "x"}', b"\xff\xfe", b"[]", b"null"])
def test_noise_is_no_order(data: bytes) -> None:
    """What does not decode ends nothing, is counted, and gives its credit back."""
    story = running()
    story.did(Ack)
    story.hear_bytes(data)
    assert not story.did(tasks.SignalTask, tasks.KillTask)
    assert len(story.did(Ack)) == 1
    noise = 'caravan_agent_projections_ignored_total{reason="undecodable"}'
    assert story.agent.metrics()[noise] == 1


@pytest.mark.parametrize("named", [(), (alloc(desired="stop"),), (alloc(desired="evict"),)])
def test_a_newer_projection_that_omits_or_stops_ends(named: tuple[DesiredAlloc, ...]) -> None:
    """Omitted or stopped by a newer projection: the kill signal, once."""
    story = running().hear(6, *named).hear(7, *named)
    assert [one.signal for one in story.did(tasks.SignalTask)] == ["SIGINT"]
    story.exited(130)
    assert story.state().status == "complete"
    assert not story.starts()


def test_patience_ends_after_the_kill_timeout() -> None:
    """A task that ignores its kill signal is killed after kill_timeout, and again while it lives."""
    job = job_json(task_json(KillTimeout=2_000_000_000, KillSignal="SIGTERM"))
    story = running(job=job).hear(6)
    assert [one.signal for one in story.did(tasks.SignalTask)] == ["SIGTERM"]
    assert not story.wait(1.9).did(tasks.KillTask)
    assert len(story.wait(0.2).did(tasks.KillTask)) == 1
    assert len(story.wait(5).did(tasks.KillTask)) == 1
    story.exited(None, signal=9)
    assert not story.wait(60).did(tasks.KillTask)


def test_a_stop_during_a_start_waits_for_its_answer() -> None:
    """A stop that comes before the start is answered signals the run as soon as it is alive."""
    story = Story().hear(5, alloc()).hear(6)
    assert not story.did(tasks.SignalTask)
    story.started()
    assert len(story.did(tasks.SignalTask)) == 1


def test_an_allocation_stopped_before_it_came_is_complete() -> None:
    """A stop of an allocation that this node never had starts nothing and is reported complete."""
    story = Story().hear(5, alloc(desired="stop"))
    assert not story.starts()
    assert story.state().status == "complete"


def test_another_host_under_our_id_stops_us() -> None:
    """A projection that names another host for this node id ends the agent, not its tasks."""
    story = running().hear(6, host_id="h2")
    assert "belongs to host h2" in story.stopped()[0]
    assert not story.did(tasks.SignalTask, tasks.KillTask)


def test_another_clusters_data_directory_is_refused() -> None:
    """An agent whose journal is of one cluster stops when the first thing it hears is another one."""
    story = running().restarted().hear(9, cluster_id="c2")
    assert "belongs to cluster c1" in story.stopped()[0]
    assert not story.did(tasks.SignalTask, tasks.KillTask)


def test_a_refused_registration_stops_us() -> None:
    """A refusal that came after we asked, under a boot that is not registered, ends the agent."""
    story = Story(heard=False).hear(3, boot_id="old").hear(4, boot_id="old", refused="no room")
    assert "no room" in story.stopped()[0]


def test_a_refusal_of_somebody_else_is_not_ours() -> None:
    """A refusal under our id while our own boot is registered, or from before our time, changes nothing."""
    assert not running().hear(6, alloc(), reports_seen=99, refused="x").stopped()
    assert not Story(heard=False).hear(3, boot_id="old", refused="x").stopped()


def test_a_job_version_is_asked_for_once() -> None:
    """Allocations of one version share one question; without an answer it is asked again, more and more seldom."""
    story = Story()
    story.job = None
    story.hear(5, alloc(1), alloc(2))
    ask = story.did(tasks.Ask)
    assert len(ask) == 1
    for count in (1, 1, 1):
        story.step(tasks.Answer(name=ask[0].name, data=None)).wait(6)
        assert len([one for one in story.did(tasks.Ask) if one.name == ask[0].name]) == count
    story.job = job_json()
    story.step(story.answer(ask[0]))
    assert [one.key for one in story.did(tasks.StartTask)] == [1, 2]


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"error":{"code":"not_found","message":"no"}}', b'{"spec":{}}']
)
def test_a_useless_answer_is_asked_again(data: bytes) -> None:
    """An answer that is no job version starts nothing and fails nothing."""
    story = Story()
    story.job = None
    story.hear(5, alloc())
    ask = story.did(tasks.Ask)[0]
    story.step(tasks.Answer(name=ask.name, data=data))
    assert story.state().status == "pending"
    assert len(story.wait(1).did(tasks.Ask)) == 1


@pytest.mark.parametrize(
    "job",
    [
        {"ID": "j"},
        {"ID": "j", "TaskGroups": [{"Name": "g"}]},
        {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task_json(), task_json()]}]},
        {"ID": "j", "TaskGroups": 3},
    ],
)
def test_a_job_that_cannot_be_run_fails_its_allocation_alone(job: dict[str, Any]) -> None:
    """A job without our group, or with tasks that cannot be told apart, fails with a reason; the agent goes on."""
    story = Story(job=job).hear(5, alloc())
    assert story.state().status == "failed"
    assert story.state().tasks[""].events[0].message
    story.hear(6)
    assert not story.stopped()


def test_an_ended_allocation_leaves_nothing() -> None:
    """Ended, seen and omitted: gone from memory; its directory goes when too many are kept."""
    story = Story(settings=Settings(kept_allocs_max=1))
    for key in (1, 2, 3):
        story.hear(10 + key * 10, alloc(key)).started(key=key)
        story.hear(11 + key * 10).exited(0, key=key).wait(1)
        story.hear(12 + key * 10, reports_seen=story.reports()[-1].number)
    assert [one.key for one in story.did(tasks.RemoveAlloc)] == [1, 2]
    assert not story.agent._desired.allocs
    assert tasks.AllocForgotten(key=2) in story.journal


def test_a_run_nobody_ordered_is_killed() -> None:
    """A driver that says an unknown or old run is alive is told to kill it; its exit changes nothing."""
    story = running().started(run=9)
    assert [(one.task, one.run) for one in story.did(tasks.KillTask)] == [("main", 9)]
    story.exited(1, run=9).exited(1, key=55)
    assert story.state().status == "running"


def test_an_agent_is_built_without_io() -> None:
    """The role offers what both shells ask of one."""
    agent = Story().agent
    assert isinstance(agent, Agent)
    assert (agent.name, agent.leader_key) == ("agent", "")
    assert [source.subject for source in agent.sources()] == ["node.n1", "hands.n1.*"]


def test_a_lost_push_is_looked_for() -> None:
    """A projection whose push was lost is found by a regular look."""
    story = Story()
    value = projected(
        (alloc(),), cluster_id=CLUSTER, seq=9, node_id="n1", boot_id="b1", host_id="h1"
    )
    story.value = ENCODER.encode(value)
    story.wait(31)
    assert story.starts() == [("main", 1)]


def test_unheard_reports_make_an_agent_look() -> None:
    """Three reports without a word from the log: the word may be what was lost."""
    story = Story(heard=False)
    story.wait(1.4)
    assert story.did(tasks.Ask) == []
    story.wait(0.3)
    assert [one.name for one in story.did(tasks.Ask)] == ["projection"]
