"""Submissions against the state: versions, check-and-set, natural keys, the drop box."""

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.evaluations import EvaluationsCreated
from schemas.jobs import (
    EvaluateJob,
    IntakeAdvanced,
    JobEvaluated,
    JobRegistered,
    JobStopped,
    MemoryLimit,
    SkipSubmission,
    SubmissionRefused,
)
from shared.query.projections import verdict
from tests.builders import Cluster, group, join, register, stop


def test_the_first_version_is_zero_and_asks_for_an_evaluation() -> None:
    """A new job is version 0; its evaluation is named in the fact."""
    world = Cluster()
    registered, created = world.do(register("a/b.c"))
    assert isinstance(registered, JobRegistered) and isinstance(created, EvaluationsCreated)
    assert registered.version == 0
    assert registered.evaluation in world.state.evaluations.open


def test_the_same_text_is_no_new_version() -> None:
    """Equal text under another submission id keeps the version and evaluates again."""
    world = Cluster()
    world.do(register("app", submission_id="s1"))
    (registered, _) = world.do(register("app", submission_id="s2"))
    assert isinstance(registered, JobRegistered) and registered.version == 0
    assert world.state.jobs.by_id["app"].create_seq == world.state.jobs.by_id["app"].modify_seq


def test_the_source_goes_with_the_fact_and_makes_no_version() -> None:
    """The fact has the source of its command; the same text from another file is no new version."""
    world = Cluster()
    for name, source in (("s1", b"one"), ("s2", b"two"), ("s3", b"")):
        command = replace(register("app", submission_id=name), source=source)
        (registered, *_) = world.do(command)
        assert isinstance(registered, JobRegistered)
        assert (registered.source, registered.version) == (source, 0)


def test_another_text_or_a_stop_between_is_a_new_version() -> None:
    """The version counts changes, and starting a stopped job again is one."""
    world = Cluster()
    world.do(register("app", submission_id="s1"))
    world.do(register("app", group(count=2), submission_id="s2"))
    world.do(stop("app"))
    world.do(register("app", group(count=2), submission_id="s3"))
    job = world.state.jobs.by_id["app"]
    assert (job.version, job.stopped) == (2, False)


def test_a_resend_is_no_event() -> None:
    """The submission id is the natural key: the second time nothing happens."""
    world = Cluster()
    world.do(register("app", submission_id="s1"))
    assert world.do(register("app", submission_id="s1")) == []


def test_two_submits_of_one_job_in_one_batch_are_two_versions() -> None:
    """Commands of one transaction are decided one after the other."""
    world = Cluster()
    world.do(
        register("app", submission_id="s1"), register("app", group(count=3), submission_id="s2")
    )
    assert world.state.jobs.by_id["app"].version == 1
    assert len(world.state.evaluations.open) == 2


def test_a_check_and_set_index_must_match() -> None:
    """An index from the past or the future is refused, 0 means that the job must not exist."""
    world = Cluster()
    world.do(register("app", submission_id="s1", check_index=0))
    index = world.state.jobs.by_id["app"].modify_seq
    for number, wrong in enumerate((0, index - 1, index + 1000)):
        command = register("app", group(count=2), submission_id=f"w{number}", check_index=wrong)
        (refused,) = world.do(command)
        assert isinstance(refused, SubmissionRefused) and refused.code == "conflict"
    accepted = world.do(register("app", group(count=2), submission_id="s9", check_index=index))
    assert isinstance(accepted[0], JobRegistered)


def test_stopping_what_is_not_there_is_refused() -> None:
    """A stop or an evaluation of an unknown job is a refusal with its id."""
    world = Cluster()
    (refused,) = world.do(stop("nobody"))
    assert isinstance(refused, SubmissionRefused) and refused.code == "not_found"
    (refused,) = world.do(EvaluateJob(submission_id="e1", digest="d", job_id="nobody"))
    assert isinstance(refused, SubmissionRefused)


def test_stop_and_evaluate_make_evaluations() -> None:
    """Both verbs end in an evaluation of the job."""
    world = Cluster()
    world.do(register("app"))
    evaluated = world.do(EvaluateJob(submission_id="e1", digest="d", job_id="app"))
    stopped = world.do(stop("app"))
    assert isinstance(evaluated[0], JobEvaluated) and isinstance(stopped[0], JobStopped)
    assert len(world.state.evaluations.open) == 3


def test_a_running_job_keeps_its_type() -> None:
    """A change of type is refused until the job is stopped."""
    world = Cluster()
    world.do(register("app"))
    command = register("app", job_type="batch", salt=1, submission_id="s2")
    (refused,) = world.do(command)
    assert isinstance(refused, SubmissionRefused) and refused.code == "invalid"


