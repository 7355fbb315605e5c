"""Capacity and usage of resources: pools of a node and of the cluster, ports, shares of allocations.

Reports an excess where a node or operator reduced a capacity below its usage: running allocations stay, and nothing new
is placed there. Amounts in 1/10,000.
"""

from typing import TypedDict

import msgspec
import numpy as np

from schemas.node_answers import DeclaredLine, PartLine, PoolLine, PortLine
from schemas.projections import InstanceShown, PoolShown
from shared.core.columns import Rows
from shared.core.resources.asks import WHOLE
from shared.core.resources.headroom import free_ports
from shared.core.resources.offers import CLUSTER_WIDE, INDEXED, SUM
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.jobspec.compile.ports import dynamic_ports, static_ports
from shared.jobspec.nomad.job import JOB_DECODER, TaskGroup


def node_pools(state: State, row: int) -> dict[str, PoolShown]:
    """Capacity and use of a node's devices, cores and custom resources, by name."""
    offers, held = state.fleet.offers, state.allocations.held
    names = set(offers.names_of(row))
    names |= {name for name in held.names()["sum"] if held.sum_of(name, row + 1)[row]}
    found = {}
    for name in sorted(names):
        if name in offers.slots and row in offers.slots[name].ids:
            found[name] = _indexed(state, row, name)
        else:
            capacity = int(offers.sum_of(name, row + 1)[row])
            found[name] = _sum(SUM, capacity, int(held.sum_of(name, row + 1)[row]))
    return found


def cores_mhz(state: State, row: int) -> int:
    """MHz that reserved cores take of a node."""
    cores = int(state.allocations.held.cores(row + 1)[row])
    mhz = state.fleet.offers.core_mhz
    return cores * int(mhz[row]) if cores and row < len(mhz) else 0


def free_port_count(state: State, row: int) -> int:
    """Number of free dynamic ports of a node."""
    free = free_ports(state.fleet.offers, state.allocations.held, row + 1)
    return max(int(free[row]), 0)


def node_ports(state: State, rows: Rows) -> tuple[PortLine, ...]:
    """Ports in use by the allocations in these rows, ascending."""
    table = state.allocations
    found = []
    for row in rows[table.is_holding(rows)].tolist():
        holding = table.holdings.get(row)
        if holding is None:
            continue
        shown = alloc_id(int(table.key[row]))
        found += [
            PortLine(port=port, allocation=shown, static=True) for port in holding.static_ports
        ]
        found += [PortLine(port=port, allocation=shown) for port in holding.ports]
    return tuple(sorted(found, key=lambda one: (one.port, one.allocation)))


def alloc_shares(state: State, row: int) -> tuple[PartLine, ...]:
    """Resources held by one allocation, in the order of its asks."""
    holding = state.allocations.holdings.get(row)
    if holding is None:
        return ()
    offers, node = state.fleet.offers, int(state.allocations.node[row])
    return tuple(
        PartLine(
            pool=name,
            instance=offers.instance_id(node, name, slot) if slot >= 0 else "",
            amount=amount,
        )
        for name, slot, amount in holding.parts
    )


class ResourceHoldings(TypedDict, total=False):
    """Resources of an allocation in its node's desired set: fields of DesiredExtra."""

    ports: tuple[int, ...]
    instances: dict[str, tuple[str, ...]]
    variant: int


#: Of an allocation without ports, instances or alternatives.
NO_HELD_RESOURCES = ResourceHoldings(ports=(), instances={}, variant=0)


def held_resources(state: State, row: int) -> ResourceHoldings:
    """Ports and instances of an allocation for its node, in the order of its asks."""
    table, offers = state.allocations, state.fleet.offers
    holding, node = table.holdings[row], int(table.node[row])
    instances: dict[str, tuple[str, ...]] = {}
    for name, slot, _ in holding.parts:
        if slot >= 0:
            one = offers.instance_id(node, name, slot)
            instances[name] = (*instances.get(name, ()), one)
    return ResourceHoldings(ports=holding.ports, instances=instances, variant=holding.variant)


