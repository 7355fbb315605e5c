"""The policy `algorithm = "fragmentation"`: place an ask where it wastes the least GPU for later asks.

The cost of a node's state is the GPU that is likely to be left over there, in 1 / WHOLE of a GPU:

    holes     each partly used instance: what is free of it, less what that hole is worth
              (hole_values.py), and a sixteenth of what is free, while it waits to be filled
    too few   empty instances that are fewer than an ask of several needs, weighted by the share of
              all asks that need that many, and by an eighth
    stranded  free GPU beyond what the node's free CPU and memory can serve, at the CPU and
              memory that a GPU's worth of asks has needed on average so far

and a placement costs what it adds to that, plus the GPU it takes times the scarcity of the node's
model (model_scarcity.py). The weights are the same for every workload. Ties go to the fuller node by
Nomad's binpack score, then to the lower row, so that a fleet without GPUs is packed as by
`binpack`. Everything is an integer; the workload is what arrived so far.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s, Mask
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuChoice, GpuColumns
from shared.core.scheduling.packing.hole_values import STEPS, hole_values
from shared.core.scheduling.packing.model_scarcity import UNIT, Scarcity
from shared.core.scheduling.scoring.scores import fit_of_free

#: A waiting hole costs this part of itself.
_WAITING: Final = 16
#: Empty instances too few for an ask cost this part of themselves: smaller asks take most of them.
_TOO_FEW: Final = 8
#: Ratios of GPU to CPU and memory in 2**-20, at most one GPU per unit of CPU or MiB.
_RATIO_BITS: Final = 20
_RATIO_MAX: Final = WHOLE << _RATIO_BITS
#: CPU or memory of one node above which it never limits.
_AMOUNT_MAX: Final = 1 << 29
#: Empty instances of one node are distinguished up to this number.
SEVERAL_MAX: Final = 64
#: More than the cost of any state.
_NEVER: Final = 1 << 62


class GpuPrices(msgspec.Struct, frozen=True, eq=False):
    """The policy's prices for a workload, from counts alone. Costs are in 1 / UNIT of 1 / WHOLE of a GPU."""

    #: (WHOLE + 1,) cost of an instance by its free share.
    hole_cost: Int64s
    #: (SEVERAL_MAX + 1,) cost of a node by its number of empty instances.
    several_cost: Int64s
    #: GPU, in 1 / WHOLE, that a unit of CPU, or a MiB, can serve, in 2**-20;
    #: `_RATIO_MAX` where none is needed.
    gpu_per_cpu: int
    gpu_per_memory: int
    scarcity: Scarcity


