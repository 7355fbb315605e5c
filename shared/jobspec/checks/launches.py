"""Validation of the blocks that make a job a pattern for others: `periodic` and `parameterized`.

A cron spec that can be read and never fires is refused too, with what it says in words.
"""

from schemas.jobs import FINITE_JOB_TYPES
from shared.cron.instants import is_ever, time_zone
from shared.cron.spec import CronInvalid, parse_cron, reading
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.identifiers import id_error
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.nomad.policies import Parameterized

#: Specs of one job: each is read for every launch.
CRONS_MAX = 100
#: The longest that is put behind the id of a periodic job; seconds have ten digits until the year 2286.
LAUNCH_SUFFIX = "/periodic-1700000000"
#: The same of a parameterized job: seqs stay below 2^40.
DISPATCH_SUFFIX = "/dispatch-1099511627776-01234567"
PAYLOADS = ("optional", "required", "forbidden")
META_MAX = 100
META_CHARS_MAX = 128
FILE_CHARS_MAX = 256
FILE_PARTS_MAX = 20


def check_launches(faults: ErrorList, job: JobSpec) -> None:
    """Check what a job says about its children."""
    if job.parameterized is not None:
        is_both = job.periodic is not None
        suffix = DISPATCH_SUFFIX + (LAUNCH_SUFFIX if is_both else "")
        _check_pattern(faults, job, "Job.ParameterizedJob", suffix)
        _parameterized(faults, job.parameterized)
    elif job.periodic is not None:
        _check_pattern(faults, job, "Job.Periodic", LAUNCH_SUFFIX)
    # As in Nomad, what is switched off is not looked at.
    if job.periodic is not None and job.periodic.enabled:
        _periodic(faults, job)
    for at, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks):
            if task.dispatch_payload is not None:
                path = f"Job.TaskGroups[{at}].Tasks[{number}].DispatchPayload"
                _payload_file(faults, job, task.dispatch_payload.file, path)


def _parameterized(faults: ErrorList, block: Parameterized) -> None:
    path = "Job.ParameterizedJob"
    if block.payload not in ("", *PAYLOADS):
        faults.add(
            f"{path}.Payload", f"must be one of {', '.join(PAYLOADS)}, was {block.payload!r}"
        )
    if len(block.meta_required) + len(block.meta_optional) > META_MAX:
        faults.add(f"{path}.MetaOptional", f"at most {META_MAX} keys are allowed")
    if both := sorted({*block.meta_required} & {*block.meta_optional}):
        faults.add(f"{path}.MetaOptional", f"{both[0][:80]!r} is required, too; name it once")
    for name, keys in (
        ("MetaRequired", block.meta_required),
        ("MetaOptional", block.meta_optional),
    ):
        if any(not key or len(key) > META_CHARS_MAX for key in keys):
            faults.add(f"{path}.{name}", f"a key has 1 to {META_CHARS_MAX} characters")


def _payload_file(faults: ErrorList, job: JobSpec, file: str, path: str) -> None:
    if job.parameterized is None and not is_dispatched(job):
        faults.add(path, "only a parameterized job has a payload")
    parts = file.split("/")
    if not file:
        faults.add(f"{path}.File", "must name a file below the task's local/")
    elif file.startswith("/") or ".." in parts or "" in parts or "." in parts:
        faults.add(f"{path}.File", f"{file[:80]!r} must be a relative path without . and ..")
    elif len(file) > FILE_CHARS_MAX or not file.isprintable() or len(parts) > FILE_PARTS_MAX:
        faults.add(f"{path}.File", f"at most {FILE_CHARS_MAX} printable characters are allowed")


def is_dispatched(job: JobSpec) -> bool:
    """Tell whether a text is that of a child, submitted again by a person."""
    return "/dispatch-" in job.id


def _check_pattern(faults: ErrorList, job: JobSpec, path: str, suffix: str) -> None:
    """Check that a job may have children, and that their ids are not too long."""
    if job.type not in FINITE_JOB_TYPES:
        faults.add(path, f"only batch and sysbatch jobs have it, this is of type {job.type!r}")
    if not id_error(job.id) and id_error(job.id + suffix):
        faults.add("Job.ID", f"is too long for the ids of its children, such as {suffix[1:]!r}")


def _periodic(faults: ErrorList, job: JobSpec) -> None:
    block, path = job.periodic, "Job.Periodic"
    assert block is not None
    if block.spec_type != "cron":
        faults.add(f"{path}.SpecType", f"must be cron, was {block.spec_type[:80]!r}")
        return
    if block.cron and block.crons:
        faults.add(f"{path}.Spec", "cron and crons exclude each other; write crons")
    if not block.cron and not block.crons:
        faults.add(f"{path}.Specs", "a periodic job needs at least one cron spec")
    if len(block.crons) > CRONS_MAX:
        faults.add(f"{path}.Specs", f"{len(block.crons)} specs, at most {CRONS_MAX} are allowed")
        return
    if block.cron:
        _cron(faults, block.cron, f"{path}.Spec")
    for at, text in enumerate(block.crons):
        _cron(faults, text, f"{path}.Specs[{at}]")
    try:
        time_zone(block.time_zone)
    except CronInvalid as fault:
        faults.add(f"{path}.TimeZone", str(fault))


def _cron(faults: ErrorList, text: str, path: str) -> None:
    try:
        spec = parse_cron(text)
    except CronInvalid as fault:
        faults.add(path, f"{text[:80]!r}: {fault}")
        return
    if not is_ever(spec):
        faults.add(path, f"{text[:80]!r} never matches a date; read as: {reading(spec)}")
