"""`/v1/jobs` and `/v1/job/<id>/…`: reads."""

from collections.abc import Sequence
from typing import Any

from schemas.base import JobId
from services.gateway.change_index import job as job_topic
from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault, unavailable
from services.gateway.edge.paging import page
from services.gateway.nomad.allocations import alloc_stub, rows_in_order
from services.gateway.nomad.deployments import nomad_deployment
from services.gateway.nomad.evaluations import nomad_eval
from services.gateway.nomad.filter_expression import compile_filter
from services.gateway.nomad.job_diff import job_diff
from services.gateway.nomad.jobs import job_index, job_stub, job_summary, nomad_job
from services.gateway.nomad.source import Object
from services.gateway.routes.lookup import JOB_TABLES, check_namespace, find_job, is_purged
from shared.core.state.tables.jobs import Job, JobVersion
from shared.errors import BusUnavailable, LogDropped
from shared.query.job_source import source_in, source_places

_NO_SOURCE = "job source not found"


async def list_jobs(call: Call) -> object:
    """The jobs, by id."""
    role = call.role
    await call.block(map(table, JOB_TABLES), lambda: role.changes.newest(JOB_TABLES))
    prefix, with_meta = call.text("prefix"), call.flag("meta")
    jobs = [
        one
        for one in role.state.jobs.by_id.values()
        if one.id.startswith(prefix) and check_namespace(call) and not is_purged(one)
    ]
    return page(
        call,
        jobs,
        order=lambda one: (0, str(one.id)),
        whole=lambda one: nomad_job(role.source, one) or {},
        stub=lambda one: job_stub(role.source, one, with_meta=with_meta),
        compile_filter=compile_filter,
    )


async def read_job(call: Call) -> object:
    """One job."""
    job = await _job_at_index(call)

    def made() -> Object:
        found = nomad_job(call.role.source, job)
        if found is None:
            raise HttpFault(404, "job not found")
        return {**found, "ModifyIndex": call.index}

    # The index of a job says nothing of its collected allocations: the tables' indexes do.
    changes = call.role.changes
    stamp = (call.index, *map(changes.of_table, JOB_TABLES))
    return call.server.encoded.get(("job", job.id), stamp, made)


async def read_summary(call: Call) -> object:
    """Counts of a job's groups."""
    return job_summary(call.role.source, await _job_at_index(call))


async def read_versions(call: Call) -> object:
    """The versions of a job, newest first, with `diffs` what each changed: against its predecessor, or a named one."""
    try:
        job = await _job_at_index(call)
    except HttpFault as err:
        raise HttpFault(404, "job versions not found") if err.status == 404 else err from err
    kept = call.role.state.jobs.versions[job.id][::-1]
    versions = [nomad_job(call.role.source, job, one.version) for one in kept]
    diffs = None
    if call.flag("diffs"):
        base = _compared_version(call, kept)
        older = versions[1:] if base is None else [versions[base]] * len(kept)
        diffs = [job_diff(old or {}, new or {}) for old, new in zip(older, versions, strict=False)]
    return {"Versions": versions, "Diffs": diffs}


def _compared_version(call: Call, kept: Sequence[JobVersion]) -> int | None:
    """Place of the version that all are compared with; None: each with the one before it. Raises HttpFault 400, 404."""
    tag, number = call.text("diff_tag"), call.number("diff_version", -1)
    if tag and number >= 0:
        raise HttpFault(400, "only one of diff_tag and diff_version may be given")
    if not tag and number < 0:
        return None
    for place, one in enumerate(kept):
        if one.tag == tag if tag else one.version == number:
            return place
    named = f"tag {tag!r}" if tag else f"version {number}"
    raise HttpFault(404, f"job version with {named} not found")


