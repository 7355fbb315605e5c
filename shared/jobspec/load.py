"""Job files: a file's bytes become a submission, or faults with file, line and path.

Decides the format by the name (JSON only for now; HCL, YAML and TOML come with the product) and accepts a job with or
without its `{"Job": …}` wrapper. Must not know the bus nor open a file.
"""

import msgspec

from schemas.base import JobId
from schemas.jobs import ErrorDetail, RegisterJob
from shared.errors import CommandInvalid
from shared.jobspec.strict import canonical, read_object
from shared.jobspec.submission import JobInvalid, Submission, command_of, read_submission


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job file. `submission` is None when there are errors."""

    #: the job's id as far as it could be read.
    job_id: str = ""
    submission: Submission | None = None
    #: body for `api.jobs.submit`.
    body: bytes = b""
    errors: tuple[ErrorDetail, ...] = ()
    warnings: tuple[str, ...] = ()

    def register(self, submission_id: str) -> RegisterJob:
        """Make the command of a file without errors."""
        assert self.submission is not None, self.errors
        command = command_of(self.submission, submission_id)
        assert isinstance(command, RegisterJob)
        return command


def load_file(content: bytes, name: str = "") -> Loaded:
    """Read the content of the job file called `name`."""
    job_id = ""
    try:
        value, text = read_object(content)
        if "Job" not in value:
            value = {"Job": value}
            text = canonical(value)
        inner = value["Job"]
        if isinstance(inner, dict) and isinstance(inner.get("ID"), str):
            job_id = JobId(inner["ID"])
        submission = read_submission(text, "submit")
    except JobInvalid as err:
        return Loaded(
            job_id=job_id,
            errors=tuple([msgspec.structs.replace(one, file=name) for one in err.errors]),
        )
    except CommandInvalid as err:
        detail = ErrorDetail(
            code=err.code,
            message=err.message,
            path=err.path,
            file=name,
            line=getattr(err.__cause__, "lineno", 0),
        )
        return Loaded(job_id=job_id, errors=(detail,))
    return Loaded(job_id=job_id, submission=submission, body=text, warnings=submission.warnings)
