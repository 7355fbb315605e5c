"""A task starts when its inputs are there, whatever fails or is killed before."""

from typing import Any

import msgspec
import pytest

from services.agent.tasks.resolved_inputs import ResolvedInput
from services.agent.tasks.runtime_state import TaskPhase
from services.agent.tasks.task_inputs import missing_inputs, task_inputs
from shared.core.runtime import agent_messages
from shared.core.runtime.agent_messages import PrepareTask, StartTask
from shared.core.runtime.input_specs import TemplateInput
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

POLICY = {"Attempts": 2, "Interval": 60_000_000_000, "Delay": 1_000_000_000, "Mode": "fail"}


def dispatched(**more: Any) -> Story:
    """A story of a task with one input: the payload of its dispatch."""
    job = job_json(task_json(DispatchPayload={"File": "in"}), restart=POLICY, **more)
    story = Story(job=job)
    story.payload = b"data"
    return story.hear(5, alloc())


def prepared(story: Story) -> Story:
    """Answer the preparation that is asked for."""
    (effect,) = story.did(PrepareTask)
    return story.step(agent_messages.prepared_inputs(effect))


def failed(story: Story, *, recoverable: bool = True, run: int = 1, **more: Any) -> Story:
    """Answer a preparation with a failure."""
    answer = agent_messages.TaskPrepareFailed(
        key=7,
        task="main",
        run=run,
        input="payload",
        reason="no room",
        recoverable=recoverable,
        **more,
    )
    return story.step(answer)


def events(story: Story) -> list[tuple[str, str]]:
    """Task events of the one task."""
    return [(one.kind, one.message) for one in story.state().tasks["main"].events]


def test_a_task_starts_after_its_inputs_only() -> None:
    """Nothing starts before the answer; the journal says what is prepared before the start, in one write to disk."""
    story = dispatched()
    assert not story.did(StartTask)
    assert story.state().status == "pending"
    prepared(story)
    order = [one for one in story.done if isinstance(one, agent_messages.WriteJournal | StartTask)]
    write, start = order[-2:]
    assert isinstance(start, StartTask)
    assert [one.name for one in start.inputs] == ["payload"]
    kept = write.entries[-1]
    assert (write.sync, kept.prepared, kept.state) == (True, {"payload": "simulated"}, "running")


def test_a_restart_of_the_task_prepares_nothing_again() -> None:
    """What the journal has is there (S23)."""
    story = prepared(dispatched()).started().exited(1).wait(3)
    assert story.starts() == [("main", 1), ("main", 2)]
    assert not story.did(PrepareTask)


def test_a_failed_input_is_a_failed_start_under_the_restart_policy() -> None:
    """The events name the input, the reason and what happens next; the next try prepares what is missing."""
    story = failed(dispatched())
    assert events(story)[0] == ("Setup Failure", "payload: no room")
    assert events(story)[1][0] == "Restarting"
    story.did(PrepareTask)
    story.wait(3)
    (again,) = story.did(PrepareTask)
    assert again.run == 2
    failed(failed(story, run=2).wait(3), run=3)
    assert events(story)[-1] == ("Not Restarting", "exceeded 2 attempts in 60 s")
    assert story.state().status == "failed"
    assert story.starts() == []


def test_a_failure_that_is_final_ends_the_task_at_once() -> None:
    """No attempt is made that would fail the same way."""
    story = failed(dispatched(), recoverable=False)
    assert [kind for kind, _ in events(story)] == ["Setup Failure", "Not Restarting"]
    assert story.state().status == "failed"


def test_what_succeeded_beside_a_failure_is_kept() -> None:
    """Another try does not make it again (S5)."""
    story = failed(dispatched(), digests={"payload": "d"}).wait(3)
    assert len(story.did(PrepareTask)) == 1
    assert story.starts() == [("main", 2)]


def test_a_stop_ends_a_preparation() -> None:
    """The task is dead once the node has answered, and never starts."""
    story = dispatched()
    story.hear(6, alloc(desired="stop"))
    (cancel,) = story.did(agent_messages.CancelPrepare)
    assert cancel.run == 1
    failed(story)
    assert story.state().status == "complete"
    assert [kind for kind, _ in events(story)] == ["Killing", "Killed"]
    assert story.starts() == []


def test_an_answer_that_crosses_a_stop_starts_nothing() -> None:
    """The inputs were ready at the same moment."""
    story = dispatched()
    story.hear(6, alloc(desired="stop"))
    prepared(story)
    assert story.starts() == []
    assert story.state().status == "complete"


def test_an_agent_killed_while_a_preparation_is_ended_ends_the_task() -> None:
    """Its next life waits for no answer to what the earlier one asked: the task never ran, and is dead."""
    story = dispatched()
    story.hear(6, alloc(desired="stop"))
    assert story.did(agent_messages.CancelPrepare)
    again = story.restarted()
    again.hear(6, alloc(desired="stop"))
    assert again.state().status == "complete"
    assert again.starts() == []


def test_an_agent_killed_in_a_preparation_prepares_under_a_new_run() -> None:
    """A late answer of the earlier life is none (S20)."""
    again = dispatched().restarted()
    again.payload = b"data"
    again.hear(6, alloc())
    (effect,) = again.did(PrepareTask)
    assert effect.run == 2
    again.step(agent_messages.TaskPrepared(key=7, task="main", run=1, digests={"payload": "old"}))
    assert again.starts() == []
    again.step(agent_messages.prepared_inputs(effect))
    assert again.starts() == [("main", 2)]


