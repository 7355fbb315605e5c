"""`caravan status ID`: find the object whose id begins so, and show it as its own status command does."""

from typing import NamedTuple

from schemas.answers import DeploymentAnswer, QueryAnswer
from schemas.evaluation_answers import EvalAnswer
from schemas.job_answers import JobsAnswer
from schemas.node_answers import AllocAnswer, NodeAnswer
from schemas.projections import Query
from schemas.rollout_answers import RolloutAnswer
from services.cli.alloc import status as alloc
from services.cli.deployment import status as deployment
from services.cli.eval import status as evaluation
from services.cli.job import status as job
from services.cli.node import status as node
from services.cli.rollout import status as rollout
from services.cli.runtime.bus_client import query_view, with_bus
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client

_JOBS_MAX = 5
#: What is looked for by noun, in the order of an ambiguous answer.
_NOUNS: tuple[tuple[str, type[QueryAnswer]], ...] = (
    ("node", NodeAnswer),
    ("alloc", AllocAnswer),
    ("eval", EvalAnswer),
    ("deployment", DeploymentAnswer),
    ("rollout", RolloutAnswer),
)


def status(out: CommandOutput, *, any_id: str, limit: int, verbose: bool) -> int:
    """Show what an id is of; without one list jobs. Raises CliError: nothing begins so, or several things do."""
    if not any_id:
        return job.status(out, job_id="", limit=limit, verbose=verbose)
    found = with_bus(lambda client: _find(client, any_id))
    if not found:
        text = f"no job, node, allocation, evaluation, deployment or rollout begins with {any_id!r}"
        raise CliError("not_found", text)
    if len(found) > 1 or found[0].several:
        listed = ", ".join(one.text for one in found)
        raise CliError("ambiguous", f"{any_id!r} is not unique: {listed}")
    match found[0].noun:
        case "job":
            return job.status(out, job_id=any_id, limit=limit, verbose=verbose)
        case "node":
            return node.status(
                out, node_id=any_id, allocs=False, stats=False, limit=limit, verbose=verbose
            )
        case "alloc":
            return alloc.status(out, alloc_id=any_id, verbose=verbose)
        case "eval":
            return evaluation.status(out, eval_id=any_id, verbose=verbose)
        case "deployment":
            return deployment.status(
                out, deployment_id=any_id, monitor=False, limit=limit, verbose=verbose
            )
        case _:
            return rollout.status(out, rollout_id=any_id, monitor=False, verbose=verbose)


class _Match(NamedTuple):
    """Something that begins so. `several`: the view's words for more than one of its kind."""

    noun: str
    id: str
    several: str = ""

    @property
    def text(self) -> str:
        """How an error names it."""
        return f"{self.noun} {self.id}" + (f" ({self.several})" if self.several else "")


async def _find(client: Client, text: str) -> list[_Match]:
    """What begins with a text."""
    near = await query_view(client, "jobs", JobsAnswer, Query(id=text, limit=_JOBS_MAX))
    ids = [str(one.id) for one in near.jobs]
    if text in ids:
        return [_Match("job", text)]
    found = [_Match("job", one) for one in ids]
    for noun, answer in _NOUNS:
        try:
            await query_view(client, noun, answer, Query(id=text))
        except CliError as err:
            if err.code == "ambiguous":
                found.append(_Match(noun, text, err.message))
            elif err.code not in ("not_found", "invalid"):
                raise
        else:
            found.append(_Match(noun, text))
    return found
