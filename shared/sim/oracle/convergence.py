"""Convergence: whether every job has its promised allocations, by the reference model alone.

A difference is a failure only after the world had time to settle.
"""

from collections.abc import Callable

from shared.sim.oracle.reference_model import (
    SYSTEM_JOB_TYPES,
    ReferenceAlloc,
    ReferenceAsk,
    ReferenceJob,
    ReferenceModel,
)

#: Returns the number of blocked allocations of a job's group.
BlockedCount = Callable[[str, str], int]
#: Log time that is further ahead of the true time is not waited for: it advances at half pace.
_AHEAD_NS = 60_000_000_000


def find_unconverged_job(model: ReferenceModel, waiting_count: BlockedCount, now_ns: int) -> str:
    """Describe the first job that has not converged; empty: all have. `now_ns`: the true time."""
    stands_still = model.t_ns > now_ns + _AHEAD_NS
    for job in model.jobs.values():
        if model.launches.is_pattern(job.id) or model.dispatches.is_pattern(job.id):
            # Its children have the allocations.
            continue
        for group, (count, ask) in job.groups[job.version].items():
            allocs = [model.allocs[row] for row in sorted(model.wanted(job.id, group))]
            # A promoted canary has the name of an old one, which stays while fewer than the count are there.
            canaries = model.rollouts.canaries_of(job.id, group, {one.row for one in allocs})
            names = {(model.alloc_slot(job, one), canaries and one.version) for one in allocs}
            if len(names) != len(allocs):
                return f"{job.id}.{group} has duplicate names: {allocs}"
            rollout = model.rollouts.latest(job.id)
            if rollout is not None and rollout.status == "running":
                if stands_still and (rollout.due_ns() > model.t_ns or "gate" in rollout.held_by):
                    # An applier's clock was an hour ahead: the deadline, or the time of a gate, is as far away.
                    continue
                if not waiting_count(job.id, group):
                    return f"{job.id} has a deployment that continues, {allocs}"
            if rollout is not None and rollout.status in {"failed", "paused"}:
                # Nothing more is placed until a person resumes it, or registers another version.
                continue
            if job.is_stopped:
                found = f"{job.id}.{group} is stopped, but has {allocs}" if allocs else ""
            elif job.job_type in SYSTEM_JOB_TYPES:
                found = _system_job(
                    model,
                    job,
                    group,
                    request=(count, ask),
                    waiting_count=waiting_count(job.id, group),
                )
            elif job.job_type == "batch":
                done = model.done(job, group)
                found = f"{job.id}.{group} wants {count} complete, has {done}, {allocs}"
                found = "" if done >= count else found
            else:
                found = _service(model, job, group, count=count, allocs=allocs)
            if found:
                return found
    return ""


def _service(
    model: ReferenceModel,
    job: ReferenceJob,
    group: str,
    *,
    count: int,
    allocs: list[ReferenceAlloc],
) -> str:
    if len(allocs) == count and all(one.client == "running" for one in allocs):
        return ""
    story = [one for one in model.of_group(job, group) if one.desired == "run"]
    return f"{job.id}.{group} wants {count}, has {story}"


def _system_job(
    model: ReferenceModel,
    job: ReferenceJob,
    group: str,
    *,
    request: tuple[int, ReferenceAsk],
    waiting_count: int,
) -> str:
    """Check a system group: on every ready node each name is running, or ended permanently, or does not fit."""
    count, ask = request
    held: dict[int, set[int]] = {}
    for one in model.of_group(job, group):
        if one.is_final and one.version == job.version:
            held.setdefault(one.node, set()).add(one.index)
            continue
        if one.desired != "run" or model.allocs.get(one.row) is not one:
            continue
        ended = one.client in {"complete", "failed"}
        if ended and job.job_type == "sysbatch" and one.version != job.version:
            continue
        if not ended and one.client != "running":
            return f"{job.id}.{group} waits for {one}"
        if not ended and job.job_type == "sysbatch":
            return f"{job.id}.{group} still runs {one}"
        held.setdefault(one.node, set()).add(one.index)
    lacking = 0
    for row, node in model.nodes.items():
        if node.status != "ready":
            return f"{job.id}.{group}: node {node.id} is {node.status}"
        if node.is_closed:
            # A drained node takes nothing new; what may stay there is the operator's choice.
            continue
        missing = count - len(held.get(row, ()))
        fits = all(
            used + more <= room
            for used, more, room in zip(node.used, ask, node.capacity, strict=True)
        )
        if missing and fits:
            return f"{job.id}.{group} lacks {missing} on {node.id}, which has room"
        lacking += missing
    if waiting_count != lacking:
        return f"{job.id}.{group} lacks {lacking}, {waiting_count} are said to wait"
    return ""
