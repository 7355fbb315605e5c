"""Launches as clients see them: force answers with the child, a parent with its launches and children."""

import msgspec
import pytest

from schemas.base import JobId
from schemas.jobs import JobRegistered, ParameterizedBlock, PeriodicBlock
from schemas.launches import JobLaunched, JobPayload, LaunchSkipped
from tests.unit.view.test_operator_api import sent, silent, told, wish
from tests.unit.view.view_story import MS, Story

SECOND = 1_000_000_000
CRON = JobId("cron")


def ready() -> Story:
    """A view of a cluster with the periodic job `cron`, of every minute."""
    story = Story()
    parent = JobRegistered(
        submission_id="s",
        digest="d",
        job_id=CRON,
        version=0,
        job_type="batch",
        periodic=PeriodicBlock(crons=("* * * * *",), prohibit_overlap=True),
        launches_after_ns=1,
    )
    story.log(parent)
    story.start()
    return story


def launch(story: Story, second: int, *, forced: bool = False) -> JobId:
    """Log the child of a second."""
    child = JobId(f"cron/periodic-{second}")
    launched = JobLaunched(
        parent=CRON, parent_create_seq=3, at_ns=second * SECOND, child_id=child, forced=forced
    )
    registered = JobRegistered(
        submission_id="", digest="", job_id=child, version=0, job_type="batch", parent=CRON
    )
    story.log(launched, registered)
    return child


def test_force_is_answered_with_the_child_once_the_log_shows_it() -> None:
    """The request names the second; the answer comes with the fact."""
    story = ready()
    effects = story.feed(wish("job", "force_launch", job_id="cron"))
    assert silent(effects)
    (command,) = sent(effects)
    assert (command["type"], command["job_id"]) == ("force_launch", "cron")
    second = int(str(command["at_ns"])) // SECOND
    child = launch(story, second, forced=True)
    answer = told(story.feed())
    assert (answer["status"], answer["changed"], answer["child_id"]) == ("accepted", True, child)
    again = told(story.feed(wish("job", "force_launch", job_id="cron")))
    assert (again["changed"], again["child_id"]) == (False, child)


@pytest.mark.parametrize(("job_id", "code"), [("nothing", "not_found"), ("cron/x", "not_found")])
def test_force_of_what_is_not_periodic_is_refused_at_once(job_id: str, code: str) -> None:
    """Nothing is sent."""
    effects = ready().feed(wish("job", "force_launch", job_id=job_id))
    answer = told(effects)
    assert (answer["status"], answer["error"]["code"]) == ("refused", code)  # type: ignore[index]
    assert not sent(effects)


def test_a_parent_shows_next_launch_skipped_ones_and_children() -> None:
    """Newest first; its status is running, and it wants no allocation."""
    story = ready()
    launch(story, 60)
    launch(story, 95, forced=True)
    story.log(LaunchSkipped(parent=CRON, parent_create_seq=3, at_ns=120 * SECOND, why="overlap"))
    story.feed()
    answer = story.ask("job", id="cron")
    assert answer["job"]["pattern"] == "periodic" and answer["job"]["status"] == "running"
    shown = answer["periodic"]
    assert shown["next_ns"] == 180 * SECOND
    assert [one["child_id"] for one in shown["launches"]] == [
        "cron/periodic-95",
        "cron/periodic-60",
    ]
    (skip,) = shown["skips"]
    assert (skip["at_ns"], skip["why"], skip["missed"]) == (120 * SECOND, "overlap", 0)
    assert [one["id"] for one in answer["children"]] == ["cron/periodic-95", "cron/periodic-60"]
    assert answer["children_total"] == 2
    listed = story.ask("jobs", job_id="cron")
    assert [one["id"] for one in listed["jobs"]] == ["cron/periodic-95", "cron/periodic-60"]
    assert {one["parent"] for one in listed["jobs"]} == {"cron"}
    assert story.ask("job", id="cron/periodic-60")["job"]["parent"] == "cron"


def test_the_payload_of_a_child_comes_with_its_text_alone() -> None:
    """It stands in no projection and in no other answer."""
    story = ready()
    block = ParameterizedBlock(payload="required")
    parent = JobRegistered(
        submission_id="p", digest="d", job_id=JobId("render"), version=0, parameterized=block
    )
    story.log(parent)
    child = JobId("render/dispatch-9-0")
    registered = JobRegistered(
        submission_id="c", digest="d", job_id=child, version=0, parent=JobId("render")
    )
    story.log(registered, JobPayload(job_id=child, data=b"SECRET"))
    story.now_ns += 1_000 * MS
    story.feed()
    answer = story.ask("job_version", id=child)
    assert (answer["parent"], answer["payload"]) == ("render", "U0VDUkVU")
    assert story.ask("job", id="render")["parameterized"]["payload"] == "required"
    everything = msgspec.json.encode(story.ask("job", id=child))
    everything += b"".join(data for _, data in story.stands.values())
    assert b"U0VDUkVU" not in everything and b"SECRET" not in everything
