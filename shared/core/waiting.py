"""Waiting: why some of a want found no room, in a class and in words.

Decides the class (CONTRACTS: misconfigured, never fits, capacity, reservation, priority) and the reasons, those that
say most first. Must not know how anything is placed: `Standing` is what it was placed on, `Beside` who goes before.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.filters import FilterReport, Mask
from shared.core.resources.asks import extras_of
from shared.core.resources.rooms import Need, room_of
from shared.core.resources.shortages import ever_fits, short_of
from shared.core.scores import Int64s
from shared.core.standing import Standing

RESOURCE_NAMES: Final = ("cpu", "memory", "disk")


class Beside(msgspec.Struct, frozen=True, eq=False):
    """Who goes before a job. `names`: jobs for which nodes are held back.

    `limit`: how many more nodes take beside them. `above` (N, 3): what more important jobs hold; None: of no account.
    """

    names: tuple[str, ...]
    limit: Callable[[GroupSpec, Sequence[ResourceAsk]], Int64s | None]
    above: Int64s | None = None


def ask_of(group: GroupSpec) -> Int64s:
    """What one allocation asks for. Shape: (3,), in the order of the fleet's columns."""
    return np.array((group.cpu_mhz, group.memory_mib, group.disk_mib), dtype=np.int64)


def explain(
    standing: Standing,
    count: int,
    *,
    nodes: int,
    report: Callable[[], FilterReport],
    beside: Beside,
) -> Waiting:
    """Say why `count` found no room.

    `standing.rules` close nodes; `nodes`: how many live; `report`: who refuses whom.
    """
    group, mask = standing.group, standing.feasible
    ask, extras = ask_of(group), extras_of(group)
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
        fits_empty, why = ever_fits(
            standing.offers, extras, group.cpu_mhz, fits_empty, capacity=standing.capacity
        )
        if not fits_empty.any():
            why = (*why, *report().reasons())
            return Waiting(count=count, wait_class="never_fits", reasons=why)
    ready = fits_empty & standing.ready
    found = [] if ready.any() else [f"none of {feasible} feasible nodes is ready"]
    return _short(standing, count, ask, ready=ready, reasons=found, beside=beside)


def _short(
    standing: Standing,
    count: int,
    ask: Int64s,
    *,
    ready: Mask,
    reasons: list[str],
    beside: Beside,
) -> Waiting:
    """Say what is short right now on nodes that would do were they empty."""
    group, extras = standing.group, extras_of(standing.group)
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
        reasons += short_of(
            standing.offers, held, extras, group.cpu_mhz, mask=ready, free=free[:, 0]
        )
    wait_class = "capacity"
    if closed := _held_back(standing, ready & ~short.any(axis=1), beside):
        wait_class = "reservation"
        reasons.insert(0, closed)
    if beside.above is not None:
        there = (beside.above > 0).any(axis=1) & (free + beside.above >= ask).all(axis=1)
        outranked = int((ready & there).sum())
        if outranked:
            wait_class = "priority"
            reasons.insert(
                0, f"more important jobs have its room on {outranked} of {int(ready.sum())} nodes"
            )
    return Waiting(count=count, wait_class=wait_class, reasons=tuple(reasons))


def _held_back(standing: Standing, open_: Mask, beside: Beside) -> str:
    """Say for whom nodes with room are held back; empty: none is. `open_` (N,): nodes whose columns have room."""
    names = beside.names
    if not names:
        return ""
    closed = 0
    group, extras = standing.group, extras_of(standing.group)
    free_cpu = standing.capacity[:, 0] - standing.used[:, 0]
    for variant, asks in enumerate(group.alternatives or ((),)):
        limit = beside.limit(group, asks)
        has_room = open_
        if extras is not None:
            need = Need(extras, variant, open_, free_cpu, group.cpu_mhz, 1)
            room = room_of(standing.offers, standing.held, need)
            has_room = open_ if room is None else open_ & (room > 0)
        if limit is not None:
            closed = max(closed, int((has_room & (limit <= 0)).sum()))
    if not closed:
        return ""
    first, *others = names
    more = f" and {len(others)} more" if others else ""
    return f"{closed} nodes with room are held back for job {first!r}{more}"


def _shown(ask: Int64s) -> str:
    cpu, memory, disk = ask.tolist()
    return f"{cpu} MHz, {memory} MiB memory, {disk} MiB disk"
