"""How a rollout is displayed: in words, as a bar, and when it is over."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.answers import DeploymentAnswer
from schemas.job_answers import FieldChange, GroupPlan, JobLine, PlanAnswer, UnplacedLine
from schemas.jobs import Verdict
from schemas.projections import (
    DeploymentGroupLine,
    DeploymentLine,
    DeploymentWait,
    EvalSummary,
    GroupSummary,
    Rollout,
)
from schemas.rollout_answers import RolloutAnswer, RolloutLine, RolloutMemberLine
from services.cli.deployment.display import (
    RolloutDisplay,
    group_bar,
    group_summary,
    health_rows,
    health_summary,
    status_rows,
)
from services.cli.job import plan, run
from services.cli.job.plan import group_pace, group_steps, print_changes
from services.cli.rollout import monitor
from services.cli.runtime import tables
from services.cli.runtime.output import CliError, CommandOutput


@pytest.mark.parametrize(
    ("group", "waiting", "text"),
    [
        (GroupSummary(desired=3, running=3), 0, "3/3 running"),
        (
            GroupSummary(desired=3, pending=1, running=1, failed=1),
            0,
            "1/3 running, 1 pending, 1 failed",
        ),
        (GroupSummary(desired=5, running=2), 3, "2/5 running, 3 waiting"),
        (GroupSummary(desired=2, complete=2), 0, "2/2 complete"),
        (GroupSummary(desired=2, complete=1, running=1, lost=1), 0, "2/2 running, 1 lost"),
    ],
)
def test_a_group_in_words(group: GroupSummary, waiting: int, text: str) -> None:
    """What is zero is left out; what ended well counts as what runs."""
    assert group_summary(group, waiting) == text


@pytest.mark.parametrize("width", [1, 6, 20])
@pytest.mark.parametrize(
    "group",
    [
        GroupSummary(desired=0),
        GroupSummary(desired=3, running=3),
        GroupSummary(desired=3, running=1, failed=40, pending=9),
        GroupSummary(desired=1_000_000, running=1),
    ],
)
def test_a_bar_is_as_long_as_it_shall_be(group: GroupSummary, width: int) -> None:
    """However many there are, and of what kind."""
    (row,) = status_rows({"g": group}, {})
    assert len(group_bar(row, width, "#-").plain) == width


PLACED = DeploymentGroupLine(desired=3, placed=3)
CANARIES = DeploymentGroupLine(desired=3, canaries=2, placed=2, placed_canaries=2)


@pytest.mark.parametrize(
    ("group", "change", "waiting", "text"),
    [
        (PLACED, {"healthy": 2}, 0, "2/3 healthy, 1 placed"),
        (PLACED, {"healthy": 3}, 0, "3/3 healthy"),
        (PLACED, {"healthy": 1, "unhealthy": 1}, 0, "1/3 healthy, 1 placed, 1 unhealthy"),
        (PLACED, {"placed": 1, "healthy": 1}, 2, "1/3 healthy, 2 waiting"),
        (CANARIES, {}, 0, "0/2 canaries healthy, 2 placed"),
        (CANARIES, {"healthy": 2}, 0, "2/2 canaries healthy, waits for its promotion"),
        (
            CANARIES,
            {"healthy": 2, "auto_promote": True},
            0,
            "2/2 canaries healthy, to be promoted",
        ),
        (
            CANARIES,
            {"healthy": 2, "promoted": True, "placed": 3},
            0,
            "2/3 healthy, 1 placed",
        ),
    ],
)
def test_a_group_of_a_deployment_in_words(
    group: DeploymentGroupLine, change: dict[str, Any], waiting: int, text: str
) -> None:
    """Canaries count alone until they are promoted; what is zero is left out."""
    one = msgspec.structs.replace(group, **change)
    assert health_summary(one, waiting) == text
    (row,) = health_rows(DeploymentLine(id="d", groups={"g": one}), {"g": waiting})
    assert row.text == text
    assert len(group_bar(row, 20, "#-").plain) == 20


RUNNING = Rollout(status="running")
CRASHED = Rollout(status="progressing", reason="task t ended: Exit Code: 3", retry_at_ns=9)


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ({"rollout": Rollout()}, ""),
        ({"rollout": Rollout(settles_at_ns=9)}, ""),
        ({"rollout": Rollout(settles_at_ns=9), "must_settle": False}, "running"),
        ({"rollout": Rollout(settles_at_ns=9, restarts=1)}, "failed"),
        ({"rollout": RUNNING}, "running"),
        ({"rollout": Rollout(status="running", restarts=1)}, "failed"),
        ({"rollout": Rollout(status="running", restarts=1), "restarts_before": 1}, "running"),
        ({"rollout": CRASHED}, "failed"),
        ({"rollout": Rollout(status="failed")}, "failed"),
        ({"rollout": Rollout(status="complete")}, "complete"),
        ({"rollout": Rollout(status="waiting")}, "waiting"),
    ],
)
def test_a_job_that_runs_must_go_on_running(seen: dict[str, Any], outcome: str) -> None:
    """It succeeds when its tasks ran for the settling time; a restart fails it, one of long ago does not."""
    evaluation = EvalSummary(id="e", key=1, status="complete")
    verdict = Verdict(submission_id="s", status="accepted", job_id="j")
    one = run.JobProgress(verdict=verdict, evaluation=evaluation, **seen)
    assert one.outcome() == outcome
    pending = EvalSummary(id="e", key=1, status="pending")
    undecided = run.JobProgress(verdict=verdict, evaluation=pending, **seen)
    assert undecided.outcome() == ""


@pytest.mark.parametrize(
    ("rollout", "in_time", "code"),
    [
        (RUNNING, True, 0),
        (Rollout(status="complete"), True, 0),
        (Rollout(status="failed", reason="task t failed"), True, 1),
        (CRASHED, True, 1),
        (Rollout(reason="task main has not started"), False, 1),
    ],
)
def test_exit_codes_tell_the_truth(
    rollout: Rollout, *, in_time: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that does not run ends with exit 1, and its error says why."""
    seen = run.JobProgress(
        verdict=Verdict(submission_id="s", status="accepted", job_id="j"),
        evaluation=EvalSummary(id="e", key=1, status="complete"),
        rollout=rollout,
        in_time=in_time,
    )
    assert run._print_result(CommandOutput(is_json=True), seen, (), ()) == code
    told = json.loads(capsys.readouterr().out)
    assert told["rollout"]["status"] == rollout.status
    assert told.get("error", {}).get("message", "") == (rollout.reason if code else "")
    assert run._print_result(CommandOutput(), seen, (), ()) == code
    assert not code or rollout.reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "old", "new", "text"),
    [
        ("TaskGroups[g].Count", "2", "4", "~ TaskGroups[g].Count: 2 => 4"),
        ("Datacenters", '["a"]', '["a","b"]', "~ Datacenters: [a] => [a, b]"),
        ("Meta", '{"k":"v"}', "null", "~ Meta: {k = v} => none"),
        (
            "Update.MinHealthyTime",
            "10000000000",
            "1500000000",
            "~ Update.MinHealthyTime: 10s => 1500ms",
        ),
    ],
)
def test_a_plan_shows_values_as_people_write_them(
    path: str, old: str, new: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No JSON: text without quotes, durations with their unit, the old value before the new one."""
    raw = msgspec.Raw(old.encode()), msgspec.Raw(new.encode())
    print_changes(CommandOutput(), [FieldChange(kind="edited", path=path, old=raw[0], new=raw[1])])
    assert capsys.readouterr().out.strip() == text


@pytest.mark.parametrize("changes", [True, False])
def test_a_plan_says_what_would_wait(
    changes: bool,  # noqa: FBT001 - a case.
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """How many of a group and why, of an unchanged job that waits, too; that alone is no change and exits 0."""
    unplaced = {"g": UnplacedLine(n=2, reasons=("cpu exhausted on 1 of 1 nodes",))}
    unplaced["h"] = UnplacedLine(n=1, wait_class="priority")
    answer = PlanAnswer(seq=9, job_id="c", changes=changes, modify_index=7, unplaced=unplaced)
    loaded = SimpleNamespace(body=b"{}", warnings=())
    monkeypatch.setattr(plan.files, "read_valid_job_file", lambda *_, **__: loaded)
    monkeypatch.setattr(plan, "with_bus", lambda _: answer)
    assert plan.plan(CommandOutput(), file="c.hcl", var=(), var_file=()) == 0
    said = capsys.readouterr().out.splitlines()
    assert ("job c: no changes" in said) is not changes
    assert [line for line in said if "would wait" in line] == [
        "2 of g would wait: cpu exhausted on 1 of 1 nodes",
        "1 of h would wait: priority",
    ]


@pytest.mark.parametrize(
    ("rollout", "text"),
    [
        ("waiting", "pending, waiting"),
        ("failed", "pending, failed"),
        ("progressing", "pending"),
        ("", "pending"),
    ],
)
def test_a_job_that_waits_is_shown_as_such(rollout: str, text: str) -> None:
    """The status of a list names what is wrong beside Nomad's word."""
    assert tables.job_status(JobLine(id="j", status="pending", rollout_status=rollout)) == text


def test_lines_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal each change is one line, and nothing is said twice."""
    with RolloutDisplay(CommandOutput(), "job j") as picture:
        picture.show("", status_rows({"g": GroupSummary(desired=2)}, {}))
        for _ in range(3):
            rows = status_rows({"g": GroupSummary(desired=2, pending=2)}, {})
            picture.show("evaluation complete", rows)
        rows = status_rows({"g": GroupSummary(desired=2, running=1)}, {"g": 1})
        picture.show("evaluation complete", rows, note="task t ended")
    assert capsys.readouterr().out.splitlines() == [
        "  evaluation complete",
        "  g: 0/2 running, 2 pending",
        "  g: 1/2 running, 1 waiting",
        "  task t ended",
    ]


def deployed(state: str, *waits: str, evaluation: str = "complete", **rollout: Any) -> Any:
    """What `job run` knows of a version with a deployment."""
    line = DeploymentLine(
        id="d4f2a1b2c", job="j", status=state, description=f"Deployment is {state}"
    )
    answer = DeploymentAnswer(
        seq=1, deployment=line, waits=tuple(DeploymentWait(group="g", why=why) for why in waits)
    )
    return run.JobProgress(
        verdict=Verdict(submission_id="s", status="accepted", job_id="j"),
        evaluation=EvalSummary(id="e", key=1, status=evaluation),
        rollout=Rollout(**rollout),
        followed=answer,
    )


@pytest.mark.parametrize(
    ("seen", "outcome", "code"),
    [
        (deployed("running", "health"), "", 2),
        (deployed("running", "health", "promotion"), "", 2),
        (deployed("running", "promotion"), "waiting", 2),
        (deployed("running", "place"), "waiting", 2),
        (deployed("paused", "paused"), "waiting", 2),
        (deployed("successful", status="running"), "running", 0),
        # A task that was started again on the way is no failure: its health began anew.
        (deployed("successful", status="running", restarts=3), "running", 0),
        (deployed("running", "health", retry_at_ns=5), "", 2),
        (deployed("failed"), "failed", 1),
        (deployed("cancelled"), "failed", 1),
        (deployed("running", "place", evaluation="pending"), "", 2),
    ],
)
def test_a_deployment_decides_what_became_of_a_version(
    seen: run.JobProgress,
    outcome: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Followed until it ended, or waits for an operator: exit 0, 1 and 2."""
    assert seen.outcome() == outcome
    assert run._print_result(CommandOutput(is_json=True), seen, (), ()) == code
    told = json.loads(capsys.readouterr().out)
    assert told["deployment"]["id"] == "d4f2a1b2c"
    assert told.get("error", {}).get("code", "") == ("deployment" if code == 1 else "")
    assert run._print_result(CommandOutput(), seen, (), ()) == code
    assert f"deployment d4f2a1b2: Deployment is {told['deployment']['status']}" in (
        capsys.readouterr().out
    )


def member(job: str, why: str) -> RolloutMemberLine:
    """A member of a running rollout that waits for something."""
    wait = DeploymentWait(group="g", why=why, reason=f"because of {why}")
    return RolloutMemberLine(
        job=job, version=1, status="running", reason=wait.reason, waits=(wait,)
    )


@pytest.mark.parametrize(
    ("second", "outcome"), [("paused", "waiting"), ("promotion", "waiting"), ("health", "")]
)
def test_canaries_that_wait_for_another_job_do_not_keep_a_rollout_going(
    second: str, outcome: str
) -> None:
    """Followed as long as the other job continues by itself; where that waits for a person, both do."""
    line = RolloutLine(id="r", key=1, name="spring", status="running")
    answer = RolloutAnswer(
        seq=1, rollout=line, members=(member("a", "rollout"), member("b", second))
    )
    assert monitor.outcome_of(answer) == outcome


def test_a_version_of_long_ago_is_not_followed_again() -> None:
    """The same job again, whose deployment was successful: what runs now decides."""
    seen = deployed("successful", status="failed", changed=False)
    assert seen.outcome() == "failed"


@pytest.mark.parametrize(
    ("fields", "group", "text"),
    [
        ({"status": "running"}, GroupSummary(running=1), "running"),
        ({"stopped": True}, GroupSummary(complete=1), "dead, stopped"),
        ({"job_type": "batch"}, GroupSummary(complete=2), "dead, complete"),
        ({"job_type": "batch"}, GroupSummary(complete=1, failed=1), "dead, not all complete"),
        ({}, GroupSummary(failed=1), "dead, failed"),
        ({}, GroupSummary(), "dead"),
    ],
)
def test_a_dead_job_says_why(fields: dict[str, Any], group: GroupSummary, text: str) -> None:
    """Stopped by an operator, done, or given up."""
    assert (
        tables.job_status(JobLine(id="j", **{"status": "dead", **fields}, groups={"g": group}))
        == text
    )


def test_an_evaluation_that_failed_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object, also where the job is accepted and its evaluation comes to nothing: exit 1."""
    seen = run.JobProgress(
        verdict=Verdict(submission_id="s", status="accepted", job_id="j"),
        evaluation=EvalSummary(id="e", key=1, status="failed", reason="not this release"),
    )
    assert run._print_result(CommandOutput(is_json=True), seen, (), ()) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["eval_status"]) == ("j", "failed")
    assert told["error"] == {
        "code": "evaluation",
        "message": "evaluation failed: not this release",
    }
    with pytest.raises(CliError, match="not this release"):
        run._print_result(CommandOutput(), seen, (), ())


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (GroupPlan(destructive=3), ""),
        (
            GroupPlan(destructive=3, max_parallel=1, steps=3, min_healthy_time_ns=10**10),
            "1 at a time, each healthy for 10s: 3 steps",
        ),
        (
            GroupPlan(destructive=3, max_parallel=2, steps=1, canaries=1, min_healthy_time_ns=0),
            "1 canary first, until the promotion; then 2 at a time, each healthy for 0s: 1 step",
        ),
        (
            GroupPlan(destructive=3, max_parallel=1, canaries=3),
            "3 canaries first, until the promotion; then all at once",
        ),
    ],
)
def test_a_plan_says_how_the_rollout_goes(group: GroupPlan, text: str) -> None:
    """Canaries, then steps; nothing where all is replaced at once."""
    assert group_pace(group) == text


@pytest.mark.parametrize(
    ("group", "lines"),
    [
        (GroupPlan(destructive=3), []),
        (GroupPlan(place=3), []),
        (GroupPlan(destructive=3, max_parallel=1), ["steps 1 to 3: replace 1"]),
        (
            GroupPlan(destructive=5, place=2, max_parallel=2),
            ["step 1: create 2, replace 2", "step 2: replace 2", "step 3: replace 1"],
        ),
        (
            GroupPlan(destructive=10, place=5, max_parallel=4, canaries=2),
            [
                "step 1: place 2 canaries beside the old ones, until the promotion",
                "step 2: stop 2 old, create 5, replace 4",
                "step 3: replace 4",
            ],
        ),
        (
            GroupPlan(destructive=2, max_parallel=1, canaries=3),
            [
                "step 1: place 3 canaries beside the old ones, until the promotion",
                "step 2: stop 2 old",
            ],
        ),
    ],
)
def test_a_plan_says_what_each_step_does(group: GroupPlan, lines: list[str]) -> None:
    """Equal steps share a line; nothing of a group with canaries is replaced or created before their promotion."""
    assert group_steps(group) == lines
