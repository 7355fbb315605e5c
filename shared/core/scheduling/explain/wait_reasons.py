"""Wait reasons: why part of a request found no room, as a wait class and as texts, the most telling first.

Classes: misconfigured, never_fits, capacity, reservation, priority. The class predecessor is made by
`reservations/own_rooms.py`. The texts are stored with the evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from schemas.evaluations import Waiting
from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import extra_asks_of
from shared.core.resources.headroom import HeadroomQuery, headroom_of
from shared.core.resources.headroom_reasons import current_shortages, fits_when_empty
from shared.core.scheduling.explain.shortages import NodeAvailability
from shared.core.scheduling.feasibility.filters import FilterReport
from shared.core.scheduling.selection.candidates import ask_columns

RESOURCE_NAMES: Final = ("cpu", "memory", "disk")


class QueueAhead(msgspec.Struct, frozen=True, eq=False):
    """Jobs that take precedence. `names`: jobs ahead in the queue that nodes are reserved for.

    `limit`: how many more nodes take beside them. `above` (N, 3): what higher priorities hold; None: not considered.
    """

    names: tuple[str, ...]
    limit: Callable[[GroupSpec, Sequence[ResourceAsk]], Int64s | None]
    above: Int64s | None = None


def explain_wait(
    standing: NodeAvailability,
    count: int,
    *,
    nodes: int,
    report: Callable[[], FilterReport],
    queue: QueueAhead,
) -> Waiting:
    """Say why `count` found no room.

    `standing.rules` close nodes; `nodes`: number of live nodes; `report`: which filter refuses which nodes.
    """
    group, mask = standing.group, standing.feasible
    ask, extras = ask_columns(group), extra_asks_of(group)
    feasible = int(mask.sum())
    if not feasible:
        first = f"none of {nodes} nodes satisfies its constraints"
        reasons = (first, *report().reasons())
        return Waiting(count=count, wait_class="misconfigured", reasons=reasons)
    fits_empty = mask & (standing.capacity >= ask).all(axis=1)
    if not fits_empty.any():
        reason = f"no feasible node is large enough for {_shown(ask)}, even empty"
        return Waiting(count=count, wait_class="never_fits", reasons=(reason,))
    if extras is not None:
        fits_empty, why = fits_when_empty(
            standing.offers, extras, group.cpu_mhz, fits_empty, capacity=standing.capacity
        )
        if not fits_empty.any():
            why = (*why, *report().reasons())
            return Waiting(count=count, wait_class="never_fits", reasons=why)
    ready = fits_empty & standing.ready
    found = [] if ready.any() else [f"none of {feasible} feasible nodes is ready"]
    return _explain_shortage(standing, count, ask, ready=ready, reasons=found, queue=queue)


def _explain_shortage(
    standing: NodeAvailability,
    count: int,
    ask: Int64s,
    *,
    ready: Mask,
    reasons: list[str],
    queue: QueueAhead,
) -> Waiting:
    """Say what is short now on nodes that would have room when empty."""
    group, extras = standing.group, extra_asks_of(standing.group)
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
        held = standing.held
        reasons += current_shortages(
            standing.offers, held, extras, group.cpu_mhz, mask=ready, free=free[:, 0]
        )
    wait_class = "capacity"
    if closed := _explain_reservation(standing, ready & ~short.any(axis=1), queue):
        wait_class = "reservation"
        reasons.insert(0, closed)
    if queue.above is not None:
        there = (queue.above > 0).any(axis=1) & (free + queue.above >= ask).all(axis=1)
        outranked = int((ready & there).sum())
        if outranked:
            wait_class = "priority"
            reasons.insert(
                0, f"more important jobs have its room on {outranked} of {int(ready.sum())} nodes"
            )
    return Waiting(count=count, wait_class=wait_class, reasons=tuple(reasons))


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
