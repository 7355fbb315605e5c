"""One ask placed again and again: what `policy.choose` chooses each time, without looking at every node anew.

Decides nothing of its own: a placement changes the cost of one node, and how scarce its model is. Must not know where
the columns come from; `policy.place_count` is what it is held against.
"""

from typing import Final

import numpy as np

from shared.core.fragmentation.gpus import Choice, GpuAsk, GpuColumns, Mask
from shared.core.fragmentation.policy import Prices, base_costs, fullest, model_prices

_NEVER: Final = 1 << 62


class Course:
    """Costs of one ask on all nodes, brought up to date with every placement. It writes into `columns`."""

    def __init__(self, columns: GpuColumns, ask: GpuAsk, prices: Prices) -> None:
        self._columns = columns
        self._ask = ask
        self._prices = prices
        size = len(columns.model)
        self._cost = np.full(size, _NEVER, np.int64)
        self._instance = np.full(size, -1, np.int64)
        self._free = np.zeros(len(prices.scarcity.group_of), np.int64)
        np.add.at(self._free, columns.model, columns.gpu_free.sum(axis=1))
        self._look(np.flatnonzero(columns.fits(ask)))

    def choose(self, usable: Mask) -> Choice | None:
        """Choose node and instance among the `usable` (N,) nodes; None: it fits none of them."""
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
        return Choice(row, int(self._instance[row]), least)

    def take(self, choice: Choice) -> tuple[int, ...]:
        """Place the ask where it was chosen, and return the instances that it got."""
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