def test_other_content_under_a_known_id_is_a_conflict_in_the_drop_box() -> None:
    """It is refused under its place, and shown under the id; the same content again changes nothing."""
    world = Cluster()
    (*_, moved) = world.do(register("a", submission_id="s1", jobs_seq=1, jobs_prev=0))
    assert moved == IntakeAdvanced(jobs_seq=1)
    again = register("a", submission_id="s1", jobs_seq=2, jobs_prev=1)
    assert world.do(again) == [IntakeAdvanced(jobs_seq=2)]
    other = register("b", submission_id="s1", jobs_seq=3, jobs_prev=2)
    refused, moved = world.do(replace(other, digest="other"))
    assert isinstance(refused, SubmissionRefused) and refused.code == "conflict"
    assert (refused.submission_id, refused.reused_id, refused.job_id) == ("jobs-3", "s1", "b")
    assert moved == IntakeAdvanced(jobs_seq=3) and "b" not in world.state.jobs.by_id
    first, place = verdict(world.state, "s1"), verdict(world.state, "jobs-3")
    assert first is not None and first.error is not None and place is not None
    assert (first.status, first.error.code, place.status) == ("refused", "conflict", "refused")
    assert "jobs-3 was refused; the first content was accepted at seq" in first.error.message
    assert world.state.jobs.submissions["s1"].status == "accepted"


def test_the_drop_box_advances_in_order_only() -> None:
    """A position out of order means that one before is on its way: nothing happens to either."""
    world = Cluster()
    second = register("b", submission_id="s2", jobs_seq=2, jobs_prev=1)
    assert world.do(second) == []
    first = world.do(register("a", submission_id="s1", jobs_seq=1, jobs_prev=0))
    assert first[-1] == IntakeAdvanced(jobs_seq=1)
    assert world.do(second)[-1] == IntakeAdvanced(jobs_seq=2)
    assert world.do(second) == []
    assert world.do(SkipSubmission(jobs_seq=5, jobs_prev=2)) == [IntakeAdvanced(jobs_seq=5)]


def test_a_refused_submission_keeps_its_first_verdict() -> None:
    """The verdict of a submission id never changes."""
    world = Cluster()
    world.do(stop("app", submission_id="x"))
    assert world.do(register("app", submission_id="x")) == []
    assert world.state.jobs.submissions["x"].status == "refused"


@pytest.mark.parametrize("job_type", ["service", "batch", "system", "sysbatch"])
def test_a_job_registered_as_stopped_runs_nothing(job_type: str) -> None:
    """It is kept as a stopped job, what ran of it stops, and the same text again is no new version."""
    world = Cluster()
    world.do(join("n1"))
    world.do(register("app", job_type=job_type, submission_id="s1"))
    world.schedule()
    assert len(world.rows("app")) == 1
    world.do(register("app", job_type=job_type, submission_id="s2", stopped=True))
    world.schedule()
    job = world.state.jobs.by_id["app"]
    assert (job.version, job.stopped, len(world.rows("app"))) == (1, True, 0)
    assert "app" not in world.state.jobs.everywhere
    world.do(register("app", job_type=job_type, submission_id="s3", stopped=True))
    assert world.state.jobs.by_id["app"].version == 1


def test_a_memory_max_above_every_node_is_warned_of() -> None:
    """The verdict names the block and the largest node of the pool; a node that has so much ends the warning."""
    world = Cluster()
    limits = (
        MemoryLimit(group="web", task="main", memory_max_mib=3000),
        MemoryLimit(group="web", task="log", memory_max_mib=2000),
    )

    def warned(name: str, **fields: Any) -> tuple[str, ...]:
        (registered, *_) = world.do(register(name, memory_limits=limits, **fields))
        assert isinstance(registered, JobRegistered)
        return registered.warnings

    assert warned("no-node") == ()
    world.do(join("n1", memory_mib=1000), join("n2", memory_mib=2000))
    world.do(join("big", memory_mib=9000, node_pool="gpu"))
    (said,) = warned("app")
    assert said == (
        "group 'web': task 'main': resources: memory_max 3000 MiB:"
        " above the memory of every node in pool 'default'; the largest, n2, has 2000 MiB"
    )
    assert warned("in-gpu", node_pool="gpu") == warned("in-all", node_pool="all") == ()
    world.do(join("n3", memory_mib=3000))
    assert warned("after") == ()


def test_a_pool_without_a_node_is_warned_of() -> None:
    """The verdict warns while no node is in the pool; the built-in pools always exist."""
    world = Cluster()
    (registered, _) = world.do(register("app", node_pool="gpu", warnings=("first",)))
    assert isinstance(registered, JobRegistered)
    assert (
        registered.warnings[0] == "first" and "no node is in pool 'gpu'" in registered.warnings[1]
    )
    said = verdict(world.state, registered.submission_id)
    assert said is not None
    assert "'gpu'" in said.warnings[1]
    for pool in ("default", "all"):
        (registered, _) = world.do(register(f"in-{pool}", node_pool=pool))
        assert isinstance(registered, JobRegistered) and not registered.warnings
    world.do(join("n1", node_pool="gpu"))
    (registered, _) = world.do(register("later", node_pool="gpu"))
    assert isinstance(registered, JobRegistered) and not registered.warnings
