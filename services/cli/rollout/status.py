"""`caravan rollout list` and `rollout status`."""

from schemas.projections import Query
from schemas.rollout_answers import RolloutAnswer, RolloutMemberLine, RolloutsAnswer
from services.cli.deployment.display import health_summary
from services.cli.deployment.follow import follow
from services.cli.rollout.monitor import ROLLOUT
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once, query_pages, with_bus
from services.cli.runtime.output import CommandOutput, short_id


def list_all(out: CommandOutput, *, job: str, status: str, limit: int, verbose: bool) -> int:
    """List rollouts, newest first."""
    query = Query(status=status, limit=limit)
    answer = query_pages("rollouts", RolloutsAnswer, query, "rollouts", job=job)
    rows = [
        (
            one.id if verbose else short_id(one.id),
            one.name,
            one.status,
            f"{one.done}/{len(one.jobs)}",
            ", ".join(one.jobs),
            one.description,
        )
        for one in answer.rollouts
    ]
    columns = "ID|NAME|STATUS|DONE>|JOBS|DESCRIPTION"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="rollouts")


def status(out: CommandOutput, *, rollout_id: str, monitor: bool, verbose: bool) -> int:
    """Show one rollout; with `monitor` follow it first."""
    if monitor:
        answer = with_bus(lambda client: follow(ROLLOUT, client, out, rollout_id))
    else:
        answer = query_once("rollout", RolloutAnswer, Query(id=rollout_id))
    out.result(answer)
    print_rollout(out, answer, verbose=verbose)
    return 0


def print_rollout(out: CommandOutput, answer: RolloutAnswer, *, verbose: bool) -> None:
    """One rollout: summary, and a line for each job."""
    one = answer.rollout
    out.fields(
        [
            ("ID", one.id if verbose else short_id(one.id)),
            ("Name", one.name),
            ("Order", one.order),
            ("Status", one.status),
            ("Description", one.description),
        ]
    )
    rows = [
        (
            member.job,
            member.version,
            member.before if member.before >= 0 else "new",
            member.status,
            member.deployment_id if verbose else short_id(member.deployment_id),
            _health(member),
            member.reason,
        )
        for member in answer.members
    ]
    out.table("JOB|VERSION>|BEFORE>|STATUS|DEPLOYMENT|HEALTH|WAITS FOR", rows, "Jobs")


def _health(member: RolloutMemberLine) -> str:
    groups = member.deployment.groups if member.deployment is not None else {}
    return "; ".join(f"{name} {health_summary(group)}" for name, group in sorted(groups.items()))
