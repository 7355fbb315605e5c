"""Fit: what of a plan's placements the latest state has room for.

Decides node by node, in the order of the plan; nothing gets more than there is. What holds slots and ports keeps those
that the worker chose where they are still free, gets others of the same node where they are not, and is cut where
there are none. Fences: `verify.py`; victims: `evictions.py`.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.plans import GroupPlacement, SubmitPlan
from shared.core.columns import Int64s, Rows
from shared.core.resources.asks import CORES, WHOLE, ExtraAsks, Holding, columns_of, holdings_of
from shared.core.resources.assign import ResourceAssigner
from shared.core.resources.held import HeldResources
from shared.core.scheduling.placement_columns import subset_placement
from shared.core.state.state import State

Split = tuple[GroupPlacement, GroupPlacement]


class Fitted(msgspec.Struct, frozen=True):
    """What is placed, and what is not; `asked`: what the worker had chosen, where slots or ports are others now."""

    kept: tuple[GroupPlacement, ...] = ()
    cut: tuple[GroupPlacement, ...] = ()
    asked: tuple[GroupPlacement, ...] = ()


def fit(state: State, plan: SubmitPlan, victims: Rows) -> Fitted:
    """Split placements into what fits the latest state without the victims, and what does not."""
    if not plan.placements:
        return Fitted()
    table = state.allocations
    groups = table.groups
    refs = [groups.ref(plan.job_id, one.version, one.group) for one in plan.placements]
    for ref in refs:
        if groups.extras[ref] is not None:
            return _fit_extras(state, plan, victims, refs)
    fleet = state.fleet
    size = fleet.size
    used = table.used(size)
    first = plan.placements[0]
    has_cores = table.held.has_cores
    if len(refs) == len(first.rows) == 1 and not (has_cores or len(victims)):
        # What a small job is: one run on one node.
        row = first.rows[0]
        is_open = fleet.is_open(row, plan.origin.snapshot_seq)
        if is_open and _has_room(
            used[row], fleet.capacity[row], first.counts[0], groups.ask[refs[0]]
        ):
            return Fitted(plan.placements)
    if has_cores or len(victims):
        used = used + fleet.core_correction(_without(state, victims))
        np.subtract.at(used, table.node[victims], groups.ask[table.group[victims]])
    usable = fleet.ready() & (fleet.row_seq[:size] <= plan.origin.snapshot_seq)
    touched, asked = _asked(state, plan)
    over = used[touched] + asked > fleet.capacity[touched]
    if not over.any() and usable[touched].all():
        return Fitted(plan.placements)
    room = np.where(usable[:, None], fleet.capacity[:size] - used, -1)
    return _fitted(
        _split(placement, groups.ask[ref], room)
        for placement, ref in zip(plan.placements, refs, strict=True)
    )


def _has_room(used: Int64s, capacity: Int64s, count: int, ask: Int64s) -> bool:
    """Tell whether one node has room for so many. Shapes: (3,). As numbers: there are but three."""
    cpu, memory, disk = used.tolist()
    cpu_max, memory_max, disk_max = capacity.tolist()
    cpu_mhz, memory_mib, disk_mib = ask.tolist()
    has_cpu = cpu + count * cpu_mhz <= cpu_max
    return bool(
        has_cpu
        and memory + count * memory_mib <= memory_max
        and disk + count * disk_mib <= disk_max
    )


def _fitted(pairs: Iterable[Split], asked: tuple[GroupPlacement, ...] = ()) -> Fitted:
    done = list(pairs)
    return Fitted(
        tuple(kept for kept, _ in done if kept.rows),
        tuple(cut for _, cut in done if cut.rows),
        asked,
    )


def _without(state: State, victims: Rows) -> HeldResources:
    """What is held when the victims are removed; their three columns are still in it."""
    held = state.allocations.held
    if not len(victims):
        return held
    held = held.copy(state.fleet.size)
    for row in victims.tolist():
        node, _, holding = state.allocations.held_by(row)
        held.remove(node, None, holding)
    return held


def _asked(state: State, plan: SubmitPlan) -> tuple[NDArray[np.intp], Int64s]:
    """Rows that a plan names and what it asks of each. Shapes: (R,) ascending, (R, 3)."""
    groups = state.allocations.groups
    rows, amounts = [], []
    for placement in plan.placements:
        ask = groups.ask[groups.ref(plan.job_id, placement.version, placement.group)]
        rows.append(np.asarray(placement.rows, dtype=np.intp))
        amounts.append(np.asarray(placement.counts, dtype=np.int64)[:, None] * ask)
    touched, where = np.unique(np.concatenate(rows), return_inverse=True)
    asked = np.zeros((len(touched), 3), dtype=np.int64)
    amount = np.concatenate(amounts)
    for at in range(asked.shape[1]):
        np.add.at(asked[:, at], where, amount[:, at])
    return touched, asked


def _split(placement: GroupPlacement, ask: Int64s, room: Int64s) -> Split:
    """Take runs in order as long as their node has room; `room` shrinks by what is taken."""
    fits: list[bool] = []
    for row, count in zip(placement.rows, placement.counts, strict=True):
        left = room[row]
        if (left < 0).any():
            taken = 0
        else:
            bounds = [int(have // need) for have, need in zip(left, ask, strict=True) if need]
            taken = min([count, *bounds])
        room[row] = left - taken * ask
        fits.extend([True] * taken + [False] * (count - taken))
    mask = np.asarray(fits, dtype=bool)
    return subset_placement(placement, mask), subset_placement(placement, ~mask)


# ---- slots and ports ----


def _fit_extras(state: State, plan: SubmitPlan, victims: Rows, refs: Sequence[int]) -> Fitted:
    fleet, groups = state.fleet, state.allocations.groups
    size = fleet.size
    held = state.allocations.held.copy(size)
    for row in victims.tolist():
        held.remove(*state.allocations.held_by(row))
    usable = fleet.ready() & (fleet.row_seq[:size] <= plan.origin.snapshot_seq)
    used = held.used + fleet.core_correction(held)
    room = np.where(usable[:, None], fleet.capacity[:size] - used, -1)
    assigner = ResourceAssigner(fleet.offers, held, plan.origin.seed)
    done: list[Split] = []
    is_other = False
    for placement, ref in zip(plan.placements, refs, strict=True):
        extras = groups.extras[ref]
        if extras is None:
            done.append(_split(placement, groups.ask[ref], room))
            continue
        given = _give(state, placement, groups.ask[ref], extras, assigner=assigner, room=room)
        mask = np.array([one is not None for one in given], dtype=bool)
        kept, cut = subset_placement(placement, mask), subset_placement(placement, ~mask)
        ports, instances = columns_of([one for one in given if one is not None])
        if (kept.ports, kept.instances) != (ports, instances):
            is_other = True
            kept = msgspec.structs.replace(kept, ports=ports, instances=instances)
        done.append((kept, cut))
    return _fitted(done, plan.placements if is_other else ())


def _give(
    state: State,
    placement: GroupPlacement,
    ask: Int64s,
    extras: ExtraAsks,
    *,
    assigner: ResourceAssigner,
    room: Int64s,
) -> list[Holding | None]:
    """Give each allocation what it holds, as chosen or else anew; None: its node has no room. `room` shrinks."""
    core_mhz = state.fleet.offers.core_mhz
    cores = sum(one.amount for one in extras.alternatives[placement.variant] if one.pool == CORES)
    given: list[Holding | None] = []
    nodes = np.repeat(placement.rows, placement.counts).tolist()
    for nth, (node, chosen) in enumerate(zip(nodes, holdings_of(extras, placement), strict=True)):
        takes = ask + np.array((cores // WHOLE * int(core_mhz[node]), 0, 0), dtype=np.int64)
        holding: Holding | None = None
        if (room[node] >= takes).all() and (not cores or core_mhz[node]):
            if assigner.is_sound(node, extras, chosen):
                holding = chosen
            else:
                holding = assigner.assign(node, extras, placement.variant, nth=nth)
        if holding is not None:
            room[node] -= takes
            assigner.held.add(node, None, holding)
        given.append(holding)
    return given
