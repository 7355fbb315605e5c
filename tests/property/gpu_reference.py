"""What the placement of GPUs is compared with: a state's cost from nothing, and asks placed one after another."""

from shared.core.scheduling.packing import placement_costs
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuColumns
from shared.core.scheduling.packing.placement_costs import GpuPrices
from shared.core.scheduling.scoring.scores import Int64s
from shared.core.scheduling.selection.candidates import Mask


def state_cost(columns: GpuColumns, prices: GpuPrices) -> Int64s:
    """Return the cost of every node's state, computed from nothing; a placement costs its rise, plus scarcity.

    Shape: (N,). Unit: 1 / UNIT of 1 / WHOLE of a GPU.
    """
    cost: Int64s = prices.hole_cost[columns.gpu_free].sum(axis=1)
    cost += placement_costs._too_few((columns.gpu_free == WHOLE).sum(axis=1), prices)
    free = columns.gpu_free.sum(axis=1)
    cost += placement_costs._stranded(free, columns.cpu_free, columns.memory_free, prices)
    return cost


def place_count(
    columns: GpuColumns,
    ask: GpuAsk,
    count: int,
    prices: GpuPrices,
    *,
    usable: Mask,
    preferred: Mask | None = None,
) -> list[tuple[int, tuple[int, ...]]]:
    """Place `count` asks one after another and return row and instances of each, as far as they fit.

    Writes what they take into `columns`: give it a copy. `preferred` (N,): a worker's own lane, whose
    nodes go first; others are taken only when those have no room.
    """
    placed: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(count):
        choice = None
        if preferred is not None:
            choice = placement_costs.choose(columns, ask, usable & preferred, prices)
        if choice is None:
            choice = placement_costs.choose(columns, ask, usable, prices)
        if choice is None:
            break
        placed.append((choice.row, columns.take(ask, choice.row, choice.instance)))
    return placed
