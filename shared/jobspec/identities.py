"""The identities that blocks of a group declare, of tasks and of services: their names, and where a token is written.

Used by checks, by agents and by the keeper, so that all of them read the blocks alike. The token of a service is given
to one task: that of the service.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from shared.jobspec.checks.unsupported_fields import ACCEPTED_UNBUILT
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.services import WorkloadIdentity
from shared.jobspec.service_names import DeclaredService, declared_services, service_name
from shared.protocol.identity_names import DEFAULT_IDENTITY, SERVICE_PREFIX


class DeclaredIdentity(NamedTuple):
    """One block of a task, or of a service whose token the task is given."""

    #: of the block in the JSON job: `Identity` or `Identities[0]` below its task, of a service below its group.
    path: str
    name: str
    block: WorkloadIdentity
    #: name of the service; empty: the identity is the task's own.
    service: str = ""


class _AcceptedFields(msgspec.Struct):
    """What a job was accepted without."""

    paths: tuple[str, ...] = msgspec.field(name=ACCEPTED_UNBUILT, default=())


def task_identities(task: TaskSpec) -> tuple[DeclaredIdentity, ...]:
    """List the identities of a task, the default one first."""
    found = [
        DeclaredIdentity(f"Identities[{at}]", one.name or DEFAULT_IDENTITY, one)
        for at, one in enumerate(task.identities)
    ]
    if task.identity is not None:
        name = task.identity.name or DEFAULT_IDENTITY
        found.insert(0, DeclaredIdentity("Identity", name, task.identity))
    return tuple(sorted(found, key=lambda one: one.name != DEFAULT_IDENTITY))


def identity_file(name: str, block: WorkloadIdentity) -> str:
    """Return where a token is written, relative to the task's directory; empty: nowhere."""
    if not block.file:
        return ""
    default = "nomad_token" if name == DEFAULT_IDENTITY else f"nomad_{name}.jwt"
    return block.filepath or f"secrets/{default}"


def identities_left_out(accepted: Iterable[str], path: str, task: TaskSpec) -> frozenset[str]:
    """List the names of identities of the task at `path` that a job was accepted without."""
    paths = frozenset(accepted)
    return frozenset(
        one.name
        for one in task_identities(task)
        if not paths.isdisjoint((f"{path}.{one.path}", f"{path}.{one.path.partition('[')[0]}"))
    )


# ---- of services ----


def service_identities(
    job_name: str, group: TaskGroup
) -> Iterator[tuple[DeclaredService, DeclaredIdentity]]:
    """List the identities of a group's services, each with its service."""
    for one in declared_services(group):
        block = one.service.identity
        if block is not None:
            service = service_name(job_name, group.name, one.service, one.task)
            port = f"-{one.service.port_label}" if one.service.port_label else ""
            name = block.name or f"{SERVICE_PREFIX}{service}{port}"
            yield one, DeclaredIdentity(f"{one.path[1:]}.Identity", name, block, service)


def token_task(group: TaskGroup, one: DeclaredService) -> str:
    """Return the task that is given the token of a service; empty: several could be, and the service names none."""
    only = group.tasks[0].name if len(group.tasks) == 1 else ""
    return one.task or one.service.task_name or only


def accepted_without(spec: bytes) -> frozenset[str]:
    """Return the paths that a job was accepted without. Raises msgspec.DecodeError."""
    return frozenset(msgspec.json.decode(spec, type=_AcceptedFields).paths)


def group_identities(
    job: JobSpec, group: TaskGroup, accepted: frozenset[str]
) -> dict[str, tuple[DeclaredIdentity, ...]]:
    """List, by task, the identities that are acted on: the task's own, then those of services.

    `accepted`: the paths that the job was accepted without; an identity among them is none, claims among them are left
    out.
    """
    top = f"Job.TaskGroups[{job.groups.index(group)}]"
    found: dict[str, list[DeclaredIdentity]] = {}
    for at, task in enumerate(group.tasks):
        here = f"{top}.Tasks[{at}]"
        left_out = identities_left_out(accepted, here, task)
        own = (one for one in task_identities(task) if one.name not in left_out)
        found[task.name] = [
            _with_accepted_claims(one, f"{here}.{one.path}", accepted) for one in own
        ]
    for service, one in service_identities(job.name or job.id, group):
        path = f"{top}.{one.path}"
        task_name = token_task(group, service)
        if task_name in found and accepted.isdisjoint((path, path.rpartition("[")[0])):
            found[task_name].append(_with_accepted_claims(one, path, accepted))
    return {name: tuple(ones) for name, ones in found.items()}


def extra_claims_of(block: WorkloadIdentity) -> dict[str, str]:
    """Return the claims that a block adds, with references; none for a list."""
    return block.extra_claims if isinstance(block.extra_claims, dict) else {}


def _with_accepted_claims(
    one: DeclaredIdentity, path: str, accepted: frozenset[str]
) -> DeclaredIdentity:
    if f"{path}.ExtraClaims" not in accepted:
        return one
    return one._replace(block=msgspec.structs.replace(one.block, extra_claims={}))
