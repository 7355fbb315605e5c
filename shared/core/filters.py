"""Filters: which nodes a group may run on at all, remembered while the fleet stays as it is; who refuses whom.

Decides the conjunction of feasibility's masks for a job's group. Must not know room, scores or other allocations:
scratch.py adds what a plan under way knows (distinct hosts and properties). Next: `rules.py`.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import Affinity, GroupSpec, ResourceAsk
from shared.core.feasibility import (
    AttributeColumns,
    constraint_mask,
    datacenter_mask,
    driver_mask,
    pool_mask,
)
from shared.core.packing import PriceCache
from shared.core.ranked import Ranked
from shared.core.resources.devices import filter_name
from shared.core.resources.offers import INDEXED, OF_THE_CLUSTER, Offers
from shared.core.scores import Int64s, affinity_scores
from shared.core.tables.fleet import FleetTable
from shared.core.tables.jobs import Job

Mask = NDArray[np.bool_]
#: Masks remembered for one state of the fleet.
_MASKS_MAX = 4096
#: Bytes of them, roughly: a mask has one a node.
_BYTES_MAX = 64 << 20


class Filter(msgspec.Struct, frozen=True, eq=False):
    """One condition, in words, and the rows that meet it. Shape: (fleet.size,)."""

    name: str
    mask: Mask


class FilterLine(msgspec.Struct, frozen=True):
    """How many nodes a condition was the first to refuse, also by node class."""

    name: str
    refused: int
    by_class: dict[str, int]


class FilterReport(msgspec.Struct, frozen=True):
    """Why nodes are not feasible. A node is counted once, at the first filter that refuses it."""

    nodes: int
    feasible: int
    filters: tuple[FilterLine, ...]

    def reasons(self, most: int = 5) -> list[str]:
        """Say the same in lines, the filters that refuse most first."""
        lines = sorted(self.filters, key=lambda line: (-line.refused, line.name))
        return [
            f"{line.name} refuses {line.refused} of {self.nodes} nodes" for line in lines[:most]
        ]


class MaskCache:
    """Feasible nodes and affinities by what a group asks for; forgotten whenever the fleet's attributes change."""

    def __init__(self) -> None:
        #: what the packing policy knows of the workload.
        self.packing = PriceCache()
        #: what cuts of the same shape need again.
        self.ranked = Ranked()
        self._generation = -1
        self._masks: dict[tuple[object, ...], Mask] = {}
        self._affinities: dict[tuple[Affinity, ...], Int64s] = {}
        self._capacity: Int64s | None = None
        #: too much is remembered.
        self._is_full = False

    def capacity(self, fleet: FleetTable) -> Int64s:
        """What nodes offer, column by column in memory. Shape: (fleet.size, R). Do not write to it."""
        self._forget(fleet)
        if self._capacity is None:
            self._capacity = np.asfortranarray(fleet.capacity[: fleet.size])
        return self._capacity

    def mask(self, fleet: FleetTable, job: Job, group: GroupSpec) -> Mask:
        """Nodes that the group may run on, whatever their room and status. Shape: (fleet.size,). Do not write to it."""
        self._forget(fleet)
        key = (job.datacenters, job.node_pool, group.constraints, group.drivers)
        mask = self._masks.get(key)
        if mask is None:
            mask = fleet.live[: fleet.size].copy()
            for one in _node_filters(fleet, job, group):
                mask &= one.mask
            self._masks[key] = mask
            self._grew(fleet)
        return mask

    def affinity(self, fleet: FleetTable, affinities: tuple[Affinity, ...]) -> Int64s | None:
        """Score of each node by affinity. Shape: (fleet.size,); None where there is none. Do not write to it."""
        if not affinities:
            return None
        self._forget(fleet)
        found = self._affinities.get(affinities)
        if found is None:
            found = self._affinities[affinities] = _affinity(fleet.attributes, affinities)
            self._grew(fleet)
        return found

    def _forget(self, fleet: FleetTable) -> None:
        if fleet.generation != self._generation or self._is_full:
            self._generation = fleet.generation
            self._masks = {}
            self._affinities = {}
            self._capacity = None
            self._is_full = False

    def _grew(self, fleet: FleetTable) -> None:
        held = len(self._masks) + 8 * len(self._affinities)
        self._is_full = held > _MASKS_MAX or held * fleet.size > _BYTES_MAX


