"""The reference model of submissions: one verdict for each id, until the log no longer knows the first."""

import pytest

from schemas import jobs
from shared.sim.oracle.invariants import InvariantBroken, InvariantChecks
from shared.sim.oracle.reference_submissions import ReferenceSubmissions


def refused(submission_id: str) -> jobs.SubmissionRefused:
    return jobs.SubmissionRefused(
        submission_id=submission_id,
        digest="d",
        verb="submit",
        job_id=jobs.JobId("j"),
        code="invalid",
        reason="r",
    )


def test_a_second_verdict_breaks_the_rule() -> None:
    """The verdict stays, and another one for its id is found."""
    found = ReferenceSubmissions(InvariantChecks())
    found.apply(refused("a"), 5)
    assert found.status("a") == "refused"
    with pytest.raises(InvariantBroken, match="submission_once"):
        found.apply(refused("a"), 9)


def test_an_id_is_new_again_once_its_verdict_was_collected() -> None:
    """Only up to the seq that was collected; the model says which ids those were."""
    found = ReferenceSubmissions(InvariantChecks())
    found.apply(refused("a"), 5)
    found.apply(refused("b"), 6)
    found.apply(jobs.SubmissionsCollected(upto_seq=5), 8)
    found.apply(refused("a"), 9)
    assert found.decided_again == {"a"}
    with pytest.raises(InvariantBroken, match="submission_once"):
        found.apply(refused("b"), 9)
