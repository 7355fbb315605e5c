"""Hole values: what a partly used GPU is worth, by the best packing of the fractions that were asked for.

Packing fractions into GPUs is cutting stock: patterns (multisets of sizes that fit into one GPU),
as few GPUs as possible for the mix of sizes seen so far. The linear program's dual gives each size
its price, the share of a GPU it costs in that best packing; a hole is worth the most valuable set of
sizes that it can still hold. A placement that follows an optimal pattern then loses nothing, any
other loses the difference. (If 0.32 is asked for more often than 0.65, they are worth 1/3 and
2/3: three 0.32 lose nothing, nor does one beside a 0.65; two beside each other and nothing else
lose a third.) Sizes that never lack room, such as the few 0.16 that fit beside many 0.81, get
price 0.

Exact in integers: the simplex keeps the basis' inverse times its determinant (Edmonds, Bareiss:
every division is without remainder), so every processor computes the same prices. Source: Gilmore
and Gomory, "A linear programming approach to the cutting-stock problem" (1961): patterns are
generated, each by a knapsack under the current prices.
"""

from collections.abc import Mapping, Sequence
from typing import Final

#: Steps of a GPU that sizes are rounded up to, and holes down to.
STEPS: Final = 100
#: The sizes with the largest total demand take part.
SIZES_MAX: Final = 24
#: Maximum number of patterns tried; prices are then near-optimal, with the right proportions.
_PIVOTS_MAX: Final = 400


def hole_values(demand: Mapping[int, int], unit: int) -> list[int]:
    """Return what a hole of 0, 1 … `STEPS` steps is worth, in units of 1 / `unit` of a GPU.

    `demand`: size in steps, below `STEPS` -> how often it was asked for. Rising; the last is
    `unit`. Values are floored.
    """
    asked = sorted(demand.items(), key=lambda item: (-item[0] * item[1], item[0]))[:SIZES_MAX]
    sizes = sorted(size for size, count in asked if 0 < size < STEPS and count > 0)
    if not sizes:
        return [0] * STEPS + [unit]
    prices = _prices(sizes, [demand[size] for size in sizes])
    values, _ = _knapsack(sizes, prices)
    # At the optimum a whole GPU is worth exactly one; scale the prices if the search was cut short.
    return [value * unit // values[STEPS] for value in values]


def _prices(sizes: Sequence[int], demand: Sequence[int]) -> list[int]:
    """Return the dual prices of the sizes, all times one common factor."""
    basis = _Basis([STEPS // size for size in sizes], demand)
    prices = basis.prices()
    for _ in range(_PIVOTS_MAX):
        surplus = next((at for at, price in enumerate(prices) if price < 0), None)
        if surplus is not None:
            column = [0] * len(sizes)
            column[surplus] = -1
            cost = 0
        else:
            values, last = _knapsack(sizes, prices)
            if values[STEPS] <= basis.factor:
                break
            column = _pattern(sizes, last)
            cost = 1
        if not basis.enter(column, cost):
            break
        prices = basis.prices()
    return [max(price, 0) for price in prices]


def _knapsack(sizes: Sequence[int], prices: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the most valuable set for each room, and which size was added last (-1: none)."""
    items = [(size, price, at) for at, (size, price) in enumerate(zip(sizes, prices, strict=True))]
    values = [0] * (STEPS + 1)
    last = [-1] * (STEPS + 1)
    for room in range(1, STEPS + 1):
        best, which = values[room - 1], -1
        for size, price, at in items:
            if size > room:
                break
            value = values[room - size] + price
            if value > best:
                best, which = value, at
        values[room], last[room] = best, which
    return values, last


def _pattern(sizes: Sequence[int], last: Sequence[int]) -> list[int]:
    """Count each size in the most valuable set of a whole GPU."""
    pattern = [0] * len(sizes)
    room = STEPS
    while room > 0:
        which = last[room]
        if which < 0:
            room -= 1
        else:
            pattern[which] += 1
            room -= sizes[which]
    return pattern


class _Basis:
    """A basis with as many columns as sizes: its inverse and solution, as integers over one `factor` > 0."""

    def __init__(self, copies: Sequence[int], demand: Sequence[int]) -> None:
        """Start with one pattern for each size, of that size alone."""
        count = len(copies)
        self.factor = 1
        for one in copies:
            self.factor *= one
        self._inverse = [[0] * count for _ in range(count)]
        for at, one in enumerate(copies):
            self._inverse[at][at] = self.factor // one
        self._solution = [
            self.factor // one * wanted for one, wanted in zip(copies, demand, strict=True)
        ]
        self._costs = [1] * count

    def prices(self) -> list[int]:
        """Return costs times inverse, over `factor`."""
        rows = [row for row, cost in zip(self._inverse, self._costs, strict=True) if cost]
        if not rows:
            return [0] * len(self._inverse)
        return [sum(column) for column in zip(*rows, strict=True)]

    def enter(self, column: Sequence[int], cost: int) -> bool:
        """Bring a column into the basis, keeping the solution non-negative; False if impossible."""
        moves = [sum(a * b for a, b in zip(row, column, strict=True) if b) for row in self._inverse]
        leaves = -1
        for at, move in enumerate(moves):
            # Compared as fractions: solution / move, the least goes, ties by place.
            if move > 0 and (
                leaves < 0 or self._solution[at] * moves[leaves] < self._solution[leaves] * move
            ):
                leaves = at
        if leaves < 0:
            return False
        pivot, factor = moves[leaves], self.factor
        row, solved = self._inverse[leaves], self._solution[leaves]
        for at, move in enumerate(moves):
            if at != leaves:
                self._inverse[at] = [
                    (a * pivot - move * b) // factor
                    for a, b in zip(self._inverse[at], row, strict=True)
                ]
                self._solution[at] = (self._solution[at] * pivot - move * solved) // factor
        self._costs[leaves] = cost
        self.factor = pivot
        return True
