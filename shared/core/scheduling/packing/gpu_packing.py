"""GPU packing: `algorithm = "fragmentation"` on the fleet's devices (docs/packing.md).

Decides when a group is packed, and makes the policy's columns and prices of the fleet, of the held resources and of
the workload in the log. placement_costs.py decides where.

A group with placement preferences (affinities, spread blocks, distinct properties, grouping, device affinities), or
with an ask that the policy does not model (whole devices and a part in one ask, two asks of devices), is placed by
`binpack`; so is every group while no node offers GPUs.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec, ResourceAsk
from shared.core.columns import Int64s, Mask
from shared.core.resources.ask_shape import GPU_POOL, AskShape, ask_shape_of
from shared.core.resources.asks import ExtraAsks, Holding
from shared.core.resources.assign import ResourceAssigner
from shared.core.resources.held import HeldResources
from shared.core.resources.offers import INDEXED, OfferedResources
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuColumns
from shared.core.scheduling.packing.incremental_costs import IncrementalCosts
from shared.core.scheduling.packing.model_scarcity import UNIT
from shared.core.scheduling.packing.placement_costs import GpuPrices, costs, fullness, make_prices
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.scores import CPU, MEMORY
from shared.core.scheduling.selection.candidates import (
    EMPTY,
    Demand,
    NodeColumns,
    Placement,
    room_of,
    runs_of,
)
from shared.core.scheduling.selection.coupling import Coupling
from shared.core.scheduling.selection.greedy_stepwise import STEPS_EACH
from shared.core.state.workload import AskWorkload

FRAGMENTATION: Final = "fragmentation"
#: Model codes are bits of one int64.
_MODELS_MAX: Final = 62
#: Rows of which one choice takes as long as a step (greedy_coupled.py).
_ROWS_A_STEP: Final = 20


class PriceCache:
    """Prices by workload and models, cached."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None
        self._prices: GpuPrices | None = None

    def prices(self, workload: AskWorkload[AskShape], offers: OfferedResources) -> GpuPrices:
        """Compute the prices for the workload's generation, or return the cached ones."""
        key = (workload.generation, len(offers.models))
        if self._prices is None or key != self._key:
            counts: dict[GpuAsk, int] = {}
            for shape, count in workload.settled.items():
                ask = gpu_ask(offers, shape)
                counts[ask] = counts.get(ask, 0) + count
            self._key, self._prices = key, make_prices(counts, _models(offers))
        return self._prices


def gpu_ask(offers: OfferedResources, shape: AskShape) -> GpuAsk:
    """Convert a shape to the policy's ask: accepted models are those known now."""
    bits = 0
    if shape.gpus:
        accepted = offers.matches(shape.selector)
        bits = sum(1 << int(code) for code in np.flatnonzero(accepted))
    return GpuAsk(shape.cpu_mhz, shape.memory_mib, shape.gpus, shape.share, bits)


def is_packed(offers: OfferedResources, group: GroupSpec, asks: tuple[ResourceAsk, ...]) -> bool:
    """Tell whether the policy places this variant of a group."""
    if group.affinities or group.spreads or group.distinct_properties:
        return False
    if offers.cached_kind(GPU_POOL) != INDEXED or len(offers.models) > _MODELS_MAX:
        return False
    return ask_shape_of(group, asks) is not None


def gpu_columns(
    offers: OfferedResources, held: HeldResources, capacity: Int64s, used: Int64s
) -> GpuColumns:
    """Make the policy's columns of a fleet. Shapes: capacity, used (N, 3). A node has the model of its first device."""
    size = len(capacity)
    pool = offers.slots[GPU_POOL]
    width = pool.present.shape[1]
    pool.grow(size, width)
    present, models = pool.present[:size], pool.model[:size]
    first = (present > 0).argmax(axis=1)
    model = np.take_along_axis(models, first[:, None], axis=1)[:, 0].astype(np.int64)
    free = np.maximum(present - held.slots_of(GPU_POOL, size, width), 0)
    free = np.where((models == model[:, None]) & (present > 0), free, 0)
    return GpuColumns(
        cpu_capacity=capacity[:, CPU].copy(),
        cpu_free=np.maximum(capacity[:, CPU] - used[:, CPU], 0),
        memory_capacity=capacity[:, MEMORY].copy(),
        memory_free=np.maximum(capacity[:, MEMORY] - used[:, MEMORY], 0),
        gpu_free=free.astype(np.int64),
        model=model,
    )


class PackingContext(msgspec.Struct, frozen=True, eq=False):
    """Inputs of packing a variant. `nth`: how many allocations the plan assigned before."""

    offers: OfferedResources
    assigner: ResourceAssigner
    ask: GpuAsk
    prices: GpuPrices
    extras: ExtraAsks | None
    variant: int = 0
    nth: int = 0


