"""Verdicts: the answers to submissions, with the words for every outcome."""

import msgspec

from schemas.envelope import ENCODER
from schemas.jobs import ErrorDetail, ParsedJob, Verdict
from shared.core.runtime.log_capacity import WRITE_FAILED
from shared.core.state.tables.jobs import SubmissionRecord as Entry
from shared.errors import CommandInvalid
from shared.jobspec.files.load import ParsedJobFile
from shared.jobspec.submission import JobInvalid, ParsedSubmission
from shared.query.projections import recorded_verdict


def from_state(submission_id: str, entry: Entry, cluster_id: str, evaluation: str) -> bytes:
    """The outcome that the log holds; `evaluation` is the shown id of the entry's evaluation."""
    return ENCODER.encode(recorded_verdict(submission_id, entry, cluster_id, evaluation))


def parsed(found: ParsedJobFile) -> bytes:
    """Give the JSON of a job file."""
    return ENCODER.encode(
        ParsedJob(status="accepted", job=msgspec.Raw(found.job), warnings=found.warnings)
    )


def unparsed(fault: CommandInvalid) -> bytes:
    """Refuse a job file, naming every fault."""
    errors = _details(fault)
    return ENCODER.encode(ParsedJob(status="refused", error=errors[0], errors=errors))


def invalid(submission_id: str, fault: CommandInvalid) -> bytes:
    """Refuse what is not a submission, naming every fault."""
    errors = _details(fault)
    return ENCODER.encode(
        Verdict(submission_id=submission_id, status="refused", error=errors[0], errors=errors)
    )


def valid(submission: ParsedSubmission) -> bytes:
    """Answer `validate`: nothing was registered."""
    return ENCODER.encode(
        Verdict(
            submission_id=submission.submission_id,
            status="accepted",
            job_id=submission.job_id,
            warnings=submission.warnings,
        )
    )


def conflict(submission_id: str, cluster_id: str) -> bytes:
    """Refuse an id that another content was submitted under."""
    return _refused(
        submission_id,
        "conflict",
        f"submission id {submission_id!r} was used for other content",
        cluster_id,
    )


def unavailable(submission_id: str, waiting: int) -> bytes:
    """Refuse for now: too many submissions wait for the log. Nothing was kept."""
    return _refused(
        submission_id, "unavailable", f"{waiting} submissions wait for the log, try again later"
    )


def no_room(submission_id: str, share: float) -> bytes:
    """Refuse new work: the log is nearly full. Nothing was kept."""
    full = f"the log is {100 * share:.0f} % full, only stops are taken until it has room"
    return _refused(submission_id, "log_full", full)


def not_written(submission_id: str) -> bytes:
    """Refuse new work: the bus cannot write. Nothing was kept."""
    return _refused(submission_id, "log_full", f"{WRITE_FAILED}; nothing was kept")


def pending(submission_id: str, cluster_id: str, reason: str = "") -> bytes:
    """Say that the log does not show it yet, and why where that is known: ask again under the same id."""
    error = ErrorDetail(code="log_full", message=reason) if reason else None
    return ENCODER.encode(
        Verdict(submission_id=submission_id, status="pending", cluster_id=cluster_id, error=error)
    )


def _details(fault: CommandInvalid) -> tuple[ErrorDetail, ...]:
    if isinstance(fault, JobInvalid):
        return fault.errors
    return (ErrorDetail(code=fault.code, message=fault.message, path=fault.path),)


def _refused(submission_id: str, code: str, message: str, cluster_id: str = "") -> bytes:
    error = ErrorDetail(code=code, message=message)
    return ENCODER.encode(
        Verdict(submission_id=submission_id, status="refused", cluster_id=cluster_id, error=error)
    )
