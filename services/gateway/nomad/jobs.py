"""Jobs in Nomad's shape: the submitted text with Nomad's defaults filled in, stubs of lists, summaries, versions."""

from functools import lru_cache
from typing import Any

from schemas.base import JobId
from services.gateway.nomad.source import Object, ShapeSource
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job, JobVersion
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import block_schema
from shared.jobspec.nomad.filled_job import filled_job
from shared.jobspec.nomad.job import JobSpec
from shared.query import projections
from shared.query.job_wait import job_wait

#: Texts of which the whole shape is kept.
_TEXTS_KEPT = 512


def nomad_job(source: ShapeSource, job: Job, version: int = -1) -> Object | None:
    """One version of a job, -1: the newest; None: its text is not kept."""
    state = source.state
    version = job.version if version < 0 else version
    kept = state.jobs.version(job.id, version)
    if kept is None:
        return None
    found = dict(canonical_job(kept.spec))
    submitted_ns = source.time_of(kept.seq)
    found.update(
        {
            "ID": str(job.id),
            "ParentID": str(job.parent),
            "Dispatched": _is_dispatched(state, job),
            "Payload": None,
            "Status": job_status(source, job),
            "StatusDescription": "",
            "Stop": job.stopped,
            "Stable": kept.is_stable,
            "Version": version,
            "SubmitTime": submitted_ns,
            "CreateIndex": job.create_seq,
            "ModifyIndex": max(job.modify_seq, kept.seq),
            "JobModifyIndex": job.modify_seq if version == job.version else kept.seq,
            "VersionTag": _tag(kept, submitted_ns),
        }
    )
    return found


def job_status(source: ShapeSource, job: Job) -> str:
    """The status in Nomad's words: what waits for its instant or a dispatch is running."""
    groups = projections.group_counts(source.state, job)
    return projections.job_status(job, groups, has_open=source.histories.has_open(job.id))


def job_index(source: ShapeSource, job: Job) -> int:
    """The index of a job: the seq of the last change of it, its evaluations, allocations or deployments."""
    state = source.state
    rows = state.allocations.rows_of(job.id)
    newest = source.histories.newest(job.id)
    deployment = state.deployments.latest_of(job.id)
    return max(
        job.modify_seq,
        job.plan_seq,
        int(state.allocations.modify_seq[rows].max()) if len(rows) else 0,
        newest.modify_seq if newest is not None else 0,
        deployment.modify_seq if deployment is not None else 0,
    )


def job_stub(source: ShapeSource, job: Job, *, with_meta: bool) -> Object:
    """A line of the list of jobs."""
    kept = source.state.jobs.version(job.id, job.version)
    spec = canonical_job(kept.spec) if kept is not None else {}
    return {
        "ID": str(job.id),
        "ParentID": str(job.parent),
        "Name": spec.get("Name") or str(job.id),
        "Namespace": "default",
        "Datacenters": list(job.datacenters),
        "NodePool": job.node_pool,
        "Multiregion": None,
        "Type": job.job_type,
        "Priority": job.priority,
        "Periodic": job.periodic is not None,
        "ParameterizedJob": job.parameterized is not None,
        "Stop": job.stopped,
        "Status": job_status(source, job),
        "StatusDescription": "",
        "JobSummary": job_summary(source, job),
        "CreateIndex": job.create_seq,
        "ModifyIndex": job_index(source, job),
        "JobModifyIndex": job.modify_seq,
        "SubmitTime": source.time_of(kept.seq) if kept is not None else 0,
        "Meta": spec.get("Meta") if with_meta else None,
    }


def job_summary(source: ShapeSource, job: Job) -> Object:
    """Counts of a job's groups, and of its children."""
    state = source.state
    wait = job_wait(state, job, source.histories.shapes)
    queued = {name: one.n for name, one in wait.groups.items()}
    children = dict.fromkeys(("Pending", "Running", "Dead"), 0)
    if job.is_pattern:
        for one in _children(state, job.id):
            children[job_status(source, one).capitalize()] += 1
    return {
        "JobID": str(job.id),
        "Namespace": "default",
        "Summary": {
            name: {
                "Queued": queued.get(name, 0),
                "Starting": one.pending,
                "Running": one.running,
                "Failed": one.failed,
                "Complete": one.complete,
                "Lost": one.lost,
                "Unknown": one.unknown,
            }
            for name, one in projections.group_counts(state, job).items()
        },
        "Children": children if job.is_pattern else None,
        "CreateIndex": job.create_seq,
        "ModifyIndex": job_index(source, job),
    }


def _children(state: State, parent: JobId) -> list[Job]:
    return [one for one in state.jobs.by_id.values() if one.parent == parent]


def _is_dispatched(state: State, job: Job) -> bool:
    parent = state.jobs.by_id.get(job.parent)
    return parent is not None and parent.parameterized is not None


def _tag(kept: JobVersion, t_ns: int) -> Object | None:
    if not kept.tag:
        return None
    return {"Name": kept.tag, "Description": kept.tag_description, "TaggedTime": t_ns}


@lru_cache(maxsize=_TEXTS_KEPT)
def canonical_job(spec: bytes) -> Object:
    """A job's text with every field of Nomad's job, defaults filled in. Not to be changed: it is shared."""
    return filled_job(spec)


def with_absent_fields(job: Object) -> Object:
    """A decoded job as Nomad prints one whose defaults are not filled in: what is absent is null."""
    return {**_with_absent(JobSpec, job), "Name": job.get("Name") or job.get("ID")}


def _with_absent(struct: type[JobBlock], block: Object) -> Object:
    found: Object = {}
    for field in block_schema(struct).fields:
        value = block.get(field.json)
        inner = field.inner
        if inner is not None and isinstance(value, dict):
            value = (
                {key: _of_label(inner, one) for key, one in value.items()}
                if field.kind == "labelled"
                else _with_absent(inner, value)
            )
        elif inner is not None and isinstance(value, list):
            value = [_of_label(inner, one) for one in value]
        found[field.json] = value
    return {**block, **found}


def _of_label(struct: type[JobBlock], value: Any) -> Any:
    return _with_absent(struct, value) if isinstance(value, dict) else value
