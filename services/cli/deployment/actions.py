"""`caravan deployment promote|pause|resume|fail|set-health` and `job promote`: requests to the operator API.

Promoting and resuming follow the deployment until it ended or waits again, unless told to detach.
"""

from functools import partial

from schemas.answers import DeploymentAnswer, DeploymentsAnswer
from schemas.operator import (
    FailRequest,
    HealthRequest,
    OperatorVerdict,
    PauseRequest,
    PromoteRequest,
    ResumeRequest,
)
from schemas.projections import Query
from services.cli.deployment.follow import change
from services.cli.deployment.monitor import DEPLOYMENT
from services.cli.runtime.bus_client import query_view, resolve_job, with_bus
from services.cli.runtime.operator_client import OperatorResult
from services.cli.runtime.output import CliError, CommandOutput, result_from
from shared.bus.connection.public_client import Client


class DeploymentChangeResult(OperatorResult, frozen=True):
    """What every command prints with `--json` that changes a deployment."""

    deployment: str
    job: str
    deployment_status: str
    description: str
    #: the version that its failure took back; -1: none.
    reverted_to: int


def promote(out: CommandOutput, *, deployment_id: str, group: list[str], detach: bool) -> int:
    """Promote canaries; follow the deployment."""
    body = PromoteRequest(deployment_id=deployment_id, groups=tuple(group))
    return _change(out, body, "promoted", follows=not detach)


def promote_job(out: CommandOutput, *, job_id: str, group: list[str], detach: bool) -> int:
    """Promote the canaries of a job's newest deployment; follow it."""

    async def newest(client: Client) -> str:
        name = await resolve_job(client, job_id)
        query = Query(job_id=name, limit=1)
        answer = await query_view(client, "deployments", DeploymentsAnswer, query)
        if not answer.deployments:
            raise CliError("not_found", f"job {name!r} has no deployment")
        return answer.deployments[0].id

    return promote(out, deployment_id=with_bus(newest), group=group, detach=detach)


def resume(out: CommandOutput, *, deployment_id: str, ignore_gate: bool, detach: bool) -> int:
    """Resume a deployment that is paused, or that its gates hold; follow it."""
    body = ResumeRequest(deployment_id=deployment_id, ignore_gate=ignore_gate)
    return _change(out, body, "resumed", follows=not detach)


def pause(out: CommandOutput, *, deployment_id: str) -> int:
    """Pause a deployment."""
    return _change(out, PauseRequest(deployment_id=deployment_id), "paused")


def fail(out: CommandOutput, *, deployment_id: str) -> int:
    """End a deployment as failed."""
    return _change(out, FailRequest(deployment_id=deployment_id), "marked as failed")


def set_health(
    out: CommandOutput, *, deployment_id: str, healthy: list[str], unhealthy: list[str]
) -> int:
    """Say which allocations are healthy, and which are not."""
    if not healthy and not unhealthy:
        raise CliError("usage", "--healthy or --unhealthy is required")
    body = HealthRequest(
        deployment_id=deployment_id, healthy=tuple(healthy), unhealthy=tuple(unhealthy)
    )
    return _change(out, body, "health recorded")


def _print_unfollowed(out: CommandOutput, answer: DeploymentAnswer) -> None:
    if answer.deployment.reverted_to >= 0:
        out.line(f"rolled back to version {answer.deployment.reverted_to}", "yellow")


def _result(verdict: OperatorVerdict, answer: DeploymentAnswer) -> DeploymentChangeResult:
    one = answer.deployment
    return result_from(
        DeploymentChangeResult,
        verdict,
        deployment=one.id,
        job=one.job,
        deployment_status=one.status,
        description=one.description,
        reverted_to=one.reverted_to,
        seq=answer.seq,
    )


_change = partial(change, DEPLOYMENT, result=_result, print_unfollowed=_print_unfollowed)
