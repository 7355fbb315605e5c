"""What an operator says of a job's versions: their names, and which are stable.

A version with a name is kept while it has it; the newest stable one is what a failed deployment goes back to.
"""

from schemas.base import Event
from schemas.job_versions import SetStability, TagVersion
from schemas.jobs import JobStabilityChanged, JobVersionTagged
from shared.core.decide.deciders import Deciders
from shared.core.decide.operator import refuse
from shared.core.state.state import State
from shared.core.state.tables.jobs import JobVersion

NAME_CHARS_MAX = 128
DESCRIPTION_CHARS_MAX = 1_000
#: Names of one job: each keeps a text in the state.
TAGS_MAX = 100


def decide_tag(state: State, command: TagVersion) -> list[Event]:
    """Name a version, change what is said of it, or take the name away."""
    if reason := _fault(command):
        return refuse(command.request_id, "invalid", reason)
    job = state.jobs.by_id.get(command.job_id)
    if job is None:
        return refuse(command.request_id, "not_found", f"there is no job {command.job_id!r}")
    kept = state.jobs.versions[job.id]
    named = next((one for one in kept if one.tag == command.name), None)
    if command.unset:
        if named is None or command.version not in {-1, named.version}:
            which = "version" if command.version < 0 else f"version {command.version}"
            where = "" if named is None else f"; version {named.version} has it"
            text = f"job {job.id!r} has no {which} with the tag {command.name!r}{where}"
            return refuse(command.request_id, "not_found", text)
        return [_tagged(command, named.version)]
    version = job.version if command.version < 0 else command.version
    if named is not None and named.version != version:
        text = f"tag {command.name!r} already exists on a different version: {named.version}"
        return refuse(command.request_id, "conflict", text)
    if named is None and sum(one.tag != "" for one in kept) >= TAGS_MAX:
        text = f"job {job.id!r} has {TAGS_MAX} versions with a tag, more are not kept"
        return refuse(command.request_id, "conflict", text)
    target = state.jobs.version(job.id, version)
    if target is None:
        text = f"job {job.id!r} has no stored version {version}"
        return refuse(command.request_id, "not_found", text)
    if (target.tag, target.tag_description) == (command.name, command.description):
        return []
    return [_tagged(command, version)]


def decide_stability(state: State, command: SetStability) -> list[Event]:
    """Say that a version is stable, or is not."""
    target: JobVersion | None = state.jobs.version(command.job_id, command.version)
    if target is None:
        text = f"job {command.job_id!r} has no stored version {command.version}"
        if command.job_id not in state.jobs.by_id:
            text = f"there is no job {command.job_id!r}"
        return refuse(command.request_id, "not_found", text)
    if target.is_stable == command.stable:
        return []
    changed = JobStabilityChanged(
        request_id=command.request_id,
        job_id=command.job_id,
        version=command.version,
        stable=command.stable,
    )
    return [changed]


def _fault(command: TagVersion) -> str:
    """Say what is wrong with a name or its description; empty: nothing."""
    name, text = command.name, command.description
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        return f"a tag has 1 to {NAME_CHARS_MAX} printable characters, without blanks around them"
    if name.isdigit():
        return f"tag {name!r} reads as the number of a version"
    if len(text) > DESCRIPTION_CHARS_MAX:
        return f"a description of {len(text)} characters, at most {DESCRIPTION_CHARS_MAX}"
    return ""


def _tagged(command: TagVersion, version: int) -> JobVersionTagged:
    return JobVersionTagged(
        request_id=command.request_id,
        job_id=command.job_id,
        version=version,
        name="" if command.unset else command.name,
        description="" if command.unset else command.description,
    )


DECIDERS: Deciders = {TagVersion: decide_tag, SetStability: decide_stability}
