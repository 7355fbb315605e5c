"""Stepwise greedy: counts whose scores depend on what their own allocations leave of a node's devices.

Equal to scalar greedy by construction, one allocation at a time; stops when its steps are used up. A `StepwisePlacer`
adds its own scorer and assigns devices (device_affinity.py, gpu_packing.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import Holding
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    Demand,
    NodeColumns,
    Placement,
    find_candidates,
    join_placements,
    marginal_sums,
    room_of,
    taken_runs,
)
from shared.core.scheduling.selection.coupling import CLOSED, CLOSED_BELOW, Coupling, RowBoosts
from shared.core.scheduling.selection.marginal_scorer import MarginalScorer

#: Steps of a choice, and how many candidates are scored in the time of one step (greedy_coupled.py).
STEPS_EACH: Final = 40
_HEADS_A_STEP: Final = 50


class StepwisePlacer(Protocol):
    """A placer with its own scorer. `holdings`: what each allocation got so far, in order."""

    holdings: list[Holding]

    def place(
        self,
        demand: Demand,
        nodes: NodeColumns,
        coupling: Coupling | None,
        *,
        count: int,
        steps: int,
        own: Mask | None,
    ) -> Placement:
        """Place up to `count` where `nodes` have room; rows of `own` go first."""
        ...


def place_stepwise(
    demand: Demand,
    nodes: NodeColumns,
    coupling: Coupling | None,
    *,
    count: int,
    steps: int,
    own: Mask | None,
    worth: Callable[[NDArray[np.intp]], Int64s],
    take: Callable[[int], bool],
) -> Placement:
    """Place up to `count`, always on the row with the highest mean of its scorers, `worth` being one more.

    Shapes: own (N,), worth (R,) -> (R,), which does not apply where it is 0; `take` receives every chosen row, and
    returns whether it has room after all: earlier allocations may have left less than was counted.
    """
    passes_of = None if coupling is None else coupling.begin().by_row
    place = partial(_greedy, demand, passes_of=passes_of, worth=worth, take=take)
    if own is None:
        return place(nodes, count=count, steps=steps)
    first = place(nodes.only(own), count=count, steps=steps)
    if first.placed >= count or first.stopped:
        return first
    rest = place(nodes.only(~own), count=count - first.placed, steps=steps - first.steps)
    joined = join_placements([first, rest])
    return msgspec.structs.replace(joined, steps=first.steps + rest.steps, stopped=rest.stopped)


def _greedy(
    demand: Demand,
    nodes: NodeColumns,
    *,
    passes_of: Callable[[NDArray[np.intp]], RowBoosts] | None,
    count: int,
    steps: int,
    worth: Callable[[NDArray[np.intp]], Int64s],
    take: Callable[[int], bool],
) -> Placement:
    candidates = find_candidates(demand, nodes)
    rows = candidates.rows
    if not len(rows) or count <= 0:
        return EMPTY
    own_sums, own_scorers = marginal_sums(demand, candidates)
    liked = worth(rows)
    sums, scorers = own_sums + liked, own_scorers + (liked != 0)
    passes = None if passes_of is None else passes_of(rows)
    marginal, room = MarginalScorer(demand, candidates), room_of(demand, nodes, rows, count)
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
            return taken_runs(rows, taken, steps=each * looked)
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
    return taken_runs(rows, taken, steps=each * looked, stopped=len(taken) < count)
