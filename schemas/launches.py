"""Launches of periodic jobs and dispatches: when a child was made of its parent, and what it was given.

Instants are times of the calendar in ns since 1970, computed by the timekeeper with its time zone
data; the plan applier compares them with the log and computes none.
"""

from schemas.base import Command, Event, JobId

#: Why an instant made no child: one still ran; several passed while nothing could be launched; it is there already.
SKIP_REASONS = ("overlap", "missed", "exists")


class JobLaunched(Event, frozen=True, kw_only=True, tag="job.launched"):
    """A child of a periodic job was made; its registration follows in the same record."""

    parent: JobId
    #: `create_seq` of the parent: a job of the same id that comes after a purge is another one.
    parent_create_seq: int
    #: the planned instant; of a forced launch the time of the request.
    at_ns: int
    child_id: JobId
    #: an operator asked for it: the next planned instant stays as it is.
    forced: bool = False


class LaunchSkipped(Event, frozen=True, kw_only=True, tag="launch.skipped"):
    """Planned instants of a periodic job made no child."""

    parent: JobId
    parent_create_seq: int
    #: the planned instant; of missed ones that of the launch that catches up for them.
    at_ns: int
    #: overlap, missed or exists.
    why: str
    #: how many instants, where several were missed.
    missed: int = 0


#: Of a payload, before base64.
PAYLOAD_BYTES_MAX = 16 * 1024


class JobPayload(Event, frozen=True, kw_only=True, tag="job.payload"):
    """What a child was dispatched with. Its registration is in the same record."""

    job_id: JobId
    data: bytes


# ---- commands ----


class DispatchJob(Command, frozen=True, kw_only=True, tag="dispatch_job"):
    """Register a child of a parameterized job (cmd.job). Natural key: submission_id; then job_id and token."""

    submission_id: str
    digest: str
    #: the parent.
    job_id: JobId
    payload: bytes = b""
    meta: dict[str, str] = {}
    #: empty: every dispatch is a child of its own.
    token: str = ""
    #: 0: the parent's.
    priority: int = 0
    jobs_seq: int = 0
    jobs_prev: int = 0


class LaunchDue(Command, frozen=True, kw_only=True, tag="launch_due"):
    """An instant of a periodic job has come (cmd.timer). Natural key: (parent, modify_seq, after_ns)."""

    parent: JobId
    #: of the parent: seq of the submission whose specs were read.
    modify_seq: int
    #: the instant that was handled last, as the sender knows it: nothing happens where another was since.
    after_ns: int
    #: the newest planned instant that has passed.
    at_ns: int
    #: how many planned instants lie between both.
    missed: int = 0


class ForceLaunch(Command, frozen=True, kw_only=True, tag="force_launch"):
    """Launch a child of a periodic job now. Natural key: (job_id, the second of at_ns)."""

    request_id: str
    job_id: JobId
    at_ns: int
