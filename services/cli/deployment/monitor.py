"""What a deployment is asked and how it is shown while the CLI follows it, and why it failed."""

import time
from collections.abc import Iterable

from schemas.answers import DeploymentAnswer, DeploymentsAnswer
from schemas.node_answers import AllocAnswer
from schemas.projections import AllocSummary, DeploymentLine, DeploymentWait, Query
from services.cli.deployment.display import health_rows
from services.cli.deployment.follow import Followable, print_end
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.query.task_causes import failure_text

#: Reasons to wait that no time ends: an operator has to act, or capacity to come.
STANDSTILLS = frozenset({"promotion", "paused", "place"})
#: A hold that lasts so long is one, too: a gate that is open has let the deployment continue by then.
HELD_NS = 10_000_000_000
#: Statuses of a deployment that continues.
ACTIVE = frozenset({"running", "paused"})
#: Failed allocations that are described, and among how many they are looked for.
FAILURES_MAX = 3
_SHOWN = 1_000


async def find_deployment(client: Client, job_id: str, version: int) -> DeploymentLine | None:
    """Query the deployment of a version; None: it has none."""
    query = Query(job_id=job_id, limit=_SHOWN)
    answer = await query_view(client, "deployments", DeploymentsAnswer, query)
    return next((one for one in answer.deployments if one.version == version), None)


async def query_deployment(
    client: Client, deployment_id: str, min_seq: int = 0, limit: int = 0
) -> DeploymentAnswer:
    """Query a deployment by its id or a unique prefix."""
    query = Query(id=deployment_id, min_seq=min_seq, limit=limit)
    return await query_view(client, "deployment", DeploymentAnswer, query)


def is_settled(answer: DeploymentAnswer) -> bool:
    """Whether a deployment ended, or continues only after an operator acts or capacity comes."""
    if answer.deployment.status not in ACTIVE:
        return True
    return bool(answer.waits) and all(stands_still(one) for one in answer.waits)


def stands_still(wait: DeploymentWait) -> bool:
    """Whether a group continues only after an operator acts, capacity comes, or a gate opens."""
    is_held = wait.why == "held" and time.time_ns() - wait.since_ns > HELD_NS
    return is_held or wait.why in STANDSTILLS


def outcome_of(answer: DeploymentAnswer) -> str:
    """Return `successful`, `failed`, `cancelled` or `waiting`; empty: it continues."""
    if not is_settled(answer):
        return ""
    status = answer.deployment.status
    return "waiting" if status in ACTIVE else status


def print_outcome(
    out: CommandOutput, answer: DeploymentAnswer, failures: Iterable[str] = ()
) -> None:
    """Print how a deployment ended, or what it waits for."""
    line, outcome = answer.deployment, outcome_of(answer)
    print_end(out, "deployment", line, outcome=outcome, failures=failures)
    if line.reverted_to >= 0:
        out.line(f"rolled back to version {line.reverted_to}", "yellow")
    for one in answer.waits:
        out.line(f"{one.group}: {one.reason}")
    if any(one.why == "promotion" for one in answer.waits):
        out.line(f"caravan deployment promote {short_id(line.id)} replaces the old allocations")
    if line.status == "paused":
        out.line(f"to continue: caravan deployment resume {short_id(line.id)}")
    elif line.gates and any(one.why == "held" for one in answer.waits):
        text = f"caravan deployment resume --ignore-gate {short_id(line.id)}"
        out.line(f"it resumes when its gates open; `{text}` resumes it now")


async def deployment_failures(client: Client, deployment_id: str, seq: int) -> list[str]:
    """Why allocations of a deployment failed, of some of them; unhealthy ones before others."""
    answer = await query_deployment(client, deployment_id, seq, _SHOWN)
    found = [one for one in answer.allocations if is_bad(one)]
    found.sort(key=lambda one: one.health != "unhealthy")
    return [await failure_reason(client, one) for one in found[:FAILURES_MAX]]


def is_bad(one: AllocSummary) -> bool:
    """Whether an allocation failed or is unhealthy."""
    return one.health == "unhealthy" or one.client_status == "failed"


async def failure_reason(client: Client, one: AllocSummary) -> str:
    """Why an allocation failed or does not start."""
    answer = await query_view(client, "alloc", AllocAnswer, Query(id=one.id))
    text = failure_text(answer.tasks) or one.health_reason or answer.why
    return f"{short_id(one.id)} {one.name}: {text}"


DEPLOYMENT = Followable[DeploymentAnswer](
    noun="deployment",
    query=query_deployment,
    id_of=lambda answer: answer.deployment.id,
    outcome_of=outcome_of,
    title=lambda answer: (
        f"deployment {short_id(answer.deployment.id)} of {answer.deployment.job}, "
        f"version {answer.deployment.version}"
    ),
    progress=lambda answer: ("", health_rows(answer.deployment)),
    failures=lambda client, answer: deployment_failures(client, answer.deployment.id, answer.seq),
    print_outcome=print_outcome,
)
