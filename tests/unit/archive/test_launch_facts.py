"""Launches of a periodic job as rows of SQL, of its timeline and of its history."""

import pytest

from schemas.base import JobId
from schemas.jobs import JobRegistered, PeriodicBlock
from schemas.launches import JobLaunched, LaunchSkipped
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from tests.unit.view.view_story import Story

PARENT = JobId("backup")
MINUTE_NS = 60 * 1_000_000_000


@pytest.fixture(scope="module")
def database() -> FactDatabase:
    """A job of every minute: launched, skipped for an overlap, three missed, and launched by hand."""
    told = Story()
    told.log(
        JobRegistered(
            submission_id="s",
            digest="d",
            job_id=PARENT,
            version=0,
            job_type="batch",
            periodic=PeriodicBlock(crons=("* * * * *",)),
            spec=b"{}",
            evaluation=0,
        )
    )
    for at, event in enumerate(
        (
            JobLaunched(parent=PARENT, parent_create_seq=1, at_ns=0, child_id=JobId("backup/a")),
            LaunchSkipped(parent=PARENT, parent_create_seq=1, at_ns=0, why="overlap"),
            LaunchSkipped(parent=PARENT, parent_create_seq=1, at_ns=0, why="missed", missed=3),
            JobLaunched(
                parent=PARENT, parent_create_seq=1, at_ns=0, child_id=JobId("backup/b"), forced=True
            ),
        ),
        1,
    ):
        told.log(type(event)(**{**_fields(event), "at_ns": at * MINUTE_NS}))
    facts, found = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    found.take(facts)
    found.lock_sources({})
    return found


def _fields(event: JobLaunched | LaunchSkipped) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_the_timeline_of_a_periodic_job_has_its_launches(database: FactDatabase) -> None:
    """Each planned instant is a row: what came of it, and which child, or why there is none."""
    question = "SELECT name, state, detail, from_seq = to_seq FROM timeline('backup') WHERE lane = 'launch'"
    assert database.ask(question).rows == [
        ("1970-01-01T00:01:00Z", "launched", "backup/a", True),
        ("1970-01-01T00:02:00Z", "skipped", "overlap", True),
        ("1970-01-01T00:03:00Z", "skipped", "missed, 3 instants", True),
        ("1970-01-01T00:04:00Z", "forced", "backup/b", True),
    ]


def test_the_history_of_a_periodic_job_has_its_launches(database: FactDatabase) -> None:
    """In the order of the log."""
    question = "SELECT detail FROM job_history('backup') WHERE what = 'launch'"
    assert [row[0] for row in database.ask(question).rows] == [
        "of backup/a",
        "skipped: overlap",
        "skipped: missed",
        "of backup/b",
    ]
