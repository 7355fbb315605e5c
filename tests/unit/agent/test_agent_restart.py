"""Restart in place by Nomad's policy, and what one task's end means for its allocation."""

import pytest

from services.agent.tasks.resolved_group import ResolvedRestartPolicy
from services.agent.tasks.restart_policy import RestartCount, decide_restart, jitter_ns
from shared.core.runtime import agent_messages
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

POLICY = {"Attempts": 2, "Interval": 1800 * SECOND, "Delay": 10 * SECOND, "Mode": "fail"}


def plan(**more: object) -> ResolvedRestartPolicy:
    fields = {"attempts": 2, "interval_ns": 100, "delay_ns": 40, "mode": "fail", "on_success": True}
    return ResolvedRestartPolicy(**{**fields, **more})  # type: ignore[arg-type]


def running(**more: object) -> Story:
    story = Story(job=job_json(**more)).hear(5, alloc()).started()  # type: ignore[arg-type]
    story.did(agent_messages.StartTask)
    return story


def test_a_failed_service_waits_and_starts_again() -> None:
    """After a failure the task is pending, and starts again after the delay and at most a quarter more."""
    story = running(restart=POLICY).exited(1)
    assert story.state().status == "pending"
    assert not story.wait(9.9).starts()
    assert story.wait(2.6).starts() == [("main", 2)]
    assert story.state().tasks["main"].restarts == 1


def test_used_up_attempts_fail_the_task() -> None:
    """The attempts of an interval used up, the task is dead and the allocation failed, with the reason told."""
    story = running(restart=POLICY)
    for run in (1, 2, 3):
        story.started(run=run).exited(1, run=run).wait(20)
    assert len(story.starts()) == 2
    assert story.state().status == "failed"
    assert story.state().tasks["main"].events[-1].message == "exceeded 2 attempts in 1800 s"
    assert not story.wait(4000).starts()


def test_a_new_interval_has_new_attempts() -> None:
    """Attempts count within their interval: after a quiet one a failure starts the count again."""
    story = running(restart=POLICY)
    for run in range(1, 6):
        story.started(run=run).wait(1801).exited(1, run=run).wait(20)
    assert [run for _, run in story.starts()] == [2, 3, 4, 5, 6]


def test_mode_delay_waits_for_the_interval_to_end() -> None:
    """In mode delay nothing is failed: the next start comes when the interval is over."""
    story = running(restart={**POLICY, "Attempts": 1, "Mode": "delay"})
    story.exited(1).wait(20).started(run=2).exited(1, run=2)
    story.starts()
    assert not story.wait(1700).starts()
    assert story.wait(100).starts() == [("main", 3)]
    assert story.state().status == "pending"


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_a_finished_batch_task_never_starts_again(kind: str) -> None:
    """Exit 0 ends a batch task: complete, whatever time passes and however often the projection says run."""
    story = running(kind=kind, restart=POLICY).exited(0)
    story.wait(4000).hear(6, alloc()).hear(7, alloc())
    assert not story.starts()
    assert story.state().status == "complete"


def test_a_service_that_exits_0_starts_again() -> None:
    """A service is meant to run: its exit 0 is restarted as any other."""
    assert running(restart=POLICY).exited(0).wait(13).starts() == [("main", 2)]


def test_a_policy_of_no_attempts_fails_at_once() -> None:
    """Without attempts the first failure is the last."""
    story = running(restart={**POLICY, "Attempts": 0}).exited(1)
    assert story.state().status == "failed"


@pytest.mark.parametrize(("kind", "restarts"), [("service", 2), ("system", 2), ("batch", 3)])
def test_defaults_are_nomads(kind: str, restarts: int) -> None:
    """Without a block: 2 restarts in 30 minutes for services, 3 in a day for batch, 15 s apart."""
    story = running(kind=kind)
    for run in range(1, 8):
        story.started(run=run).exited(1, run=run).wait(14.9)
        assert len(story.starts()) == 0
        story.wait(4)
        assert len(story.starts()) == (1 if run <= restarts else 0)


def test_a_start_that_may_work_later_is_tried_again() -> None:
    """A recoverable failure to start counts as an attempt; an unrecoverable one ends the task at once."""
    failed = agent_messages.TaskStartFailed(key=7, task="main", run=1, reason="disk full")
    story = Story(job=job_json(restart=POLICY)).hear(5, alloc()).step(failed)
    assert story.state().tasks["main"].events[-2].message == "disk full"
    assert story.wait(13).starts() == [("main", 1), ("main", 2)]
    story.step(
        agent_messages.TaskStartFailed(key=7, task="main", run=2, reason="x", recoverable=False)
    )
    assert story.state().status == "failed"


def test_one_failed_task_ends_the_others() -> None:
    """A task dead by failure fails the allocation and ends its siblings, who are not failed themselves."""
    job = job_json(task_json("a"), task_json("b"), restart={**POLICY, "Attempts": 0})
    story = Story(job=job).hear(5, alloc()).started("a").started("b").exited(1, "a")
    assert [one.task for one in story.did(agent_messages.SignalTask)] == ["b"]
    story.exited(None, "b", signal=2)
    assert story.state().status == "failed"
    assert not story.state().tasks["b"].failed


def test_a_leaders_end_is_the_end() -> None:
    """When the leader is done the others are ended; the allocation is complete."""
    job = job_json(task_json("a", Leader=True), task_json("b"), kind="batch")
    story = Story(job=job).hear(5, alloc()).started("a").started("b").exited(0, "a")
    assert [one.task for one in story.did(agent_messages.SignalTask)] == ["b"]
    assert story.exited(0, "b").state().status == "complete"


def test_status_is_by_nomads_rule() -> None:
    """Failed before running before pending; complete only when all tasks are dead."""
    job = job_json(task_json("a"), task_json("b"), kind="batch")
    story = Story(job=job).hear(5, alloc())
    assert story.state().status == "pending"
    assert story.started("a").state().status == "running"
    assert story.exited(0, "a").state().status == "pending"
    assert story.started("b").state().status == "running"
    assert story.exited(0, "b").state().status == "complete"


def test_a_stop_ends_the_waiting() -> None:
    """A task between two runs is dead at once when it is stopped; its timer starts nothing."""
    story = running(restart=POLICY).exited(1).hear(6)
    assert story.state().status == "complete"
    assert not story.wait(60).starts()


def test_jitter_is_a_quarter_at_most_and_repeats() -> None:
    """The draw depends on seed and attempt alone, spreads over the quarter and never passes it."""
    drawn = [jitter_ns(15 * SECOND, seed, attempt) for seed in range(50) for attempt in (1, 2)]
    assert drawn == [jitter_ns(15 * SECOND, seed, n) for seed in range(50) for n in (1, 2)]
    assert len(set(drawn)) > 90
    assert 0 <= min(drawn) < max(drawn) < 15 * SECOND // 4


def test_a_policy_judges_by_its_count() -> None:
    """The count is the caller's to keep: it is returned, never remembered."""
    count = RestartCount(attempts=2, interval_start_ns=1000)
    used = decide_restart(plan(), count, success=False, seed=1, now_ns=1099)
    fresh = decide_restart(plan(), count, success=False, seed=1, now_ns=1100)
    assert (used.again, used.failed) == (False, True)
    assert (fresh.again, fresh.count) == (True, RestartCount(attempts=1, interval_start_ns=1100))
