"""Invariants of claims: an allocation with a sticky volume runs where the claim of its index lies."""

from collections.abc import Iterator

from schemas.jobs import GroupSpec
from shared.core.state.deployment_invariants import Violation
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.core.state.tables.jobs import Job


def check_claims(state: State) -> Iterator[Violation]:
    """Check the allocations of every job's newest version, and that an exclusive claim is alone with its volume."""
    for job in state.jobs.by_id.values():
        for group in job.groups:
            if any(volume.sticky for volume in group.volumes):
                yield from _misplaced(state, job, group)
    seen: dict[tuple[str, str], bool] = {}
    for key, rows in state.claims.by_index.items():
        for volume, claim in rows.items():
            place = (volume, str(claim.node_id))
            known = seen.get(place)
            if known is not None and (known or claim.is_exclusive):
                yield Violation("claims", f"{key} shares {place}, which is of one index alone")
            seen[place] = bool(known) or claim.is_exclusive


def _misplaced(state: State, job: Job, group: GroupSpec) -> Iterator[Violation]:
    table, groups = state.allocations, state.allocations.groups
    rows = table.rows_of(job.id)
    for row in rows[table.is_wanted(rows) & ~TERMINAL[table.client[rows]]].tolist():
        ref = int(table.group[row])
        if groups.names[ref] != group.name or groups.versions[ref] != job.version:
            continue
        claims = state.claims.of_index(job.id, group.name, int(table.index[row]))
        node = state.fleet.ids[int(table.node[row])]
        for volume in group.volumes:
            claim = claims.get(volume.source)
            if volume.sticky and (claim is None or claim.node_id != node):
                text = f"row {row} of {job.id}.{group.name} runs on {node}, its claim is {claim}"
                yield Violation("claims", text)
