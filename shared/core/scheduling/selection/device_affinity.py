"""Device affinity: a scorer for device asks that prefer some models; it changes with every device assigned.

For each ask the score is the weights of the best model that still fits on the row, over the sum of all weights. Source:
Nomad scheduler/rank.go (`devices` in BinPackIterator) and device.go; each ask is scored by itself, and a sum of 0 means
that the scorer does not apply.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.asks import ExtraAsks, Holding
from shared.core.resources.assign import ResourceAssigner
from shared.core.resources.devices import holds
from shared.core.resources.headroom import fits_ask
from shared.core.resources.offers import INDEXED, OfferedResources
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.selection.candidates import Demand, NodeColumns, Placement
from shared.core.scheduling.selection.coupling import Coupling
from shared.core.scheduling.selection.greedy_stepwise import place_stepwise


def has_device_affinity(asks: tuple[ResourceAsk, ...]) -> bool:
    """Tell whether any of the asks prefers some models."""
    return any(ask.affinities for ask in asks)


class DeviceAffinity:
    """Places one variant of a group. `nth`: how many allocations the plan assigned before."""

    def __init__(
        self,
        offers: OfferedResources,
        assigner: ResourceAssigner,
        extras: ExtraAsks,
        variant: int,
        *,
        nth: int = 0,
    ) -> None:
        self.holdings: list[Holding] = []
        self._offers = offers
        self._assigner = assigner
        self._extras = extras
        self._variant = variant
        self._nth = nth
        asks = extras.alternatives[variant]
        #: for each ask: model code -> sum of the weights that it matches.
        self._likes = [_model_weights(offers, ask) for ask in asks]
        self._total = sum(abs(one.weight) for ask in asks for one in ask.affinities)

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
        """Place up to `count`; see `StepwisePlacer`."""
        return place_stepwise(
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
            if not ask.affinities or self._offers.cached_kind(ask.pool) != INDEXED:
                continue
            best = np.zeros(len(rows), np.int64)
            found = np.zeros(len(rows), np.bool_)
            # Best model first: a row keeps the first model that fits.
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
            # One ask prefers what another one requires: place it without the preference.
            holding = self._assigner.assign(row, self._extras, self._variant, nth=nth)
        if holding is None:
            return False
        self._assigner.held.add(row, None, holding)
        self.holdings.append(holding)
        return True


def _model_weights(offers: OfferedResources, ask: ResourceAsk) -> dict[int, int]:
    return {
        int(code): sum(
            one.weight
            for one in ask.affinities
            if holds(offers.models[code], one.left, one.operator, one.right)
        )
        for code in np.flatnonzero(offers.matches(ask))
    }
