"""Actions of tasks in job files: what is accepted, and what is refused with its path."""

from typing import Any

import pytest

from tests.unit.jobspec.test_jobspec import a_group, a_job, a_task, faults, read

TASK = "Job.TaskGroups[0].Tasks[0]"


def with_actions(*actions: dict[str, Any]) -> dict[str, Any]:
    return a_job(TaskGroups=[a_group(Tasks=[a_task(Actions=list(actions))])])


@pytest.mark.parametrize("name", ["flush", "naïve-1", "a/b:c", "x" * 128])
def test_a_name_is_any_word(name: str) -> None:
    """Up to 128 characters without whitespace; arguments are free texts."""
    job = with_actions({"Name": name, "Command": "c", "Args": ["a b", "", "${NOMAD_TASK_DIR}"]})
    assert read(job).job is not None


@pytest.mark.parametrize(
    ("action", "path", "text"),
    [
        ({"Name": "x"}, "Actions[0].Command", "must not be empty"),
        ({"Command": "c"}, "Actions[0].Name", "1 to 128 characters"),
        ({"Name": "a b", "Command": "c"}, "Actions[0].Name", "without whitespace"),
        ({"Name": "x" * 129, "Command": "c"}, "Actions[0].Name", "1 to 128 characters"),
    ],
)
def test_a_bad_action_is_refused(action: dict[str, Any], path: str, text: str) -> None:
    """S94: without a command, or with a name that has a blank: an error at its path."""
    assert text in faults(with_actions(action))[f"{TASK}.{path}"]


def test_a_name_is_unique_in_its_task_alone() -> None:
    """S94: the same name twice in a task is an error; two tasks of a group may have the same one."""
    one = {"Name": "x", "Command": "c"}
    found = faults(with_actions(one, {"Name": "y", "Command": "c"}, one))
    assert found == {f"{TASK}.Actions[2].Name": "another action is named 'x'"}
    tasks = [a_task(Name=name, Actions=[one]) for name in ("a", "b")]
    assert read(a_job(TaskGroups=[a_group(Tasks=tasks)])).job is not None
