"""Invariants of stateful groups: an index has one instance at the most, ended or not wanted ones included."""

from schemas.base import JobId
from shared.core.state.state import State
from shared.core.state.tables.allocations import RUN, TERMINAL
from shared.core.state.tables.jobs import Job


def second_instances(state: State) -> list[str]:
    """Name every index of a stateful group of which two instances have not ended."""
    table = state.allocations
    seen: set[tuple[JobId, str, int]] = set()
    found: list[str] = []
    for ref in sorted(table.groups.stateful):
        if not table.groups.held[ref]:
            continue
        for row in table.rows_of(table.groups.job_ids[ref]).tolist():
            if int(table.group[row]) != ref or TERMINAL[table.client[row]]:
                continue
            name = (table.groups.job_ids[ref], table.groups.names[ref], int(table.index[row]))
            if name in seen:
                found.append(f"{name[0]}.{name[1]}[{name[2]}] has two instances")
            seen.add(name)
    return found


def leaving_in_order(state: State, job: Job) -> frozenset[str]:
    """Stateful groups of a job of which an instance is to end, or is about to: surplus ones stop one after the other."""
    table = state.allocations
    if not table.groups.stateful:
        return frozenset()
    names = {group.name for group in job.groups if group.stateful}
    open_ = (state.evaluations.by_key[key] for key in state.evaluations.open_of.get(job.id, ()))
    if any(one.status == "pending" for one in open_):
        return frozenset(names)
    rows = table.rows_of(job.id)
    rows = rows[~TERMINAL[table.client[rows]] & (table.desired[rows] != RUN)]
    return frozenset(names & {table.groups.names[ref] for ref in table.group[rows].tolist()})
