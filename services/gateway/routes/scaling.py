"""`/v1/scaling/policies` and `/v1/scaling/policy/<id>`: what job files say to an autoscaler beside the cluster.

Bounds of a group are held where it is scaled (`shared/core/decide/jobs/versions.py`); a policy is passed through.
"""

from collections.abc import Iterator
from uuid import NAMESPACE_URL, uuid5

from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.paging import page
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.jobs import canonical_job
from services.gateway.nomad.source import Object
from services.gateway.routes.lookup import is_purged
from shared.core.state.tables.jobs import Job

_TABLES = ("jobs",)
_HORIZONTAL = "horizontal"


def _policies(call: Call) -> Iterator[Object]:
    """All policies of jobs that are not stopped."""
    jobs = call.role.state.jobs
    for job in jobs.by_id.values():
        if not (job.stopped or is_purged(job)):
            text = jobs.spec(job.id, job.version)
            yield from () if text is None else policies_of(job, canonical_job(text))


def policies_of(job: Job, shown: Object) -> Iterator[Object]:
    """The policies of one job, with the text of the job as the API shows it."""
    for group in shown["TaskGroups"]:
        target = {"Namespace": "default", "Job": str(job.id), "Group": group["Name"]}
        if group["Scaling"]:
            yield _policy(job, group["Scaling"], target)
        for task in group["Tasks"]:
            for one in task["ScalingPolicies"] or ():
                yield _policy(job, one, {**target, "Task": task["Name"]})


def _policy(job: Job, block: Object, target: Object) -> Object:
    kind = block["Type"] or _HORIZONTAL
    name = "/".join((kind, *(f"{len(one)}:{one}" for one in target.values())))
    return {
        # The same as long as the job has it.
        "ID": str(uuid5(NAMESPACE_URL, name)),
        "Namespace": "default",
        "Type": kind,
        "Target": target,
        "Min": block["Min"],
        "Max": block["Max"],
        "Policy": block["Policy"] or None,
        "Enabled": block["Enabled"],
        "CreateIndex": job.create_seq,
        "ModifyIndex": job.modify_seq,
    }


def _stub(one: Object) -> Object:
    kept = ("ID", "Enabled", "Type", "Target", "CreateIndex", "ModifyIndex")
    return {name: one[name] for name in kept}


async def list_policies(call: Call) -> object:
    """The policies, of one job with `job`, of one type with `type`."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    job, kind = call.text("job"), call.text("type")
    found = [
        one
        for one in _policies(call)
        if (not job or one["Target"]["Job"] == job) and (not kind or one["Type"].startswith(kind))
    ]
    return page(call, found, order=lambda one: (0, one["ID"]), whole=lambda one: one, stub=_stub)


async def read_policy(call: Call) -> object:
    """One policy. Raises HttpFault 404."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    for one in _policies(call):
        if one["ID"] == call.path["id"]:
            return one
    raise HttpFault(404, "policy not found")


ENDPOINTS = (
    Endpoint(pattern="/v1/scaling/policies", summary="Scaling blocks of jobs.", read=list_policies),
    Endpoint(pattern="/v1/scaling/policy/{id}", summary="One of them.", read=read_policy),
)
