"""Liking: affinities of device asks, a scorer that changes with every device that is given away.

Decides what a row is worth to asks that prefer some models: for each the weights of the best model that it still fits
on there, over the sum of all weights. Must not know other scorers. Source: Nomad scheduler/rank.go (`devices` in
BinPackIterator) and device.go; an ask is looked at by itself, and where the sum is 0 the scorer does not apply.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import ResourceAsk
from shared.core.coupling import Coupling
from shared.core.heads import Demand, Mask, Nodes, Placement
from shared.core.one_by_one import place_one_by_one
from shared.core.pow10 import SCALE
from shared.core.resources.asks import Extras, Holding
from shared.core.resources.assign import Assigner
from shared.core.resources.devices import holds
from shared.core.resources.offers import INDEXED, Offers
from shared.core.resources.rooms import fits_ask
from shared.core.scores import Int64s


def has_likes(asks: tuple[ResourceAsk, ...]) -> bool:
    """Tell whether any of the asks prefers some models."""
    return any(ask.affinities for ask in asks)


class Liking:
    """Places one variant of a group. `nth`: how many allocations the plan assigned before."""

    def __init__(
        self, offers: Offers, assigner: Assigner, extras: Extras, variant: int, *, nth: int = 0
    ) -> None:
        self.holdings: list[Holding] = []
        self._offers = offers
        self._assigner = assigner
        self._extras = extras
        self._variant = variant
        self._nth = nth
        asks = extras.alternatives[variant]
        #: for each ask: model code -> sum of the weights that it matches.
        self._likes = [_weights(offers, ask) for ask in asks]
        self._total = sum(abs(one.weight) for ask in asks for one in ask.affinities)

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
        """Place up to `count`; see `one_by_one.Way`."""
        return place_one_by_one(
            demand,
            nodes,
            coupling,
            count=count,
            steps=steps,
            own=own,
            worth=self.worth,
            take=self._take,
        )

    def worth(self, rows: NDArray[np.intp]) -> Int64s:
        """Score rows by the models that asks would get there. Shapes: rows, result (R,). Unit: 2**-20."""
        total = np.zeros(len(rows), np.int64)
        for ask, likes in zip(self._extras.alternatives[self._variant], self._likes, strict=True):
            if not ask.affinities or self._offers.kind_now(ask.pool) != INDEXED:
                continue
            best = np.zeros(len(rows), np.int64)
            found = np.zeros(len(rows), np.bool_)
            # The most liked first: a row keeps the first model that it fits on.
            for model in sorted(likes, key=lambda code: (-likes[code], code)):
                fits = fits_ask(self._offers, self._assigner.held, ask, rows, model=model) & ~found
                best[fits] = likes[model]
                found |= fits
            total += best
        return total * SCALE // max(self._total, 1)

    def _take(self, row: int) -> bool:
        nth = self._nth + len(self.holdings)
        holding = self._assigner.assign(
            row, self._extras, self._variant, nth=nth, likes=self._likes
        )
        if holding is None:
            # One ask likes what another one needs: better without its wish than not at all.
            holding = self._assigner.assign(row, self._extras, self._variant, nth=nth)
        if holding is None:
            return False
        self._assigner.held.add(row, None, holding)
        self.holdings.append(holding)
        return True


def _weights(offers: Offers, ask: ResourceAsk) -> dict[int, int]:
    return {
        int(code): sum(
            one.weight
            for one in ask.affinities
            if holds(offers.models[code], one.left, one.operator, one.right)
        )
        for code in np.flatnonzero(offers.matches(ask))
    }
