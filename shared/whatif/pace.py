"""Another pace of updates in a fork: fields of the `update` block, put into the jobs that are registered there."""

from collections.abc import Mapping

import msgspec
import orjson

from schemas.jobs import RegisterJob
from schemas.policy import RemoteDriver
from shared.errors import CommandInvalid
from shared.jobspec.submission import JobInvalid, read_submission

PaceValue = int | bool | str
#: Fields that may change, as HCL and JSON have them. `stagger` has no effect.
FIELDS: Mapping[str, tuple[str, type]] = {
    "max_parallel": ("MaxParallel", int),
    "health_check": ("HealthCheck", str),
    "min_healthy_time": ("MinHealthyTime", float),
    "healthy_deadline": ("HealthyDeadline", float),
    "progress_deadline": ("ProgressDeadline", float),
    "canary": ("Canary", int),
    "auto_promote": ("AutoPromote", bool),
    "auto_revert": ("AutoRevert", bool),
}
#: Blocks of the job's own `update`: they hold all groups.
_OF_THE_JOB = frozenset(("Gates", "Windows"))


def with_pace(
    command: RegisterJob, pace: Mapping[str, PaceValue], remotes: Mapping[str, RemoteDriver]
) -> RegisterJob:
    """Return a registration with these fields in the `update` block of all groups. Raises CommandInvalid."""
    text = orjson.loads(bytes(command.spec))
    for group in text.get("TaskGroups") or ():
        of_job = {k: v for k, v in (text.get("Update") or {}).items() if k not in _OF_THE_JOB}
        own = of_job | (group.get("Update") or {})
        known = {name: value for name, value in own.items() if value is not None}
        group["Update"] = known | {FIELDS[name][0]: value for name, value in pace.items()}
    body = {"Job": text, "accept_unbuilt": True, "accept_unknown": True}
    try:
        found = read_submission(orjson.dumps(body), "submit", remotes)
    except JobInvalid as err:
        said = f"update of {command.job_id}: {err.path}: {err.message}"
        raise CommandInvalid("invalid", said, "update") from err
    updates = {one.name: one.update for one in found.groups}
    groups = tuple(msgspec.structs.replace(one, update=updates[one.name]) for one in command.groups)
    return msgspec.structs.replace(command, groups=groups, spec=msgspec.Raw(found.spec))
