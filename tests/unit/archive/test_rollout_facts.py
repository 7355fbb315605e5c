"""Rollouts of several jobs as a SQL table and as rows of a job's timeline."""

from schemas.base import DeploymentKey, JobId, RolloutKey
from schemas.rollouts import RolloutEnded, RolloutMember, RolloutStarted
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from shared.core.state.ids import rollout_id
from tests.unit.query.test_deployments import story

KEY = RolloutKey(77)
STARTED = RolloutStarted(
    key=KEY,
    submission_id="s",
    digest="d",
    name="shop",
    order="in_order",
    members=(
        RolloutMember(job_id=JobId("z"), version=0, deployment=DeploymentKey(5)),
        RolloutMember(job_id=JobId("j"), version=0, before=0),
    ),
)
ENDED = RolloutEnded(key=KEY, status="failed", cause="operator", reason="Rollout marked as failed")


def database_of(*events: RolloutStarted | RolloutEnded) -> FactDatabase:
    """The log of job j, and these events, one a record."""
    told = story()
    for event in events:
        told.log(event)
    facts, database = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    return database


def test_a_rollout_is_one_row() -> None:
    """Its jobs stand in the order of the submission, its status is the last one."""
    question = (
        "SELECT id, name, ordering, status, reason, jobs, ended_seq - started_seq FROM rollouts"
    )
    (row,) = database_of(STARTED, ENDED).ask(question).rows
    assert row == (
        rollout_id(KEY),
        "shop",
        "in_order",
        "failed",
        "Rollout marked as failed",
        ["z", "j"],
        1,
    )
    (row,) = database_of(STARTED).ask("SELECT status, ended_seq, seconds FROM rollouts").rows
    assert row == ("running", None, None)


def test_the_timeline_of_a_member_has_a_lane() -> None:
    """Both the timeline and the history of a job name the rollouts that it was in."""
    database = database_of(STARTED, ENDED)
    (row,) = database.ask("SELECT state, detail FROM timeline('j') WHERE lane = 'rollout'").rows
    assert row == ("failed", "Rollout marked as failed")
    rows = database.ask("SELECT detail FROM job_history('j') WHERE what = 'rollout'").rows
    shown = rollout_id(KEY)[:8]
    assert [text for (text,) in rows] == [
        f"started shop {shown} with version 0",
        f"failed shop {shown}: Rollout marked as failed",
    ]
