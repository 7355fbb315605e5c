"""Where a job's newest version stands: what a deploy script reads of `view.job` and `query.job`."""

from typing import Any

import msgspec
import pytest

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import JobId
from schemas.evaluations import Blocked, EvaluationEnded, EvaluationsCreated, NewEvaluation, Waiting
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import Stops
from shared.core.state.ids import make_key
from shared.protocol import subjects
from shared.query.job_progress import MIN_RUNNING_NS
from tests.unit.view.view_story import MS, Story

RUNNING, COMPLETE, FAILED = 1, 2, 3


def placed(job_type: str = "service") -> Story:
    """A job of two allocations, decided and placed."""
    story = Story()
    story.node("n1")
    story.node("n2")
    seq = story.job("j", count=2, job_type=job_type)
    story.plan("j", (0, 1), EvaluationEnded(key=make_key(seq, 0), status="complete"))
    story.start()
    return story


def report(story: Story, *codes: int, **tasks: Any) -> None:
    """Report the first allocations, now; `tasks` is what the first one runs."""
    story.log_ns = story.now_ns
    raw = msgspec.Raw(msgspec.json.encode(tasks))
    details = (AllocDetail(row=0, tasks=raw, reschedule_at_ns=tasks.pop("at", 0)),) if tasks else ()
    story.log(AllocationsReported(rows=tuple(range(len(codes))), statuses=codes, details=details))


def task(restarts: int, state: str, *events: dict[str, Any]) -> dict[str, Any]:
    """A task as its agent reports it."""
    return {"state": state, "restarts": restarts, "events": events}


def rollout(story: Story) -> dict[str, Any]:
    """What `query.job` says, and `view.job` too."""
    asked = story.ask("job", id="j")["rollout"]
    effects = story.later()
    seen = [one for one in (story.land(effects),) if subjects.view_job("j") in one]
    for one in seen:
        assert one[subjects.view_job("j")]["rollout"] == asked
    return asked


def test_an_undecided_job_is_progressing() -> None:
    """Nothing is known before its evaluation ended: 0 of 0 is not running."""
    story = Story()
    story.job("j", count=0)
    story.start()
    said = rollout(story)
    assert (said["status"], said["reason"]) == ("progressing", "an evaluation is pending")


def test_it_runs_when_all_of_the_newest_version_run() -> None:
    """Pending allocations are progress; the counts are in the answer."""
    story = placed()
    assert rollout(story)["status"] == "progressing"
    report(story, RUNNING)
    assert (rollout(story)["status"], rollout(story)["reason"]) == ("progressing", "1 pending")
    report(story, RUNNING, RUNNING)
    said = rollout(story)
    assert (said["status"], said["reason"]) == ("running", "")
    assert said["groups"]["web"]["running"] == said["groups"]["web"]["desired"] == 2


def test_old_allocations_do_not_count_in_an_update() -> None:
    """While the old version runs and the new one is undecided, running equals desired, and nothing is done."""
    story = placed()
    report(story, RUNNING, RUNNING)
    seq = story.job("j", count=2, version=1)
    said = rollout(story)
    groups = story.ask("job", id="j")["groups"]["web"]
    assert groups["running"] == groups["desired"] == 2
    assert said["status"] == "progressing" and said["groups"]["web"]["running"] == 0
    assert said["stopping"] == 2
    story.plan(
        "j",
        (),
        EvaluationEnded(key=make_key(seq, 0), status="complete"),
        stops=(Stops(rows=(0, 1), reason="job changed"),),
    )
    said = rollout(story)
    assert (said["status"], said["stopping"]) == ("progressing", 2)


@pytest.mark.parametrize("version", [0, 1])
def test_a_submission_that_changed_nothing_says_so(version: int) -> None:
    """A batch job sent again unchanged is complete, and tells that nothing of it ran for this submission."""
    changed = version > 0
    story = placed("batch")
    report(story, COMPLETE, COMPLETE)
    assert (rollout(story)["status"], rollout(story)["changed"]) == ("complete", True)
    key = make_key(len(story.records) + 1, 0)
    story.log(
        JobRegistered(
            submission_id="again",
            digest="d",
            job_id=JobId("j"),
            version=version,
            job_type="batch",
            groups=(GroupSpec(name="web", count=2, cpu_mhz=100, memory_mib=64),),
            spec=msgspec.Raw(b'{"ID":"x"}'),
            evaluation=key,
        ),
        EvaluationsCreated(evaluations=(NewEvaluation(job_id=JobId("j")),)),
    )
    said = rollout(story)
    assert (said["status"], said["changed"]) == ("progressing", changed)
    story.log(EvaluationEnded(key=key, status="complete"))
    assert rollout(story)["status"] == ("progressing" if changed else "complete")
    assert rollout(story)["changed"] is changed


