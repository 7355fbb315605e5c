"""Bodies of `jobs.<verb>` and `api.jobs.<verb>`, as a submitter in any language writes them.

They describe; shared/jobspec/submission.py reads, more strictly than a Struct could. Names are Nomad's own. The answer
is a `Verdict` (jobs.py), of the drop box the server's own acknowledgement, which means kept and not accepted.
"""

import msgspec

from schemas.base import Wire


class JobSource(Wire, frozen=True, kw_only=True, rename="pascal"):
    """The file that a job comes from, as its author wrote it, with the values of its variables.

    The log keeps all of it as it is given: a value of a variable is no secret any more.
    """

    source: str
    #: of the source: hcl2, json, yaml or toml.
    format: str = "hcl2"
    #: values of variables that were given one by one.
    variable_flags: dict[str, str] = {}
    #: files of variables, one after the other.
    variables: str = ""


class JobSubmission(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Register a job, or validate it: `submit` and `validate`."""

    #: the job in Nomad's JSON shape, at most 256 KiB; unknown keys, and fields that are not built yet, are refused.
    job: msgspec.Raw
    #: makes sending again harmless; empty: the `Nats-Msg-Id` header, else the position in the stream.
    submission_id: str = msgspec.field(name="SubmissionID", default="")
    #: check and set: refuse unless the job's modify index is JobModifyIndex.
    enforce_index: bool = False
    #: 0 with EnforceIndex: the job must not exist.
    job_modify_index: int = 0
    #: accept fields that are not built yet: the job runs without them, and `query.job` says so.
    accept_unbuilt: bool = msgspec.field(name="accept_unbuilt", default=False)
    #: accept unknown keys: they have no effect.
    accept_unknown: bool = msgspec.field(name="accept_unknown", default=False)
    #: what the job was made of; kept in the log beside the job, unless it is too large.
    submission: JobSource | None = None


class JobsSubmission(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Register jobs as one rollout, all of them or none: `submit_together`. The verdict names the rollout."""

    #: name for people; need not be unique.
    rollout: str
    #: together, or in_order: a job begins when the one before it is healthy.
    order: str = "together"
    #: 1 to 16 service or system jobs, each once; 256 KiB together.
    jobs: tuple[JobSubmission, ...] = ()
    #: as in JobSubmission; the jobs have none of their own.
    submission_id: str = msgspec.field(name="SubmissionID", default="")


class JobText(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Turn a job file into the JSON that `submit` takes: `parse`. The file's text alone, without JSON, is taken too."""

    #: HCL, at most 512 KiB. Functions that read files are refused.
    job_hcl: str = msgspec.field(name="JobHCL")
    #: values for the file's variables, written as a file of variables.
    variables: str = ""
    #: fill in defaults, as `/v1/jobs/parse` of Nomad does; else the job has what the file has.
    canonicalize: bool = False
    #: true is refused: the first version of HCL is not read.
    hclv1: bool = msgspec.field(name="HCLv1", default=False)


class JobNamed(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Do something to a job that is there: `stop` and `evaluate`."""

    job_id: str = msgspec.field(name="JobID")
    #: as in JobSubmission.
    submission_id: str = msgspec.field(name="SubmissionID", default="")
    #: stop only: forget the job once its allocations ended.
    purge: bool = False
    #: evaluate only: what failed past its attempts is replaced as well.
    force_reschedule: bool = False


class JobDispatch(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Make a child of a parameterized job: `dispatch`. The verdict names the child."""

    #: the parent.
    job_id: str = msgspec.field(name="JobID")
    #: base64 of at most 16 KiB.
    payload: str = ""
    #: laid over the job's meta; each key is one that the job requires or allows.
    meta: dict[str, str] = {}
    #: a dispatch of the same job with this token, while its child is known, is that child.
    idempotency_token: str = ""
    #: 0: the parent's.
    priority: int = 0
    #: as in JobSubmission.
    submission_id: str = msgspec.field(name="SubmissionID", default="")


class JobRevert(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Take the text of an older version of a job again: `revert`. One of JobVersion and VersionTag is given."""

    job_id: str = msgspec.field(name="JobID")
    #: -1: the version with the name VersionTag.
    job_version: int = -1
    version_tag: str = ""
    #: refuse unless the newest version is this one; -1: do not check.
    enforce_prior_version: int = -1
    #: as in JobSubmission.
    enforce_index: bool = False
    job_modify_index: int = 0
    submission_id: str = msgspec.field(name="SubmissionID", default="")


class JobScale(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Change the count of a group: `scale`. Refused while a deployment of the job is active."""

    job_id: str = msgspec.field(name="JobID")
    #: empty: the only one.
    group: str = ""
    #: within the scaling block of the group.
    count: int
    #: as in JobSubmission.
    enforce_index: bool = False
    job_modify_index: int = 0
    submission_id: str = msgspec.field(name="SubmissionID", default="")


class JobStart(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Run a stopped job again, with its newest text: `start`."""

    job_id: str = msgspec.field(name="JobID")
    #: as in JobSubmission.
    enforce_index: bool = False
    job_modify_index: int = 0
    submission_id: str = msgspec.field(name="SubmissionID", default="")


class KeptAck(Wire, frozen=True, kw_only=True):
    """Answer of the drop box `jobs.<verb>`: kept at `seq` of `stream`, not yet accepted. Written by the server."""

    stream: str
    seq: int
    #: a message with the same `Nats-Msg-Id` is kept already.
    duplicate: bool = False