def make_prices(counts: Mapping[GpuAsk, int], models: int) -> GpuPrices:
    """Compute the prices for the asks so far, by shape. `models`: number of model codes."""
    sizes: dict[int, int] = {}
    choices: dict[int, int] = {}
    several: dict[int, int] = {}
    gpu = cpu = memory = asks = 0
    for ask, count in counts.items():
        if not ask.gpus:
            continue
        asks += count
        if ask.gpus > 1:
            several[ask.gpus] = several.get(ask.gpus, 0) + count
        gpu += count * ask.total_share
        cpu += count * ask.cpu_milli
        memory += count * ask.memory_mib
        choices[ask.models] = choices.get(ask.models, 0) + count * ask.total_share
        if ask.gpu_share < WHOLE:
            size = -(-ask.gpu_share * STEPS // WHOLE)
            sizes[size] = sizes.get(size, 0) + count
    return GpuPrices(
        hole_cost=_hole_cost(sizes),
        several_cost=_several_cost(several, asks),
        gpu_per_cpu=_ratio(gpu, cpu),
        gpu_per_memory=_ratio(gpu, memory),
        scarcity=Scarcity(choices, models),
    )


def choose(columns: GpuColumns, ask: GpuAsk, usable: Mask, prices: GpuPrices) -> GpuChoice | None:
    """Choose node and instance among the `usable` (N,) nodes; None: it fits on none of them.

    Pure: reads only its arguments. `usable` covers constraints and status; room is checked here.
    """
    rows = np.flatnonzero(usable & columns.fits(ask))
    if not len(rows):
        return None
    cost, instances = costs(columns, ask, rows, prices)
    least = np.flatnonzero(cost == cost.min())
    at = int(least[0]) if len(least) == 1 else fullest(columns, ask, rows, least)
    instance = -1 if instances is None else int(instances[at])
    return GpuChoice(int(rows[at]), instance, int(cost[at]))


def costs(
    columns: GpuColumns, ask: GpuAsk, rows: Int64s, prices: GpuPrices
) -> tuple[Int64s, NDArray[np.intp] | None]:
    """Return the cost of the ask on each of `rows`, where it fits, and the instance that a fraction takes there.

    Shapes: rows, result (R,); None if it takes no instance or several.
    """
    cost, instances = base_costs(columns, ask, rows, prices)
    if ask.gpus:
        free = np.zeros(len(prices.scarcity.group_of), np.int64)
        np.add.at(free, columns.model, columns.gpu_free.sum(axis=1))
        cost += ask.total_share * model_prices(free, prices)[columns.model[rows]]
    return cost, instances


def base_costs(
    columns: GpuColumns, ask: GpuAsk, rows: Int64s, prices: GpuPrices
) -> tuple[Int64s, NDArray[np.intp] | None]:
    """The same without the scarcity of models, which no single node determines."""
    gpu_free = columns.gpu_free[rows]
    free = gpu_free.sum(axis=1)
    cpu, memory = columns.cpu_free[rows], columns.memory_free[rows]
    cost = _stranded(free - ask.total_share, cpu - ask.cpu_milli, memory - ask.memory_mib, prices)
    cost -= _stranded(free, cpu, memory, prices)
    instances = None
    if ask.gpus:
        empty = (gpu_free == WHOLE).sum(axis=1)
        fewer = _too_few(np.maximum(empty - ask.gpus, 0), prices) - _too_few(empty, prices)
        if ask.gpus > 1:
            cost += fewer
        else:
            added = _hole_cost_rise(gpu_free, ask.gpu_share, prices.hole_cost)
            added += np.where(gpu_free == WHOLE, fewer[:, None], 0)
            instances = added.argmin(axis=1)
            cost += added[np.arange(len(rows)), instances]
    return cost, instances


def _hole_cost(sizes: dict[int, int]) -> Int64s:
    free = np.arange(WHOLE + 1, dtype=np.int64)
    worth = np.array(hole_values(sizes, WHOLE * UNIT), np.int64)[free * STEPS // WHOLE]
    cost = free * UNIT - worth + free * UNIT // _WAITING
    cost[0] = cost[WHOLE] = 0
    return cost


def _several_cost(several: dict[int, int], asks: int) -> Int64s:
    """Cost of empty instances too few for asks of several, weighted by the share of these asks."""
    empty = np.arange(SEVERAL_MAX + 1, dtype=np.int64)
    cost = np.zeros(SEVERAL_MAX + 1, np.int64)
    for gpus, count in several.items():
        cost += np.where(empty < gpus, empty, 0) * (count * WHOLE * UNIT)
    return cost // (max(asks, 1) * _TOO_FEW)


def _too_few(empty: Int64s, prices: GpuPrices) -> Int64s:
    cost: Int64s = prices.several_cost[np.minimum(empty, SEVERAL_MAX)]
    return cost


def _ratio(gpu: int, other: int) -> int:
    return min((gpu << _RATIO_BITS) // other, _RATIO_MAX) if other else _RATIO_MAX


def _stranded(free: Int64s, cpu: Int64s, memory: Int64s, prices: GpuPrices) -> Int64s:
    """Return free GPU that CPU and memory cannot serve, in 1 / UNIT."""
    served = np.minimum(_served(cpu, prices.gpu_per_cpu), _served(memory, prices.gpu_per_memory))
    return np.maximum(free * UNIT - served, 0)


def _served(amount: Int64s, ratio: int) -> Int64s:
    # 2**-20 to 2**-10, which is 1 / UNIT. Ratios stay below 2**34.
    return (np.minimum(amount, _AMOUNT_MAX) * ratio) >> (_RATIO_BITS - 10)


def _hole_cost_rise(gpu_free: Int64s, milli: int, hole_cost: Int64s) -> Int64s:
    """Return the rise of hole costs when the instance takes the ask; `_NEVER` where it has no room."""
    after = gpu_free - milli
    added = hole_cost[np.maximum(after, 0)] - hole_cost[gpu_free]
    added[after < 0] = _NEVER
    return added


def model_prices(free: Int64s, prices: GpuPrices) -> Int64s:
    """Price the models by the free share of each. Shapes: (models,). Unit: 1 / UNIT."""
    if prices.scarcity.groups < 2:
        return np.full(len(free), UNIT, np.int64)
    return prices.scarcity.prices(free)


def fullest(columns: GpuColumns, ask: GpuAsk, rows: Int64s, among: NDArray[np.intp]) -> int:
    """Return the position in `among` with the best binpack score, the first among equals."""
    return int(among[int(fullness(columns, ask, rows[among]).argmax())])


def fullness(columns: GpuColumns, ask: GpuAsk, rows: Int64s) -> Int64s:
    """Return the binpack score of each row with the ask on it. Shapes: (R,)."""
    fit: Int64s = fit_of_free(
        columns.cpu_free[rows] - ask.cpu_milli,
        columns.memory_free[rows] - ask.memory_mib,
        np.maximum(columns.cpu_capacity[rows], 1),
        np.maximum(columns.memory_capacity[rows], 1),
        algorithm="binpack",
    )
    return fit
