"""Checks of services: when they run, what they mean for health, and when they start a task again."""

from typing import Any

import pytest

from services.agent.executor import check_runner
from shared.core.runtime import agent_messages
from shared.jobspec.service_names import CHECK_KINDS
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2
UPDATE = {"MinHealthyTime": 10 * SECOND, "HealthyDeadline": 60 * SECOND}
CHECK = {"Name": "up", "Type": "tcp", "Interval": 5 * SECOND, "Timeout": SECOND}


def served(*checks: dict[str, Any], service: dict[str, Any] | None = None, **more: Any) -> Story:
    """A task with a service and these checks, ordered to start."""
    block = {
        "Name": "web",
        "PortLabel": "8080",
        "Checks": [{**CHECK, **one} for one in checks],
        **(service or {}),
    }
    job = job_json(task_json("main", Services=[block]), Update=UPDATE, **more)
    return Story(job=job).hear(5, alloc())


def says(story: Story, status: str, name: str = "web/up", run: int = 1, output: str = "") -> Story:
    return story.step(
        agent_messages.CheckChanged(key=7, check=name, run=run, status=status, output=output)
    )


def health(story: Story) -> tuple[int, str]:
    state = story.state()
    return state.health, state.health_reason


def watched(story: Story) -> list[str]:
    """Names of the checks that the executor was last told to make."""
    return [one.name for one in story.did(agent_messages.WatchChecks)[-1].checks]


def test_every_type_has_a_probe() -> None:
    """What a job file may ask for, the agent can make: a script runs in the task, each other type has an attempt."""
    assert set(CHECK_KINDS) == {*check_runner._ATTEMPTS, "script"}
    assert len(CHECK_KINDS) == len(set(CHECK_KINDS))


def test_a_check_runs_while_its_task_does() -> None:
    """Checks begin with their task, and end with it."""
    story = served({})
    assert not story.did(agent_messages.WatchChecks)
    assert watched(story.started()) == ["web/up"]
    spec = story.exited(1).did(agent_messages.WatchChecks)[-1]
    assert (spec.key, spec.checks) == (7, ())


def test_a_grpc_check_says_which_service_and_how() -> None:
    """The service's name is interpolated; TLS and its verification follow the block."""
    grpc = {"Type": "grpc", "GRPCService": "${NOMAD_TASK_NAME}.v1", "GRPCUseTLS": True}
    (found,) = (
        served({**grpc, "TLSSkipVerify": True}).started().did(agent_messages.WatchChecks)[-1].checks
    )
    assert (found.kind, found.grpc_service, found.port) == ("grpc", "main.v1", 8080)
    assert (found.grpc_use_tls, found.tls_skip_verify) == (True, True)


def test_healthy_needs_tasks_and_checks() -> None:
    """H1, H3: healthy comes when the checks have passed for min_healthy_time, too."""
    story = served({}).started().wait(20)
    assert health(story) == (UNKNOWN, "")
    assert health(says(story, "passing").wait(9.5)) == (UNKNOWN, "")
    assert health(story.wait(1)) == (HEALTHY, "")


def test_a_failure_in_between_begins_the_time_again() -> None:
    """H2: after pass, critical, pass the time counts from the second pass."""
    story = says(served({}).started(), "passing").wait(8)
    says(says(story, "critical").wait(1), "passing")
    assert health(story.wait(9)) == (UNKNOWN, "")
    assert health(story.wait(1.5)) == (HEALTHY, "")


def test_checks_that_never_pass_make_it_unhealthy_at_the_deadline() -> None:
    """H1: the reason names the check and what it said."""
    story = says(served({}).started(), "critical", output=" refused\n by it ").wait(59)
    assert health(story) == (UNKNOWN, "")
    reason = "check 'web/up' is critical: refused by it, by the healthy_deadline of 60 s"
    assert health(story.wait(2)) == (UNHEALTHY, reason)


@pytest.mark.parametrize(
    ("on_update", "status", "expected"),
    [
        ("require_healthy", "warning", UNKNOWN),
        ("ignore_warnings", "warning", HEALTHY),
        ("ignore_warnings", "critical", UNKNOWN),
        ("ignore", "warning", HEALTHY),
        ("ignore", "critical", HEALTHY),
        ("ignore", "", UNKNOWN),
    ],
)
def test_on_update(on_update: str, status: str, expected: int) -> None:
    """H5: warnings or failures may be ignored; a check that was not made yet counts in any case."""
    story = served({"OnUpdate": on_update}).started()
    story = says(story, status) if status else story
    assert health(story.wait(11))[0] == expected


def test_a_check_of_the_service_says_on_update_for_its_checks() -> None:
    """What the service says holds where the check says nothing."""
    story = says(served({}, service={"OnUpdate": "ignore"}).started(), "critical")
    assert health(story.wait(11))[0] == HEALTHY


def test_initial_status() -> None:
    """A check that begins as passing counts before it was made."""
    assert health(served({"InitialStatus": "passing"}).started().wait(11))[0] == HEALTHY


def test_task_states_ignore_checks() -> None:
    """With health_check task_states no check counts."""
    job = served({}).job
    assert job is not None
    job["Update"] = {**UPDATE, "HealthCheck": "task_states"}
    assert health(Story(job=job).hear(5, alloc()).started().wait(11))[0] == HEALTHY


