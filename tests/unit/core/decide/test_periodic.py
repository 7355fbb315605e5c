"""Periodic jobs: a parent runs nothing itself, its children are launched at the instants of its specs."""

from typing import Any

from schemas.evaluations import EvaluationsCreated
from schemas.jobs import (
    EvaluateJob,
    JobRegistered,
    JobsCollected,
    JobStopped,
    PeriodicBlock,
    RegisterJob,
    SubmissionRefused,
)
from tests.builders import Cluster, group, join, register, stop

HOURLY = PeriodicBlock(crons=("@hourly",))


def parent(job_id: str = "cron", **fields: Any) -> RegisterJob:
    """A periodic batch job."""
    return register(job_id, **({"job_type": "batch", "periodic": HOURLY} | fields))


def test_a_parent_is_kept_and_creates_no_evaluation() -> None:
    """Registration leaves the job with its block, and nothing to schedule; so does one that is disabled."""
    for enabled in (True, False):
        world = Cluster()
        block = PeriodicBlock(crons=("@hourly",), enabled=enabled)
        (registered,) = world.do(parent(periodic=block))
        assert isinstance(registered, JobRegistered)
        assert (registered.evaluation, registered.periodic) == (0, block)
        job = world.state.jobs.by_id["cron"]
        assert job.periodic == block and job.runs_nothing and not job.stopped
        assert not world.state.evaluations.open


def test_a_parent_of_type_sysbatch_is_not_evaluated_for_a_new_node() -> None:
    """A node that joins creates evaluations of the jobs that run everywhere, not of a pattern for them."""
    world = Cluster()
    world.do(parent(job_type="sysbatch"))
    assert not [one for one in world.do(join()) if isinstance(one, EvaluationsCreated)]


def test_a_job_that_runs_does_not_become_periodic_nor_back() -> None:
    """Both changes are refused until the job is stopped."""
    world = Cluster()
    world.do(register("app", job_type="batch"), parent())
    (refused,) = world.do(parent("app", submission_id="s2", salt=1))
    assert isinstance(refused, SubmissionRefused) and "is not periodic: stop it" in refused.reason
    (refused,) = world.do(register("cron", job_type="batch", submission_id="s3", salt=1))
    assert isinstance(refused, SubmissionRefused) and "is periodic: stop it" in refused.reason
    world.do(stop("cron"))
    (registered, _) = world.do(register("cron", job_type="batch", submission_id="s4", salt=1))
    assert isinstance(registered, JobRegistered) and registered.periodic is None


def test_a_parent_is_not_evaluated() -> None:
    """There is nothing to evaluate: the refusal says what to do instead."""
    world = Cluster()
    world.do(parent())
    (refused,) = world.do(EvaluateJob(submission_id="e1", digest="d", job_id="cron"))
    assert isinstance(refused, SubmissionRefused) and "force a launch" in refused.reason


def test_a_parent_is_stopped_and_purged_at_once() -> None:
    """A stop needs no evaluation, since nothing of the parent runs; a purge forgets it in the same transaction."""
    world = Cluster()
    world.do(parent())
    (stopped,) = world.do(stop("cron"))
    assert isinstance(stopped, JobStopped) and not stopped.evaluation
    (_, gone) = world.do(stop("cron", purge=True, submission_id="p1"))
    assert gone == JobsCollected(job_ids=("cron",)) and not world.state.jobs.by_id


def test_an_evaluation_that_is_open_when_a_job_becomes_periodic_places_nothing() -> None:
    """What the job asked for before is stopped, and its groups are not placed."""
    world = Cluster()
    world.do(join(), register("cron", group(count=2), job_type="batch"))
    world.do(world.plan("cron"))
    world.do(stop("cron"))
    world.do(parent(submission_id="s2"))
    proposal = world.propose("cron")
    assert not proposal.placements and sum(len(stop.rows) for stop in proposal.stops) == 2
