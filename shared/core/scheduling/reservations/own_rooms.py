"""Own rooms: what was stopped to be replaced keeps its room for its replacement, and only for that.

The room stays in what is held (`Predecessors`), so that other jobs find none there, whatever the resource. For the job
itself it is free: it is taken out of what is held while its requests are placed. A plan of the job takes each room by
placing the replacement, or gives it up where the replacement finds no room although nothing of its own is in the way.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.evaluations import Waiting
from schemas.plans import GroupPlacement, Stops
from shared.core.columns import Mask, Rows
from shared.core.scheduling.model import PlacedPart, Snapshot
from shared.core.scheduling.reconcile.service_jobs import PlacementRequest
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT, STOP, TERMINAL
from shared.core.state.tables.jobs import Job

#: Class of a wait for nothing but the end of what is replaced.
WAITS_FOR_OWN = "predecessor"


def with_own_rooms(snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot in which the rooms that are kept for a job are free."""
    table = snapshot.state.allocations
    rows = rooms_of(snapshot.state, job)
    if not len(rows):
        return snapshot
    held = snapshot.held.copy(snapshot.state.fleet.size)
    for row in rows.tolist():
        held.remove(*table.held_by(row))
    return msgspec.structs.replace(snapshot, held=held, dirty_rows=None)


def take_own_rooms(
    state: State, request: PlacementRequest, parts: list[PlacedPart]
) -> list[PlacedPart]:
    """Name what is placed in a kept room after the allocation that had it, as far as that is possible.

    What is placed elsewhere replaces first those whose rooms are kept, then others, and last those that still run: a
    room that is not taken must be there for the ones that are left.
    """
    table = state.allocations
    if not parts or not len(request.origins) or not len(table.predecessors):
        return parts
    if request.per_node is not None or request.previous is None or request.avoid is not None:
        return parts
    count = request.count - len(request.tied)
    placed = sum(part.placement.placed for part in parts)
    if placed >= count or not table.predecessors.has_room(request.origins).any():
        return parts
    order = _order(state, request, count)
    nodes = np.concatenate([np.repeat(one.placement.rows, one.placement.counts) for one in parts])
    chosen = _chosen(state, request, order, nodes.tolist())
    out: list[PlacedPart] = []
    begin = 0
    for part in parts:
        end = begin + part.placement.placed
        positions = np.array(chosen[begin:end], dtype=np.intp)
        out.append(msgspec.structs.replace(part, positions=positions))
        begin = end
    return out


def _order(state: State, request: PlacementRequest, count: int) -> list[int]:
    """Positions of a request that are not tied, in the order in which they give their names away."""
    table = state.allocations
    rows = origin_rows(state, request)[:count]
    has_origin = rows >= 0
    at = np.where(has_origin, rows, 0)
    has_room = table.predecessors.has_room(at.astype(np.int32)) & has_origin
    runs = has_origin & ~TERMINAL[table.client[at]]
    rank = np.where(has_room, 0, np.where(runs, 2, 1))
    order: list[int] = np.argsort(rank, kind="stable").tolist()
    return order


def origin_rows(state: State, request: PlacementRequest) -> NDArray[np.int64]:
    """Row that each position replaces, -1: none. Shape: (count,)."""
    assert request.previous is not None
    keys = state.allocations.key[request.origins]
    row_of = dict(zip(keys.tolist(), request.origins.tolist(), strict=True))
    rows = [row_of.get(key, -1) for key in request.previous.tolist()]
    return np.array(rows, dtype=np.int64)


def _chosen(
    state: State, request: PlacementRequest, order: list[int], nodes: Sequence[int]
) -> list[int]:
    """The position of what is placed on each of these nodes."""
    table = state.allocations
    rows = origin_rows(state, request).tolist()
    by_node: dict[int, list[int]] = {}
    for position in order:
        row = rows[position]
        if row >= 0 and row in table.predecessors.rooms:
            by_node.setdefault(int(table.node[row]), []).append(position)
    chosen = [-1] * len(nodes)
    taken: set[int] = set()
    for at, node in enumerate(nodes):
        own = by_node.get(node)
        if own:
            chosen[at] = own.pop(0)
            taken.add(chosen[at])
    rest = [position for position in order if position not in taken]
    rest += list(range(len(order), request.count))
    left = iter(rest)
    return [next(left) if position < 0 else position for position in chosen]


def waits_for_own(state: State, request: PlacementRequest, mask: Mask) -> int:
    """How many of a request have room once what they replace has ended; tied rows, which run on, are not counted."""
    table, ready = state.allocations, state.fleet.ready()
    rows = request.origins[~TERMINAL[table.client[request.origins]]]
    rows = rows[~np.isin(rows, request.tied) & (table.desired[rows] != EVICT)]
    nodes = table.node[rows]
    open_ = mask[nodes] & ready[nodes]
    asks = table.groups.ask[table.group[rows]]
    group = request.group
    need = np.array([group.cpu_mhz, group.memory_mib, group.disk_mib])
    return int((open_ & (asks >= need).all(axis=1)).sum())


def own_wait(count: int) -> Waiting:
    """Say what it waits for."""
    text = f"{count} of its own allocations are to end first; their room is kept for it"
    return Waiting(count=count, wait_class=WAITS_FOR_OWN, reasons=(text,))


def rooms_to_give_up(
    state: State,
    job: Job,
    placements: Sequence[GroupPlacement],
    stops: Sequence[Stops],
    *,
    keeping: Sequence[str] = (),
) -> tuple[Stops, ...]:
    """Give kept rooms up that no replacement took, where nothing of the group is still to end.

    Groups in `keeping` have replacements whose turn has not come.
    """
    table = state.allocations
    rows = rooms_of(state, job)
    if not len(rows):
        return ()
    followed = [key for one in placements for key in one.previous]
    named = [row for one in stops for row in one.rows]
    left = rows[~np.isin(table.key[rows], followed) & ~np.isin(rows, named)]
    mine = table.rows_of(job.id)
    ending = mine[table.predecessors.holds(table.key[mine]) & ~TERMINAL[table.client[mine]]]
    ending = ending[table.desired[ending] == STOP]
    names = [table.groups.names[ref] for ref in table.group[ending].tolist()]
    names += keeping
    kept = [row for row in left.tolist() if table.groups.names[table.group[row]] not in names]
    if not kept:
        return ()
    reason = "its replacement does not find room where it was"
    return (Stops(rows=tuple(kept), reason=reason, to_replace=True),)


def rooms_of(state: State, job: Job) -> Rows:
    """Rows of a job whose room is kept."""
    table = state.allocations
    if not table.predecessors.rooms:
        return np.empty(0, dtype=np.int32)
    rows = table.rows_of(job.id)
    found: Rows = rows[table.predecessors.has_room(rows)]
    return found