class GpuPacker:
    """Places one variant of a group."""

    def __init__(self, ground: PackingContext) -> None:
        self.holdings: list[Holding] = []
        self._ground = ground

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
        """Place up to `count`; see `StepwisePlacer`. Penalised rows are taken last."""
        assert coupling is None, "a group with rules of its own is not packed"
        ground = self._ground
        columns = gpu_columns(ground.offers, ground.assigner.held, nodes.capacity, nodes.used)
        room = np.where(nodes.mask, room_of(demand, nodes, np.arange(len(nodes.mask)), count), 0)
        most = max(steps // (STEPS_EACH + len(room) // _ROWS_A_STEP), 1)
        course = IncrementalCosts(columns, ground.ask, ground.prices)
        tiers = _tiers(nodes.penalised, own)
        rows: list[int] = []
        while len(rows) < min(count, most):
            choice = None
            for tier in tiers:
                usable = (room > 0) if tier is None else (room > 0) & tier
                choice = course.choose(usable)
                if choice is not None:
                    break
            if choice is not None:
                row, forced = choice.row, course.take(choice)
            elif room.any():
                # The policy sees one model of a node; another one may still have room.
                row, forced = _first_with_room(room, tiers), ()
            else:
                return self._done(rows, len(room), stopped=False)
            if not self._take(row, forced):
                room[row] = 0
                continue
            room[row] -= 1
            rows.append(row)
        return self._done(rows, len(room), stopped=len(rows) < count)

    def scores(self, capacity: Int64s, used: Int64s, rows: NDArray[np.intp]) -> Int64s:
        """Score rows as the GPU that a placement wastes there, negative. Shapes: (N, 3), (R,); unit 2**-20 GPU."""
        ground = self._ground
        columns = gpu_columns(ground.offers, ground.assigner.held, capacity, used)
        fits = columns.fits(ground.ask)[rows]
        found = np.zeros(len(rows), np.int64)
        if fits.any():
            cost, _ = costs(columns, ground.ask, rows[fits].astype(np.int64), ground.prices)
            found[fits] = -cost * SCALE // (UNIT * WHOLE)
        return found

    def order(self, capacity: Int64s, used: Int64s, rows: NDArray[np.intp]) -> Int64s:
        """Return the position of each row in the order of choice. Shapes: as above."""
        ground = self._ground
        columns = gpu_columns(ground.offers, ground.assigner.held, capacity, used)
        fits = columns.fits(ground.ask)[rows]
        cost, fit = np.full(len(rows), 1 << 62, np.int64), np.zeros(len(rows), np.int64)
        if fits.any():
            some = rows[fits].astype(np.int64)
            cost[fits], _ = costs(columns, ground.ask, some, ground.prices)
            fit[fits] = fullness(columns, ground.ask, some)
        places = np.empty(len(rows), np.int64)
        places[np.lexsort((rows, -fit, cost))] = np.arange(len(rows))
        return places

    def _take(self, row: int, slots: tuple[int, ...]) -> bool:
        ground = self._ground
        if ground.extras is None:
            return True
        asks = ground.extras.alternatives[ground.variant]
        forced = {
            nth: list(slots) for nth, ask in enumerate(asks) if slots and ask.pool == GPU_POOL
        }
        holding = ground.assigner.assign(
            row, ground.extras, ground.variant, nth=ground.nth + len(self.holdings), forced=forced
        )
        if holding is None:
            return False
        ground.assigner.held.add(row, None, holding)
        self.holdings.append(holding)
        return True

    @staticmethod
    def _done(rows: list[int], size: int, *, stopped: bool) -> Placement:
        steps = len(rows) * (STEPS_EACH + size // _ROWS_A_STEP)
        placement = runs_of(np.array(rows, np.int64)) if rows else EMPTY
        return msgspec.structs.replace(placement, steps=steps, stopped=stopped)


def _tiers(penalised: Mask | None, own: Mask | None) -> list[Mask | None]:
    """Tiers of rows in the order in which they are tried; the last one holds all."""
    found: list[Mask | None] = []
    for mine in (own, None) if own is not None else (None,):
        if penalised is not None:
            found.append(~penalised if mine is None else mine & ~penalised)
        found.append(mine)
    return found


def _first_with_room(room: Int64s, tiers: list[Mask | None]) -> int:
    """The lowest row with room, of the first tier that has any; one must."""
    masks = [room > 0 if tier is None else (room > 0) & tier for tier in tiers]
    return int(next(mask for mask in masks if mask.any()).argmax())


def _models(offers: OfferedResources) -> int:
    return min(max(len(offers.models), 1), _MODELS_MAX)
