"""One by one: a count whose scores depend on what its own allocations left of a node's devices.

Decides the rows of a count that the cut cannot place at once: `Way` says what a row is worth beyond the scorers of
scores.py, and takes what each allocation gets. Equal to scalar greedy by construction; so it takes steps, and stops
when it had its share of them. Must not know devices; liking.py does.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.coupled import Marginal
from shared.core.coupling import CLOSED, CLOSED_BELOW, Coupling, Passes
from shared.core.heads import (
    EMPTY,
    Demand,
    Mask,
    Nodes,
    Placement,
    heads_of,
    join,
    marginal_sums,
    room_of,
    runs_of,
)
from shared.core.resources.asks import Holding
from shared.core.scores import Int64s

#: What a choice and what it takes cost, and how many heads it looks at in the time of one step (coupled.py).
STEPS_EACH: Final = 40
_HEADS_A_STEP: Final = 50


class Way(Protocol):
    """A way of placing of its own. `holdings`: what each allocation got so far, in order."""

    holdings: list[Holding]

    def place(
        self,
        demand: Demand,
        nodes: Nodes,
        coupling: Coupling | None,
        *,
        count: int,
        steps: int,
        own: Mask | None,
    ) -> Placement:
        """Place up to `count` where `nodes` have room; rows of `own` go first."""
        ...


def place_one_by_one(
    demand: Demand,
    nodes: Nodes,
    coupling: Coupling | None,
    *,
    count: int,
    steps: int,
    own: Mask | None,
    worth: Callable[[NDArray[np.intp]], Int64s],
    take: Callable[[int], bool],
) -> Placement:
    """Place up to `count`, always on the row with the highest mean of its scorers, `worth` of it being one more.

    Shapes: own (N,), worth (R,) -> (R,), which does not apply where it is 0; `take` hears every row that is chosen,
    and says whether it has room after all: what each got so far may leave less than was counted.
    """
    passes_of = None if coupling is None else coupling.begin().look_at
    if own is None:
        return _greedy(demand, nodes, passes_of, count=count, steps=steps, worth=worth, take=take)
    first = _greedy(
        demand, nodes.only(own), passes_of, count=count, steps=steps, worth=worth, take=take
    )
    if first.placed >= count or first.stopped:
        return first
    rest = _greedy(
        demand,
        nodes.only(~own),
        passes_of,
        count=count - first.placed,
        steps=steps - first.steps,
        worth=worth,
        take=take,
    )
    joined = join([first, rest])
    return msgspec.structs.replace(joined, steps=first.steps + rest.steps, stopped=rest.stopped)


def _greedy(
    demand: Demand,
    nodes: Nodes,
    passes_of: Callable[[NDArray[np.intp]], Passes] | None,
    *,
    count: int,
    steps: int,
    worth: Callable[[NDArray[np.intp]], Int64s],
    take: Callable[[int], bool],
) -> Placement:
    heads = heads_of(demand, nodes)
    rows = heads.rows
    if not len(rows) or count <= 0:
        return EMPTY
    own_sums, own_scorers = marginal_sums(demand, heads)
    liked = worth(rows)
    sums, scorers = own_sums + liked, own_scorers + (liked != 0)
    passes = None if passes_of is None else passes_of(rows)
    marginal, room = Marginal(demand, heads), room_of(demand, nodes, rows, count)
    each = STEPS_EACH + len(rows) // _HEADS_A_STEP
    most = max(steps // each, 1)
    taken: list[int] = []
    on_head: dict[int, int] = {}
    looked = 0
    while len(taken) < count and looked < most:
        boosts = 0 if passes is None else passes.boosts()
        scores = (sums + boosts) // (scorers + np.not_equal(boosts, 0))
        best = int(scores.argmax())
        if scores[best] <= CLOSED_BELOW:
            return _runs(rows, taken, steps=each * looked)
        looked += 1
        if not take(int(rows[best])):
            sums[best] = CLOSED
            continue
        taken.append(best)
        if passes is not None:
            passes.take(best)
        on_head[best] = index = on_head.get(best, 0) + 1
        if index < room[best]:
            total, number = marginal.score(best, index)
            like = int(worth(rows[best : best + 1])[0])
            sums[best], scorers[best] = total + like, number + (like != 0)
        else:
            sums[best] = CLOSED
    return _runs(rows, taken, steps=each * looked, stopped=len(taken) < count)


def _runs(
    rows: NDArray[np.intp], taken: list[int], *, steps: int, stopped: bool = False
) -> Placement:
    placement = runs_of(rows[taken]) if taken else EMPTY
    return msgspec.structs.replace(placement, steps=steps, stopped=stopped)
