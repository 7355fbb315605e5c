"""Sampled greedy: placing while looking at few nodes, so that its cost can be shown beside looking at all.

Decides which nodes are looked at for each allocation, by draws that are pure functions of a seed. `two_choices`: two
open nodes are drawn for each allocation, the better one takes it. `log2`: Nomad's scan, nodes in one shuffled order,
each allocation going on where the last one stopped, until enough nodes are scored; up to three with a score of 0 or
less are put aside on the way. cut.py calls this where the policy says so.

Source: Nomad scheduler/feasible (StaticIterator, shuffleNodes), select.go (LimitIterator, MaxScoreIterator).
"""

from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.coupled import Marginal
from shared.core.coupling import Tally
from shared.core.heads import (
    EMPTY,
    Demand,
    Nodes,
    Placement,
    heads_of,
    room_of,
    runs_of,
)
from shared.core.splitmix import splitmix64, splitmix64_array

Candidates = Literal["all", "two_choices", "log2"]

#: Options with a score of 0 or less that one scan puts aside.
_ASIDE_MAX: Final = 3
#: Draws for one choice before the next open node is taken instead.
_DRAWS_MAX: Final = 8
_MASK: Final = (1 << 64) - 1


class Sampling(msgspec.Struct, frozen=True):
    """Which nodes are looked at. `width`: options that one scan of `log2` scores."""

    candidates: Candidates
    seed: int
    width: int = 2


def scan_width(nodes: int, *, is_batch: bool, is_wide: bool, count: int) -> int:
    """Say how many options Nomad scores: 2 for batch, log2 of the nodes, at least 100 with affinity or spread."""
    if is_wide:
        return max(100, count)
    return 2 if is_batch else max(2, (max(nodes, 1) - 1).bit_length())


def place_sampled(
    demand: Demand,
    nodes: Nodes,
    sampling: Sampling,
    tally: Tally | None,
    *,
    count: int,
    steps: int,
) -> Placement:
    """Place up to `count`, scoring about `steps` heads at most; `tally` keeps what was placed."""
    heads = heads_of(demand, nodes)
    if not len(heads.rows) or count <= 0:
        return EMPTY
    of_head = None if tally is None else tally.combine(heads.rows)
    look = _Look(
        Marginal(demand, heads),
        tally,
        [] if of_head is None else of_head.tolist(),
        room_of(demand, nodes, heads.rows, count).tolist(),
        steps=steps,
    )
    if sampling.candidates == "two_choices":
        taken = _two_choices(look, sampling.seed, count)
    else:
        taken = _scan(look, _shuffled(heads.rows, sampling.seed), sampling.width, count)
    if not taken:
        return msgspec.structs.replace(EMPTY, steps=look.steps)
    stopped = look.is_tired and len(taken) < count
    placement = runs_of(heads.rows[taken])
    return msgspec.structs.replace(placement, steps=look.steps, stopped=stopped)


def _shuffled(rows: NDArray[np.intp], seed: int) -> list[int]:
    """Order heads by a hash of seed and row."""
    mixed = splitmix64_array(rows.astype(np.uint64) ^ np.uint64(splitmix64(seed)))
    order: list[int] = mixed.argsort(kind="stable").tolist()
    return order


class _Look:
    """Heads as they are while a count is placed."""

    def __init__(
        self,
        marginal: Marginal,
        tally: Tally | None,
        of_head: list[int],
        room: list[int],
        *,
        steps: int,
    ) -> None:
        self._marginal = marginal
        self._tally = tally
        self._of_head = of_head
        self._room = room
        self._taken: dict[int, int] = {}
        self.steps = 0
        self._most = steps
        self.size = len(room)

    def score(self, head: int) -> int | None:
        """Return the score of the next allocation on a head; None: it takes no more."""
        self.steps += 1
        index = self._taken.get(head, 0)
        if index >= self._room[head]:
            return None
        boost = 0
        if self._tally is not None:
            found = self._tally.boosts[self._of_head[head]]
            if found is None:
                return None
            boost = found
        total, scorers = self._marginal.score(head, index)
        return (total + boost) // (scorers + (boost != 0))

    @property
    def is_tired(self) -> bool:
        """Tell whether enough was looked at for one count."""
        return self.steps > self._most

    def is_full(self, head: int) -> bool:
        """Tell whether a head never takes one again."""
        return self._taken.get(head, 0) >= self._room[head]

    def take(self, head: int) -> None:
        """Place one on a head."""
        self._taken[head] = self._taken.get(head, 0) + 1
        if self._tally is not None:
            self._tally.take(self._of_head[head])


def _two_choices(look: _Look, seed: int, count: int) -> list[int]:
    taken: list[int] = []
    left = list(range(look.size))
    draw = seed
    while len(taken) < count and left and not look.is_tired:
        options: list[tuple[int, int]] = []
        for _ in range(2 * _DRAWS_MAX):
            draw = (draw + 1) & _MASK
            option = _drawn(look, left, splitmix64(draw) % len(left))
            options += option
            if not left or len(options) == 2:
                break
        if not options:
            options = _any_open(look, left)
            if not options:
                break
        best = max(options, key=lambda one: one[0])[1]
        taken.append(best)
        look.take(best)
    return taken


def _drawn(look: _Look, left: list[int], at: int) -> list[tuple[int, int]]:
    """Return score and head at a place of `left`; a head that is full gives way to the last one."""
    head = left[at]
    if look.is_full(head):
        left[at] = left[-1]
        left.pop()
        return []
    score = look.score(head)
    return [] if score is None else [(score, head)]


def _any_open(look: _Look, left: list[int]) -> list[tuple[int, int]]:
    """Return the first head that takes one more, if any does."""
    for head in left:
        score = look.score(head)
        if score is not None:
            return [(score, head)]
    return []


def _scan(look: _Look, order: list[int], width: int, count: int) -> list[int]:
    taken: list[int] = []
    at = 0
    while len(taken) < count and not look.is_tired:
        seen: list[tuple[int, int]] = []
        aside: list[tuple[int, int]] = []
        for _ in range(len(order)):
            at %= len(order)
            head = order[at]
            if look.is_full(head):
                del order[at]
                continue
            at += 1
            score = look.score(head)
            if score is None:
                continue
            if score <= 0 and len(aside) < _ASIDE_MAX:
                aside.append((score, head))
                continue
            seen.append((score, head))
            if len(seen) == width:
                break
        seen += aside[: width - len(seen)]
        if not seen:
            break
        # The first of equals, as they were seen.
        best = max(seen, key=lambda one: one[0])[1]
        taken.append(best)
        look.take(best)
    return taken
