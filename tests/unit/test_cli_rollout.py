"""How a rollout is told: in words, as a bar, and when it is over."""

import json
from typing import Any

import pytest

from schemas.answers import JobLine
from schemas.jobs import Verdict
from schemas.projections import EvalSummary, GroupSummary
from services.cli import job_run, lines
from services.cli.output import CliError, Output
from services.cli.rollout import Rollout, bar, is_settled, told


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
    assert told(group, waiting) == text


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
    assert len(bar(group, width, "#-").plain) == width


def test_only_what_is_pending_keeps_a_rollout_going() -> None:
    """Failed and lost ones are told; they are nothing to wait for."""
    assert is_settled(GroupSummary(desired=3, running=1, failed=1, lost=1))
    assert not is_settled(GroupSummary(desired=3, running=2, pending=1))


def test_lines_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal each change is one line, and nothing is said twice."""
    with Rollout(Output(), "job j") as picture:
        picture.show("pending", {"g": GroupSummary(desired=2)}, {})
        for _ in range(3):
            picture.show("complete", {"g": GroupSummary(desired=2, pending=2)}, {})
        picture.show("complete", {"g": GroupSummary(desired=2, running=1)}, {"g": 1})
    assert capsys.readouterr().out.splitlines() == [
        "  evaluation complete",
        "  g: 0/2 running, 2 pending",
        "  g: 1/2 running, 1 waiting",
    ]


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
    """Stopped by somebody, done, or given up."""
    assert (
        lines.status(JobLine(id="j", **{"status": "dead", **fields}, groups={"g": group})) == text
    )


def test_an_evaluation_that_failed_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object, also where the job is accepted and its evaluation comes to nothing: exit 1."""
    seen = job_run.Seen(
        verdict=Verdict(submission_id="s", status="accepted", job_id="j"),
        evaluation=EvalSummary(id="e", key=1, status="failed", reason="not this release"),
    )
    assert job_run._end(Output(is_json=True), seen, (), ()) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["eval_status"]) == ("j", "failed")
    assert told["error"] == {
        "code": "evaluation",
        "message": "evaluation failed: not this release",
    }
    with pytest.raises(CliError, match="not this release"):
        job_run._end(Output(), seen, (), ())
