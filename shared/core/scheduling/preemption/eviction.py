"""Eviction: what a request finds on every node after evictions, and how these change the plan's held resources.

Room in the three columns is computed as vectors; room in pools, ports and cores is tried one node at a time.
search.py and victim_sets.py choose the victims. Cluster-wide pools count as freed only by victims on the same node.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Int64s, Mask, Rows
from shared.core.resources.asks import CORES, WHOLE, ExtraAsks, Holding
from shared.core.resources.assign import ResourceAssigner
from shared.core.resources.headroom import HeadroomQuery, headroom_of
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import column_of_size
from shared.core.scheduling.preemption.search import PreemptionInput, PreemptionSearch
from shared.core.scheduling.selection.candidates import Placement
from shared.core.state.state import State
from shared.core.state.tables.allocations import EVICT
from shared.core.state.tables.jobs import Job


class EvictionContext(msgspec.Struct, frozen=True, eq=False):
    """The resources of a plan under way. `held` is read at every call, because the plan changes it."""

    state: State
    #: (N, 3).
    capacity: Int64s
    held: HeldResources

    def evict(self, rows: Sequence[int]) -> None:
        """Release what allocations hold."""
        for row in rows:
            self.held.remove(*self.state.allocations.held_by(row))

    def free_on(self, node: int) -> Int64s:
        """Free amounts of the three columns on one node, reserved cores subtracted. Shape: (3,)."""
        free: Int64s = self.capacity[node] - self.held.used[node]
        free[0] -= self.held.cores(node + 1)[node] * self.core_mhz(node)
        return free

    def core_mhz(self, node: int) -> int:
        """MHz that one reserved core of a node takes."""
        return int(column_of_size(self.state.fleet.offers.core_mhz, node + 1)[node])


class EvictionAsk(msgspec.Struct, frozen=True, eq=False):
    """The ask of one allocation, by one of its alternatives. Shape: columns (3,)."""

    columns: Int64s
    extras: ExtraAsks | None
    variant: int

    @property
    def cores(self) -> int:
        """How many cores it reserves."""
        asks = () if self.extras is None else self.extras.alternatives[self.variant]
        return sum(ask.amount for ask in asks if ask.pool == CORES) // WHOLE


class EvictionRules(msgspec.Struct, frozen=True, eq=False):
    """Rules and callbacks of the request.

    `open` (N,): nodes that may be used; `limit`: how many more one takes; `note` receives each placement; `assign`
    assigns slots and ports to a placement, and holds them.
    """

    open: Mask
    limit: Callable[[int], int]
    note: Callable[[int, int], None]
    assign: Callable[[Placement, ExtraAsks, int], tuple[Holding, ...]]


class EvictionPlacement(msgspec.Struct, frozen=True, eq=False):
    """A placement, and what each of its allocations holds."""

    placement: Placement
    holdings: tuple[Holding, ...]


class Evictor:
    """Makes room for one plan."""

    def __init__(self, ground: EvictionContext, job: Job, evicted: Rows) -> None:
        self._ground = ground
        self._preemption = PreemptionSearch(ground.state, job, evicted)

    @property
    def victims(self) -> Sequence[int]:
        """Allocation rows to evict, in the order of choice."""
        return self._preemption.victims

    @property
    def is_over_budget(self) -> bool:
        """Tell whether another plan should continue."""
        return self._preemption.is_over_budget

    def place(self, ask: EvictionAsk, count: int, rules: EvictionRules) -> EvictionPlacement | None:
        """Evict and place, node by node, until no eviction helps; None: nothing was placed."""
        ground = self._ground
        rows, counts, holdings = list[int](), list[int](), list[Holding]()
        room = preemption_input(ground, ask, rules)
        for chosen in self._preemption.place(room, count):
            node = chosen.node
            ground.evict(chosen.victims)
            here = Placement(
                np.array((node,), np.int32), np.array((chosen.count,), np.int32), chosen.count
            )
            ground.held.add_columns(here.rows, ask.columns[None, :] * chosen.count)
            if ask.extras is not None:
                holdings += rules.assign(here, ask.extras, ask.variant)
            room.free[node] = ground.free_on(node)
            room.free[node, 0] -= ask.cores * ground.core_mhz(node)
            rules.note(node, chosen.count)
            rows.append(node)
            counts.append(chosen.count)
        if not rows:
            return None
        made = Placement(np.asarray(rows, np.int32), np.asarray(counts, np.int32), sum(counts))
        return EvictionPlacement(made, tuple(holdings))


def unreplaced_eviction_nodes(state: State, job: Job, group: GroupSpec) -> Mask:
    """Nodes where an evicted allocation of a group is not replaced yet. Shape: (N,)."""
    table = state.allocations
    rows = table.rows_of(job.id)
    followed = {table.previous.get(row, 0) for row in rows.tolist()}
    found = np.zeros(state.fleet.size, dtype=bool)
    for row in rows[table.desired[rows] == EVICT].tolist():
        if table.groups.names[table.group[row]] == group.name:
            found[table.node[row]] |= int(table.key[row]) not in followed
    return found


def preemption_input(
    ground: EvictionContext, ask: EvictionAsk, rules: EvictionRules
) -> PreemptionInput:
    """Collect what a request finds, pools, ports and cores included."""
    columns: tuple[int, ...] = tuple(ask.columns.tolist())
    free = _free(ground)
    if ask.extras is None:
        return PreemptionInput(ask=columns, free=free, open=rules.open, limit=rules.limit)
    extras, held, table = ask.extras, ground.held, ground.state.allocations
    matters = _frees_asked_resources(ground.state, ask, extras)
    assigner = ResourceAssigner(ground.state.fleet.offers, held)

    def enough(node: int, rows: Sequence[int]) -> bool:
        gone = [table.held_by(row) for row in rows]
        for one in gone:
            held.remove(*one)
        fits = assigner.assign(node, extras, ask.variant) is not None
        for one in gone:
            held.add(*one)
        return fits

    def kind(row: int) -> object:
        return row if matters(row) else None

    cores = ask.cores * column_of_size(ground.state.fleet.offers.core_mhz, len(rules.open))
    free[:, 0] -= cores
    return PreemptionInput(
        ask=columns,
        free=free,
        open=rules.open
        & _could_fit_after_eviction(ground, ask, extras, matters=matters, cores=cores),
        limit=rules.limit,
        enough=enough,
        kind=kind,
    )


def _could_fit_after_eviction(
    ground: EvictionContext,
    ask: EvictionAsk,
    extras: ExtraAsks,
    *,
    matters: Callable[[int], bool],
    cores: Int64s,
) -> Mask:
    """Nodes that offer every pool and port, free or held by allocations that may be evicted. Shape: (N,)."""
    offers, size = ground.state.fleet.offers, len(cores)
    # The search itself checks the columns.
    plenty = ground.capacity[:, 0] + cores + ask.columns[0]
    need = HeadroomQuery(
        extras, ask.variant, np.ones(size, dtype=bool), plenty, int(ask.columns[0]), 1
    )
    empty, now = headroom_of(offers, HeldResources(), need), headroom_of(offers, ground.held, need)
    if empty is None or now is None:
        return need.mask
    return (empty > 0) & ((now > 0) | _has_holders(ground.state, matters, size))


def _free(ground: EvictionContext) -> Int64s:
    free: Int64s = ground.capacity - ground.held.used
    if ground.held.has_cores:
        free = free - ground.state.fleet.core_correction(ground.held)
    return free


def _frees_asked_resources(
    state: State, ask: EvictionAsk, extras: ExtraAsks
) -> Callable[[int], bool]:
    """Tell whether the end of an allocation row frees a pool or a port of the ask."""
    holdings = state.allocations.holdings
    pools = {ask.pool for ask in extras.alternatives[ask.variant]}
    ports = set(extras.static_ports)

    def matters(row: int) -> bool:
        holding: Holding | None = holdings.get(row)
        if holding is None:
            return False
        if ports and not ports.isdisjoint((*holding.static_ports, *holding.ports)):
            return True
        if extras.dynamic_ports and (holding.ports or holding.static_ports):
            return True
        return any(name in pools for name, _, _ in holding.parts)

    return matters


def _has_holders(state: State, matters: Callable[[int], bool], size: int) -> Mask:
    """Nodes with an allocation whose end could help."""
    table = state.allocations
    rows = [row for row in sorted(table.holdings) if matters(row)]
    nodes: NDArray[np.int32] = table.node[np.asarray(rows, dtype=np.intp)]
    found = np.zeros(size, dtype=bool)
    found[nodes[nodes < size]] = True
    return found
