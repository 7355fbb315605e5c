"""Which slots and ports one allocation gets on its node.

Decides among what is free, always the same way: a part goes to the fullest slot that has room for it, whole ones to
the lowest empty slots, all of one ask to slots of one model, and with `strict` grouping of one group; `compact` takes
as few groups as it can, `scatter` as many. Ports are drawn by the counter hash of the seed, the next free one is
taken. The node is chosen before (headroom.py and scheduling/selection/); next: headroom.py.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from schemas.jobs import ResourceAsk
from shared.core.resources.asks import (
    OF_CLUSTER,
    OF_NODE,
    WHOLE,
    ExtraAsks,
    Holding,
    slot_parts,
    slots_of,
)
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import CLUSTER_WIDE, INDEXED, SUM, OfferedResources
from shared.core.splitmix import splitmix64

#: model code -> how much an ask likes it.
ModelAffinities = Mapping[int, int]


#: Steps (greedy_coupled.py) of one assignment, plus one for each port: for any free slots, and for the best slots.
_STEPS_PLAIN: Final = 4
_STEPS_EACH: Final = 15


def steps_of(extras: ExtraAsks, variant: int) -> int:
    """What it costs to give one allocation its slots and ports, in steps."""
    asks = extras.alternatives[variant]
    plain = all(not (one.amount % WHOLE or one.grouping or one.affinities) for one in asks)
    return (_STEPS_PLAIN if plain else _STEPS_EACH) + extras.dynamic_ports


class FreeSlot(NamedTuple):
    """One slot that an ask may have."""

    number: int
    free: int
    #: slots of one key may be taken together.
    key: int
    group: int
    model: int


def choose_slots(
    ask: ResourceAsk, slots: Sequence[FreeSlot], likes: ModelAffinities | None = None
) -> list[int] | None:
    """Choose the slots of one ask, a part of one last; None: it does not fit."""
    whole, part = divmod(ask.amount, WHOLE)
    likes = likes or {}
    if not whole:
        fitting = [(-likes.get(s.model, 0), s.free, s.number) for s in slots if s.free >= part]
        return [min(fitting)[2]] if fitting else None
    best: tuple[tuple[int, int, int], list[int]] | None = None
    for key in sorted({slot.key for slot in slots}):
        some = [slot for slot in slots if slot.key == key]
        empty = [slot for slot in some if slot.free == WHOLE]
        partly = [slot for slot in some if part and part <= slot.free < WHOLE]
        if len(empty) < whole + (1 if part and not partly else 0):
            continue
        # Fewest empty ones first: what is large stays whole.
        rank = (-likes.get(some[0].model, 0), len(empty), key)
        if best is None or rank < best[0]:
            best = (rank, _of_key(ask, empty, partly, whole, part=part))
    return best[1] if best else None


def _of_key(
    ask: ResourceAsk,
    empty: Sequence[FreeSlot],
    partly: Sequence[FreeSlot],
    whole: int,
    *,
    part: int,
) -> list[int]:
    order = _ordered(empty, ask.grouping, whole)
    taken = [slot.number for slot in order[:whole]]
    if part:
        if partly:
            taken.append(min(partly, key=lambda slot: (slot.free, slot.number)).number)
        else:
            taken.append(order[whole].number)
    return taken


def _ordered(empty: Sequence[FreeSlot], grouping: str, whole: int) -> list[FreeSlot]:
    """Bring empty slots into the order in which they are taken."""
    if grouping not in {"compact", "scatter"}:
        return sorted(empty, key=lambda slot: slot.number)
    groups: dict[int, list[FreeSlot]] = {}
    for slot in sorted(empty, key=lambda slot: slot.number):
        groups.setdefault(slot.group, []).append(slot)
    if grouping == "compact":
        # The smallest group that is enough, else the largest ones.
        by_size = sorted(groups, key=lambda g: (len(groups[g]) < whole, len(groups[g]), g))
        if len(groups[by_size[0]]) < whole:
            by_size = sorted(groups, key=lambda g: (-len(groups[g]), g))
        return [slot for group in by_size for slot in groups[group]]
    turns = [(nth, -len(of), g, slot) for g, of in groups.items() for nth, slot in enumerate(of)]
    return [slot for *_, slot in sorted(turns)]


class ResourceAssigner:
    """Assigns on what `held` shows as free, and writes nothing into it: `Held.add` what is kept."""

    def __init__(self, offers: OfferedResources, held: HeldResources, seed: int = 0) -> None:
        self._offers = offers
        self.held = held
        self._seed = seed
        #: by identity of an ask: itself, the kind of its pool, and which models it accepts.
        self._known: list[tuple[ResourceAsk, str, list[bool]]] = []

    def assign(
        self,
        row: int,
        extras: ExtraAsks,
        variant: int,
        *,
        nth: int = 0,
        likes: Sequence[ModelAffinities] = (),
        forced: Mapping[int, Sequence[int]] | None = None,
    ) -> Holding | None:
        """Give one allocation its slots and ports on a row; None: it has no room for them.

        `nth`: which allocation of its kind it is, so that ports differ. `likes`: for each ask of the variant, what it
        thinks of models. `forced`: slots of some asks (by their number), which are free.
        """
        ports = self._ports(row, extras, nth)
        if ports is None:
            return None
        parts = self._parts(row, extras.alternatives[variant], likes, forced or {})
        if parts is None:
            return None
        return Holding(parts, extras.static_ports, ports, variant)

    def is_sound(self, row: int, extras: ExtraAsks, holding: Holding) -> bool:
        """Tell whether a choice is one that `assign` could have made, and all of it is free on the row."""
        first, last = int(self._offers.port_min[row]), int(self._offers.port_max[row])
        if any(not first <= port <= last for port in holding.ports):
            return False
        ports = (*holding.static_ports, *holding.ports)
        if len(set(ports)) != len(ports) or any(self._is_barred(row, port) for port in ports):
            return False
        parts = list(holding.parts)
        for ask in extras.alternatives[holding.variant]:
            count = 1 if parts[0][1] < 0 else slots_of(ask.amount)
            if not self._is_suitable(row, ask, parts[:count]):
                return False
            parts = parts[count:]
        wanted: dict[tuple[str, int], int] = {}
        for name, slot, amount in holding.parts:
            wanted[name, slot] = wanted.get((name, slot), 0) + amount
        return all(self._free(row, name, slot) >= amount for (name, slot), amount in wanted.items())

    def _is_suitable(
        self, row: int, ask: ResourceAsk, parts: Sequence[tuple[str, int, int]]
    ) -> bool:
        """Tell whether an ask may have these parts, were they free."""
        _, kind, accepted = self._look_up(ask)
        if kind != INDEXED:
            slot = {SUM: OF_NODE, CLUSTER_WIDE: OF_CLUSTER}.get(kind)
            return slot is not None and [slot] == [part[1] for part in parts]
        pool = self._offers.slots[ask.pool]
        slots = [slot for _, slot, _ in parts]
        if row >= len(pool.present) or not all(0 <= s < pool.present.shape[1] for s in slots):
            return False
        keys = pool.cell if ask.grouping == "strict" else pool.part
        return (
            len(set(slots)) == len(slots)
            and all(accepted[pool.model[row, slot]] for slot in slots)
            and len({int(keys[row, slot]) for slot in slots}) == 1
        )

    def slots(self, row: int, ask: ResourceAsk) -> list[FreeSlot]:
        """The slots of a row that an ask may have and that are not full."""
        pool = self._offers.slots.get(ask.pool)
        if pool is None or row >= len(pool.present):
            return []
        _, _, accepted = self._look_up(ask)
        present, models = pool.present[row].tolist(), pool.model[row].tolist()
        keys = (pool.cell if ask.grouping == "strict" else pool.part)[row].tolist()
        groups = pool.group[row].tolist()
        held = self.held.slots_on(row, ask.pool, len(present))
        return [
            FreeSlot(number, there - held[number], keys[number], groups[number], models[number])
            for number, there in enumerate(present)
            if there > held[number] and accepted[models[number]]
        ]

    def _look_up(self, ask: ResourceAsk) -> tuple[ResourceAsk, str, list[bool]]:
        # A handful of asks, the same ones again and again: comparing by identity costs less than a hash.
        for known in self._known:
            if known[0] is ask:
                return known
        kind = self._offers.cached_kind(ask.pool)
        self._known.append((ask, kind, self._offers.matches(ask).tolist()))
        return self._known[-1]

    def _lowest(
        self, row: int, ask: ResourceAsk, taken: Mapping[tuple[str, int], int]
    ) -> list[int]:
        """The lowest empty slots of a row, as many as are asked for or fewer: what `choose_slots` would choose."""
        pool = self._offers.slots[ask.pool]
        if row >= len(pool.present):
            return []
        _, _, accepted = self._look_up(ask)
        present, models = pool.present[row].tolist(), pool.model[row].tolist()
        held = self.held.slots_on(row, ask.pool, len(present))
        whole, found = ask.amount // WHOLE, list[int]()
        for slot, there in enumerate(present):
            is_empty = there == WHOLE and not held[slot] and (ask.pool, slot) not in taken
            if is_empty and accepted[models[slot]]:
                found.append(slot)
                if len(found) == whole:
                    break
        return found

    def _is_plain(self, ask: ResourceAsk, likes: Sequence[ModelAffinities]) -> bool:
        """Tell whether whole slots are taken from below, regardless of their group."""
        plain = not ask.amount % WHOLE and not ask.grouping and not likes
        return plain and self._offers.slots[ask.pool].parts == 1

    def _free(self, row: int, name: str, slot: int) -> int:
        if slot == OF_CLUSTER:
            return self._offers.cluster.get(name, 0) - self.held.of_cluster(name)
        if slot == OF_NODE:
            column = self._offers.sums.get(name)
            there = int(column[row]) if column is not None and row < len(column) else 0
            return there - self.held.sum_on(row, name)
        pool = self._offers.slots.get(name)
        if pool is None or row >= len(pool.present) or slot >= pool.present.shape[1]:
            return 0
        return int(pool.present[row, slot]) - self.held.slots_on(row, name, slot + 1)[slot]

    def _parts(
        self,
        row: int,
        asks: Sequence[ResourceAsk],
        likes: Sequence[ModelAffinities],
        forced: Mapping[int, Sequence[int]],
    ) -> tuple[tuple[str, int, int], ...] | None:
        parts: list[tuple[str, int, int]] = []
        taken: dict[tuple[str, int], int] = {}
        for nth, ask in enumerate(asks):
            _, kind, _ = self._look_up(ask)
            some: list[tuple[str, int, int]]
            if nth in forced:
                some = slot_parts(ask, forced[nth])
            elif kind == INDEXED and self._is_plain(ask, likes):
                lowest = self._lowest(row, ask, taken)
                if len(lowest) < ask.amount // WHOLE:
                    return None
                some = slot_parts(ask, lowest)
            elif kind == INDEXED:
                slots = [
                    slot._replace(free=slot.free - taken.get((ask.pool, slot.number), 0))
                    for slot in self.slots(row, ask)
                ]
                chosen = choose_slots(ask, slots, likes[nth] if likes else None)
                if chosen is None:
                    return None
                some = slot_parts(ask, chosen)
            elif kind in {SUM, CLUSTER_WIDE}:
                slot = OF_NODE if kind == SUM else OF_CLUSTER
                if self._free(row, ask.pool, slot) - taken.get((ask.pool, slot), 0) < ask.amount:
                    return None
                some = [(ask.pool, slot, ask.amount)]
            else:
                return None
            for name, slot, amount in some:
                taken[name, slot] = taken.get((name, slot), 0) + amount
            parts += some
        return tuple(parts)

    def _is_barred(self, row: int, port: int) -> bool:
        return row in self._offers.reserved.get(port, ()) or self.held.ports.is_held(row, port)

    def _ports(self, row: int, extras: ExtraAsks, nth: int) -> tuple[int, ...] | None:
        if any(self._is_barred(row, port) for port in extras.static_ports):
            return None
        found: list[int] = []
        if not extras.dynamic_ports:
            return ()
        first, last = int(self._offers.port_min[row]), int(self._offers.port_max[row])
        width = last - first + 1
        if width <= 0:
            return None
        drawn = self._seed ^ (row << 40) ^ (nth << 8)
        barred = set(extras.static_ports)
        for turn in range(extras.dynamic_ports):
            start = splitmix64(drawn + turn) % width
            for step in range(width):
                port = first + (start + step) % width
                if port not in barred and not self._is_barred(row, port):
                    break
            else:
                return None
            barred.add(port)
            found.append(port)
        return tuple(found)
