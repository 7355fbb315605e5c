"""Versions of jobs: how one is shown, and commands that make the next version out of one that is kept.

The plan applier has the texts and the compiled groups, so that none of them can meet a newer version halfway.
They are submissions, with verdicts by submission id and positions of the drop box as in `RegisterJob` (jobs.py).
The last two are requests of an operator about versions.
"""

import msgspec

from schemas.base import Command, JobId, Wire


class RevertJob(Command, frozen=True, kw_only=True, tag="revert_job"):
    """Register the text of a kept version again, as the next one. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    #: the version to take; -1: that with the name `version_tag`.
    version: int = -1
    version_tag: str = ""
    #: refuse unless the newest version is this one; -1: do not check.
    check_version: int = -1
    #: refuse unless the job's modify_index equals this; -1: do not check.
    check_index: int = -1
    jobs_seq: int = 0
    jobs_prev: int = 0


class ScaleJob(Command, frozen=True, kw_only=True, tag="scale_job"):
    """Register the newest text with another count of a group. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    #: empty: the only one.
    group: str = ""
    count: int
    #: as in RevertJob.
    check_index: int = -1
    jobs_seq: int = 0
    jobs_prev: int = 0


class StartJob(Command, frozen=True, kw_only=True, tag="start_job"):
    """Register the newest text of a stopped job again, to run. Natural key: submission_id."""

    submission_id: str
    digest: str
    job_id: JobId
    #: as in RevertJob.
    check_index: int = -1
    jobs_seq: int = 0
    jobs_prev: int = 0


class TagVersion(Command, frozen=True, kw_only=True, tag="tag_version"):
    """Name a kept version of a job, or take its name away (cmd.operator). Natural key: job, version and name."""

    request_id: str
    job_id: JobId
    #: -1: the newest; of an `unset`: that with the name.
    version: int = -1
    name: str
    description: str = ""
    #: take the name away.
    unset: bool = False


class SetStability(Command, frozen=True, kw_only=True, tag="set_stability"):
    """Mark a kept version stable or unstable (cmd.operator). Natural key: job, version and word."""

    request_id: str
    job_id: JobId
    version: int
    stable: bool


# ---- answers ----


class VersionLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """One version of a job: its canonical text and the seq of its registration."""

    version: int
    seq: int
    spec: msgspec.Raw
    #: a failed deployment goes back to the newest version that is.
    stable: bool = False
    #: name given by an operator, and what was said of it; empty: none.
    tag: str = ""
    tag_description: str = ""
