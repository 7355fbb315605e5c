"""Actions of tasks as an agent finds them: which task, which version, and what is refused."""

from typing import Any

import pytest

from schemas.node_rpc import ActionAsk
from services.agent.node_rpc.action import asker
from shared.core.state.ids import alloc_id
from shared.errors import CommandInvalid
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

FLUSH = {"Name": "flush", "Command": "/bin/${TOOL}", "Args": ["${NOMAD_ALLOC_INDEX}", "${LATER}"]}


def one_task(*actions: dict[str, Any]) -> dict[str, Any]:
    return job_json(task_json(Actions=list(actions), Env={"TOOL": "redis-cli"}))


def ask(**fields: Any) -> ActionAsk:
    return ActionAsk(**({"alloc_id": alloc_id(7), "action": "flush", "session": "0" * 32} | fields))


def refused(story: Story, **fields: Any) -> tuple[str, str]:
    with pytest.raises(CommandInvalid) as fault:
        story.agent.action(ask(**fields))
    return fault.value.code, fault.value.message


def test_the_command_is_interpolated_for_its_task() -> None:
    """With its environment; what only the edge knows stays a reference, which it fills in."""
    story = Story(job=one_task(FLUSH)).hear(2, alloc()).started()
    found = story.agent.action(ask())
    assert (found.task, found.run) == ("main", 1)
    assert found.words == ("/bin/redis-cli", "0", "${LATER}")


def test_the_definition_is_that_of_the_version_which_runs() -> None:
    """S94: an update in place that the node has not heard of changes nothing; afterwards the new one counts."""
    story = Story(job=one_task(FLUSH)).hear(2, alloc()).started()
    story.job = one_task({**FLUSH, "Command": "/bin/new"})
    assert story.agent.action(ask()).words[0] == "/bin/redis-cli"
    story.hear(3, alloc(version=1))
    assert story.agent.action(ask()).words[0] == "/bin/new"
    assert not story.did(type(None)) and story.state().status == "running"


def test_a_later_life_of_the_agent_knows_them() -> None:
    """From the journal alone, once the run is found again."""
    story = Story(job=one_task(FLUSH)).hear(2, alloc()).started()
    again = story.restarted()
    assert refused(again)[0] == "not_running"
    again.started(adopted=True)
    assert again.agent.action(ask()).words[0] == "/bin/redis-cli"


def test_only_what_runs_has_actions() -> None:
    """S94: a task that has not started, waits or is over: not_running."""
    story = Story(job=one_task(FLUSH)).hear(2, alloc())
    assert refused(story)[0] == "not_running"
    story.started().exited(1)
    code, text = refused(story)
    assert code == "not_running" and "waiting" in text


def test_the_errors_name_what_there_is() -> None:
    """An unknown allocation, task or action; an action of several tasks without the task."""
    tasks = [task_json(name, Actions=[FLUSH]) for name in ("a", "b")]
    story = Story(job=job_json(*tasks, task_json("c"))).hear(2, alloc())
    for name in "abc":
        story.started(name)
    assert refused(story, alloc_id="other")[0] == "not_found"
    assert refused(story, task="d") == ("not_found", "unknown task 'd'; expected one of a, b, c")
    assert refused(story, action="nope")[1].endswith("has no action 'nope'; known: flush")
    assert refused(story, task="c")[1].endswith("known: none")
    assert refused(story) == (
        "invalid",
        "several tasks have an action 'flush'; expected one of a, b",
    )
    assert story.agent.action(ask(task="b")).task == "b"


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        (b"", ""),
        (b'NATS/1.0\r\nNats-Request-Info: {"acc":"PUBLIC","user":"ops"}\r\n\r\n', "ops"),
        (b'NATS/1.0\r\nNats-Request-Info: {"acc":"PUBLIC"}\r\n\r\n', ""),
        (b"NATS/1.0\r\nNats-Request-Info: {]\r\n\r\n", ""),
        (
            b'NATS/1.0\r\nNats-Request-Info: {"user":"a"}\r\nNats-Request-Info: {"user":"b"}\r\n',
            "b",
        ),
        (b'NATS/1.0\r\nNats-Request-Info: {"user":"a\\nb"}\r\n\r\n', ""),
    ],
)
def test_who_asks_is_what_the_bus_says(headers: bytes, who: str) -> None:
    """The last header, which is the bus's, names the user; none or a strange one names no user."""
    assert asker(headers) == who
