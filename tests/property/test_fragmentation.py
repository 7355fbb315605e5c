"""Policies on GPUs against their definitions in plain loops, over small fleets that fill up."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.fgd import GradientScores
from shared.core.scheduling.packing import placement_costs
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuColumns
from shared.core.state.workload import AskWorkload
from tests.property.gpu_reference import state_cost

pytestmark = pytest.mark.property

MODELS = 3

NODES = st.tuples(
    st.sampled_from((8_000, 12_000, 32_000)),
    st.sampled_from((16, 64)),
    st.integers(0, 4),
    st.integers(0, MODELS - 1),
)
SIZES = st.one_of(
    st.tuples(st.just(0), st.just(0)),
    st.tuples(
        st.just(1),
        st.sampled_from((500, 1_600, 2_300, 3_200, 4_700, 5_055, 6_500, 8_100, WHOLE, WHOLE)),
    ),
    st.tuples(st.sampled_from((2, 4)), st.just(WHOLE)),
)


@st.composite
def asks(draw: st.DrawFn) -> GpuAsk:
    """Draw one ask, any model or some."""
    gpus, milli = draw(SIZES)
    models = draw(st.sampled_from((7, 7, 7, 1, 6)))
    return GpuAsk(
        draw(st.sampled_from((500, 3_000, 9_000))),
        draw(st.sampled_from((1, 7, 20))),
        gpus,
        milli,
        models,
    )


def fleet(nodes: list[tuple[int, int, int, int]]) -> GpuColumns:
    """Make an empty fleet."""
    cpu, memory, gpus, model = (np.array(column, np.int64) for column in zip(*nodes, strict=True))
    return GpuColumns(
        cpu_capacity=cpu,
        cpu_free=cpu.copy(),
        memory_capacity=memory,
        memory_free=memory.copy(),
        gpu_free=(np.arange(4) < gpus[:, None]).astype(np.int64) * WHOLE,
        model=model,
    )


def room(columns: GpuColumns, row: int, ask: GpuAsk) -> list[int]:
    """Say by the rules alone where `ask` may be placed on a node: its instance, or -1 for none or several."""
    if columns.cpu_free[row] < ask.cpu_milli or columns.memory_free[row] < ask.memory_mib:
        return []
    free = columns.gpu_free[row].tolist()
    if ask.gpus and not ask.models >> int(columns.model[row]) & 1:
        return []
    if ask.gpus == 1:
        return [at for at, one in enumerate(free) if one >= ask.gpu_share]
    return [-1] if free.count(WHOLE) >= ask.gpus else []


def copied(columns: GpuColumns) -> GpuColumns:
    """Copy what a placement changes."""
    return GpuColumns(
        cpu_capacity=columns.cpu_capacity,
        cpu_free=columns.cpu_free.copy(),
        memory_capacity=columns.memory_capacity,
        memory_free=columns.memory_free.copy(),
        gpu_free=columns.gpu_free.copy(),
        model=columns.model,
    )


def fragmentation(columns: GpuColumns, row: int, shapes: Counter[GpuAsk]) -> int:
    """Return the published definition, shape by shape, instance by instance."""
    total = 0
    free = columns.gpu_free[row].tolist()
    for shape, count in shapes.items():
        if not shape.gpus:
            continue
        if not room(columns, row, shape):
            total += count * sum(free)
        else:
            total += count * sum(one for one in free if one < shape.gpu_share)
    return total


@given(st.lists(NODES, min_size=1, max_size=5), st.lists(asks(), min_size=1, max_size=40))
def test_our_policy_takes_the_least_rise(
    nodes: list[tuple[int, int, int, int]], arriving: list[GpuAsk]
) -> None:
    """The place chosen raises the state's cost least of all, from scratch; what fits is placed."""
    columns, learned = fleet(nodes), AskWorkload[GpuAsk]()
    for ask in arriving:
        learned.saw(ask)
        prices = placement_costs.make_prices(learned.counts, MODELS)
        free = np.bincount(columns.model, columns.gpu_free.sum(axis=1), MODELS).astype(np.int64)
        scarce = prices.scarcity.prices(free)
        before = state_cost(columns, prices)
        rises = {}
        for row in range(len(nodes)):
            for instance in room(columns, row, ask):
                after = copied(columns)
                after.take(ask, row, instance)
                rise = int(state_cost(after, prices)[row] - before[row])
                paid = ask.total_share * int(scarce[columns.model[row]])
                rises[row, instance] = rise + paid
        choice = placement_costs.choose(columns, ask, np.ones(len(nodes), np.bool_), prices)
        assert (choice is None) == (not rises)
        if choice is not None:
            assert choice.cost == rises[choice.row, choice.instance] == min(rises.values())
            columns.take(ask, choice.row, choice.instance)
            assert (
                min(columns.cpu_free.min(), columns.memory_free.min(), columns.gpu_free.min()) >= 0
            )


@given(st.lists(NODES, min_size=1, max_size=5), st.lists(asks(), min_size=1, max_size=40))
def test_the_kept_gradient_is_the_one_from_scratch(
    nodes: list[tuple[int, int, int, int]], arriving: list[GpuAsk]
) -> None:
    """Fragmentation equals the published definition, and scores that were kept equal scores made anew."""
    columns, shapes = fleet(nodes), Counter(arriving)
    kept = GradientScores(shapes, MODELS)
    usable = np.ones(len(nodes), np.bool_)
    for ask in arriving:
        now = [fragmentation(columns, row, shapes) for row in range(len(nodes))]
        assert kept.fragmentation(columns, np.arange(len(nodes))).tolist() == now
        choice = kept.choose(columns, ask, usable)
        assert choice == GradientScores(shapes, MODELS).choose(columns, ask, usable)
        rises = {}
        for row in range(len(nodes)):
            for instance in room(columns, row, ask):
                after = copied(columns)
                after.take(ask, row, instance)
                rises[row, instance] = fragmentation(after, row, shapes) - now[row]
        assert (choice is None) == (not rises)
        if choice is not None:
            least = min(rises.values())
            assert (choice.row, choice.instance) == min(
                at for at, rise in rises.items() if rise == least
            )
            assert choice.cost == least
            columns.take(ask, choice.row, choice.instance)
            kept.changed(choice.row)
