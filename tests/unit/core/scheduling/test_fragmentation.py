"""Packing of GPUs: what holes are worth, what is scarce, and where one ask goes."""

import numpy as np
import pytest

from bench.packing.fgd import GradientScores
from shared.core.scheduling.packing import placement_costs
from shared.core.scheduling.packing.gpu_columns import WHOLE, GpuAsk, GpuChoice, GpuColumns
from shared.core.scheduling.packing.hole_values import STEPS, hole_values
from shared.core.scheduling.packing.model_scarcity import PRICE_MAX, UNIT, Scarcity
from shared.core.state import workload
from shared.core.state.workload import AskWorkload
from tests.property.gpu_reference import place_count

ANY = 0b11


def ask(gpu_share: int = 0, *, gpus: int = 1, cpu: int = 1_000, models: int = ANY) -> GpuAsk:
    """Ask for thousandths of a GPU."""
    return GpuAsk(cpu, 1_000, gpus if gpu_share else 0, gpu_share * WHOLE // 1_000, models)


def fleet(
    *gpu_free: tuple[int, ...], cpu: tuple[int, ...] = (), model: tuple[int, ...] = ()
) -> GpuColumns:
    """Make nodes of 64 cores and GiB, less where `cpu` says so, of thousandths of GPUs that are free."""
    gpu_free = tuple(tuple(free * WHOLE // 1_000 for free in one) for one in gpu_free)
    count, widest = len(gpu_free), max(map(len, gpu_free))
    room = np.full(count, 64_000, np.int64)
    return GpuColumns(
        cpu_capacity=room,
        cpu_free=np.array(cpu or room, np.int64),
        memory_capacity=room,
        memory_free=room.copy(),
        gpu_free=np.array([(*one, *[0] * (widest - len(one))) for one in gpu_free], np.int64),
        model=np.array(model or [0] * count, np.int64),
    )


def placed(columns: GpuColumns, one: GpuAsk, seen: dict[GpuAsk, int]) -> GpuChoice | None:
    """Choose with prices that `seen` would have made."""
    usable = np.ones(len(columns.model), np.bool_)
    return placement_costs.choose(columns, one, usable, placement_costs.make_prices(seen, 2))


def at(columns: GpuColumns, one: GpuAsk, seen: dict[GpuAsk, int]) -> tuple[int, int]:
    """Choose, and return row and instance."""
    choice = placed(columns, one, seen)
    assert choice is not None
    return choice.row, choice.instance


def test_sizes_that_complete_each_other_share_a_gpu() -> None:
    """Where 0.32 comes more often than 0.65, three make a GPU, and so it costs a third, beside a 0.65 as well."""
    values = hole_values({65: 100, 32: 150}, 3_000)
    assert (values[31], values[32], values[35], values[65]) == (0, 1_000, 1_000, 2_000)
    assert values[STEPS] == 3_000


def test_what_nobody_lacks_is_worth_nothing() -> None:
    """Few 0.16 fit beside many 0.81 for nothing: 0.81 costs a whole GPU."""
    values = hole_values({81: 100, 16: 10}, 1_000)
    assert values[81] == 1_000 and values[16] == values[80] == 0


def test_no_fractions_no_worth() -> None:
    """Before any fraction was asked for, only a whole GPU is worth anything."""
    assert hole_values({}, 7) == [0] * STEPS + [7]
    assert hole_values({STEPS: 3, 0: 2}, 7) == [0] * STEPS + [7]


@pytest.mark.parametrize("seed", range(8))
def test_hole_values_are_a_bound_and_rise(seed: int) -> None:
    """Prices bound every packing from below: first fit decreasing needs no fewer GPUs than demand is worth."""
    draw = np.random.default_rng(seed)
    demand = {int(size): int(draw.integers(1, 60)) for size in draw.integers(5, 96, 12)}
    values = hole_values(demand, 1 << 30)
    assert values[STEPS] == 1 << 30
    assert values == sorted(values)
    worth = sum(values[size] * count for size, count in demand.items())
    bins: list[int] = []
    for size in sorted((s for s, c in demand.items() for _ in range(c)), reverse=True):
        found = next((i for i, room in enumerate(bins) if room >= size), None)
        if found is None:
            bins.append(STEPS - size)
        else:
            bins[found] -= size
    volume = sum(size * count for size, count in demand.items()) / STEPS
    assert volume * (1 - 1e-6) <= worth / (1 << 30) <= len(bins)


def test_a_model_that_some_cannot_do_without_is_scarce() -> None:
    """Those bound to model 0 price it by their demand for its room; the free ones take the rest, which is cheaper."""
    scarcity = Scarcity({0b01: 8_000, 0b11: 12_000}, 2)
    prices = scarcity.prices(np.array([4_000, 96_000], np.int64))
    assert prices[0] == 8_000 * 100_000 * UNIT // (4_000 * 20_000) > UNIT > prices[1]


def test_scarcity_levels_out_when_all_can_choose() -> None:
    """No bound demand: no price differs. Bound demand within the fair share: none differs either."""
    room = np.array([50_000, 50_000], np.int64)
    assert Scarcity({0b11: 5_000}, 2).prices(room).tolist() == [UNIT, UNIT]
    prices = Scarcity({0b01: 1_000, 0b11: 9_000}, 2).prices(room)
    assert prices[0] == prices[1] == UNIT


def test_a_model_without_room_is_the_scarcest() -> None:
    """Demand for what is gone prices it at the most there is, without a division by nothing."""
    prices = Scarcity({0b01: 1_000, 0b11: 1_000}, 2).prices(np.array([0, 5_000], np.int64))
    assert prices[0] == PRICE_MAX
    assert Scarcity({}, 2).prices(np.array([0, 0], np.int64)).tolist() == [UNIT, UNIT]


def test_many_models_stay_bounded() -> None:
    """Twenty models that are all distinguished: the least asked-for choices count as free, nothing explodes."""
    demand = {1 << model: 1_000 + model for model in range(20)}
    scarcity = Scarcity(demand, 20)
    prices = scarcity.prices(np.full(20, 10_000, np.int64))
    assert scarcity.groups <= 8 and prices[19] > prices[0]


def test_a_fraction_goes_beside_its_partner() -> None:
    """0.32 fills the hole beside a 0.65, not the one beside a 0.47, whichever node comes first."""
    seen = {ask(650): 50, ask(320): 50, ask(470): 80}
    assert at(fleet((530, 350), (1_000, 1_000)), ask(320), seen) == (0, 1)
    assert at(fleet((350, 530), (1_000, 1_000)), ask(470), seen) == (0, 1)


def test_what_needs_no_gpu_goes_where_cpu_is_left_over() -> None:
    """An ask without GPUs leaves the node alone whose CPU its free GPUs will need."""
    columns = fleet((1_000,) * 4, (1_000, 0, 0, 0), cpu=(33_000, 33_000))
    assert at(columns, ask(cpu=20_000), {ask(1_000, cpu=8_000): 10}) == (1, -1)


def test_who_can_choose_leaves_the_scarce_model() -> None:
    """An ask that takes any model goes where no bound demand is, even to a later row."""
    seen = {ask(1_000, models=0b01): 30, ask(1_000): 10}
    columns = fleet((1_000,) * 2, (1_000,) * 2, model=(0, 1))
    assert at(columns, ask(1_000), seen) == (1, 0)
    assert at(columns, ask(1_000, models=0b01), seen) == (0, 0)


def test_empty_nodes_are_kept_for_asks_of_several() -> None:
    """Where asks of four are usual, one GPU is taken of the node that cannot serve them anyway."""
    columns = fleet((1_000,) * 4, (1_000, 1_000, 1_000, 0))
    assert at(columns, ask(1_000), {ask(1_000, gpus=4): 10, ask(1_000): 10})[0] == 1


def test_several_take_empty_instances() -> None:
    """Two whole GPUs lie on the first empty instances, never beside a fraction."""
    columns = fleet((400, 1_000, 1_000, 1_000))
    two = ask(1_000, gpus=2)
    choice = placed(columns, two, {two: 1})
    assert choice is not None
    assert columns.take(two, choice.row, choice.instance) == (1, 2)
    assert columns.gpu_free[0].tolist() == [4_000, 0, 0, 10_000]


def test_without_gpus_it_is_binpack() -> None:
    """On a fleet without GPUs the fuller node is taken, ties by row."""
    columns = fleet((), (), (), cpu=(64_000, 9_000, 9_000))
    assert at(columns, ask(), {ask(): 1}) == (1, -1)


def test_what_fits_nowhere_is_not_placed() -> None:
    """No room on one instance, no right model, or no usable node: None."""
    columns = fleet((600, 600), model=(0,))
    assert placed(columns, ask(700), {}) is None
    assert placed(columns, ask(500, models=0b10), {}) is None
    learned = placement_costs.make_prices({}, 2)
    assert placement_costs.choose(columns, ask(500), np.zeros(1, np.bool_), learned) is None
    assert at(columns, ask(600), {}) == (0, 0)


def test_a_count_is_placed_one_after_another() -> None:
    """A count is so many asks, own lane first, and ends where nothing has room."""
    prices = placement_costs.make_prices({}, 2)
    columns = fleet((1_000,), (1_000, 1_000))
    usable, mine = np.array([True, True]), np.array([False, True])
    placed = place_count(columns, ask(1_000), 5, prices, usable=usable, preferred=mine)
    assert placed == [(1, (0,)), (1, (1,)), (0, (0,))]
    assert not columns.gpu_free.any()


def test_the_workload_is_learned_and_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are made anew when half as much again arrived; at the window's size counts halve."""
    monkeypatch.setattr(workload, "WINDOW", 16)
    learned = AskWorkload[GpuAsk]()
    moved = []
    for number in range(1, 16):
        before = learned.generation
        learned.saw(ask(500) if number % 3 else ask(200))
        moved += [number] if learned.generation != before else []
    assert moved == [1, 2, 4, 7, 11]
    assert learned.counts == {ask(500): 10, ask(200): 5}
    learned.saw(ask(300), times=1)
    assert learned.counts == {ask(500): 5, ask(200): 2} and learned.generation == 6
    learned.saw(ask(700), times=1_000)
    assert sum(learned.counts.values()) < 16 and ask(700) in learned.counts


def test_the_gradient_descends() -> None:
    """The baseline fills the hole that no popular shape could use, and says by how much fragmentation falls."""
    gradient = GradientScores({ask(500): 3, ask(1_000): 1}, 2)
    columns = fleet((1_000,), (500,))
    choice = gradient.choose(columns, ask(500), np.ones(2, np.bool_))
    assert choice is not None and (choice.row, choice.instance) == (1, 0)
    # Half a GPU was lost to one shape in four; nothing is left to lose.
    assert choice.cost == -5_000
    assert gradient.fragmentation(columns, np.arange(2)).tolist() == [0, 5_000]
    assert columns.gpu_free[0, 0] == WHOLE
