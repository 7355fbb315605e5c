"""Incremental costs: one ask placed repeatedly, with the choices of `choose`, without scoring every node again.

A placement changes the cost of one node, and the scarcity of its model. Tests compare it with asks placed one by one.
"""

from typing import Final

import numpy as np

from shared.core.columns import Mask
from shared.core.scheduling.packing.gpu_columns import GpuAsk, GpuChoice, GpuColumns
from shared.core.scheduling.packing.placement_costs import (
    GpuPrices,
    base_costs,
    fullest,
    model_prices,
)

_NEVER: Final = 1 << 62


class IncrementalCosts:
    """Costs of one ask on all nodes, updated with every placement. Writes into `columns`."""

    def __init__(self, columns: GpuColumns, ask: GpuAsk, prices: GpuPrices) -> None:
        self._columns = columns
        self._ask = ask
        self._prices = prices
        size = len(columns.model)
        self._cost = np.full(size, _NEVER, np.int64)
        self._instance = np.full(size, -1, np.int64)
        self._free = np.zeros(len(prices.scarcity.group_of), np.int64)
        np.add.at(self._free, columns.model, columns.gpu_free.sum(axis=1))
        self._look(np.flatnonzero(columns.fits(ask)))

    def choose(self, usable: Mask) -> GpuChoice | None:
        """Choose node and instance among the `usable` (N,) nodes; None: it fits on none of them."""
        cost, ask = self._cost, self._ask
        if ask.gpus:
            scarce = ask.total_share * model_prices(self._free, self._prices)
            cost = cost + scarce[self._columns.model]
        cost = np.where(usable, cost, _NEVER)
        least = int(cost.min()) if len(cost) else _NEVER
        if least >= _NEVER:
            return None
        rows = np.flatnonzero(cost == least)
        at = 0
        if len(rows) > 1:
            at = fullest(self._columns, ask, rows, np.arange(len(rows)))
        row = int(rows[at])
        return GpuChoice(row, int(self._instance[row]), least)

    def take(self, choice: GpuChoice) -> tuple[int, ...]:
        """Place the ask where it was chosen, and return its instances."""
        slots = self._columns.take(self._ask, choice.row, choice.instance)
        self._free[self._columns.model[choice.row]] -= self._ask.total_share
        self._cost[choice.row] = _NEVER
        one = np.array([choice.row])
        self._look(one[self._columns.only(one).fits(self._ask)])
        return slots

    def _look(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if not len(rows):
            return
        cost, instances = base_costs(self._columns, self._ask, rows, self._prices)
        self._cost[rows] = cost
        if instances is not None:
            self._instance[rows] = instances
