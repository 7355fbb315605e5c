"""What is an order to an agent, and what is none."""

from typing import Any

import msgspec
import pytest

from schemas.envelope import ENCODER
from services.agent.node_reconciler import DISPLACED_MAX, AgentLimits
from services.agent.role import Agent
from services.agent.tasks.resolved_group import RESOLVED_GROUP_DECODER
from shared.core.runtime import agent_messages
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.input_specs import PayloadInput
from shared.core.runtime.messages import Ack
from tests.projected import projected
from tests.unit.agent.agent_story import CLUSTER, Story, alloc, job_json, task_json


def running(**more: Any) -> Story:
    """An agent with one running task."""
    story = Story(**more).hear(5, alloc()).started()
    story.did(agent_messages.StartTask, agent_messages.SignalTask, agent_messages.KillTask)
    return story


def test_a_wanted_allocation_is_started() -> None:
    """A projection that names an allocation starts its tasks, each once, the journal first."""
    story = Story().hear(5, alloc()).hear(6, alloc())
    assert story.starts() == [("main", 1)]
    kinds = [type(one) for one in story.agent.step([], story.now_ns)]
    assert agent_messages.StartTask not in kinds


def test_the_journal_is_on_disk_before_a_start() -> None:
    """The effect before a start writes the run, the allocation and its plan, and waits for the disk."""
    story = Story()
    story.done.clear()
    story.hear(5, alloc())
    order = [
        one
        for one in story.done
        if isinstance(one, agent_messages.WriteJournal | agent_messages.StartTask)
    ]
    written, start = order[-2:]
    assert isinstance(start, agent_messages.StartTask)
    assert written.sync
    kinds = [type(entry) for entry in written.entries]
    assert kinds.index(agent_messages.AllocKept) < kinds.index(agent_messages.TaskKept)
    kept = next(entry for entry in written.entries if isinstance(entry, agent_messages.TaskKept))
    assert (kept.key, kept.task, kept.run, kept.state) == (7, "main", 1, "running")


def test_silence_is_no_order() -> None:
    """An agent that hears nothing for an hour ends nothing."""
    story = running().wait(3600)
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)
    assert story.state().status == "running"


def test_an_older_projection_is_no_order() -> None:
    """A projection below the newest seq changes nothing, whatever it omits."""
    story = running().hear(4)
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)


def test_another_clusters_projection_is_no_order() -> None:
    """Once its own cluster was heard, another cluster's projection ends no task and does not stop the agent."""
    story = running().hear(99, cluster_id="c2")
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)
    assert not story.stopped()
    foreign = 'caravan_agent_projections_ignored_total{reason="foreign"}'
    assert story.agent.metrics()[foreign] == 1


@pytest.mark.parametrize("data", [b"", b"{", b'{"seq": "x"}', b"\xff\xfe", b"[]", b"null"])
def test_noise_is_no_order(data: bytes) -> None:
    """What does not decode ends nothing, is counted, and gives its credit back."""
    story = running()
    story.did(Ack)
    story.hear_bytes(data)
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)
    assert len(story.did(Ack)) == 1
    noise = 'caravan_agent_projections_ignored_total{reason="undecodable"}'
    assert story.agent.metrics()[noise] == 1


@pytest.mark.parametrize("named", [(), (alloc(desired="stop"),), (alloc(desired="evict"),)])
def test_a_newer_projection_that_omits_or_stops_ends(named: tuple[DesiredAlloc, ...]) -> None:
    """Omitted or stopped by a newer projection: the kill signal, once."""
    story = running().hear(6, *named).hear(7, *named)
    assert [one.signal for one in story.did(agent_messages.SignalTask)] == ["SIGINT"]
    story.exited(130)
    assert story.state().status == "complete"
    assert not story.starts()


def test_patience_ends_after_the_kill_timeout() -> None:
    """A task that ignores its kill signal is killed after kill_timeout, and again while it lives."""
    job = job_json(task_json(KillTimeout=2_000_000_000, KillSignal="SIGTERM"))
    story = running(job=job).hear(6)
    assert [one.signal for one in story.did(agent_messages.SignalTask)] == ["SIGTERM"]
    assert not story.wait(1.9).did(agent_messages.KillTask)
    assert len(story.wait(0.2).did(agent_messages.KillTask)) == 1
    assert len(story.wait(5).did(agent_messages.KillTask)) == 1
    story.exited(None, signal=9)
    assert not story.wait(60).did(agent_messages.KillTask)


def test_a_stop_during_a_start_waits_for_its_answer() -> None:
    """A stop that comes before the start is answered signals the run as soon as it is alive."""
    story = Story().hear(5, alloc()).hear(6)
    assert not story.did(agent_messages.SignalTask)
    story.started()
    assert len(story.did(agent_messages.SignalTask)) == 1


