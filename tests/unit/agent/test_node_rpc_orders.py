"""Orders of operators to tasks: restart and signal, their answers, and what is no failure."""

from typing import Any

import msgspec
import pytest

from schemas.node_rpc import TaskAnswer, TaskAsk
from shared.core.runtime import agent_messages
from shared.core.runtime.messages import Message, Reply
from shared.core.state.ids import alloc_id
from shared.protocol import subjects
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

#: The first failure would be the last.
TWO = job_json(task_json("main"), task_json("side"), restart={"Attempts": 0, "Mode": "fail"})


def order(verb: str, **fields: Any) -> Message:
    data = msgspec.json.encode(TaskAsk(**({"alloc_id": alloc_id(7)} | fields)))
    return Message("hands", subjects.node_rpc("n1", verb), data, 99, reply=True)


def running() -> Story:
    """An allocation whose two tasks run."""
    story = Story(job=TWO).hear(2, alloc()).started("main").started("side")
    story.done.clear()
    return story


def said(story: Story, message: Message) -> tuple[TaskAnswer, list[Any]]:
    """The answer to an order, and what else was done."""
    effects = list(story.step(message).done)
    story.done.clear()
    answers = [one for one in effects if isinstance(one, Reply)]
    assert len(answers) == 1 and answers[0].token == 99
    return msgspec.json.decode(answers[0].data, type=TaskAnswer), effects


def test_a_signal_goes_to_the_tasks_that_run() -> None:
    """With or without SIG, to one or to all, to the present run."""
    story = running()
    answer, effects = said(story, order("signal", signal="usr1"))
    assert answer.tasks == ("main", "side")
    sent = [(one.task, one.signal) for one in effects if isinstance(one, agent_messages.SignalTask)]
    assert sent == [("main", "SIGUSR1"), ("side", "SIGUSR1")]
    answer, _ = said(story, order("signal", signal="SIGHUP", task="side"))
    assert answer.tasks == ("side",)


@pytest.mark.parametrize(
    ("verb", "fields", "code"),
    [
        ("signal", {"signal": "SIGNONE"}, "invalid"),
        ("signal", {"signal": "HUP", "task": "none"}, "not_found"),
        ("restart", {"task": "none"}, "not_found"),
        ("restart", {"alloc_id": "other"}, "not_found"),
    ],
)
def test_what_cannot_be_done_is_told(verb: str, fields: dict[str, str], code: str) -> None:
    """An unknown signal, task or allocation: an error with a stable code, and nothing is done."""
    answer, effects = said(running(), order(verb, **fields))
    assert answer.error is not None and answer.error.code == code
    assert not [one for one in effects if isinstance(one, agent_messages.SignalTask)]


@pytest.mark.parametrize(
    "body",
    [
        b"[1",
        b'{"alloc_id":"a1","alloc_id":"a1"}',
        b'{"alloc_id":"%b","taks":"main"}' % alloc_id(7).encode(),
    ],
)
def test_what_is_no_order_is_answered(body: bytes) -> None:
    """A body that is none, or has a key twice or a strange one: `invalid`, and the role continues."""
    story = running()
    message = Message("hands", subjects.node_rpc("n1", "restart"), body, 99, reply=True)
    answer, _ = said(story, message)
    assert answer.error is not None and answer.error.code == "invalid"


def test_what_ends_takes_no_orders() -> None:
    """An allocation that is stopping is not restarted."""
    story = running()
    story.hear(3, alloc(desired="stop"))
    story.done.clear()
    answer, _ = said(story, order("restart"))
    assert answer.error is not None and answer.error.code == "not_running"


def test_a_restart_is_no_failure() -> None:
    """The run ends as in a stop, the next one starts at once, and no attempt of the policy is used up."""
    story = running()
    answer, effects = said(story, order("restart", task="main"))
    assert answer.tasks == ("main",)
    assert [one.task for one in effects if isinstance(one, agent_messages.SignalTask)] == ["main"]
    again, _ = said(story, order("restart", task="main"))
    assert again.error is not None and again.error.code == "not_running"
    story.exited(130, "main")
    assert story.starts() == [("main", 2)]
    story.started("main", run=2)
    state = story.state().tasks["main"]
    assert (state.state, state.failed, state.restarts) == ("running", False, 1)


