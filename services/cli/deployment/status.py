"""`caravan deployment list`, `deployment status` and `job deployments`."""

import time

from schemas.answers import DeploymentAnswer, DeploymentsAnswer
from schemas.projections import DeploymentGroupLine, DeploymentLine, DeploymentWait, Query
from services.cli.deployment.follow import follow
from services.cli.deployment.monitor import DEPLOYMENT, query_deployment
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once, query_pages, with_bus
from services.cli.runtime.output import CommandOutput, short_id
from shared.bus.connection.public_client import Client
from shared.display.formats import format_age
from shared.durations import write_in_one_unit


def list_all(out: CommandOutput, *, job: str, status: str, limit: int, verbose: bool) -> int:
    """List deployments, newest first."""
    return _list(out, Query(status=status, limit=limit), job, verbose=verbose)


def list_of_job(out: CommandOutput, *, job_id: str, limit: int, verbose: bool) -> int:
    """List the deployments of a job, newest first."""
    return _list(out, Query(limit=limit), job_id, verbose=verbose, with_job=False)


def _list(
    out: CommandOutput, query: Query, job: str, *, verbose: bool, with_job: bool = True
) -> int:
    answer = query_pages("deployments", DeploymentsAnswer, query, "deployments", job=job)
    rows = [
        (
            one.id if verbose else short_id(one.id),
            *((one.job,) if with_job else ()),
            one.version,
            one.status,
            one.description,
        )
        for one in answer.deployments
    ]
    columns = f"ID|{'JOB|' if with_job else ''}VERSION>|STATUS|DESCRIPTION"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="deployments")


def status(
    out: CommandOutput, *, deployment_id: str, monitor: bool, limit: int, verbose: bool
) -> int:
    """Show one deployment; with `monitor` follow it first."""

    async def work(client: Client) -> DeploymentAnswer:
        found = await query_deployment(client, deployment_id, limit=limit)
        if not monitor:
            return found
        last = await follow(DEPLOYMENT, client, out, found.deployment.id)
        return await query_deployment(client, last.deployment.id, last.seq, limit)

    if monitor:
        answer = with_bus(work)
    else:
        query = Query(id=deployment_id, limit=limit)
        answer = query_once("deployment", DeploymentAnswer, query)
    out.result(answer)
    print_deployment(out, answer, verbose=verbose)
    return 0


def print_deployment(out: CommandOutput, answer: DeploymentAnswer, *, verbose: bool) -> None:
    """One deployment: summary, groups, what it waits for, allocations."""
    one = answer.deployment
    shown = [
        ("ID", one.id if verbose else short_id(one.id)),
        ("Job", one.job),
        ("Version", str(one.version)),
        ("Status", one.status),
        ("Description", one.description),
    ]
    shown += [("Cause", "revert to an older version")] if one.cause == "revert" else []
    shown += [("Rolled back to", f"version {one.reverted_to}")] if one.reverted_to >= 0 else []
    out.fields(shown)
    print_groups(out, one)
    print_gates(out, one)
    if answer.waits:
        out.line()
        now_ns = time.time_ns()
        for wait in answer.waits:
            out.line(f"{wait.group}: {wait.reason}{since_text(wait, now_ns)}", "yellow")
    rows = [
        (
            row.id if verbose else short_id(row.id),
            row.name,
            row.node,
            row.client_status,
            ", ".join(word for word in (row.health, "canary" if row.canary else "") if word),
            row.health_reason,
        )
        for row in answer.allocations
    ]
    out.table("ID|NAME|NODE|STATUS|HEALTH|REASON", rows, "Allocations")
    tables.print_cut(out, len(answer.allocations), answer.allocations_total, "allocations")


def print_groups(out: CommandOutput, one: DeploymentLine) -> None:
    """Print the groups of a deployment, with what is left of their progress deadlines."""
    now_ns = time.time_ns()
    has_canaries = any(group.canaries for group in one.groups.values())
    rows = [
        (
            name,
            *((_promoted(group),) if has_canaries else ()),
            group.desired,
            *((group.canaries,) if has_canaries else ()),
            group.placed,
            group.healthy,
            group.unhealthy,
            _deadline(group, now_ns) if one.status == "running" else "",
        )
        for name, group in sorted(one.groups.items())
    ]
    columns = "GROUP|DESIRED>|PLACED>|HEALTHY>|UNHEALTHY>|PROGRESS DEADLINE"
    if has_canaries:
        columns = columns.replace("|DESIRED>", "|PROMOTED|DESIRED>|CANARIES>")
    out.table(columns, rows, "Groups")


def _promoted(group: DeploymentGroupLine) -> str:
    return ("yes" if group.promoted else "no") if group.canaries else ""


def print_gates(out: CommandOutput, one: DeploymentLine) -> None:
    """Print the gates of a deployment, each with its last crossing."""
    now_ns = time.time_ns()
    rows = [
        (
            gate.name or "(window)",
            "ignored" if one.ignores_gates else gate.status,
            format_age(gate.since_ns, now_ns),
            gate.reason,
        )
        for gate in one.gates
    ]
    out.table("GATE|STATUS|SINCE|READING", rows, "Gates")


def _deadline(group: DeploymentGroupLine, now_ns: int) -> str:
    if not group.progress_deadline_ns:
        return "none"
    if not group.require_by_ns:
        return f"{write_in_one_unit(group.progress_deadline_ns)} from its first placement"
    if group.healthy >= (group.desired if group.promoted else group.canaries or group.desired):
        return ""
    return format_age(group.require_by_ns, now_ns)


def since_text(wait: DeploymentWait, now_ns: int) -> str:
    """How long a group has been held or paused, or since when nothing of it has progressed; empty: not known."""
    if not wait.since_ns:
        return ""
    age = format_age(wait.since_ns, now_ns)
    if wait.why in {"held", "paused"}:
        return f"; {wait.why} for {age.removesuffix(' ago')}"
    return f"; last progress {age}"
