"""Deployments in Nomad's shape."""

from services.gateway.nomad.allocations import alloc_shown_ids
from services.gateway.nomad.source import Object, ShapeSource
from services.gateway.nomad.times import rfc3339
from shared.core.state.ids import deployment_id
from shared.core.state.tables.deployments import Deployment
from shared.query.deployments import description


def nomad_deployment(source: ShapeSource, one: Deployment) -> Object:
    """One deployment, with its groups."""
    state = source.state
    job = state.jobs.by_id.get(one.job_id)
    kept = state.jobs.version(one.job_id, one.version)
    spec_seq = kept.seq if kept is not None else one.create_seq
    return {
        "ID": deployment_id(one.key),
        "Namespace": "default",
        "JobID": str(one.job_id),
        "JobVersion": one.version,
        "JobModifyIndex": spec_seq,
        "JobSpecModifyIndex": spec_seq,
        "JobCreateIndex": job.create_seq if job is not None else 0,
        "IsMultiregion": False,
        "TaskGroups": {
            group.name: {
                "PlacedCanaries": _canaries(source, one, group.name),
                "AutoRevert": group.auto_revert,
                "AutoPromote": group.auto_promote,
                "ProgressDeadline": group.progress_deadline_ns,
                "RequireProgressBy": rfc3339(group.require_by_ns),
                "Promoted": group.promoted,
                "DesiredCanaries": group.desired_canaries,
                "DesiredTotal": group.desired_total,
                "PlacedAllocs": group.placed,
                "HealthyAllocs": group.healthy,
                "UnhealthyAllocs": group.unhealthy,
            }
            for group in one.groups
        },
        "Status": one.status,
        "StatusDescription": description(one),
        "EvalPriority": job.priority if job is not None else 50,
        "CreateIndex": one.create_seq,
        "ModifyIndex": one.modify_seq,
        "CreateTime": source.time_of(one.create_seq),
        "ModifyTime": source.time_of(one.modify_seq),
    }


def _canaries(source: ShapeSource, one: Deployment, group: str) -> list[str] | None:
    """Ids of the canaries that were placed; None: none."""
    table = source.state.allocations
    rows = table.rows_of(one.job_id)
    rows = rows[(table.deployment[rows] == one.key) & table.canary[rows]]
    rows = (
        rows[[table.groups.names[ref] == group for ref in table.group[rows].tolist()]]
        if len(rows)
        else rows
    )
    return alloc_shown_ids(source.state, rows) or None
