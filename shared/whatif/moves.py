"""What would move where: the allocations of nodes that leave, and who takes their place.

Decides who counts as displaced: what was on such a node at the fork and had not ended. Must not know why a node leaves.
"""

from collections.abc import Callable, Collection

import msgspec
import numpy as np

from shared.whatif.compare import name_of, node_of
from shared.whatif.course import Course
from shared.whatif.effects import NS


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation that leaves its node. `to` empty: nothing took its place (yet)."""

    allocation: str
    from_node: str
    to: str = ""
    #: from the fork until its replacement was placed; of one without, until the end.
    after_s: float = 0.0
    #: ended by itself before it had to go.
    ended: bool = False


def moves(course: Course, leaving: Collection[str]) -> tuple[Move, ...]:
    """List what leaves these nodes in a course that was closed, in the order of nodes and names."""
    numbers = [at for at, node in enumerate(course.names.nodes) if node in leaving]
    there = slice(0, course.there)
    on = np.isin(course.placed.column("node")[there], numbers)
    ended = course.placed.column("ended_ns")[there]
    on &= (ended == 0) | (ended > course.begin_ns)
    told = course.placed.column("told_ns")[there]
    on &= (told == 0) | (told >= course.begin_ns)
    if not on.any():
        return ()
    heirs = _heirs(course)
    found = [_move(course, at, heirs(at)) for at in np.flatnonzero(on).tolist()]
    return tuple(sorted(found, key=lambda one: (one.from_node, one.allocation)))


def _heirs(course: Course) -> Callable[[int], int | None]:
    """Who took an allocation's place: whoever was placed for it, else the next one of its name."""
    previous = course.placed.column("previous")
    placed_for = {one: at for at, one in enumerate(previous.tolist()) if one}
    by_lineage = {one: at for at, one in enumerate(course.placed.lineages().tolist())}

    def heir(at: int) -> int | None:
        found = placed_for.get(at + 1)
        if found is None:
            # Lineages of one name count up.
            found = by_lineage.get(int(course.placed.lineages(np.asarray([at]))[0]) + 1)
        return found

    return heir


def _move(course: Course, at: int, successor: int | None) -> Move:
    begun = course.begin_ns
    if successor is not None:
        return Move(
            allocation=name_of(course, at),
            from_node=node_of(course, at),
            to=node_of(course, successor),
            after_s=round((int(course.placed.column("placed_ns")[successor]) - begun) / NS, 3),
        )
    return Move(
        allocation=name_of(course, at),
        from_node=node_of(course, at),
        after_s=round((course.t_ns - begun) / NS, 3),
        ended=bool(course.placed.column("ended_ns")[at] and not course.placed.column("told")[at]),
    )
