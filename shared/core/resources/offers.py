"""What nodes and the cluster offer beside the three columns: sums, slots, ports, cores that can be reserved.

Decides the slot of each instance (its own for as long as the node lives, whether it is there or not) and what an ask
can choose from. Must not know what is held (held.py). The fleet table keeps one.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.base import NodeId
from schemas.jobs import Constraint, ResourceAsk
from schemas.nodes import Instance, NodeSpec, Pool
from shared.core.columns import Int64s, Mask, grown
from shared.core.resources.asks import PORT_MAX, WHOLE
from shared.core.resources.devices import DeviceModel, accepts, are_comparable

Slots = NDArray[np.int32]
SUM: Final = "sum"
INDEXED: Final = "indexed"
CLUSTER_WIDE: Final = "cluster-wide"
#: Above these an offer is nonsense.
NAME_MAX: Final = 160
AMOUNT_MAX: Final = 10**15
SLOTS_MAX: Final = 1_024
ATTRIBUTES_MAX: Final = 100
VALUE_MAX: Final = 500
CORE_MHZ_MAX: Final = 1_000_000
#: Masks of slots that are remembered.
_ELIGIBLE_MAX: Final = 64
#: States of nodes that are remembered.
_TRIED_MAX: Final = 100_000


class SlotPool:
    """The instances of one pool. Shapes: N rows, G slots; a slot that no instance has is not `present`."""

    def __init__(self) -> None:
        #: WHOLE, or 0 where there is no instance.
        self.present: Slots = np.zeros((0, 0), np.int32)
        #: index into Offers.models.
        self.model: Slots = np.zeros((0, 0), np.int32)
        self.group: Slots = np.zeros((0, 0), np.int32)
        #: number of the slot's model, and of its model and group, among those of its node.
        self.part: Slots = np.zeros((0, 0), np.int32)
        self.cell: Slots = np.zeros((0, 0), np.int32)
        #: numbers of `part` and `cell` go below these.
        self.parts = 1
        self.cells = 1
        #: (N,) present slots.
        self.count = np.zeros(0, np.int64)
        #: row -> instance ids by slot.
        self.ids: dict[int, list[str]] = {}

    def grow(self, rows: int, width: int) -> None:
        """Make room for rows and slots."""
        for name in ("present", "model", "group", "part", "cell"):
            setattr(self, name, grow_matrix(getattr(self, name), rows, width))
        self.count = grown(self.count, rows)


class OfferedResourcesView:
    """Offers of all rows. Arrays may be longer than the fleet, or shorter: read them by the methods."""

    def __init__(self) -> None:
        self.sums: dict[str, Int64s] = {}
        self.slots: dict[str, SlotPool] = {}
        #: of the cluster as a whole, in 1/10,000.
        self.cluster: dict[str, int] = {}
        self.models: list[DeviceModel] = []
        #: raised with every change: what was made of the offers before is void.
        self.generation = 0
        #: (N,) what a reserved core takes of a node's MHz.
        self.core_mhz = np.zeros(0, np.int64)
        #: (N,) first and last port that the cluster may pick, and how many between them are excluded.
        self.port_min = np.zeros(0, np.int64)
        self.port_max = np.zeros(0, np.int64)
        self.ports_barred = np.zeros(0, np.int64)
        #: port -> rows that reserve it for others.
        self.reserved: dict[int, set[int]] = {}
        #: rows whose ports are not what they were when the node joined: others may be held.
        self.moved: dict[int, None] = {}
        self._reserved_of: dict[int, tuple[int, ...]] = {}
        self._names_of: dict[int, tuple[str, ...]] = {}
        self._model_codes: dict[DeviceModel, int] = {}
        self._matches: dict[tuple[object, ...], Mask] = {}
        #: made of the offers as they were at `_made_at`.
        self._made_at = -1
        self._kinds: dict[str, str] = {}
        self._eligible: dict[tuple[object, ...], Mask] = {}
        self._tried: dict[tuple[ResourceAsk, ...], dict[bytes, int]] = {}

    def kind(self, name: str, *, beside: int = -1) -> str:
        """Say what a pool is by what is offered of it now, by other rows than `beside`; empty: nothing is."""
        if name in self.cluster:
            return CLUSTER_WIDE
        for kind, column in ((SUM, self.sums.get(name)), (INDEXED, self._count_of(name))):
            if column is not None and (np.flatnonzero(column) != beside).any():
                return kind
        return ""

    def tried(self, asks: Sequence[ResourceAsk]) -> dict[bytes, int]:
        """How often asks of one pool fit on a node, by its state: what was found out so far, to be added to."""
        if sum(len(one) for one in self._tried.values()) > _TRIED_MAX:
            self._tried = {}
        return self._tried.setdefault(tuple(asks), {})

    def conflict(self, row: int, pools: Sequence[Pool]) -> str:
        """Say which of the pools is of another kind elsewhere, or of two kinds here; empty: none."""
        kinds: dict[str, str] = {}
        for pool in pools:
            if not (pool.instances or pool.amount):
                continue
            kind = INDEXED if pool.instances else SUM
            known = kinds.setdefault(pool.name, self.kind(pool.name, beside=row) or kind)
            if known != kind:
                return f"{pool.name} is {known} on other nodes, but {kind} here"
        return ""

    def cached_kind(self, name: str) -> str:
        """Say the same of a pool as a whole, remembered until the next change."""
        self._forget()
        if name not in self._kinds:
            self._kinds[name] = self.kind(name)
        return self._kinds[name]

    def incomparable(self, pool: str, constraint: Constraint) -> str:
        """Say that a constraint compares what cannot be compared, with the first such model; empty: it does not."""
        for model in self.models:
            if model.pool == pool and not are_comparable(model, constraint):
                sides = (model.resolve(constraint.left), model.resolve(constraint.right))
                return f" (not comparable: {' and '.join(side.text for side in sides)})"
        return ""

    def eligible(self, ask: ResourceAsk, size: int) -> Mask:
        """Which slots an ask of an indexed pool may have, held or not. Shape: (size, G). Do not write to it."""
        self._forget()
        key = (size, ask.pool, ask.vendor, ask.model, ask.constraints)
        found = self._eligible.get(key)
        if found is None:
            pool = self.slots[ask.pool]
            pool.grow(size, pool.present.shape[1])
            found = self.matches(ask)[pool.model[:size]] & (pool.present[:size] > 0)
            if len(self._eligible) >= _ELIGIBLE_MAX:
                self._eligible = {}
            self._eligible[key] = found
        return found

    def _forget(self) -> None:
        if self._made_at != self.generation:
            self._made_at = self.generation
            self._kinds, self._eligible = {}, {}

    def is_offered(self, name: str) -> bool:
        """Tell whether any node or the cluster has anything of a pool."""
        return bool(self.cached_kind(name))

    def sum_of(self, name: str, size: int) -> Int64s:
        """What rows offer of a sum. Shape: (size,)."""
        return column_of_size(self.sums.get(name), size)

    def names_of(self, row: int) -> tuple[str, ...]:
        """Pools of a row, those included of which only absent slots are known; sorted."""
        return self._names_of.get(row, ())

    def instance_id(self, row: int, name: str, slot: int) -> str:
        """Name the instance that a slot is kept for; empty: none ever was."""
        ids = self.slots[name].ids.get(row, []) if name in self.slots else []
        return ids[slot] if 0 <= slot < len(ids) else ""

    def matches(self, ask: ResourceAsk) -> Mask:
        """Which models an ask accepts. Shape: (len(models),). Asked once of each model."""
        key = (ask.pool, ask.vendor, ask.model, ask.constraints)
        found = self._matches.get(key)
        if found is None or len(found) != len(self.models):
            found = np.array([accepts(ask, model) for model in self.models], np.bool_)
            self._matches[key] = found
        return found

    def ports_open(self, size: int) -> Int64s:
        """How many ports of its range a node may give away, were none held. Shape: (size,)."""
        first, last = column_of_size(self.port_min, size), column_of_size(self.port_max, size)
        free: Int64s = np.maximum(last - first + 1, 0) - column_of_size(self.ports_barred, size)
        return free

    def _count_of(self, name: str) -> Int64s | None:
        pool = self.slots.get(name)
        return None if pool is None else pool.count


class OfferedResources(OfferedResourcesView):
    """What is offered, and what changes it."""

    def set_row(self, row: int, spec: NodeSpec, declared: Iterable[Pool]) -> None:
        """Take over what a node says and what an operator declared of it."""
        self.generation += 1
        self._set_ports(row, spec)
        self.core_mhz = grown(self.core_mhz, row + 1)
        self.core_mhz[row] = spec.core_mhz
        self.set_pools(row, (*spec.pools, *declared))

    def set_pools(self, row: int, pools: Sequence[Pool]) -> None:
        """Replace a row's pools. What is of another kind elsewhere is not offered: deciding refused it."""
        self.generation += 1
        amounts: dict[str, int] = {}
        entries: dict[str, list[Pool]] = {}
        for pool in pools:
            kind = INDEXED if pool.instances else SUM
            if self.kind(pool.name, beside=row) not in {"", kind}:
                continue
            if pool.instances and pool.name not in amounts:
                entries.setdefault(pool.name, []).append(pool)
            elif pool.amount > 0 and pool.name not in entries:
                amounts[pool.name] = amounts.get(pool.name, 0) + pool.amount
        for name in self._names_of.get(row, ()):
            if name in self.sums and row < len(self.sums[name]):
                self.sums[name][row] = 0
            if name in self.slots:
                self._set_slots(row, name, entries.pop(name, []))
        for name, amount in amounts.items():
            column = self.sums.get(name, np.zeros(0, np.int64))
            self.sums[name] = column = grown(column, row + 1)
            column[row] = amount
        for name, some in entries.items():
            self._set_slots(row, name, some)
        known = [name for name, pool in self.slots.items() if row in pool.ids]
        self._names_of[row] = tuple(sorted({*amounts, *known}))
        if not self._names_of[row]:
            del self._names_of[row]

    def set_cluster(self, pool: Pool) -> None:
        """Replace what the cluster as a whole offers of a pool."""
        self.generation += 1
        self.cluster.pop(pool.name, None)
        if pool.amount > 0:
            self.cluster[pool.name] = pool.amount

    def clear_row(self, row: int) -> None:
        """Forget a node for good, its slots' ids, too."""
        self.set_row(row, NodeSpec(node_id=NodeId(""), port_min=0, port_max=-1), ())
        for name in self._names_of.pop(row, ()):
            del self.slots[name].ids[row]
        self.moved.pop(row, None)

    def row_hash(self, row: int) -> int:
        """Hash of what a row's history decides: which slot is kept for which id. 0: it has no slots."""
        found = [
            (name, self.slots[name].ids[row])
            for name in self.names_of(row)
            if row in self._ids(name)
        ]
        if not found:
            return 0
        digest = blake2b(repr(found).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def _ids(self, name: str) -> dict[int, list[str]]:
        return self.slots[name].ids if name in self.slots else {}

    def _set_slots(self, row: int, name: str, entries: Sequence[Pool]) -> None:
        pool = self.slots.setdefault(name, SlotPool())
        ids = pool.ids.setdefault(row, [])
        slot_of = {one: slot for slot, one in enumerate(ids)}
        found: dict[int, tuple[int, Instance]] = {}
        for entry in entries:
            model = self._model(entry)
            for instance in entry.instances:
                slot = slot_of.setdefault(instance.id, len(ids))
                if slot == len(ids):
                    ids.append(instance.id)
                found.setdefault(slot, (model, instance))
        pool.grow(row + 1, len(ids))
        pool.present[row] = 0
        pool.count[row] = sum(not one.unhealthy for _, one in found.values())
        parts: dict[int, int] = {}
        cells: dict[tuple[int, int], int] = {}
        for slot, (model, instance) in sorted(found.items()):
            pool.model[row, slot] = model
            pool.group[row, slot] = instance.group
            if instance.unhealthy:
                continue
            pool.present[row, slot] = WHOLE
            pool.part[row, slot] = parts.setdefault(model, len(parts))
            pool.cell[row, slot] = cells.setdefault((model, instance.group), len(cells))
        pool.parts = max(pool.parts, len(parts))
        pool.cells = max(pool.cells, len(cells))

    def _model(self, pool: Pool) -> int:
        model = DeviceModel(
            pool.name, pool.vendor, pool.model, tuple(sorted(pool.attributes.items()))
        )
        code = self._model_codes.setdefault(model, len(self.models))
        if code == len(self.models):
            self.models.append(model)
        return code

    def _set_ports(self, row: int, spec: NodeSpec) -> None:
        for name in ("port_min", "port_max", "ports_barred"):
            setattr(self, name, grown(getattr(self, name), row + 1))
        before = (int(self.port_min[row]), int(self.port_max[row]))
        is_new = before in {(0, 0), (0, -1)}
        reserved = tuple(sorted(set(spec.reserved_ports)))
        now = (spec.port_min, spec.port_max)
        if not is_new and (before, self._reserved_of.get(row, ())) != (now, reserved):
            self.moved[row] = None
        for port in self._reserved_of.pop(row, ()):
            self.reserved[port].discard(row)
            if not self.reserved[port]:
                del self.reserved[port]
        self.port_min[row], self.port_max[row] = spec.port_min, spec.port_max
        if reserved:
            self._reserved_of[row] = reserved
        for port in reserved:
            self.reserved.setdefault(port, set()).add(row)
        self.ports_barred[row] = sum(spec.port_min <= port <= spec.port_max for port in reserved)


def invalid_pools(pools: Sequence[Pool]) -> str:
    """Say what no node can offer; empty: nothing is wrong. Kinds are `Offers.conflict`'s."""
    ids: dict[str, set[str]] = {}
    for pool in pools:
        if not 0 < len(pool.name) <= NAME_MAX:
            return f"a pool's name has 1 to {NAME_MAX} characters, found {pool.name[:40]!r}"
        if not 0 <= pool.amount <= AMOUNT_MAX:
            return f"{pool.name}: amount is {pool.amount}, it must be 0 to {AMOUNT_MAX}"
        if pool.amount and pool.instances:
            return f"{pool.name}: has an amount and instances; only one of them is allowed"
        if reason := _long_text(pool):
            return f"{pool.name}: {reason}"
        known = ids.setdefault(pool.name, set())
        for one in pool.instances:
            if not one.id or one.id in known:
                return f"{pool.name}: instance {one.id[:40]!r} is listed twice or has no name"
            if len(one.unhealthy) > VALUE_MAX:
                return f"{pool.name}: instance {one.id[:40]!r} is unhealthy for too long a reason"
            known.add(one.id)
        if len(known) > SLOTS_MAX:
            return f"{pool.name}: more than {SLOTS_MAX} instances"
    return ""


def _long_text(pool: Pool) -> str:
    """Say which text of a pool is too long; empty: none."""
    for field, text in (("vendor", pool.vendor), ("model", pool.model)):
        if len(text) > NAME_MAX:
            return f"{field} has {len(text)} characters, at most {NAME_MAX} are kept"
    if len(pool.attributes) > ATTRIBUTES_MAX:
        return f"{len(pool.attributes)} attributes, at most {ATTRIBUTES_MAX} are kept"
    for key, value in sorted(pool.attributes.items()):
        if len(key) > NAME_MAX or len(value) > VALUE_MAX:
            most = f"a name has at most {NAME_MAX} characters, a value {VALUE_MAX}"
            return f"attribute {key[:40]!r} is too long: {most}"
    for one in pool.instances:
        if len(one.id) > NAME_MAX:
            most = f"at most {NAME_MAX} are kept"
            return f"instance {one.id[:40]!r} has an id of {len(one.id)} characters, {most}"
    return ""


def invalid_ports(spec: NodeSpec) -> str:
    """Say what is wrong with a node's ports and cores; empty: nothing."""
    if not (spec.port_min > spec.port_max or 1 <= spec.port_min <= spec.port_max <= PORT_MAX):
        return f"ports {spec.port_min} to {spec.port_max} are not within 1 to {PORT_MAX}"
    for port in spec.reserved_ports:
        if not 1 <= port <= PORT_MAX:
            return f"reserved port {port} is not within 1 to {PORT_MAX}"
    if not 0 <= spec.core_mhz <= CORE_MHZ_MAX:
        return f"a core has {spec.core_mhz} MHz, it must be 0 to {CORE_MHZ_MAX}"
    return ""


def column_of_size(column: NDArray[np.int64] | None, size: int) -> Int64s:
    """Return the first `size` rows of a column, zero where it has none. Do not write to it."""
    if column is None:
        return np.zeros(size, np.int64)
    return grown(column, size)[:size]


def grow_matrix(matrix: Slots, rows: int, width: int) -> Slots:
    """Return a matrix with room for rows and slots; what is new is zero."""
    if width > matrix.shape[1]:
        wide = np.zeros((len(matrix), width), matrix.dtype)
        wide[:, : matrix.shape[1]] = matrix
        matrix = wide
    return grown(matrix, rows)