def test_statuses_are_reported_with_their_task() -> None:
    """Each change of a status is reported; those of the group stand with the first main task."""
    job = job_json(task_json("main"), Update=UPDATE)
    job["TaskGroups"][0]["Services"] = [{"Name": "web", "PortLabel": "1", "Checks": [CHECK]}]
    story = Story(job=job).hear(5, alloc()).started()
    assert story.state().tasks["main"].checks == {"web/up": "pending"}
    story.wait(1).reports()
    told = says(story, "passing").wait(0.1).reports()
    assert told[-1].states[0].tasks["main"].checks == {"web/up": "passing"}


def test_an_agent_restart_keeps_the_statuses() -> None:
    """Checks begin in the status that they had, so that neither health nor listing falls back."""
    story = says(served({}).started(), "passing").wait(8)
    again = story.restarted(now_ns=story.now_ns).started(adopted=True)
    assert watched(again) == ["web/up"]
    assert again.state().tasks["main"].checks == {"web/up": "passing"}
    assert health(again.wait(2.5)) == (HEALTHY, "")


def test_results_of_another_run_count_for_nothing() -> None:
    """A late result of a run that is over is dropped."""
    story = says(served({}).started().exited(1).wait(20).started(run=2), "passing", run=1)
    assert story.state().tasks["main"].checks == {"web/up": "pending"}


AGAIN = {"Limit": 3, "Grace": 10 * SECOND}
RESTART = {"Attempts": 1, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"}


def failing(status: str = "critical", **more: Any) -> Story:
    """A service whose check passed once, and fails 20 s later."""
    check = {"CheckRestart": {**AGAIN, **more}}
    return says(says(served(check, restart=RESTART).started(), "passing").wait(20), status)


def signals(story: Story) -> int:
    return len(story.did(agent_messages.SignalTask))


def test_a_check_that_fails_long_enough_restarts_its_task() -> None:
    """After limit failures the task is ended and started again, as after a failure (S84)."""
    story = failing()
    assert signals(story.wait(9.5)) == 0
    assert signals(story.wait(1)) == 1
    story.exited(0).wait(3)
    assert ("main", 2) in story.starts()
    assert story.state().tasks["main"].restarts == 1


def test_restarts_by_checks_use_up_the_attempts() -> None:
    """A second time the restart policy ends it: the allocation failed."""
    story = failing().wait(11).exited(0).wait(3).started(run=2)
    story.did(agent_messages.SignalTask)
    assert signals(says(story, "critical", run=2).wait(19)) == 0
    assert signals(story.wait(2)) == 1
    assert story.exited(0, run=2).state().status == "failed"


def test_one_pass_in_between_restarts_nothing() -> None:
    """A failure that is over before the limit is forgotten (S84)."""
    story = says(failing().wait(9), "passing").wait(3)
    assert signals(says(story, "critical").wait(9)) == 0


@pytest.mark.parametrize(
    ("status", "more", "count"),
    [("warning", {}, 1), ("warning", {"IgnoreWarnings": True}, 0), ("critical", {"Limit": 0}, 0)],
)
def test_what_counts_as_a_failure(status: str, more: dict[str, Any], count: int) -> None:
    """Warnings count unless they are ignored; a limit of 0 restarts nothing."""
    assert signals(failing(status, **more).wait(30)) == count


def test_nothing_counts_within_the_grace() -> None:
    """Failures count from the end of the grace on, also of a check that was not made yet."""
    story = served({"CheckRestart": AGAIN}, restart=RESTART).started()
    assert signals(story.wait(19.5)) == 0
    assert signals(story.wait(1)) == 1


def test_two_checks_that_fail_restart_their_task_once() -> None:
    """The first one restarts it, and both have their grace again afterwards (S84)."""
    again = {"CheckRestart": AGAIN}
    story = served({"Name": "a", **again}, {"Name": "b", **again}, restart=RESTART).started()
    story = says(says(story, "passing", "web/a"), "passing", "web/b").wait(20)
    says(says(story, "critical", "web/a").wait(1), "critical", "web/b")
    assert signals(story.wait(30)) == 1
    story.exited(0).wait(3).started(run=2)
    story.did(agent_messages.SignalTask)
    says(says(story, "critical", "web/a", run=2), "critical", "web/b", run=2)
    assert signals(story.wait(19)) == 0


def test_a_check_that_is_removed_restarts_nothing() -> None:
    """A version in place without it ends the count of its failures (S84)."""
    story = failing().wait(9)
    assert story.job is not None
    del story.job["TaskGroups"][0]["Tasks"][0]["Services"][0]["Checks"]
    assert signals(story.hear(8, alloc(version=1)).wait(30)) == 0
    assert story.did(agent_messages.WatchChecks)[-1].checks == ()
    assert story.state().tasks["main"].state == "running"


def test_a_check_that_is_mended_by_the_restart_is_told() -> None:
    """The next run begins as pending, and its first pass lists the service again (S85)."""
    story = failing().wait(11).exited(0).wait(3).started(run=2).wait(1)
    assert story.reports()[-1].states[0].tasks["main"].checks == {"web/up": "pending"}
    told = says(story, "passing", run=2).wait(0.1).reports()
    assert told[-1].states[0].tasks["main"].checks == {"web/up": "passing"}
