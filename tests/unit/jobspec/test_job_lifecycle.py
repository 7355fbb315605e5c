"""What of a life a job may ask for, and what changes without a restart."""

from typing import Any

import pytest

from schemas.envelope import ENCODER
from services.agent.tasks.resolved_group import resolve_group
from shared.jobspec.compile.groups import group_digest
from shared.jobspec.submission import JobInvalid, read_job, read_submission
from tests.unit.agent.agent_story import SECOND, job_json, task_json


def job(*tasks: dict[str, Any], kind: str = "batch", **group: Any) -> dict[str, Any]:
    """A job with one group of these tasks."""
    one = job_json(*tasks, kind=kind)
    one["TaskGroups"][0].update(group)
    return one


def hooked(hook: str, *, sidecar: bool = False, **more: Any) -> dict[str, Any]:
    """A task beside the main one."""
    return task_json("x", Lifecycle={"Hook": hook, "Sidecar": sidecar}, **more)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (job(task_json(), hooked("never")), "Job.TaskGroups[0].Tasks[1].Lifecycle.Hook"),
        (
            job(task_json(), hooked("poststop", sidecar=True)),
            "Job.TaskGroups[0].Tasks[1].Lifecycle.Sidecar",
        ),
        (job(task_json(), hooked("poststop", Leader=True)), "Job.TaskGroups[0].Tasks[1].Leader"),
        (
            job(task_json("a", Leader=True), task_json("b", Leader=True)),
            "Job.TaskGroups[0].Tasks[1].Leader",
        ),
        (job(task_json(), RestartFrom="middle"), "Job.TaskGroups[0].RestartFrom"),
        (job(task_json(), MaxRunDuration=0), "Job.TaskGroups[0].MaxRunDuration"),
        (job(task_json(), kind="service", MaxRunDuration=1), "Job.TaskGroups[0].MaxRunDuration"),
        (job(task_json(), ShutdownDelay=-1), "Job.TaskGroups[0].ShutdownDelay"),
        (job(task_json(ShutdownDelay=-1)), "Job.TaskGroups[0].Tasks[0].ShutdownDelay"),
    ],
)
def test_a_life_that_cannot_be_is_refused_with_its_path(given: dict[str, Any], path: str) -> None:
    """Each impossible wish is named where it stands."""
    with pytest.raises(JobInvalid) as found:
        read_job(given)
    assert path in [fault.path for fault in found.value.errors]


def test_a_group_without_a_main_task_is_told_of() -> None:
    """Nomad takes it, so it is taken; nothing would hold it up, and that is said."""
    given = {"Job": job(hooked("prestart"))}
    got = read_submission(ENCODER.encode(given), "submit")
    assert ["has no main task" in warning for warning in got.warnings] == [True]


@pytest.mark.parametrize("hook", ["prestart", "poststart", "prestop", "poststop", "postfail"])
def test_every_hook_is_possible(hook: str) -> None:
    """All five hooks are taken, and the agent's plan has them."""
    given = job(task_json(), hooked(hook), RestartFrom="failed", MaxRunDuration=SECOND)
    read_job(given)
    plan = resolve_group(ENCODER.encode(given), "g")
    assert [task.hook for task in plan.tasks] == ["", hook]
    assert (plan.restart_from, plan.max_run_ns) == ("failed", SECOND)


@pytest.mark.parametrize(
    ("task", "group", "is_same"),
    [
        ({"KillTimeout": 9 * SECOND}, {}, True),
        ({"KillSignal": "SIGUSR1"}, {}, True),
        ({"LogConfig": {"MaxFiles": 3}}, {}, True),
        ({"LogConfig": {"Disabled": True}}, {}, False),
        ({"LogConfig": {"Ship": True}}, {}, False),
        ({"LogConfig": {"Ship": False}}, {}, True),
        ({"RestartPolicy": {"Attempts": 9}}, {}, True),
        ({}, {"MaxRunDuration": SECOND}, True),
        ({}, {"Disconnect": {"StopOnClientAfter": SECOND}}, True),
        ({}, {"RestartFrom": "failed"}, False),
        ({"Lifecycle": {"Hook": "prestop"}}, {}, False),
        ({"Env": {"A": "b"}}, {}, False),
    ],
)
def test_what_changes_in_place(task: dict[str, Any], group: dict[str, Any], is_same: bool) -> None:  # noqa: FBT001
    """A new kill timeout, log size, restart policy or last day restarts nothing; another life does."""
    plain, other = job(task_json()), job(task_json(**task), **group)
    digests = [group_digest(one["TaskGroups"][0], None) for one in (plain, other)]
    assert (digests[0] == digests[1]) is is_same
