"""`caravan job tag apply|unset` and `job stable`: what an operator says of a job's versions."""

from uuid import uuid4

from schemas.operator import StabilityRequest, TagRequest
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CommandOutput


class JobTagResult(OperatorResult, frozen=True):
    """`job tag apply --json` and `job tag unset --json`."""

    job: str
    tag: str


class JobStableResult(OperatorResult, frozen=True):
    """`job stable --json`."""

    job: str
    version: int
    stable: bool


def apply_tag(out: CommandOutput, *, job_id: str, name: str, version: int, description: str) -> int:
    """Name a version."""
    body = TagRequest(
        job_id=job_id,
        name=name,
        version=version,
        description=description,
        request_id=str(uuid4()),
    )
    verdict = request_operator(out, body, JobTagResult, job=job_id, tag=name)
    which = f"version {version}" if version >= 0 else "the newest version"
    word = "has" if verdict.changed else "had already"
    out.line(f"job {job_id}: {which} {word} the tag {name}")
    return 0


def unset_tag(out: CommandOutput, *, job_id: str, name: str) -> int:
    """Take a name away."""
    body = TagRequest(job_id=job_id, name=name, unset=True, request_id=str(uuid4()))
    request_operator(out, body, JobTagResult, job=job_id, tag=name)
    out.line(f"job {job_id}: no version has the tag {name} now")
    return 0


def set_stability(out: CommandOutput, *, job_id: str, version: int, unset: bool) -> int:
    """Say whether a version is stable."""
    body = StabilityRequest(
        job_id=job_id, version=version, stable=not unset, request_id=str(uuid4())
    )
    verdict = request_operator(
        out, body, JobStableResult, job=job_id, version=version, stable=not unset
    )
    state = "not stable" if unset else "stable"
    word = "is" if verdict.changed else "was already"
    out.line(f"job {job_id}: version {version} {word} {state}")
    return 0