def ends(story: Story) -> list[str]:
    """Tasks signalled since the last call."""
    return [effect.task for effect in story.did(agent_messages.SignalTask)]


@pytest.mark.parametrize("task", ["main", ""])
def test_a_restart_waits_for_the_shutdown_delay(task: str) -> None:
    """A task that restarts gets its signal after its shutdown_delay, as one that stops, and then its kill."""
    job = job_json(task_json("main", ShutdownDelay=3 * SECOND, KillTimeout=2 * SECOND))
    story = Story(job=job).hear(5, alloc()).started("main")
    said(story, order("restart", task=task))
    assert ends(story.wait(2.9)) == []
    assert ends(story.wait(0.2)) == ["main"]
    assert not story.did(agent_messages.KillTask)
    assert len(story.wait(2.1).did(agent_messages.KillTask)) == 1
    assert story.exited(None, "main", signal=9).starts()[-1] == ("main", 2)


def test_a_restart_of_all_has_the_order_of_a_stop_and_a_start() -> None:
    """The group's delay, then leader, main tasks, sidecars; at the end sidecars, main tasks, poststart tasks."""
    hooks = {"side": "prestart", "post": "poststart"}
    tasks = [
        task_json(name, Lifecycle={"Hook": hooks[name], "Sidecar": True}) for name in hooks
    ] + [task_json("main"), task_json("head", Leader=True)]
    job = job_json(*tasks, restart={"Attempts": 0, "Mode": "fail"})
    job["TaskGroups"][0]["ShutdownDelay"] = 2 * SECOND
    story = Story(job=job).hear(5, alloc())
    for name in ("side", "main", "head", "post"):
        story.started(name)
    story.starts()
    answer, _ = said(story, order("restart"))
    assert sorted(answer.tasks) == ["head", "main", "post", "side"]
    assert ends(story.wait(1.9)) == []
    assert ends(story.wait(0.2)) == ["head"]
    assert ends(story.exited(0, "head")) == ["main"]
    assert sorted(ends(story.exited(0, "main"))) == ["post", "side"]
    assert story.exited(0, "side").starts() == []
    assert story.exited(0, "post").starts() == [("side", 2)]
    assert sorted(story.started("side", run=2).starts()) == [("head", 2), ("main", 2)]
    assert story.started("head", run=2).starts() == []
    assert story.started("main", run=2).starts() == [("post", 2)]
    state = story.started("post", run=2).state()
    assert state.status == "running"
    assert {task.restarts for task in state.tasks.values()} == {1}


def test_a_stop_overtakes_a_restart_of_all() -> None:
    """An allocation that is stopped while it restarts ends, and starts nothing."""
    job = job_json(task_json("main"), task_json("head", Leader=True))
    story = Story(job=job).hear(5, alloc()).started("main").started("head")
    story.starts()
    said(story, order("restart"))
    story.hear(6)
    story.exited(0, "head").exited(0, "main")
    assert story.starts() == []
    assert story.state().status == "complete"


def test_a_restart_of_all_leaves_what_is_over() -> None:
    """A task that ended for good is not begun again."""
    once = {"Lifecycle": {"Hook": "prestart", "Sidecar": False}}
    job = job_json(task_json("first", **once), task_json("main"))
    story = Story(job=job).hear(2, alloc()).started("first").exited(0, "first").started("main")
    story.done.clear()
    answer, _ = said(story, order("restart"))
    assert answer.tasks == ("main",)


def test_tasks_see_what_an_operator_says_of_their_node() -> None:
    """The word comes with the projection, and counts from the next start on."""
    job = job_json(task_json("main", Env={"RACK": "${meta.rack}"}))
    story = Story(job=job).hear(2, alloc(), operator_meta={"rack": "r7"})
    started = story.did(agent_messages.StartTask)
    assert [one.launch.env["RACK"] for one in started] == ["r7"]
