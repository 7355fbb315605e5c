"""Sampled greedy: placing while considering few nodes, to show its cost beside considering all.

Draws are pure functions of a seed. `two_choices`: two open nodes are drawn for each allocation, the better one wins.
`log2`: Nomad's scan, nodes in one shuffled order, each allocation continuing where the last one stopped, until enough
nodes are scored; up to three with a score of 0 or less are skipped on the way.

Source: Nomad scheduler/feasible (StaticIterator, shuffleNodes), select.go (LimitIterator, MaxScoreIterator).
"""

from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.scheduling.selection.candidates import (
    EMPTY,
    Demand,
    NodeColumns,
    Placement,
    find_candidates,
    room_of,
    taken_runs,
)
from shared.core.scheduling.selection.coupling import Tally
from shared.core.scheduling.selection.marginal_scorer import MarginalScorer
from shared.core.splitmix import splitmix64, splitmix64_array

CandidateSampling = Literal["all", "two_choices", "log2"]

#: Options with a score of 0 or less that one scan skips.
_ASIDE_MAX: Final = 3
#: Draws for one choice; then the next open node is taken.
_DRAWS_MAX: Final = 8
_MASK: Final = (1 << 64) - 1


class Sampling(msgspec.Struct, frozen=True):
    """How nodes are sampled. `width`: options that one scan of `log2` scores."""

    candidates: CandidateSampling
    seed: int
    width: int = 2


def scan_width(nodes: int, *, is_batch: bool, is_wide: bool, count: int) -> int:
    """Number of options Nomad scores: 2 for batch, log2 of the nodes, at least 100 with affinity or spread."""
    if is_wide:
        return max(100, count)
    return 2 if is_batch else max(2, (max(nodes, 1) - 1).bit_length())


def place_sampled(
    demand: Demand,
    nodes: NodeColumns,
    sampling: Sampling,
    tally: Tally | None,
    *,
    count: int,
    steps: int,
) -> Placement:
    """Place up to `count`, scoring at most about `steps` candidates; `tally` keeps the counts."""
    candidates = find_candidates(demand, nodes)
    if not len(candidates.rows) or count <= 0:
        return EMPTY
    of_head = None if tally is None else tally.combine(candidates.rows)
    look = _SampledScorer(
        MarginalScorer(demand, candidates),
        tally,
        [] if of_head is None else of_head.tolist(),
        room_of(demand, nodes, candidates.rows, count).tolist(),
        steps=steps,
    )
    if sampling.candidates == "two_choices":
        taken = _two_choices(look, sampling.seed, count)
    else:
        taken = _scan(look, _shuffled(candidates.rows, sampling.seed), sampling.width, count)
    # Without any placement nothing fits: the rest need not be tried again.
    stopped = look.is_over_budget and 0 < len(taken) < count
    return taken_runs(candidates.rows, taken, steps=look.steps, stopped=stopped)


def _shuffled(rows: NDArray[np.intp], seed: int) -> list[int]:
    """Order candidates by a hash of seed and row."""
    mixed = splitmix64_array(rows.astype(np.uint64) ^ np.uint64(splitmix64(seed)))
    order: list[int] = mixed.argsort(kind="stable").tolist()
    return order


class _SampledScorer:
    """Candidates while a count is placed."""

    def __init__(
        self,
        marginal: MarginalScorer,
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
        """Return the score of the next allocation on a candidate; None: it is full."""
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
    def is_over_budget(self) -> bool:
        """Tell whether enough candidates were scored for one count."""
        return self.steps > self._most

    def is_full(self, head: int) -> bool:
        """Tell whether a candidate can never take another one."""
        return self._taken.get(head, 0) >= self._room[head]

    def take(self, head: int) -> None:
        """Place one on a candidate."""
        self._taken[head] = self._taken.get(head, 0) + 1
        if self._tally is not None:
            self._tally.take(self._of_head[head])


def _two_choices(look: _SampledScorer, seed: int, count: int) -> list[int]:
    taken: list[int] = []
    left = list(range(look.size))
    draw = seed
    while len(taken) < count and left and not look.is_over_budget:
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


def _drawn(look: _SampledScorer, left: list[int], at: int) -> list[tuple[int, int]]:
    """Return score and candidate at a position of `left`; a full one is replaced by the last."""
    head = left[at]
    if look.is_full(head):
        left[at] = left[-1]
        left.pop()
        return []
    score = look.score(head)
    return [] if score is None else [(score, head)]


def _any_open(look: _SampledScorer, left: list[int]) -> list[tuple[int, int]]:
    """Return the first candidate that takes one more; None: there is none."""
    for head in left:
        score = look.score(head)
        if score is not None:
            return [(score, head)]
    return []


def _scan(look: _SampledScorer, order: list[int], width: int, count: int) -> list[int]:
    taken: list[int] = []
    at = 0
    while len(taken) < count and not look.is_over_budget:
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
        # The first among equals, in scan order.
        best = max(seen, key=lambda one: one[0])[1]
        taken.append(best)
        look.take(best)
    return taken