def test_an_allocation_stopped_before_it_came_is_complete() -> None:
    """A stop of an allocation that this node never had starts nothing and is reported complete."""
    story = Story().hear(5, alloc(desired="stop"))
    assert not story.starts()
    assert story.state().status == "complete"


def test_another_host_under_our_id_stops_us() -> None:
    """A projection that names another host for this node id ends the agent, not its tasks."""
    story = running().hear(6, host_id="h2")
    assert "belongs to host h2" in story.stopped()[0]
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)


def test_a_second_life_of_our_id_stops_us() -> None:
    """A copy on a machine without an id takes our place again and again; a late word of an earlier life only once."""
    story, reasons = running(), []
    for nth in range(1, 2 * DISPLACED_MAX):
        number = story.agent._reports.number
        story.hear(10 * nth, alloc(), reports_seen=number)
        story.hear(10 * nth + 1, alloc(), boot_id="of-the-copy").wait(1)
        reasons += story.stopped()
        assert not reasons or nth > DISPLACED_MAX
    reason = reasons[0]
    assert "another agent runs as node n1 in a copy of this data directory" in reason
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)


def test_another_clusters_data_directory_is_refused() -> None:
    """An agent whose journal is of one cluster stops when the first thing it hears is another one."""
    story = running().restarted().hear(9, cluster_id="c2")
    assert "belongs to cluster c1" in story.stopped()[0]
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)


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
    ask = story.did(agent_messages.Ask)
    assert len(ask) == 1
    for count in (1, 1, 1):
        story.step(agent_messages.Answer(name=ask[0].name, data=None)).wait(6)
        assert (
            len([one for one in story.did(agent_messages.Ask) if one.name == ask[0].name]) == count
        )
    story.job = job_json()
    story.step(story.answer(ask[0]))
    assert [one.key for one in story.did(agent_messages.StartTask)] == [1, 2]


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"error":{"code":"not_found","message":"no"}}', b'{"spec":{}}']
)
def test_a_useless_answer_is_asked_again(data: bytes) -> None:
    """An answer that is no job version starts nothing and fails nothing."""
    story = Story()
    story.job = None
    story.hear(5, alloc())
    ask = story.did(agent_messages.Ask)[0]
    story.step(agent_messages.Answer(name=ask.name, data=data))
    assert story.state().status == "pending"
    assert len(story.wait(1).did(agent_messages.Ask)) == 1


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
    """A job without our group, or with tasks that cannot be told apart, fails with a reason; the agent continues."""
    story = Story(job=job).hear(5, alloc())
    assert story.state().status == "failed"
    assert story.state().tasks[""].events[0].message
    story.hear(6)
    assert not story.stopped()


def test_an_ended_allocation_leaves_nothing() -> None:
    """Ended, seen and omitted: gone from memory; its directory goes when too many are kept."""
    story = Story(settings=AgentLimits(kept_allocs_max=1))
    for key in (1, 2, 3):
        story.hear(10 + key * 10, alloc(key)).started(key=key)
        story.hear(11 + key * 10).exited(0, key=key).wait(1)
        story.hear(12 + key * 10, reports_seen=story.reports()[-1].number)
    assert [one.key for one in story.did(agent_messages.RemoveAlloc)] == [1, 2]
    assert not story.agent._desired.allocs
    assert agent_messages.AllocForgotten(key=2) in story.journal


def test_a_run_nobody_ordered_is_killed() -> None:
    """A driver that says an unknown or old run is alive gets the order to kill it; its exit changes nothing."""
    story = running().started(run=9)
    assert [(one.task, one.run) for one in story.did(agent_messages.KillTask)] == [("main", 9)]
    story.exited(1, run=9).exited(1, key=55)
    assert story.state().status == "running"


def test_an_agent_is_built_without_io() -> None:
    """The role offers what both shells ask of one."""
    agent = Story().agent
    assert isinstance(agent, Agent)
    assert (agent.name, agent.leader_key) == ("agent", "")
    assert [source.subject for source in agent.sources()] == [
        "node.n1",
        "hands.n1.*",
        "disk.n1.*.*",
    ]


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
    assert story.did(agent_messages.Ask) == []
    story.wait(0.3)
    assert [one.name for one in story.did(agent_messages.Ask)] == ["projection"]


