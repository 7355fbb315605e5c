"""Reservations: grant nodes to the first few waiting jobs, in queue order (priority, then age).

Schedulers propose nodes beside a blocked evaluation (`Blocked.candidates`); a node is reserved for at most one job. A
reservation begins with the block, changes with what its job's next plan proposes, and ends when a plan leaves nothing
waiting, or the job or the node is removed. Released nodes may wake other evaluations. How nodes are chosen:
`shared/core/scheduling/reservations/gap.py`.
"""

from collections.abc import Iterable, Iterator

import msgspec

from schemas.base import Event, JobId
from schemas.evaluations import (
    Blocked,
    EvaluationsWoken,
    Hold,
    NewEvaluation,
    Reservation,
    ReservationsChanged,
)
from shared.core.decide.capacity_freed import freed_on_nodes
from shared.core.scheduling.reservations.wait_shapes import QueueOrder, queue_order
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job
from shared.core.state.tables.reservations import queue_position


def reserve(
    state: State, job_id: JobId, follow_ups: Iterable[NewEvaluation], *, most: int | None = None
) -> list[Event]:
    """Decide the reservations once a plan of this job ended with these follow-ups. [] when nothing changes."""
    held = state.reservations.by_job
    blocked = next((one.blocked for one in follow_ups if one.blocked is not None), None)
    proposes = blocked is not None and bool(blocked.candidates)
    if not proposes and job_id not in held:
        return []
    most = state.policy.policy.reservations_max if most is None else most
    claims = dict(_claims_except(state, job_id))
    job = state.jobs.by_id.get(job_id)
    if blocked is not None and proposes and job is not None:
        claims[queue_order(job)] = (job_id, blocked)
    return _grant(state, claims, most)


def limit_reservations(state: State, most: int) -> list[Event]:
    """Decide the reservations when at most `most` jobs may have one."""
    return _grant(state, dict(_claims_except(state, JobId(""))), most)


def release_nodes(state: State, nodes: Iterable[int]) -> list[Event]:
    """Release reservations of these nodes: nothing can be placed there. Their evaluations are woken to find others."""
    gone = set(nodes)
    changed = []
    for one in state.reservations.by_job.values():
        holds = _without(one.holds, gone)
        if holds != one.holds:
            changed.append(msgspec.structs.replace(one, holds=holds))
    if not changed:
        return []
    keys = [state.evaluations.blocked_of.get(one.job_id) for one in changed]
    events: list[Event] = [ReservationsChanged(reservations=tuple(changed))]
    if awake := tuple(key for key in keys if key is not None):
        events.append(EvaluationsWoken(keys=awake, reason="a node reserved for it was removed"))
    return events


_Claims = dict[QueueOrder, tuple[JobId, Blocked | Reservation]]


def _claims_except(
    state: State, without: JobId
) -> Iterator[tuple[QueueOrder, tuple[JobId, Blocked | Reservation]]]:
    """Yield reservations and the proposals of other waiting jobs, except those of one job."""
    held = state.reservations.by_job
    for job_id, one in held.items():
        if job_id != without:
            yield queue_position(one), (job_id, one)
    table = state.evaluations
    for job_id, key in table.proposing.items():
        blocked, job = table.by_key[key].blocked, state.jobs.by_id.get(job_id)
        if job_id != without and job_id not in held and blocked is not None and job is not None:
            yield queue_order(job), (job_id, blocked)


def _grant(state: State, claims: _Claims, most: int) -> list[Event]:
    """Grant reservations in queue order; a node is reserved for at most one job."""
    held = state.reservations.by_job
    taken: set[int] = set()
    granted: dict[JobId, Reservation] = {}
    for order in sorted(claims):
        if len(granted) >= most:
            break
        job_id, claim = claims[order]
        holds = _usable(state, job_id, claim, taken)
        if holds:
            granted[job_id] = Reservation(
                job_id=job_id, priority=-order[0], since_seq=order[1], holds=holds
            )
            taken.update(row for hold in holds for row in hold.rows)
    changed = [one for job_id, one in granted.items() if held.get(job_id) != one]
    changed += [
        msgspec.structs.replace(one, holds=())
        for job_id, one in held.items()
        if job_id not in granted
    ]
    if not changed:
        return []
    before = {row for one in held.values() for hold in one.holds for row in hold.rows}
    freed = freed_on_nodes(state, before - taken)
    return [ReservationsChanged(reservations=tuple(changed)), *freed]


def _usable(
    state: State, job_id: JobId, claim: Blocked | Reservation, taken: set[int]
) -> tuple[Hold, ...]:
    """Keep of the requested nodes those that can be reserved."""
    if isinstance(claim, Reservation):
        return _without(claim.holds, taken)
    fleet = state.fleet
    ready = fleet.ready()
    job: Job | None = state.jobs.by_id.get(job_id)
    names = {group.name for group in job.groups} if job is not None else set()
    gone = set(taken)
    for hold in claim.candidates:
        for row in hold.rows:
            # A row may belong to another node by now.
            if (
                not 0 <= row < fleet.size
                or not ready[row]
                or fleet.row_seq[row] > claim.snapshot_seq
            ):
                gone.add(row)
    return _without(tuple(hold for hold in claim.candidates if hold.group in names), gone)


def _without(holds: tuple[Hold, ...], gone: set[int]) -> tuple[Hold, ...]:
    """Drop rows, and what is empty then. A node is held for one group of a job."""
    kept, seen = [], set(gone)
    for hold in holds:
        rows = tuple(row for row in hold.rows if row not in seen)
        seen.update(rows)
        if rows:
            kept.append(msgspec.structs.replace(hold, rows=rows))
    return tuple(kept)
