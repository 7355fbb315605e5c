"""Evicting: what a want finds on every node once others have gone, and what becomes of the plan's own account then.

Decides room: of the three columns as vectors, of pools, ports and cores by trying on one node at a time. Must not
know who is cheaper (preempt.py, victims.py), nor how a plan is written (scratch.py). What belongs to the cluster as a
whole counts as freed only by those who leave the very node.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Rows
from shared.core.heads import Mask, Placement
from shared.core.preempt import Preemption, Room
from shared.core.resources.asks import CORES, WHOLE, Extras, Holding
from shared.core.resources.assign import Assigner
from shared.core.resources.held import Held
from shared.core.resources.offers import sized
from shared.core.resources.rooms import Need, room_of
from shared.core.scores import Int64s
from shared.core.state import State
from shared.core.tables.allocations import EVICT
from shared.core.tables.jobs import Job


class Ground(msgspec.Struct, frozen=True, eq=False):
    """What a plan under way stands on. `held` is read again at every question: its owner changes it."""

    state: State
    #: (N, 3).
    capacity: Int64s
    held: Held

    def evict(self, rows: Sequence[int]) -> None:
        """Let allocations go."""
        for row in rows:
            self.held.remove(*self.state.allocations.held_by(row))

    def free_on(self, node: int) -> Int64s:
        """What one node has left of the three columns, reserved cores' MHz subtracted. Shape: (3,)."""
        free: Int64s = self.capacity[node] - self.held.used[node]
        free[0] -= self.held.cores(node + 1)[node] * self.core_mhz(node)
        return free

    def core_mhz(self, node: int) -> int:
        """MHz that one reserved core of a node takes."""
        return int(sized(self.state.fleet.offers.core_mhz, node + 1)[node])


class Ask(msgspec.Struct, frozen=True, eq=False):
    """What one allocation asks for, by one of its alternatives. Shape: columns (3,)."""

    columns: Int64s
    extras: Extras | None
    variant: int

    @property
    def cores(self) -> int:
        """How many cores it reserves."""
        asks = () if self.extras is None else self.extras.alternatives[self.variant]
        return sum(ask.amount for ask in asks if ask.pool == CORES) // WHOLE


class Rules(msgspec.Struct, frozen=True, eq=False):
    """What else is said of nodes, by whom the plan belongs to.

    `open` (N,): nodes that may be used; `limit`: how many more one may take; `note` hears what lands where; `assign`
    gives slots and ports to a placement, and holds them.
    """

    open: Mask
    limit: Callable[[int], int]
    note: Callable[[int, int], None]
    assign: Callable[[Placement, Extras, int], tuple[Holding, ...]]


class Made(msgspec.Struct, frozen=True, eq=False):
    """Where allocations went, and what each of them holds."""

    placement: Placement
    holdings: tuple[Holding, ...]


class Evictor:
    """Makes room for one plan."""

    def __init__(self, ground: Ground, job: Job, evicted: Rows) -> None:
        self._ground = ground
        self._preemption = Preemption(ground.state, job, evicted)

    @property
    def victims(self) -> Sequence[int]:
        """Allocation rows that go, in the order in which they were chosen."""
        return self._preemption.victims

    @property
    def is_tired(self) -> bool:
        """Tell whether another plan should go on."""
        return self._preemption.is_tired

    def place(self, ask: Ask, count: int, rules: Rules) -> Made | None:
        """Evict and place, node by node, until nobody's end would help; None: nothing was placed."""
        ground = self._ground
        rows, counts, holdings = list[int](), list[int](), list[Holding]()
        room = room_for(ground, ask, rules)
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
        return Made(made, tuple(holdings))


def robbed(state: State, job: Job, group: GroupSpec) -> Mask:
    """Nodes on which an allocation of a group was evicted and none came after it. Shape: (N,)."""
    table = state.allocations
    rows = table.rows_of(job.id)
    followed = {table.previous.get(row, 0) for row in rows.tolist()}
    found = np.zeros(state.fleet.size, dtype=bool)
    for row in rows[table.desired[rows] == EVICT].tolist():
        if table.groups.names[table.group[row]] == group.name:
            found[table.node[row]] |= int(table.key[row]) not in followed
    return found


def room_for(ground: Ground, ask: Ask, rules: Rules) -> Room:
    """Say what a want finds, pools, ports and cores included."""
    columns: tuple[int, ...] = tuple(ask.columns.tolist())
    free = _free(ground)
    if ask.extras is None:
        return Room(ask=columns, free=free, open=rules.open, limit=rules.limit)
    extras, held, table = ask.extras, ground.held, ground.state.allocations
    matters = _what_matters(ground.state, ask, extras)
    assigner = Assigner(ground.state.fleet.offers, held)

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

    cores = ask.cores * sized(ground.state.fleet.offers.core_mhz, len(rules.open))
    free[:, 0] -= cores
    return Room(
        ask=columns,
        free=free,
        open=rules.open & _may_help(ground, ask, extras, matters=matters, cores=cores),
        limit=rules.limit,
        enough=enough,
        kind=kind,
    )


def _may_help(
    ground: Ground, ask: Ask, extras: Extras, *, matters: Callable[[int], bool], cores: Int64s
) -> Mask:
    """Nodes that, empty, would have every pool and port, and have them or somebody who holds some. Shape: (N,)."""
    offers, size = ground.state.fleet.offers, len(cores)
    # The columns are looked at elsewhere.
    plenty = ground.capacity[:, 0] + cores + ask.columns[0]
    need = Need(extras, ask.variant, np.ones(size, dtype=bool), plenty, int(ask.columns[0]), 1)
    empty, now = room_of(offers, Held(), need), room_of(offers, ground.held, need)
    if empty is None or now is None:
        return need.mask
    return (empty > 0) & ((now > 0) | _has_holders(ground.state, matters, size))


def _free(ground: Ground) -> Int64s:
    free: Int64s = ground.capacity - ground.held.used
    if ground.held.has_cores:
        free = free - ground.state.fleet.core_correction(ground.held)
    return free


def _what_matters(state: State, ask: Ask, extras: Extras) -> Callable[[int], bool]:
    """Tell of an allocation row whether its end makes room in a pool or a port that is asked for."""
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
    """Nodes with anybody whose end could help."""
    table = state.allocations
    rows = [row for row in sorted(table.holdings) if matters(row)]
    nodes: NDArray[np.int32] = table.node[np.asarray(rows, dtype=np.intp)]
    found = np.zeros(size, dtype=bool)
    found[nodes[nodes < size]] = True
    return found