def alloc_ports(state: State, row: int) -> dict[str, int]:
    """Ports of one allocation by label; by number if the job version is no longer stored."""
    table = state.allocations
    holding = table.holdings.get(row)
    if holding is None or not (holding.ports or holding.static_ports):
        return {}
    ref = int(table.group[row])
    spec = state.jobs.spec(table.groups.job_ids[ref], table.groups.versions[ref])
    group = _group_of(spec, table.groups.names[ref]) if spec is not None else None
    if group is None:
        return {str(port): port for port in (*holding.static_ports, *holding.ports)}
    labels = [port.label for port in dynamic_ports(group)]
    named = {port.label: port.static for port in static_ports(group)}
    return named | dict(zip(labels, holding.ports, strict=False))


def _group_of(spec: bytes, name: str) -> TaskGroup | None:
    groups = JOB_DECODER.decode(spec).groups
    return next((group for group in groups if group.name == name), None)


def all_pools(state: State, prefix: str = "") -> list[PoolLine]:
    """Every pool that is offered or held anywhere, over all nodes, by name."""
    fleet, held = state.fleet, state.allocations.held
    offers, size = fleet.offers, fleet.size
    kinds = held.names()
    names = {*offers.sums, *offers.slots, *offers.cluster, *kinds["sum"], *kinds["cluster"]}
    found = []
    for name in sorted(one for one in names if one.startswith(prefix)):
        line = _line(state, name, size)
        if line.capacity or line.used:
            found.append(line)
    return found


def _line(state: State, name: str, size: int) -> PoolLine:
    offers, held = state.fleet.offers, state.allocations.held
    if name in offers.cluster or held.of_cluster(name):
        one = _sum(CLUSTER_WIDE, offers.cluster.get(name, 0), held.of_cluster(name))
        return PoolLine(name=name, **msgspec.structs.asdict(one))
    if name in offers.slots:
        pool = offers.slots[name]
        width = pool.present.shape[1]
        present = pool.present[:size].astype(np.int64)
        used = held.slots_of(name, size, width)[: len(present)].astype(np.int64)
        kind = INDEXED
    else:
        present, used, kind = offers.sum_of(name, size), held.sum_of(name, size), SUM
    by_node = present.sum(axis=1) if present.ndim == 2 else present
    return PoolLine(
        name=name,
        kind=kind,
        nodes=int(np.count_nonzero(by_node)),
        capacity=int(present.sum()),
        used=int(used.sum()),
        free=int(np.maximum(present - used, 0).sum()),
        excess=int(np.maximum(used - present, 0).sum()),
    )


def declared(state: State) -> tuple[DeclaredLine, ...]:
    """Declarations of operators: those of the cluster first, then by node and name."""
    return tuple(
        DeclaredLine(node=node, pool=pool)
        for (node, _), pool in sorted(state.fleet.declared.items(), key=lambda one: one[0])
    )


def _sum(kind: str, capacity: int, used: int) -> PoolShown:
    return PoolShown(
        kind=kind,
        capacity=capacity,
        used=used,
        free=max(capacity - used, 0),
        excess=max(used - capacity, 0),
    )


def _unhealthy(state: State, row: int, name: str) -> dict[str, str]:
    """Return the instances of a node's pool that are unhealthy, and why."""
    node = state.fleet.specs[row]
    pools = (*node.pools, *state.fleet.declared_of(node.node_id))
    return {
        one.id: one.unhealthy
        for pool in pools
        if pool.name == name
        for one in pool.instances
        if one.unhealthy
    }


def _indexed(state: State, row: int, name: str) -> PoolShown:
    """An indexed pool of one node; a removed instance is listed while allocations use it."""
    offers, held = state.fleet.offers, state.allocations.held
    pool = offers.slots[name]
    ids = pool.ids[row]
    used = held.slots_on(row, name, len(ids))
    unhealthy = _unhealthy(state, row, name)
    shown, free, excess = [], 0, 0
    for slot, one in enumerate(ids):
        present = int(pool.present[row, slot])
        free += max(present - used[slot], 0)
        excess += max(used[slot] - present, 0)
        if not (present or used[slot] or one in unhealthy):
            continue
        model = offers.models[int(pool.model[row, slot])]
        shown.append(
            InstanceShown(
                id=one,
                vendor=model.vendor,
                model=model.model,
                group=int(pool.group[row, slot]),
                present=bool(present),
                used=used[slot],
                unhealthy=unhealthy.get(one, ""),
            )
        )
    return PoolShown(
        kind=INDEXED,
        capacity=WHOLE * sum(one.present for one in shown),
        used=sum(used),
        free=free,
        excess=excess,
        instances=tuple(shown),
    )
