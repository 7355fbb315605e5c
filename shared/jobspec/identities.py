"""The identities that a task's blocks declare: their names, and where a token is written.

Used by checks, by agents and by the keeper, so that all of them read the blocks alike.
"""

from collections.abc import Iterable
from typing import NamedTuple

from shared.jobspec.nomad.job import TaskSpec
from shared.jobspec.nomad.services import WorkloadIdentity
from shared.protocol.identity_names import DEFAULT_IDENTITY


class DeclaredIdentity(NamedTuple):
    """One block of a task."""

    #: of the block in the JSON job, below its task: `Identity` or `Identities[0]`.
    path: str
    name: str
    block: WorkloadIdentity


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