async def read_submission(call: Call) -> object:
    """The file that a version was made of. Raises HttpFault 404: none was sent, or its part of the log is dropped."""
    try:
        job = find_job(call)
    except HttpFault as err:
        raise HttpFault(err.status, _NO_SOURCE) from err
    version = call.number("version", job.version)
    kept = call.role.state.jobs.versions[job.id]
    source, index = None, 0
    for number, seq in source_places([(one.version, one.seq, one.spec) for one in kept], version):
        index = index or seq
        source = source_in(await _read_record(call, seq), seq, job.id, number)
        if source is not None:
            break
    if source is None:
        raise HttpFault(404, _NO_SOURCE)
    call.index = job.modify_seq
    return {
        "Source": source.source,
        "Format": source.format,
        "VariableFlags": source.variable_flags or None,
        "Variables": source.variables,
        "JobID": str(job.id),
        "Namespace": "default",
        "Version": version,
        "JobModifyIndex": job.modify_seq if version == job.version else index,
    }


async def _read_record(call: Call, seq: int) -> bytes:
    """One record of the log; empty: it is dropped. Raises HttpFault 503."""
    try:
        records = await call.server.log.read(seq, 1)
    except LogDropped:
        return b""
    except BusUnavailable as err:
        raise unavailable(str(err)) from err
    return records[0].data if records and records[0].seq == seq else b""


async def list_job_allocs(call: Call) -> object:
    """The allocations of a job, oldest first."""
    job_id = JobId(call.path["job"])
    await _block_for(call, str(job_id))
    rows = call.role.state.allocations.rows_of(job_id)
    order = rows_in_order(call.role.state, rows)
    return [alloc_stub(call.role.source, row) for row in order]


async def list_job_evals(call: Call) -> object:
    """The evaluations of a job, newest first."""
    job_id = JobId(call.path["job"])
    await _block_for(call, str(job_id))
    by_key = call.role.state.evaluations.by_key
    return [nomad_eval(call.role.source, by_key[key]) for key in call.role.histories.of_job(job_id)]


async def list_job_deployments(call: Call) -> object:
    """The deployments of a job, newest first."""
    job_id = JobId(call.path["job"])
    await _block_for(call, str(job_id))
    found = call.role.state.deployments.of_job(job_id)
    return [nomad_deployment(call.role.source, one) for one in reversed(found)]


async def latest_deployment(call: Call) -> object:
    """The newest deployment of a job, or null."""
    job_id = JobId(call.path["job"])
    await _block_for(call, str(job_id))
    found = call.role.state.deployments.latest_of(job_id)
    return nomad_deployment(call.role.source, found) if found is not None else None


async def read_scale(call: Call) -> object:
    """What runs of each group, for autoscalers."""
    job = await _job_at_index(call)
    summary: dict[str, Any] = job_summary(call.role.source, job)["Summary"]
    deployment = call.role.state.deployments.latest_of(job.id)
    groups = {}
    for group in job.groups:
        counts = summary.get(group.name, {})
        progress = deployment.group(group.name) if deployment is not None else None
        groups[group.name] = {
            "Desired": 0 if job.stopped else group.count,
            "Placed": counts.get("Running", 0) + counts.get("Starting", 0),
            "Running": counts.get("Running", 0),
            "Healthy": progress.healthy if progress is not None else counts.get("Running", 0),
            "Unhealthy": progress.unhealthy if progress is not None else 0,
            "Events": [],
        }
    return {
        "JobID": str(job.id),
        "Namespace": "default",
        "JobCreateIndex": job.create_seq,
        "JobModifyIndex": job.modify_seq,
        "JobStopped": job.stopped,
        "TaskGroups": groups,
    }


async def _job_at_index(call: Call) -> Job:
    """The job of a path, at its index. Raises HttpFault 404."""
    job_id = call.path["job"]
    await _block_for(call, job_id)
    return find_job(call)


async def _block_for(call: Call, job_id: str) -> None:
    role = call.role

    def index() -> int:
        job = role.state.jobs.by_id.get(JobId(job_id))
        # An index never goes back: where the job is gone, that of its table stands in.
        return job_index(role.source, job) if job is not None else role.changes.of_table("jobs")

    await call.block(
        [job_topic(job_id), table("jobs")] if index() == 0 else [job_topic(job_id)], index
    )