def test_a_job_runs_when_its_tasks_ran_for_some_time() -> None:
    """A crash loop with lives of 3 s is progress between any two restarts; the view publishes the end of the wait."""
    story = placed()
    report(story, 0, RUNNING)
    for restarts in range(3):
        started = {"kind": "Started", "t_ns": story.now_ns}
        report(story, RUNNING, RUNNING, main=task(restarts, "running", started))
        for _ in range(3):
            said = rollout(story)
            assert (said["status"], said["restarts"]) == ("progressing", restarts)
            assert said["settles_at_ns"] == started["t_ns"] + MIN_RUNNING_NS
            story.now_ns += 1_000 * MS
        again = {"kind": "Restarting", "message": "in 1 s", "t_ns": story.now_ns}
        report(story, 0, RUNNING, main=task(restarts, "pending", started, again))
        said = rollout(story)
        assert (said["status"], said["settles_at_ns"]) == ("progressing", 0)
        story.now_ns += 1_000 * MS
    due_ns = story.now_ns + MIN_RUNNING_NS
    report(story, RUNNING, RUNNING, main=task(3, "running", {**started, "t_ns": story.now_ns}))
    assert rollout(story)["status"] == "progressing"
    story.land(story.later())
    # What was in flight all the time is published again, as it is.
    seen = story.land(story.later(ms=(due_ns - story.now_ns) // MS - 60))
    assert seen[subjects.view_job("j")]["rollout"]["status"] == "progressing"
    assert not story.land(story.later(ms=59))
    seen = story.land(story.later(ms=1))
    assert seen[subjects.view_job("j")]["rollout"]["status"] == "running"
    assert rollout(story)["status"] == "running"


@pytest.mark.parametrize(("ahead_s", "waits_s"), [(0, 10), (3_600, 11), (-6, 4), (-60, 0)])
def test_a_clock_that_is_ahead_does_not_delay_it(ahead_s: int, waits_s: int) -> None:
    """A start counts by the clock of its node, but not later than its report, to a second."""
    story = placed()
    story.now_ns = 100_000 * MS
    at_ns = story.now_ns + ahead_s * 1_000 * MS
    report(story, RUNNING, RUNNING, main=task(0, "running", {"kind": "Started", "t_ns": at_ns}))
    due_ns = rollout(story)["settles_at_ns"]
    assert due_ns <= 100_000 * MS + waits_s * 1_000 * MS
    assert bool(due_ns) is bool(waits_s)


def test_a_main_task_behind_a_prestart_task_is_not_running() -> None:
    """The allocation is running by Nomad's rule, and the job is not."""
    story = placed()
    started, waits = {"state": "running"}, {"state": "pending"}
    report(story, RUNNING, RUNNING, init=started, main=waits)
    said = rollout(story)
    assert said["status"] == "progressing"
    assert said["reason"] == "j.web[0]: task main has not started"
    report(story, RUNNING, RUNNING, init={"state": "dead"}, main=started)
    story.now_ns += MIN_RUNNING_NS + 1_000 * MS
    assert rollout(story)["status"] == "running"


def test_a_task_between_two_runs_says_why_and_when() -> None:
    """What waits to start again is no success; the field carries the time of the next start."""
    story = placed()
    events = [
        {"kind": "Terminated", "message": "Exit Code: 3", "t_ns": 5},
        {"kind": "Restarting", "message": "in 1.5 s, within policy", "t_ns": 1_000},
    ]
    report(story, 0, RUNNING, main={"state": "pending", "restarts": 1, "events": events})
    said = rollout(story)
    assert (said["status"], said["restarts"]) == ("progressing", 1)
    text = "task main ended: Terminated: Exit Code: 3; Restarting in 1.5 s, within policy"
    assert said["reason"] == f"1 pending; j.web[0]: {text}"
    assert said["retry_at_ns"] == 1_500_001_000


def test_a_failed_task_fails_the_rollout() -> None:
    """The first failed task and the event that explains it."""
    story = placed()
    task = {
        "state": "dead",
        "failed": True,
        "events": [
            {"kind": "Driver Failure", "message": "command 'x' not found"},
            {"kind": "Not Restarting", "message": "Error was unrecoverable"},
        ],
    }
    report(story, FAILED, RUNNING, main=task)
    said = rollout(story)
    assert said["status"] == "failed"
    assert said["reason"] == "j.web[0]: task main failed: Driver Failure: command 'x' not found"


def test_what_finds_no_place_waits() -> None:
    """What was placed runs, the rest waits, and the reason says for what."""
    story = placed()
    report(story, RUNNING, RUNNING)
    waiting = {"web": Waiting(count=3, reasons=("memory exhausted on 2 nodes",))}
    new = NewEvaluation(job_id=JobId("j"), blocked=Blocked(waiting=waiting))
    story.log(EvaluationsCreated(evaluations=(new,)))
    said = rollout(story)
    assert said["status"] == "waiting"
    assert said["reason"] == "3 of web waiting: memory exhausted on 2 nodes"


def test_what_waits_for_its_own_predecessor_is_in_progress() -> None:
    """Its old allocations are about to end: nothing is missing, and no operator has to act."""
    story = placed()
    report(story, RUNNING, RUNNING)
    own = Waiting(count=3, wait_class="predecessor", reasons=("3 are to end first",))
    new = NewEvaluation(job_id=JobId("j"), blocked=Blocked(waiting={"web": own}))
    story.log(EvaluationsCreated(evaluations=(new,)))
    said = rollout(story)
    assert (said["status"], said["reason"]) == (
        "progressing",
        "3 of web waiting: 3 are to end first",
    )


def test_a_failed_evaluation_fails_the_rollout() -> None:
    """A job that cannot be decided will not run."""
    story = Story()
    seq = story.job("j")
    story.log(EvaluationEnded(key=make_key(seq, 0), status="failed", reason="no such operand"))
    story.start()
    said = rollout(story)
    assert (said["status"], said["reason"]) == ("failed", "evaluation failed: no such operand")


def test_a_batch_job_whose_allocation_a_drain_ended_is_not_in_progress() -> None:
    """Nothing replaces it in this version: the job runs while others do, and then it has failed, with the reason."""
    story = placed("batch")
    report(story, RUNNING, RUNNING)
    stops = Stops(rows=(0,), reason="its node is drained", final=True)
    story.plan("j", (), stops=(stops,))
    assert rollout(story)["status"] == "progressing"
    report(story, COMPLETE, RUNNING)
    assert rollout(story)["status"] == "running"
    report(story, COMPLETE, COMPLETE)
    said = rollout(story)
    text = "a drain ended 1 of 2 allocations for good"
    assert (said["status"], said["reason"]) == ("failed", text)
