"""The migrations of a what-if: allocations on removed or drained nodes, and their replacements.

An allocation counts as displaced if it was on such a node at the fork and had not ended.
"""

from collections.abc import Callable, Collection

import msgspec
import numpy as np

from shared.sim.virtual_time import SECOND
from shared.whatif.comparison import alloc_name_at, node_name_at
from shared.whatif.timeline import Timeline


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation that leaves its node. `to` empty: it has no replacement (yet)."""

    allocation: str
    from_node: str
    to: str = ""
    #: from the fork until its replacement was placed; without one, until the end.
    after_s: float = 0.0
    #: the allocation ended by itself before it was stopped.
    ended: bool = False


def find_migrations(timeline: Timeline, leaving: Collection[str]) -> tuple[Migration, ...]:
    """List the migrations from these nodes in a closed timeline, ordered by node and name."""
    numbers = [at for at, node in enumerate(timeline.names.nodes) if node in leaving]
    there = slice(0, timeline.there)
    on = np.isin(timeline.placed.column("node")[there], numbers)
    ended = timeline.placed.column("ended_ns")[there]
    on &= (ended == 0) | (ended > timeline.begin_ns)
    told = timeline.placed.column("told_ns")[there]
    on &= (told == 0) | (told >= timeline.begin_ns)
    if not on.any():
        return ()
    heirs = _heirs(timeline)
    found = [_move(timeline, at, heirs(at)) for at in np.flatnonzero(on).tolist()]
    return tuple(sorted(found, key=lambda one: (one.from_node, one.allocation)))


def _heirs(timeline: Timeline) -> Callable[[int], int | None]:
    """Position of the replacement: the one placed for it, else the next one of its name."""
    previous = timeline.placed.column("previous")
    placed_for = {one: at for at, one in enumerate(previous.tolist()) if one}
    by_lineage = {one: at for at, one in enumerate(timeline.placed.lineages().tolist())}

    def heir(at: int) -> int | None:
        found = placed_for.get(at + 1)
        if found is None:
            # Lineages of one name are numbered in order.
            found = by_lineage.get(int(timeline.placed.lineages(np.asarray([at]))[0]) + 1)
        return found

    return heir


def _move(timeline: Timeline, at: int, successor: int | None) -> Migration:
    begun = timeline.begin_ns
    if successor is not None:
        return Migration(
            allocation=alloc_name_at(timeline, at),
            from_node=node_name_at(timeline, at),
            to=node_name_at(timeline, successor),
            after_s=round(
                (int(timeline.placed.column("placed_ns")[successor]) - begun) / SECOND, 3
            ),
        )
    return Migration(
        allocation=alloc_name_at(timeline, at),
        from_node=node_name_at(timeline, at),
        after_s=round((timeline.t_ns - begun) / SECOND, 3),
        ended=bool(
            timeline.placed.column("ended_ns")[at] and not timeline.placed.column("told")[at]
        ),
    )