def test_a_new_incarnation_goes_before_an_old_seq() -> None:
    """A restored log has lower seqs: its new incarnation is an order all the same, its old one is not."""
    story = running().hear(4, incarnation=9, first_seq=3)
    assert story.did(agent_messages.SignalTask)
    assert story.agent.metrics()["caravan_agent_log_rollbacks_total"] == 1
    story.hear(99)
    assert story.agent.metrics()["caravan_agent_projection_seq"] == 4


def test_an_ordinary_restart_of_the_bus_is_no_rollback() -> None:
    """An incarnation that begins above all that was seen loses nothing: what runs runs on."""
    story = running()
    story.hear(20, alloc(), incarnation=9, first_seq=19)
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)
    assert story.agent.metrics()["caravan_agent_log_rollbacks_total"] == 0


def followed(story: Story) -> list[tuple[int, int]]:
    """What each registration says that the node followed before."""
    return [
        (one.followed_incarnation, one.followed_seq)
        for one in story.reports()
        if one.spec is not None
    ]


def test_a_rolled_back_log_is_told_what_this_node_had_seen() -> None:
    """By the registration, until the log has seen it; a later one, and an ordinary restart, say nothing."""
    story = running()
    story.hear(20, alloc(), incarnation=9, first_seq=19)
    assert set(followed(story)) == {(0, 0)}
    story.hear(4, alloc(), incarnation=12, first_seq=3, former_incarnation=9).wait(1)
    assert followed(story)[-1] == (9, 20)
    number = story.agent._reports.number
    story.hear(5, alloc(), incarnation=12, first_seq=3, former_incarnation=9, reports_seen=number)
    assert not followed(story.wait(60))


def test_a_node_that_missed_an_incarnation_has_the_log_compare() -> None:
    """What began last began above all that it saw, and still the one between may have lost something."""
    story = running()
    story.hear(20, alloc(), incarnation=9, first_seq=19)
    story.hear(40, alloc(), incarnation=15, first_seq=35, former_incarnation=12).wait(1)
    assert followed(story)[-1] == (9, 20)
    assert story.agent.metrics()["caravan_agent_log_rollbacks_total"] == 0
    assert not story.did(agent_messages.SignalTask, agent_messages.KillTask)


def test_the_next_life_remembers_the_incarnation() -> None:
    """From the journal: an order of the lost history is none, however high its seq."""
    story = running().hear(4, alloc(), incarnation=9, first_seq=3)
    again = story.restarted().hear(99, alloc(desired="stop"), incarnation=0)
    assert not again.did(agent_messages.SignalTask, agent_messages.KillTask)


def test_an_id_of_another_job_is_not_adopted() -> None:
    """Nothing is matched by key alone: what runs for another job under it is ended."""
    story = running()
    story.hear(9, msgspec.structs.replace(alloc(), job_id="other"))
    assert story.did(agent_messages.SignalTask)
    kept = [one for one in story.journal if isinstance(one, agent_messages.AllocKept)]
    assert {one.alloc.job_id for one in kept} == {"j"}


def payloads(story: Story) -> dict[str, tuple[str, bytes]]:
    """File and payload of each preparation, by task; it is answered, so that the task starts."""
    found = {}
    for one in story.did(agent_messages.PrepareTask):
        (wanted,) = one.inputs
        spec = msgspec.json.decode(wanted.spec, type=PayloadInput)
        found[one.task] = (spec.file, spec.data)
        story.step(agent_messages.prepared_inputs(one))
    return found


def test_the_payload_of_a_dispatch_goes_to_the_tasks_that_name_a_file() -> None:
    """Also after the agent was started again, from its journal; the child knows its parent."""
    asks = {"DispatchPayload": {"File": "in/data"}}
    job = job_json(task_json("reader", **asks), task_json("other"))
    story = Story(job=job)
    story.payload, story.parent = b"\x00data", "p"
    story.hear(5, alloc())
    assert payloads(story) == {"reader": ("in/data", b"\x00data")}
    starts = [one for one in story.done if isinstance(one, agent_messages.StartTask)]
    assert {one.launch.env["NOMAD_JOB_PARENT_ID"] for one in starts} == {"p"}
    plans = [one.plan for one in story.journal if isinstance(one, agent_messages.AllocKept)]
    kept = RESOLVED_GROUP_DECODER.decode(plans[-1])
    assert (kept.payload, kept.job_parent) == (b"\x00data", "p")


def test_a_dispatch_without_a_payload_writes_no_file() -> None:
    """Nor is a variable set for a job that has no parent."""
    job = job_json(task_json("reader", DispatchPayload={"File": "data"}))
    story = Story(job=job).hear(5, alloc())
    assert payloads(story) == {}
    (start,) = [one for one in story.done if isinstance(one, agent_messages.StartTask)]
    assert "NOMAD_JOB_PARENT_ID" not in start.launch.env
