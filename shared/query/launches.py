"""What a job's pattern makes: the next launch of a periodic job, its newest launches, those skipped, its children.

The next instant is computed here with the time zone data of this machine; nothing that was decided depends on it.
"""

from msgspec.structs import replace

from schemas.base import JobId
from schemas.job_answers import JobVersionAnswer, LaunchLine, PeriodicShown, SkipLine
from schemas.projections import Query
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.cron.instants import next_launch
from shared.cron.spec import CronInvalid


def periodic_shown(state: State, job: Job) -> PeriodicShown | None:
    """Describe the launches of a job; None: it is not periodic."""
    block, parent = job.periodic, state.launches.by_parent.get(job.id)
    if block is None or parent is None:
        return None
    next_ns, problem = 0, ""
    if job.is_launching:
        try:
            next_ns = next_launch(block.crons, block.time_zone, parent.handled_ns)
        except CronInvalid as fault:
            problem = str(fault)
    return PeriodicShown(
        crons=block.crons,
        time_zone=block.time_zone,
        prohibit_overlap=block.prohibit_overlap,
        enabled=block.enabled,
        next_ns=next_ns,
        problem=problem,
        launches=tuple(
            LaunchLine(at_ns=one.at_ns, child_id=one.child_id, forced=one.forced)
            for one in reversed(parent.launches)
        ),
        skips=tuple(
            SkipLine(at_ns=one.at_ns, why=one.why, missed=one.missed)
            for one in reversed(parent.skips)
        ),
    )


def pattern_of(job: Job) -> str:
    """Say what makes a job a pattern for others; empty: it runs itself."""
    if job.parameterized is not None:
        return "parameterized"
    return "periodic" if job.periodic is not None else ""


def job_ids(state: State, query: Query) -> list[str]:
    """Return the ids of the jobs that a list is about, in its order."""
    if query.job_id:
        return [one for one in children_of(state, query.job_id) if one.startswith(query.id)]
    return sorted(one for one in state.jobs.by_id if one.startswith(query.id))


def origin_of(state: State, job_id: JobId, answer: JobVersionAnswer) -> JobVersionAnswer:
    """Add to the text of a child who made it, and what it was dispatched with."""
    parent = state.launches.parent_of.get(job_id, "")
    payload = state.launches.payloads.get(job_id, b"")
    return replace(answer, parent=parent, payload=payload) if parent else answer


def children_of(state: State, job_id: str) -> list[str]:
    """Return the children of a job that the state still knows, newest first."""
    return list(reversed(state.launches.children.get(job_id, {})))  # type: ignore[call-overload]