def test_an_agent_killed_after_a_preparation_does_not_prepare_again() -> None:
    """The run that may have started is looked for; the one after it finds its inputs."""
    again = prepared(dispatched()).restarted()
    gone = agent_messages.TaskGone(key=7, task="main", run=1, started=False)
    again.step(gone).hear(6, alloc())
    assert not again.did(PrepareTask)
    assert again.starts() == [("main", 2)]


@pytest.mark.parametrize("is_first", [True, False])
def test_inputs_of_each_start_and_in_memory_are_prepared_again(*, is_first: bool) -> None:
    """One of each start is missing at first; one in memory until this life has prepared it."""
    story = prepared(dispatched())
    task = story.agent.alloc(7).tasks["main"]
    assert task.phase is TaskPhase.STARTING
    wanted = (
        agent_messages.TaskInput(name="payload", kind="payload"),
        agent_messages.TaskInput(name="a", kind="x", each_start=True),
        agent_messages.TaskInput(name="b", kind="x", in_memory=True),
    )
    task.prepared.update(a="1", b="2")
    missing = [one.name for one in missing_inputs(task, wanted, is_first=is_first)]
    assert missing == (["a", "b"] if is_first else ["b"])
    task.prepared_here.add("b")
    assert [one.name for one in missing_inputs(task, wanted, is_first=False)] == []


def test_references_are_filled_in_except_in_verbatim_options() -> None:
    """A template's own text has references of another language."""
    story = prepared(dispatched())
    owner = story.agent.alloc(7)
    spec = b'{"to":"${NOMAD_TASK_NAME}/x","data":"${NOMAD_TASK_NAME}"}'
    one = ResolvedInput(name="t", kind="t", spec=spec, verbatim=("data",))
    plan = type(owner.tasks["main"].plan)
    task = plan(name="main", driver="d", restart=owner.tasks["main"].plan.restart, inputs=(one,))
    node = story.agent._supervisor.node
    (found,) = task_inputs(owner.plan, task, {"NOMAD_TASK_NAME": "main"}, node)
    assert bytes(found.spec) == b'{"to":"main/x","data":"${NOMAD_TASK_NAME}"}'


def templated(*blocks: dict[str, Any], task: dict[str, Any] | None = None, **more: Any) -> Story:
    """A story of a task with templates."""
    job = job_json(task_json(Templates=list(blocks), **(task or {})), restart=POLICY, **more)
    return Story(job=job).hear(5, alloc())


PLAIN = {"EmbeddedTmpl": "${NOMAD_TASK_NAME} {{ env `X` }}", "DestPath": "local/${NOMAD_TASK_NAME}"}
VARIABLES = {"EmbeddedTmpl": "A=b", "DestPath": "local/env", "Envvars": True}


def test_a_template_is_an_input_with_its_own_text() -> None:
    """Its destination is filled in (S38), its text is not; values of the node come along where it names them."""
    story = templated(PLAIN, {**PLAIN, "EmbeddedTmpl": "{{ env `node.class` }}", "DestPath": "b"})
    (effect,) = story.did(PrepareTask)
    first, second = (msgspec.json.decode(one.spec, type=TemplateInput) for one in effect.inputs)
    assert [one.name for one in effect.inputs] == ["template[0]", "template[1]"]
    assert (first.data, first.destination) == (PLAIN["EmbeddedTmpl"], "local/main")
    assert (first.driver, first.node) == ("raw_exec", {})
    assert second.node["node.unique.id"] == "n1"


def test_templates_are_rendered_once_unless_the_restart_block_says_so() -> None:
    """A restart of the task keeps the file; `render_templates` renders before each start, of the task or its group."""
    story = prepared(templated(PLAIN)).started().exited(1).wait(3)
    assert (story.starts(), story.did(PrepareTask)) == ([("main", 1), ("main", 2)], [])
    again = {"RestartPolicy": {"RenderTemplates": True}}
    story = prepared(templated(PLAIN, task=again)).started().exited(1).wait(3)
    assert [one.run for one in story.did(PrepareTask)] == [2]
    own = {"RestartPolicy": {"RenderTemplates": False}}
    policy = {**POLICY, "RenderTemplates": True}
    job = job_json(task_json(Templates=[PLAIN], **own), restart=policy)
    story = prepared(Story(job=job).hear(5, alloc())).started().exited(1).wait(3)
    assert story.did(PrepareTask) == []


def test_variables_are_rendered_again_in_another_life_of_the_agent() -> None:
    """They are kept by its process alone; what was written as a file stays."""
    again = prepared(templated(PLAIN, VARIABLES)).restarted()
    gone = agent_messages.TaskGone(key=7, task="main", run=1, started=False)
    again.step(gone).hear(6, alloc())
    (effect,) = again.did(PrepareTask)
    assert [one.name for one in effect.inputs] == ["template[1]"]
    again.step(agent_messages.prepared_inputs(effect))
    (start,) = again.did(StartTask)
    assert (start.run, [one.name for one in start.inputs]) == (2, ["template[0]", "template[1]"])


@pytest.mark.parametrize(
    ("accepted", "left"),
    [
        ("Job.TaskGroups[0].Tasks[0].Templates", []),
        ("Job.TaskGroups[0].Tasks[0].Templates[0]", ["template[1]"]),
        ("Job.TaskGroups[0].Tasks[1].Templates", ["template[0]", "template[1]"]),
    ],
)
def test_a_job_does_without_the_templates_that_it_was_accepted_without(
    accepted: str, left: list[str]
) -> None:
    """All of a task, as an older release noted it, or those that use what is not built."""
    story = templated(PLAIN, VARIABLES, AcceptedUnbuilt=[accepted])
    asked = [one.name for effect in story.did(PrepareTask) for one in effect.inputs]
    assert asked == left
