"""Filters: which nodes a group may run on by constraints alone, and which filter refuses which nodes.

Masks are cached for one generation of the fleet. Room, scores and other allocations play no part; node_limits.py adds
the rules of a plan under way.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from schemas.jobs import Affinity, GroupSpec, ResourceAsk
from schemas.nodes import NODE_STATUSES
from shared.core.columns import Int64s, Mask
from shared.core.resources.devices import filter_name
from shared.core.resources.offers import CLUSTER_WIDE, INDEXED, OfferedResources
from shared.core.scheduling.feasibility.constraint_masks import (
    constraint_mask,
    datacenter_mask,
    driver_mask,
    pool_mask,
)
from shared.core.scheduling.packing.gpu_packing import PriceCache
from shared.core.scheduling.scoring.score_cache import ScoreCache
from shared.core.scheduling.scoring.scores import affinity_scores
from shared.core.state.node_attributes import AttributeColumns
from shared.core.state.tables.fleet import READY, FleetTable
from shared.core.state.tables.jobs import Job

#: Masks cached for one generation of the fleet.
_MASKS_MAX = 4096
#: Bytes of them, approximately: a mask has one for each node.
_BYTES_MAX = 64 << 20
#: A node that lacks what an attribute stands for may say why in the attribute of this ending.
_OFF = ".off"
#: Characters of such words in a wait reason.
_REASON_MAX = 200


class NodeFilter(msgspec.Struct, frozen=True, eq=False):
    """One condition, its name, and the rows that meet it. Shape: (fleet.size,).

    `off`: attribute in which nodes that refuse may say why; empty: none has one.
    """

    name: str
    mask: Mask
    off: str = ""


class FilterLine(msgspec.Struct, frozen=True):
    """How many nodes a condition was the first to refuse, in total and by node class."""

    name: str
    refused: int
    by_class: dict[str, int]


class FilterReport(msgspec.Struct, frozen=True):
    """Why nodes are not feasible. A node is counted once, at the first filter that refuses it."""

    nodes: int
    feasible: int
    filters: tuple[FilterLine, ...]

    def reasons(self, most: int = 5) -> list[str]:
        """Render the filters as lines, those that refuse most first."""
        lines = sorted(self.filters, key=lambda line: (-line.refused, line.name))
        return [
            f"{line.name} refuses {line.refused} of {self.nodes} nodes" for line in lines[:most]
        ]


class PlacementCache:
    """Feasible nodes and affinities by a group's constraints; cleared when the fleet's attributes change."""

    def __init__(self) -> None:
        #: prices of the packing policy for the current workload.
        self.gpu_prices = PriceCache()
        #: scores shared by selections of the same shape.
        self.scores = ScoreCache()
        self._generation = -1
        self._masks: dict[tuple[object, ...], Mask] = {}
        self._affinities: dict[tuple[Affinity, ...], Int64s] = {}
        self._capacity: Int64s | None = None
        #: the limits above are reached.
        self._is_full = False

    def capacity(self, fleet: FleetTable) -> Int64s:
        """Capacity of nodes, column-major. Shape: (fleet.size, R). Do not write to it."""
        self._forget(fleet)
        if self._capacity is None:
            self._capacity = np.asfortranarray(fleet.capacity[: fleet.size])
        return self._capacity

    def mask(self, fleet: FleetTable, job: Job, group: GroupSpec) -> Mask:
        """Nodes that the group may run on, regardless of room and status. Shape: (fleet.size,). Do not write to it."""
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
        """Affinity score of each node. Shape: (fleet.size,); None without affinities. Do not write to it."""
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


def filters_of(fleet: FleetTable, job: Job, group: GroupSpec) -> Iterator[NodeFilter]:
    """List every condition on single nodes, in report order."""
    yield from _node_filters(fleet, job, group)
    yield from pool_filters(fleet.offers, group.alternatives, fleet.size)


def pool_filters(
    offers: OfferedResources, alternatives: tuple[tuple[ResourceAsk, ...], ...], size: int
) -> Iterator[NodeFilter]:
    """List the pools a node must offer. They are not part of the mask, because offers change."""
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
        yield NodeFilter(f"any of {len(alternatives)} alternatives", any_)


def _ask_filters(offers: OfferedResources, ask: ResourceAsk, size: int) -> Iterator[NodeFilter]:
    kind = offers.cached_kind(ask.pool)
    if kind == CLUSTER_WIDE:
        return
    if kind != INDEXED:
        yield NodeFilter(ask.pool, offers.sum_of(ask.pool, size) > 0)
        return
    bare = ResourceAsk(pool=ask.pool)
    yield NodeFilter(ask.pool, _has_any(offers, bare, size))
    steps = [
        (f"{ask.pool}: {word} {value}", {word: value})
        for word, value in (("vendor", ask.vendor), ("model", ask.model))
        if value
    ]
    for name, fields in steps:
        bare = msgspec.structs.replace(bare, **fields)
        yield NodeFilter(name, _has_any(offers, bare, size))
    for one in ask.constraints:
        bare = msgspec.structs.replace(bare, constraints=(*bare.constraints, one))
        name = filter_name(ask, one) + offers.incomparable(ask.pool, one)
        yield NodeFilter(name, _has_any(offers, bare, size))


def _has_any(offers: OfferedResources, ask: ResourceAsk, size: int) -> Mask:
    mask: Mask = np.logical_or.reduce(offers.eligible(ask, size), axis=1)
    return mask


def _node_filters(fleet: FleetTable, job: Job, group: GroupSpec) -> Iterator[NodeFilter]:
    columns = fleet.attributes
    named = ", ".join(job.datacenters)
    yield NodeFilter(f"datacenter {named}", datacenter_mask(columns, job.datacenters))
    yield NodeFilter(f"node pool {job.node_pool}", pool_mask(columns, job.node_pool))
    for driver in group.drivers:
        yield NodeFilter(f"driver {driver}", driver_mask(columns, driver))
    for one in group.constraints:
        text = " ".join(part for part in (one.left, one.operator, one.right) if part)
        mask = constraint_mask(columns, one.left, one.operator, one.right)
        yield NodeFilter(text, mask, off=f"{one.left[2:-1]}{_OFF}")


def availability_filters(fleet: FleetTable) -> Iterator[NodeFilter]:
    """List what keeps new allocations from nodes whatever is asked for: one filter for each status, then operators'.

    Together they are `fleet.ready()`.
    """
    size = fleet.size
    status = fleet.status[:size]
    for code, name in enumerate(NODE_STATUSES):
        if code != READY:
            yield NodeFilter(name, np.not_equal(status, code))
    for name, rows in (("draining", fleet.drains), ("drained", fleet.drained)):
        if rows:
            mask = np.ones(size, dtype=bool)
            mask[list(rows)] = False
            yield NodeFilter(name, mask | fleet.eligible[:size])
    yield NodeFilter("ineligible", fleet.eligible[:size])


def report_of(fleet: FleetTable, filters: Iterable[NodeFilter]) -> FilterReport:
    """Count the live nodes that each filter is the first to refuse."""
    left = fleet.live[: fleet.size].copy()
    nodes = int(left.sum())
    lines = []
    for one in filters:
        refused = left & ~one.mask
        count = int(refused.sum())
        if count:
            name = one.name + _own_reason(fleet.attributes, one.off, refused)
            lines.append(FilterLine(name, count, _by_class(fleet.attributes, refused)))
            left &= one.mask
    return FilterReport(nodes, int(left.sum()), tuple(lines))


def _own_reason(columns: AttributeColumns, off: str, rows: Mask) -> str:
    """Say why what these nodes lack is off there, in the words that most of them have; empty: none says."""
    codes = columns.codes(off)
    if codes is None:
        return ""
    values, counts = columns.values(off), np.bincount(codes[rows], minlength=1)
    found = [(-int(counts[code]), values[code]) for code in np.flatnonzero(counts).tolist() if code]
    return f" ({min(found)[1][:_REASON_MAX]})" if found else ""


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
