"""Shortages: what one more allocation of a group lacks on every node, and which nodes come nearest.

A shortage is the part of the ask that is not free. Works on the availability that plan_view.py takes from a plan under
way.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import WHOLE, ExtraAsks, extra_asks_of
from shared.core.resources.headroom import HeadroomQuery, cluster_pools
from shared.core.resources.held import HeldResources
from shared.core.resources.lacks import lacks_of
from shared.core.resources.offers import OfferedResources
from shared.core.scheduling.feasibility.filters import NodeFilter, pool_filters
from shared.core.scheduling.scoring.scores import RESOURCES, mean_score

#: Names and values of the scorers that apply to one node.
Scores = dict[str, int]


class NodeAvailability(msgspec.Struct, frozen=True, eq=False):
    """Resources for the next allocation. Shapes: capacity, used (N, 3); feasible (N,). Do not write to it."""

    group: GroupSpec
    capacity: Int64s
    used: Int64s
    held: HeldResources
    offers: OfferedResources
    #: by constraints, and with the pools that are asked for.
    feasible: Mask
    #: statuses of nodes, and operators that keep new allocations away from them.
    closed: tuple[NodeFilter, ...]
    #: rules of the job's other allocations.
    rules: tuple[NodeFilter, ...] = ()
    #: all that refuse a node whatever it has free, in the order in which the reasons of a wait count nodes; empty:
    #: `closed`, then `rules`.
    refusals: tuple[NodeFilter, ...] = ()
    #: by alternative, how many more each row takes beside the jobs it is reserved for, (N,); None: no limit.
    beside: tuple[Int64s | None, ...] = (None,)


class Shortage(msgspec.Struct, frozen=True, eq=False):
    """One dimension, how much of it each row lacks (0: enough), and how much is asked for. Shape: lacking (N,).

    `scale`: raw amount per unit. `is_of_cluster`: the cluster has it, not its nodes.
    """

    name: str
    lacking: Int64s
    asked: int
    scale: int = 1
    is_of_cluster: bool = False


class RankedNode(msgspec.Struct, frozen=True):
    """A row with room, its score (2**-20), and the scores it is the mean of."""

    row: int
    score: int
    scores: Scores


def shortages(standing: NodeAvailability, variant: int = 0) -> tuple[Shortage, ...]:
    """List every dimension of the ask, and what each row lacks of it."""
    group = standing.group
    ask = (group.cpu_mhz, group.memory_mib, group.disk_mib)
    free = standing.capacity - standing.used
    found = [
        Shortage(name, np.maximum(need - free[:, column], 0), need)
        for column, (name, need) in enumerate(zip(RESOURCES, ask, strict=True))
        if need
    ]
    extras = extra_asks_of(group)
    return (*found, *(_extra(standing, extras, variant) if extras is not None else ()))


def _extra(standing: NodeAvailability, extras: ExtraAsks, variant: int) -> Iterator[Shortage]:
    group, rows = standing.group, len(standing.feasible)
    free_cpu = standing.capacity[:, 0] - standing.used[:, 0]
    need = HeadroomQuery(extras, variant, standing.feasible, free_cpu, group.cpu_mhz, 1)
    for one in lacks_of(standing.offers, standing.held, need):
        yield Shortage(one.name, one.amount, one.asked, one.scale)
    for countable in cluster_pools(standing.offers, standing.held, need.asks):
        lacking = max(countable.amount - countable.left, 0)
        column = np.full(rows, lacking, np.int64)
        yield Shortage(countable.name, column, countable.amount, WHOLE, is_of_cluster=True)


def fitting(standing: NodeAvailability, short: Sequence[Shortage], variant: int = 0) -> Mask:
    """Open rows that lack nothing, and are not reserved for another job. Shape: (N,)."""
    mask = open_rows(standing) & ~reserved_rows(standing, short, variant)
    for one in short:
        mask = mask & np.equal(one.lacking, 0)
    return mask


def open_rows(standing: NodeAvailability) -> Mask:
    """Rows that only lack of room, or a reservation, can exclude. Shape: (N,)."""
    return _passing(standing.feasible, standing.refusals or (*standing.closed, *standing.rules))


def untaken_rows(standing: NodeAvailability) -> Mask:
    """The same, with those that are too small even empty. Shape: (N,)."""
    return _passing(standing.feasible, (*standing.closed, *standing.rules))


def _passing(mask: Mask, filters: Sequence[NodeFilter]) -> Mask:
    for one in filters:
        mask = mask & one.mask
    return mask


def reserved_rows(standing: NodeAvailability, short: Sequence[Shortage], variant: int = 0) -> Mask:
    """Open rows that have room, and are reserved for jobs ahead in the queue. Shape: (N,).

    What the cluster has is no matter of a node.
    """
    limit = standing.beside[variant]
    if limit is None:
        return np.zeros(len(standing.feasible), dtype=bool)
    mask = open_rows(standing) & (limit <= 0)
    for one in short:
        if not one.is_of_cluster:
            mask = mask & np.equal(one.lacking, 0)
    return mask


def exhausted(standing: NodeAvailability, short: Sequence[Shortage]) -> list[tuple[str, int]]:
    """Count the open rows that lack each dimension."""
    mask = open_rows(standing)
    counts = [(one.name, int((mask & (one.lacking > 0)).sum())) for one in short]
    return [(name, count) for name, count in counts if count]


def nearest(
    standing: NodeAvailability, short: Sequence[Shortage], most: int, variant: int = 0
) -> list[int]:
    """Rows that lack the least: fewest dimensions first, then the smallest part of the ask, then the row.

    Nodes that offer nothing of what the variant asks for are not among them, nor those that reserve a port of it.
    """
    near = untaken_rows(standing) & np.logical_or.reduce([one.lacking > 0 for one in short])
    near[[row for row in reserved_ports(standing) if row < len(near)]] = False
    offered = standing.group.alternatives[variant : variant + 1]
    for rule in pool_filters(standing.offers, offered, len(near)):
        near = near & rule.mask
    rows = np.flatnonzero(near)
    if not len(rows):
        return []
    missing = np.zeros(len(rows), np.int64)
    worst = np.zeros(len(rows), np.int64)
    for one in short:
        lacking = one.lacking[rows]
        missing += lacking > 0
        np.maximum(worst, lacking * 1_000_000 // max(one.asked, 1), out=worst)
    order: NDArray[np.intp] = np.lexsort((rows, worst, missing))
    return [int(row) for row in rows[order[:most]]]


def reserved_ports(standing: NodeAvailability) -> dict[int, int]:
    """Rows that reserve a port of the group for themselves, and the first such port."""
    reserved = standing.offers.reserved
    ports = standing.group.static_ports
    return {row: port for port in reversed(ports) for row in reserved.get(port, ())}


def shortfall(short: Sequence[Shortage], row: int) -> dict[str, float]:
    """What one row lacks, by dimension, in units."""
    return {
        one.name: int(one.lacking[row]) / one.scale if one.scale > 1 else int(one.lacking[row])
        for one in short
        if one.lacking[row] > 0
    }


def ranking(
    rows: Sequence[int], scores: Sequence[Scores], order: Sequence[int]
) -> list[RankedNode]:
    """Rank rows as placing does: highest mean of the scorers first, among equals the least in `order`."""
    ranked = [
        (-mean_score(list(named.values())), first, row, named)
        for row, named, first in zip(rows, scores, order, strict=True)
    ]
    ranked.sort(key=lambda one: one[:3])
    return [RankedNode(row, -score, named) for score, _, row, named in ranked]
