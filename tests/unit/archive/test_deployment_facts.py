"""Deployments as SQL tables and as rows of a job's timeline."""

from schemas.base import EvalKey, Event
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
)
from schemas.jobs import GroupSpec, JobRegistered, UpdatePolicy
from shared.archive.database import FactDatabase
from shared.archive.fact_extractor import FactExtractor
from tests.unit.query.test_deployments import ID, JOB, KEY, healths, story
from tests.unit.view.view_story import Story


def database_of(*events: Event) -> FactDatabase:
    """The log of a deployment of two allocations, one of them a canary, and these events, one a record."""
    told = story(desired_canaries=1)
    for event in events:
        told.log(event)
    facts, database = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    return database


PROMOTED = DeploymentPromoted(key=KEY, groups=("web",), by="operator")
FAILED = DeploymentEnded(
    key=KEY,
    job_id=JOB,
    version=0,
    status="failed",
    cause="unhealthy",
    reason="Failed due to unhealthy allocations",
    reverted_to=3,
)


def test_a_deployment_is_one_row() -> None:
    """Its status is the last one, its counts are sums, its moments those of the events."""
    database = database_of(healths(1), PROMOTED, healths(0, 2), FAILED)
    (row,) = database.ask(
        "SELECT id, job_id, version, status, cause, reason, reverted_to, desired, canaries,"
        " healthy, unhealthy, promoted_seq - started_seq, ended_seq - started_seq FROM deployments"
    ).rows
    assert row == (
        *(ID, "j", 0, "failed", "submit", "Failed due to unhealthy allocations", 3),
        *(2, 1, 1, 1, 4, 6),
    )


def test_an_open_deployment_has_no_end() -> None:
    """What a plan found is the size from then on."""
    sized = DeploymentSized(key=KEY, group="web", desired_total=5, desired_canaries=2)
    database = database_of(sized)
    question = "SELECT status, desired, canaries, ended_seq, seconds FROM deployments"
    assert database.ask(question).rows == [("running", 5, 2, None, None)]


def test_a_registration_that_deploys_begins_a_row() -> None:
    """The groups with a pace are its size; its key is that of the evaluation."""
    told = Story()
    groups = (
        GroupSpec(name="web", count=3, update=UpdatePolicy(max_parallel=2)),
        GroupSpec(name="none", count=0, update=UpdatePolicy()),
        GroupSpec(name="free", count=5),
    )
    told.log(
        JobRegistered(
            submission_id="s",
            digest="d",
            job_id=JOB,
            version=0,
            groups=groups,
            evaluation=EvalKey(KEY),
            deploys=True,
        )
    )
    facts, database = FactExtractor(), FactDatabase()
    for record in told.records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    found = database.ask(
        "SELECT id, job_id, version, status, cause, desired, canaries FROM deployments"
    ).rows
    assert found == [(ID, "j", 0, "running", "submit", 3, 0)]


def test_the_timeline_has_each_state_of_it() -> None:
    """From its start over promotion and pause to its end, which lasts no time."""
    database = database_of(PROMOTED, DeploymentPaused(key=KEY), DeploymentResumed(key=KEY), FAILED)
    found = database.ask(
        "SELECT state, detail, to_seq - from_seq FROM timeline('j') WHERE lane = 'deployment'"
    ).rows
    assert found == [
        ("running", "2 allocations, 1 canaries first", 3),
        ("running", "web promoted", 1),
        ("paused", "", 1),
        ("running", "", 1),
        ("failed", "Failed due to unhealthy allocations", 0),
    ]
    told = database.ask("SELECT detail FROM job_history('j') WHERE what = 'deployment'").rows
    assert [row[0].split()[0] for row in told] == [
        *("started", "promoted", "paused", "resumed", "ended"),
    ]


def test_holds_are_states_of_the_timeline_and_not_of_the_table() -> None:
    """The table of deployments keeps the status running, with the reason of the hold."""
    held = DeploymentHeld(key=KEY, cause="gate", reason="load is 120", since_ns=1)
    released = DeploymentReleased(key=KEY, cause="gate", reason="load is 80")
    database = database_of(held, released, held)
    assert database.ask("SELECT status, cause, reason FROM deployments").rows == [
        ("running", "submit", "load is 120")
    ]
    found = database.ask("SELECT state, detail FROM timeline('j') WHERE lane = 'deployment'").rows
    assert found[1:] == [
        ("held", "gate: load is 120"),
        ("released", "gate: load is 80"),
        ("held", "gate: load is 120"),
    ]
