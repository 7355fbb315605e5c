"""What can go wrong, as exceptions. `CaravanError` is the base of all."""

from collections.abc import Sequence

from caravan_client.messages import ErrorDetail, JobProjection


class CaravanError(Exception):
    """Base of the errors of this package."""


class Refused(CaravanError):
    """The cluster refused a request. `code` is stable (docs/queries.md has the list); nothing was changed."""

    def __init__(self, error: ErrorDetail, errors: Sequence[ErrorDetail] = ()) -> None:
        """`errors` has all faults of a job, `error` the first."""
        super().__init__(f"{error.path}: {error.message}" if error.path else error.message)
        self.code = error.code
        self.path = error.path
        self.errors = tuple(errors) or (error,)


class NoAnswer(CaravanError):
    """No service of the cluster answered in time. After a submission it is not known whether it was accepted.

    Submit again with the same `submission_id`: it has no second effect.
    """


class JobFailed(CaravanError):
    """The version of a job that was waited for failed. `job` has its numbers, the message the reason."""

    def __init__(self, job: JobProjection) -> None:
        """`job` is the last value."""
        reason = job.rollout.reason if job.rollout is not None else ""
        super().__init__(f"job {job.job_id!r}: {reason or 'failed'}")
        self.job = job


class ClusterChanged(CaravanError):
    """Answers come from another cluster than before: state that was kept of it is void."""


class LogDamaged(CaravanError):
    """A record of the log has a wrong checksum, or does not continue the chain."""


class StreamEnded(CaravanError):
    """A stream of a node ended before its last frame. `code` is that of its error, `gone` where it fell silent."""

    def __init__(self, code: str, message: str) -> None:
        """Say why."""
        super().__init__(message)
        self.code = code
