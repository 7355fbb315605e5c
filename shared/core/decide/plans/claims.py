"""Claims on volumes: made with the first placement of an index, kept to by every later one, released by an operator.

A claim is a fact of the very transaction that places: no allocation of an index runs without it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from schemas.base import Event, JobId, NodeId
from schemas.evaluations import EvaluationsCreated, EvaluationsWoken
from schemas.jobs import VolumeAsk
from schemas.plans import GroupPlacement, PlanCommitted
from schemas.volumes import ClaimMade, ClaimReleased, ReleaseClaim
from shared.core.decide.capacity_freed import freed_by_claims
from shared.core.decide.deciders import Deciders
from shared.core.decide.operator import refuse
from shared.core.decide.system_jobs import is_pending, node_evaluation
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.core.state.tables.claims import IndexKey


def claim_fault(state: State, job_id: JobId, placements: Sequence[GroupPlacement]) -> str:
    """Say which placement would run an index where its claim does not lie, or another's does; empty: none."""
    #: new claims of the plan itself: who, and whether alone, by volume and node.
    made: dict[tuple[str, NodeId], list[tuple[IndexKey, bool]]] = {}
    for placement in placements:
        for volume, key, node_id in _sticky_placements(state, job_id, placement):
            source = volume.source
            mine = state.claims.of_index(*key).get(source)
            if mine is not None:
                if mine.node_id != node_id:
                    return f"index {key[2]} has its volume {source!r} on node {mine.node_id}"
                continue
            known = state.claims.holders(source, node_id)
            here = made.setdefault((source, node_id), [])
            for other, is_alone in [*((one, row.is_exclusive) for one, row in known), *here]:
                if other != key and (volume.is_exclusive or is_alone):
                    return f"volume {source!r} of node {node_id} is claimed by {_name(other)}"
            here.append((key, volume.is_exclusive))
    return ""


def claims_made(state: State, committed: PlanCommitted) -> list[Event]:
    """Claim for the indexes that a plan places first."""
    found: dict[tuple[IndexKey, str], Event] = {}
    for placement in committed.placements:
        for volume, key, node_id in _sticky_placements(state, committed.job_id, placement):
            if volume.source in state.claims.of_index(*key):
                continue
            job_id, group, index = key
            found[key, volume.source] = ClaimMade(
                job_id=job_id,
                group=group,
                index=index,
                volume=volume.source,
                node_id=node_id,
                is_exclusive=volume.is_exclusive,
            )
    return list(found.values())


def decide_release(state: State, command: ReleaseClaim) -> list[Event]:
    """Release the claims of an index that runs nowhere; its job is looked at, and so is what waits for the volumes."""
    key = (command.job_id, command.group, command.index)
    if not state.claims.of_index(*key):
        # It is so already; a command that comes twice finds it so.
        return []
    if index_row(state, key) is not None:
        text = f"{_name(key)} runs: stop it first"
        return refuse(command.request_id, "conflict", text)
    released = ClaimReleased(
        request_id=command.request_id,
        job_id=command.job_id,
        group=command.group,
        index=command.index,
    )
    return [released, *freed_by_claims(state, (key,)), *_wake(state, command.job_id)]


def index_row(state: State, key: IndexKey) -> int | None:
    """Row of an allocation of an index that has not ended; None: there is none."""
    table, groups = state.allocations, state.allocations.groups
    for row in table.rows_of(key[0]).tolist():
        is_named = groups.names[int(table.group[row])] == key[1] and table.index[row] == key[2]
        if is_named and not TERMINAL[table.client[row]]:
            return int(row)
    return None


def _wake(state: State, job_id: JobId) -> list[Event]:
    blocked = state.evaluations.blocked_of.get(job_id)
    if blocked is not None:
        return [EvaluationsWoken(keys=(blocked,), reason="a claim was released")]
    job = state.jobs.by_id.get(job_id)
    if job is None or job.runs_nothing or is_pending(state, job_id):
        return []
    return [EvaluationsCreated(evaluations=(node_evaluation(job, "queued-allocs"),))]


def _sticky_placements(
    state: State, job_id: JobId, placement: GroupPlacement
) -> Iterator[tuple[VolumeAsk, IndexKey, NodeId]]:
    """List what each placed allocation has of sticky volumes: the ask, its index, its node."""
    job = state.jobs.job_at(job_id, placement.version)
    groups = () if job is None else job.groups
    asks = [
        volume
        for group in groups
        if group.name == placement.group
        for volume in group.volumes
        if volume.sticky
    ]
    if not asks:
        return
    rows = np.repeat(placement.rows, placement.counts).tolist()
    for row, index in zip(rows, expand_runs(placement.names).tolist(), strict=True):
        for volume in asks:
            yield volume, (job_id, placement.group, index), NodeId(state.fleet.ids[row])


def _name(key: IndexKey) -> str:
    return f"{key[0]}.{key[1]}[{key[2]}]"


DECIDERS: Deciders = {ReleaseClaim: decide_release}
