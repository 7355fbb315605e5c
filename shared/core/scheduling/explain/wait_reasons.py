"""Wait reasons: why part of a request found no room, as a wait class and as texts, the most telling first.

A node counts once: refused by a filter, too small, closed to new allocations, closed by a rule of the job's other
allocations, or short of something, which may be several things. Classes: misconfigured, never_fits, capacity,
reservation, priority; predecessor is made by `reservations/own_rooms.py`. The texts are stored with the evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import Holding, extra_asks_of
from shared.core.resources.headroom import HeadroomQuery, headroom_of
from shared.core.resources.headroom_reasons import (
    current_shortages,
    fits_when_empty,
    refused_when_empty,
)
from shared.core.resources.held import HeldResources
from shared.core.scheduling.explain.shortages import NodeAvailability
from shared.core.scheduling.feasibility.filters import FilterReport, NodeFilter
from shared.core.scheduling.selection.candidates import ask_columns

RESOURCE_NAMES: Final = ("cpu", "memory", "disk")


class HeldAbove(msgspec.Struct, frozen=True, eq=False):
    """What allocations of a higher priority hold: the three columns by node (N, 3), and the rest by allocation."""

    columns: Int64s
    #: fleet row and what is held there.
    holdings: tuple[tuple[int, Holding], ...] = ()


class QueueAhead(msgspec.Struct, frozen=True, eq=False):
    """Jobs that take precedence. `names`: jobs ahead in the queue that nodes are reserved for.

    `limit`: how many more nodes take beside them. `above`: what higher priorities hold; None: not considered.
    """

    names: tuple[str, ...]
    limit: Callable[[GroupSpec, Sequence[ResourceAsk]], Int64s | None]
    above: Callable[[], "HeldAbove"] | None = None


def explain_wait(
    standing: NodeAvailability,
    count: int,
    *,
    nodes: int,
    mask: Mask,
    report: Callable[[], FilterReport],
    queue: QueueAhead,
) -> Waiting:
    """Say why `count` found no room.

    `nodes`: number of live nodes; `mask`: those that constraints allow, whatever they offer; `report`: which filter
    refuses which nodes.
    """
    group = standing.group
    ask, extras = ask_columns(group), extra_asks_of(group)
    if not mask.any():
        first = f"none of {nodes} nodes satisfies its constraints"
        reasons = (first, *report().reasons())
        return Waiting(count=count, wait_class="misconfigured", reasons=reasons)
    large = fits_empty = mask & (standing.capacity >= ask).all(axis=1)
    if not large.any():
        reason = f"no feasible node is large enough for {_shown(ask)}, even empty"
        return Waiting(count=count, wait_class="never_fits", reasons=(reason,))
    if extras is not None:
        among = standing.feasible if standing.feasible.any() else mask
        fits, why = fits_when_empty(
            standing.offers, extras, group.cpu_mhz, among, capacity=standing.capacity
        )
        fits_empty = large & fits
        if not fits_empty.any():
            why = (*why, *_refused_reasons(standing, large, fits_empty), *report().reasons())
            return Waiting(count=count, wait_class="never_fits", reasons=why)
    closed, ready = _closed_reasons(standing, fits_empty, int(standing.feasible.sum()))
    closed += _refused_reasons(standing, large, fits_empty)
    wait_class, short = _explain_shortage(standing, ask, ready=ready, queue=queue)
    return Waiting(count=count, wait_class=wait_class, reasons=(*short, *closed))


def _closed_reasons(
    standing: NodeAvailability, fits_empty: Mask, feasible: int
) -> tuple[list[str], Mask]:
    """Say how many nodes are closed to new allocations, each by one thing; and which are not. Shapes: (N,)."""
    reasons, left = [], fits_empty
    for one in standing.closed:
        count = int((left & ~one.mask).sum())
        if count:
            reasons.append(f"{_are(count, feasible)} {one.name}")
            left = left & one.mask
    return reasons, left


def _refused_reasons(standing: NodeAvailability, large: Mask, fits_empty: Mask) -> list[str]:
    """Say what refuses some of the feasible nodes even empty, each node once; what refuses all is said elsewhere.

    Shapes: (N,). `large`: the three columns would do; `fits_empty`: and the rest of some alternative.
    """
    extras, reasons = extra_asks_of(standing.group), list[str]()
    total, refused = int(standing.feasible.sum()), standing.feasible & large & ~fits_empty
    nodes = "node" if total == 1 else "nodes"
    if extras is not None and refused.any():
        cpu_mhz, capacity = standing.group.cpu_mhz, standing.capacity
        found = refused_when_empty(standing.offers, extras, cpu_mhz, refused, capacity=capacity)
        counts = [(why, int(rows.sum())) for why, rows in found]
        reasons = [f"{why} on {n} of {total} feasible {nodes}" for why, n in counts if n < total]
    if small := int((standing.feasible & ~large).sum()):
        reasons.append(f"{_are(small, total)} too small, even empty")
    return reasons


def too_small(standing: NodeAvailability, mask: Mask) -> list[NodeFilter]:
    """Name what refuses some of the feasible nodes even empty, each node once, as the reasons do.

    What refuses all of them is a lack of each. `mask` (N,): nodes that constraints allow.
    """
    ask, extras = ask_columns(standing.group), extra_asks_of(standing.group)
    large: Mask = np.asarray((standing.capacity >= ask).all(axis=1))
    if not (mask & large).any():
        return []
    found = [NodeFilter("too small, even empty", large | ~standing.feasible)]
    if extras is None:
        return found
    cpu_mhz, capacity = standing.group.cpu_mhz, standing.capacity
    among = standing.feasible if standing.feasible.any() else mask
    fits, _ = fits_when_empty(standing.offers, extras, cpu_mhz, among, capacity=capacity)
    refused = standing.feasible & large & ~fits
    if refused.any():
        parts = refused_when_empty(standing.offers, extras, cpu_mhz, refused, capacity=capacity)
        total = int(standing.feasible.sum())
        found += [
            NodeFilter(why.removesuffix(","), ~rows)
            for why, rows in parts
            if int(rows.sum()) < total
        ]
    return found


def _are(count: int, feasible: int) -> str:
    nodes = "node" if feasible == 1 else "nodes"
    return f"{count} of {feasible} feasible {nodes} {'is' if count == 1 else 'are'}"


def _explain_shortage(
    standing: NodeAvailability, ask: Int64s, *, ready: Mask, queue: QueueAhead
) -> tuple[str, list[str]]:
    """Say what is short now on open nodes that would have room when empty; and the class of the wait."""
    extras, reasons = extra_asks_of(standing.group), list[str]()
    for rule in standing.rules:
        refused = int((ready & ~rule.mask).sum())
        if refused:
            reasons.append(f"{rule.name} closes {refused} of {int(ready.sum())} nodes")
            ready = ready & rule.mask
    free = standing.capacity - standing.used
    short = free < ask
    for dimension, name in enumerate(RESOURCE_NAMES):
        exhausted = int((ready & short[:, dimension]).sum())
        if exhausted:
            reasons.append(f"{name} exhausted on {exhausted} of {int(ready.sum())} nodes")
    if extras is not None:
        cpu_mhz, held = standing.group.cpu_mhz, standing.held
        reasons += current_shortages(
            standing.offers, held, extras, cpu_mhz, mask=ready, free=free[:, 0]
        )
    wait_class = "capacity"
    if closed := _explain_reservation(standing, ready & ~short.any(axis=1), queue):
        wait_class = "reservation"
        reasons.insert(0, closed)
    if queue.above is not None:
        outranked = _outranked(standing, ask, ready, queue.above())
        if outranked:
            wait_class = "priority"
            reasons.insert(
                0, f"more important jobs have its room on {outranked} of {int(ready.sum())} nodes"
            )
    return wait_class, reasons


def _outranked(standing: NodeAvailability, ask: Int64s, ready: Mask, above: HeldAbove) -> int:
    """Count the nodes that lack room, and would have it without what higher priorities hold there."""
    held = standing.held
    lacks = ready & ~_has_room(standing, ask, standing.capacity - standing.used, held)
    if not lacks.any():
        return 0
    if above.holdings:
        held = held.copy(len(lacks))
        for row, holding in above.holdings:
            held.remove(row, None, holding)
    elif not above.columns.any():
        return 0
    free = standing.capacity - standing.used + above.columns
    return int((lacks & _has_room(standing, ask, free, held)).sum())


def _has_room(standing: NodeAvailability, ask: Int64s, free: Int64s, held: HeldResources) -> Mask:
    """Nodes that have room for one more by any alternative. Shapes: ask (3,), free (N, 3), result (N,)."""
    group, extras = standing.group, extra_asks_of(standing.group)
    fits: Mask = np.asarray((free >= ask).all(axis=1))
    if extras is None:
        return fits
    found: Mask = np.zeros(len(fits), dtype=bool)
    for variant in range(len(extras.alternatives)):
        need = HeadroomQuery(extras, variant, fits, free[:, 0], group.cpu_mhz, 1)
        room = headroom_of(standing.offers, held, need)
        found = found | (fits if room is None else fits & (room > 0))
    return found


def _explain_reservation(standing: NodeAvailability, open_: Mask, queue: QueueAhead) -> str:
    """Say which job nodes with room are reserved for; empty: none. `open_` (N,): nodes whose columns have room."""
    names = queue.names
    if not names:
        return ""
    closed = 0
    group, extras = standing.group, extra_asks_of(standing.group)
    free_cpu = standing.capacity[:, 0] - standing.used[:, 0]
    for variant, asks in enumerate(group.alternatives or ((),)):
        limit = queue.limit(group, asks)
        has_room = open_
        if extras is not None:
            need = HeadroomQuery(extras, variant, open_, free_cpu, group.cpu_mhz, 1)
            room = headroom_of(standing.offers, standing.held, need)
            has_room = open_ if room is None else open_ & (room > 0)
        if limit is not None:
            closed = max(closed, int((has_room & (limit <= 0)).sum()))
    if not closed:
        return ""
    first, *others = names
    more = f" and {len(others)} more" if others else ""
    return f"{closed} nodes with room are reserved for job {first!r}{more}"


def _shown(ask: Int64s) -> str:
    cpu, memory, disk = ask.tolist()
    return f"{cpu} MHz, {memory} MiB memory, {disk} MiB disk"
