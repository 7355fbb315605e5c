"""Bodies of `jobs.<verb>` and `api.jobs.<verb>`, as a submitter in any language writes them.

They describe; shared/jobspec/submission.py reads, more strictly than a Struct could. Names are Nomad's own. The answer
is a `Verdict` (jobs.py), of the drop box the server's own acknowledgement, which means kept and not accepted.
"""

import msgspec

from schemas.base import Wire


class JobSubmission(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Register a job, or validate it: `submit` and `validate`."""

    #: the job in Nomad's JSON shape, at most 256 KiB; unknown keys are kept and warned about.
    job: msgspec.Raw
    #: makes sending again harmless; empty: the `Nats-Msg-Id` header, else the position in the stream.
    submission_id: str = msgspec.field(name="SubmissionID", default="")
    #: check and set: refuse unless the job's modify index is JobModifyIndex.
    enforce_index: bool = False
    #: 0 with EnforceIndex: the job must not exist.
    job_modify_index: int = 0


class JobText(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Turn a job file into the JSON that `submit` takes: `parse`. The file's text alone, without JSON, is taken too."""

    #: HCL, at most 512 KiB. Functions that read files are refused.
    job_hcl: str = msgspec.field(name="JobHCL")
    #: values for the file's variables, written as a file of variables.
    variables: str = ""


class JobNamed(Wire, frozen=True, kw_only=True, rename="pascal"):
    """Do something to a job that is there: `stop` and `evaluate`."""

    job_id: str = msgspec.field(name="JobID")
    #: as in JobSubmission.
    submission_id: str = msgspec.field(name="SubmissionID", default="")
    #: stop only: forget the job once its allocations ended.
    purge: bool = False


class KeptAck(Wire, frozen=True, kw_only=True):
    """Answer of the drop box `jobs.<verb>`: kept at `seq` of `stream`, not yet accepted. Written by the server."""

    stream: str
    seq: int
    #: a message with the same `Nats-Msg-Id` is kept already.
    duplicate: bool = False