def _affinity(columns: AttributeColumns, affinities: tuple[Affinity, ...]) -> Int64s:
    matches = [constraint_mask(columns, one.left, one.operator, one.right) for one in affinities]
    return affinity_scores(matches, [one.weight for one in affinities])


def filters_of(fleet: FleetTable, job: Job, group: GroupSpec) -> Iterator[Filter]:
    """Name every condition that one node alone can meet, in the order in which they are told."""
    yield from _node_filters(fleet, job, group)
    yield from _pool_filters(fleet.offers, group.alternatives, fleet.size)


def _pool_filters(
    offers: Offers, alternatives: tuple[tuple[ResourceAsk, ...], ...], size: int
) -> Iterator[Filter]:
    """Name what pools a node must have at all. They are no part of a mask: what a node offers comes and goes."""
    if len(alternatives) == 1:
        for ask in alternatives[0]:
            yield from _ask_filters(offers, ask, size)
    elif alternatives:
        any_ = np.zeros(size, dtype=bool)
        for asks in alternatives:
            every = np.ones(size, dtype=bool)
            for one in [one for ask in asks for one in _ask_filters(offers, ask, size)]:
                every &= one.mask
            any_ |= every
        yield Filter(f"any of {len(alternatives)} alternatives", any_)


def _ask_filters(offers: Offers, ask: ResourceAsk, size: int) -> Iterator[Filter]:
    kind = offers.kind_now(ask.pool)
    if kind == OF_THE_CLUSTER:
        return
    if kind != INDEXED:
        yield Filter(ask.pool, offers.sum_of(ask.pool, size) > 0)
        return
    bare = ResourceAsk(pool=ask.pool)
    yield Filter(ask.pool, _has_any(offers, bare, size))
    steps = [
        (f"{ask.pool}: {word} {value}", {word: value})
        for word, value in (("vendor", ask.vendor), ("model", ask.model))
        if value
    ]
    for name, fields in steps:
        bare = msgspec.structs.replace(bare, **fields)
        yield Filter(name, _has_any(offers, bare, size))
    for one in ask.constraints:
        bare = msgspec.structs.replace(bare, constraints=(*bare.constraints, one))
        yield Filter(filter_name(ask, one), _has_any(offers, bare, size))


def _has_any(offers: Offers, ask: ResourceAsk, size: int) -> Mask:
    mask: Mask = np.logical_or.reduce(offers.eligible(ask, size), axis=1)
    return mask


def _node_filters(fleet: FleetTable, job: Job, group: GroupSpec) -> Iterator[Filter]:
    columns = fleet.attributes
    named = ", ".join(job.datacenters)
    yield Filter(f"datacenter {named}", datacenter_mask(columns, job.datacenters))
    yield Filter(f"node pool {job.node_pool}", pool_mask(columns, job.node_pool))
    for driver in group.drivers:
        yield Filter(f"driver {driver}", driver_mask(columns, driver))
    for one in group.constraints:
        text = " ".join(part for part in (one.left, one.operator, one.right) if part)
        yield Filter(text, constraint_mask(columns, one.left, one.operator, one.right))


def report_of(fleet: FleetTable, filters: Iterable[Filter]) -> FilterReport:
    """Count the live nodes that each filter is the first to refuse."""
    left = fleet.live[: fleet.size].copy()
    nodes = int(left.sum())
    lines = []
    for one in filters:
        refused = left & ~one.mask
        count = int(refused.sum())
        if count:
            lines.append(FilterLine(one.name, count, _by_class(fleet.attributes, refused)))
            left &= one.mask
    return FilterReport(nodes, int(left.sum()), tuple(lines))


def _by_class(columns: AttributeColumns, rows: Mask) -> dict[str, int]:
    codes = columns.codes("node.class")
    if codes is None:
        return {"": int(rows.sum())}
    values = columns.values("node.class")
    counts = np.bincount(codes[rows], minlength=1)
    found: dict[str, int] = {}
    for code in np.flatnonzero(counts).tolist():
        found[values[code]] = found.get(values[code], 0) + int(counts[code])
    return dict(sorted(found.items()))
