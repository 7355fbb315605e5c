"""What a task is given before it starts, as the agent keeps it of a job: its inputs in the order of the work.

Decides names and order; services/agent/inputs/ prepares them. Next: `task_inputs.py`.
"""

import msgspec

from schemas.base import Wire
from shared.core.runtime.input_specs import ARTIFACT, ArtifactInput
from shared.jobspec.nomad.job import TaskSpec
from shared.jobspec.nomad.tasks import Artifact


class ResolvedInput(Wire, frozen=True, kw_only=True):
    """One input. `name`: unique in its task."""

    name: str
    kind: str
    #: JSON of the kind's options (shared/core/runtime/input_specs.py), with references.
    spec: msgspec.Raw
    #: options whose text stays as it is: references in them are not ours.
    verbatim: tuple[str, ...] = ()
    #: prepared before every start, not once in the life of the allocation.
    each_start: bool = False
    #: lies in `secrets/`.
    in_memory: bool = False


def resolve_inputs(task: TaskSpec) -> tuple[ResolvedInput, ...]:
    """List the inputs of a task in the order in which they are prepared; the payload is not among them."""
    return tuple(_artifact(one, at) for at, one in enumerate(task.artifacts))


def _artifact(one: Artifact, at: int) -> ResolvedInput:
    spec = ArtifactInput(
        source=one.source,
        options=one.options,
        headers=one.headers,
        mode=one.mode,
        insecure=one.insecure,
        destination=one.destination,
        chown=one.chown,
    )
    return ResolvedInput(
        name=f"{ARTIFACT}[{at}]",
        kind=ARTIFACT,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        in_memory=one.destination.lstrip("./").startswith(("secrets", "${NOMAD_SECRETS_DIR}")),
    )
