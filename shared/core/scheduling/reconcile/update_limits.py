"""Limits: how many allocations may be replaced or moved now. Arithmetic on counts alone, for updates and drains.

Source: Nomad 2.0.5, scheduler/reconciler/reconcile_cluster.go (computeUnderProvisionedBy), drainer/watch_jobs.go.
An allocation without health uses up one place of `max_parallel` until it has some; an unhealthy one uses up all.
"""

from collections.abc import Collection, Sequence

import msgspec

#: The part of a percent.
_PERCENT = 100


class Progress(msgspec.Struct, frozen=True):
    """A group's standing allocations that its deployment placed or took over."""

    #: those of which no health is known yet.
    unready: int = 0
    unhealthy: int = 0


def changeable_count(
    max_parallel: int, progress: Progress, *, is_running: bool = True, is_canarying: bool = False
) -> int:
    """How many allocations of a group its deployment may place or replace now.

    Nothing while it is paused or held, has failed or waits for the promotion of its canaries.
    """
    if not is_running or is_canarying or progress.unhealthy:
        return 0
    return max(max_parallel - progress.unready, 0)


def replaceable_count(limit: int, *, old: int, missing: int) -> int:
    """How many old allocations may be replaced, once what is missing took its share of the limit."""
    return min(old, max(limit - missing, 0))


def movable_count(count: int, max_parallel: int, *, healthy: int, drainable: int) -> int:
    """How many allocations of a group may leave draining nodes now, so that `count - max_parallel` stay healthy.

    `healthy` counts all nodes, draining ones too. With `max_parallel` 0 nothing moves before the drain's deadline.
    """
    if not max_parallel:
        return 0
    return max(min(drainable, healthy - (count - max_parallel)), 0)


def missing_canaries(desired: int, *, standing: int, most: int) -> int:
    """How many canaries to place in one pass: never more than the group's count."""
    return max(min(desired - standing, most), 0)


def percent_canaries(percent: int, nodes: int, max_parallel: int) -> int:
    """Canaries of a system job's group: a part, rounded up, of the nodes to be changed; at most `max_parallel`."""
    return min(-(-percent * nodes // _PERCENT), max_parallel)


def canary_names(
    wanted: int, *, old: Sequence[int], taken: Collection[int], count: int
) -> list[int]:
    """Name indexes for canaries: first those of old allocations, then free ones, then from the count up.

    `taken` are the names that canaries have already.
    """
    names: list[int] = []
    seen = set(taken)
    for name in (*sorted(set(old)), *range(count)):
        if len(names) == wanted:
            return names
        if name not in seen:
            seen.add(name)
            names.append(name)
    name = count
    while len(names) < wanted:
        if name not in seen:
            names.append(name)
        name += 1
    return names
