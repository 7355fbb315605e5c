"""The cut against scalar greedy, placement for placement, over fleets of every shape."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.columns import Int64s
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.scheduling.scoring.score_cache import ScoreCache
from shared.core.scheduling.scoring.scores import Algorithm
from shared.core.scheduling.selection import coupling, greedy_coupled
from shared.core.scheduling.selection import greedy as greedy_module
from shared.core.scheduling.selection.candidates import Placement
from shared.core.scheduling.selection.coupling import (
    Coupling,
    DistinctValues,
    EvenSpread,
    TargetSpread,
)
from shared.core.scheduling.selection.greedy import place_count
from tests.examples import examples
from tests.property.reference import greedy

pytestmark = pytest.mark.property

ALGORITHMS: tuple[Algorithm, ...] = ("binpack", "spread")
Problem = dict[str, Any]


def expand(placement: Placement) -> list[int]:
    """Return one row per allocation, in order."""
    return np.repeat(placement.rows, placement.counts).tolist()


#: Mostly roomy machines and small asks, so that most examples place something; the rest is odd on purpose.
SIZES = st.sampled_from((40, 100, 400, 1000, 20_800) * 5 + (0, 1, 7, 1 << 40))
ASKS = st.sampled_from((1, 2, 3, 5, 9) * 7 + (0, 40, 500, 1 << 36))
EIGHTHS = st.sampled_from((0, 1, 2, 3, 4, 5, 6) * 5 + (8, 9))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Int64s, Int64s]:
    """Draw capacity and use: a few sizes with many equals, idle, loaded, over-full and empty nodes."""
    n = draw(st.sampled_from((*range(13), *range(4, 13))))
    sizes = draw(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=4))
    capacity = np.array([draw(st.sampled_from(sizes)) for _ in range(n)], np.int64).reshape(n, 3)
    loads = draw(st.lists(st.tuples(EIGHTHS, EIGHTHS, EIGHTHS), min_size=n, max_size=n))
    return capacity, capacity * np.array(loads, np.int64).reshape(n, 3) // 8


#: Sums that meet a floor from both sides, and equal ones.
AFFINITIES = st.sampled_from((0, 0, SCALE, -SCALE, SCALE // 2, 1, -1, 2, SCALE // 3))


@st.composite
def couplings(draw: st.DrawFn, n: int) -> Coupling:
    """Draw one to three blocks over a few values, some of them in use; code 0 is absence."""
    weights = draw(st.integers(1, 150))
    blocks = []
    for kind in draw(st.lists(st.sampled_from("eettd"), min_size=1, max_size=3)):
        values = draw(st.sampled_from((2, 3, 4, 6)))
        codes = np.array(
            draw(st.lists(st.integers(0, values - 1), min_size=n, max_size=n)), np.int32
        )
        held = st.lists(st.sampled_from((0, 0, 0, 1, 2, 7)), min_size=values, max_size=values)
        counts = np.array(draw(held), np.int64)
        if kind == "e":
            blocks.append(EvenSpread(codes, counts))
        elif kind == "d":
            blocks.append(DistinctValues(codes, counts, draw(st.integers(1, 4))))
        else:
            shares = st.sampled_from((0, 10, 100, 330, 900, 2000))
            desired = np.array(draw(st.lists(shares, min_size=values, max_size=values)), np.int64)
            weight = draw(st.integers(1, weights))
            blocks.append(TargetSpread(codes, counts, desired, weight, weights))
    return Coupling(tuple(blocks))


@st.composite
def coupled_problems(draw: st.DrawFn) -> Problem:
    """Draw a problem whose nodes depend on each other; a small count may take either way."""
    problem = draw(problems())
    return problem | {"coupling": draw(couplings(len(problem["mask"])))}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw everything `place_count` is asked."""
    capacity, used = draw(fleets())
    n = len(capacity)
    ask = draw(st.tuples(ASKS, ASKS, ASKS))

    def column(values: st.SearchStrategy[Any], dtype: type) -> Any:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype)

    return {
        "capacity": capacity,
        "used": used,
        "mask": column(st.sampled_from((True,) * 5 + (False,)), np.bool_),
        "ask": np.array(ask, np.int64),
        "count": draw(st.sampled_from((90, 40, 20, 20, 5, 2, 1, 0))),
        "collisions": column(st.sampled_from((0, 0, 0, 1, 2, 30)), np.int64),
        "desired_count": draw(st.sampled_from((100, 10, 1000, 2, 1))),
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "anti_affinity": draw(st.sampled_from((True, False))),
        "penalised": draw(st.none() | st.just(column(st.booleans(), np.bool_))),
        "affinity": draw(st.none() | st.just(column(AFFINITIES, np.int64))),
        "limit": draw(st.sampled_from((None, None, column(st.integers(0, 3), np.int64)))),
        "lanes": (lanes := draw(st.sampled_from((1, 1, 2, 4)))),
        "lane": draw(st.integers(0, lanes - 1)),
    }


@examples(600, gate=150)
@given(problems())
def test_the_cut_is_scalar_greedy(problem: Problem) -> None:
    """Every placement has the row greedy gives it, in greedy's order, as runs of differing rows."""
    placement = place_count(**problem)
    assert expand(placement) == greedy(**problem)
    assert placement.placed == placement.counts.sum()
    assert (placement.counts > 0).all()
    assert (placement.rows[1:] != placement.rows[:-1]).all()


@examples(600, gate=150)
@given(problems(), st.sampled_from((1, 2, 3, 5, 8)))
def test_a_few_by_kept_keys_are_scalar_greedy(problem: Problem, count: int) -> None:
    """Small counts by the keys of the fit alone, crowded rows scored only where they may win: greedy's all the same."""
    problem |= {"count": count}
    ranked = ScoreCache()
    for _ in range(2):
        assert expand(place_count(**problem, score_cache=ranked)) == greedy(**problem)


@pytest.mark.parametrize("few", [0, 1000])
@examples(300, gate=75)
@given(problem=coupled_problems())
def test_the_coupled_cut_is_scalar_greedy(problem: Problem, few: int) -> None:
    """Under spreads and distinct properties every placement is greedy's, by buckets and by passes alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_coupled, "_PASSES_COUNT_MAX", few)
        placement = place_count(**problem)
    assert expand(placement) == greedy(**problem)
    assert placement.placed == placement.counts.sum()


@examples(150)
@given(problem=coupled_problems())
def test_tangled_combinations_are_scalar_greedy(problem: Problem) -> None:
    """Where a placement would change very many combinations, passes over all rows give the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_coupled, "_PASSES_COUNT_MAX", 0)
        patch.setattr(coupling, "_COMBINATIONS_MAX", 1)
        patch.setattr(coupling, "_TABLE_MAX", 4)
        assert expand(place_count(**problem)) == greedy(**problem)


@pytest.mark.parametrize("few", [0, 1000])
@examples(100)
@given(problem=coupled_problems())
def test_what_stops_early_placed_as_greedy_begins(problem: Problem, few: int) -> None:
    """A count that takes too many steps stops after at least one placement, all of them greedy's; and says so."""
    problem |= {"lanes": 1, "lane": 0}
    wanted = greedy(**problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_coupled, "_PASSES_COUNT_MAX", few)
        patch.setattr(greedy_coupled, "_HEADS_A_STEP", 1)
        placement = place_count(**problem, steps=3)
    assert expand(placement) == wanted[: placement.placed]
    assert placement.placed == len(wanted) or (placement.stopped and placement.placed)


@examples(200)
@given(problems(), st.integers(1, 7))
def test_slices_change_nothing(problem: Problem, size: int) -> None:
    """A count cut in slices is placed as in one piece: greedy has no memory."""
    whole = place_count(**problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_module, "_ROUND_MAX", size)
        sliced = place_count(**problem)
    assert expand(sliced) == expand(whole)
    assert len(sliced.rows) == len(whole.rows)


@examples(200)
@given(problems(), st.integers(1, 5))
def test_blocks_change_nothing(problem: Problem, size: int) -> None:
    """A fleet scored in blocks is placed on as in one piece."""
    whole = place_count(**problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_module, "_BLOCK", size)
        assert expand(place_count(**problem)) == expand(whole)


@examples(100)
@given(problems())
def test_arguments_are_left_alone_and_nothing_is_oversubscribed(problem: Problem) -> None:
    """Placing changes none of its arguments, and what it adds fits every row it uses."""
    before = {name: np.copy(value) for name, value in problem.items() if name != "algorithm"}
    placement = place_count(**problem)
    for name, value in before.items():
        np.testing.assert_array_equal(problem[name], value)
    used = problem["used"].copy()
    np.add.at(used, placement.rows, placement.counts[:, None] * problem["ask"])
    touched = np.unique(placement.rows)
    assert (used[touched] <= problem["capacity"][touched]).all()
    assert problem["mask"][touched].all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("anti_affinity", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_loaded_mixed_fleet_is_placed_as_by_greedy(
    algorithm: Algorithm, *, anti_affinity: bool, lanes: int
) -> None:
    """Hundreds of unequal, loaded nodes and a count that exhausts some of them: equal to greedy."""
    row = np.arange(300, dtype=np.int64)
    capacity = np.stack([4000 + row * 7919 % 60_000, 8192 + row * 104_729 % 120_000, row + 900], 1)
    problem: Problem = {
        "capacity": capacity,
        "used": capacity * (row * 31 % 90)[:, None] // 100,
        "mask": row % 7 != 0,
        "ask": np.array([500, 256, 3], np.int64),
        "count": 1500,
        "collisions": np.where(row % 5 == 0, row % 4, 0),
        "desired_count": 1500,
        "algorithm": algorithm,
        "anti_affinity": anti_affinity,
        "penalised": row % 50 == 1,
        "lane": lanes - 1,
        "lanes": lanes,
    }
    assert expand(place_count(**problem)) == greedy(**problem)


@pytest.mark.parametrize("few", [0, 1000])
def test_a_floor_makes_near_sums_equal(few: int) -> None:
    """Of sums so near that their mean is one number the lowest row wins, in any combination of values."""
    row = np.arange(60)
    problem: Problem = {
        "capacity": np.full((60, 3), 1000, np.int64),
        "used": np.zeros((60, 3), np.int64),
        "mask": row >= 0,
        "ask": np.array([1, 1, 1], np.int64),
        "count": 100,
        "collisions": np.zeros(60, np.int64),
        "desired_count": 100,
        "algorithm": "binpack",
        "anti_affinity": True,
        "affinity": 1 + row * 7919 % 9,
        "penalised": row % 4 == 0,
        "limit": 1 + row % 2,
        "coupling": Coupling((EvenSpread((1 + row % 3).astype(np.int32), np.zeros(4, np.int64)),)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_coupled, "_PASSES_COUNT_MAX", few)
        assert expand(place_count(**problem)) == greedy(**problem)


def wide(count: int, ask: tuple[int, int, int], **more: object) -> Placement:
    """Place `count` on forty equal nodes of 2,000 units each."""
    return place_count(
        **cast(
            "Any",
            {
                "capacity": np.full((40, 3), 2000, np.int64),
                "used": np.zeros((40, 3), np.int64),
                "mask": np.ones(40, np.bool_),
                "ask": np.array(ask, np.int64),
                "count": count,
                "collisions": np.zeros(40, np.int64),
                "desired_count": count,
                "algorithm": "binpack",
                "anti_affinity": True,
            }
            | more,
        )
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("anti_affinity", [False, True])
def test_a_billion_places_what_fits(algorithm: Algorithm, *, anti_affinity: bool) -> None:
    """A count far beyond the fleet fills every node and ends there, in the memory of what fits."""
    placement = wide(10**9, (1, 2, 1), algorithm=algorithm, anti_affinity=anti_affinity)
    assert placement.placed == 40 * 1000
    assert np.bincount(placement.rows, weights=placement.counts).tolist() == [1000.0] * 40


def test_an_ask_of_nothing_goes_to_the_first_of_equals() -> None:
    """Without an ask and without anti-affinity nothing ever fills up: the lowest row takes all."""
    placement = wide(10**9, (0, 0, 0), anti_affinity=False)
    assert (placement.rows.tolist(), placement.counts.tolist()) == ([0], [10**9])


def test_a_giant_among_small_nodes_takes_the_rest_in_one_run() -> None:
    """Where one node alone has room left, a count without end is one run, not a list of it."""
    capacity = np.full((40, 3), 20, np.int64)
    capacity[7] = 1 << 40
    placement = wide(10**9, (1, 1, 1), capacity=capacity)
    assert placement.placed == 10**9
    assert placement.rows[-1] == 7
    assert len(placement.rows) < 40 * 20 * 2


def test_a_million_is_placed_exactly() -> None:
    """A million allocations that all fit are all placed, evenly where the nodes are equal."""
    placement = wide(1_000_000, (1, 1, 1), capacity=np.full((40, 3), 30_000, np.int64))
    assert placement.placed == 1_000_000
    assert np.bincount(placement.rows, weights=placement.counts).max() <= 30_000


def test_a_negative_ask_is_refused() -> None:
    """An ask below zero would free capacity: it is an error, not a placement."""
    with pytest.raises(ValueError, match="negative"):
        wide(1, (-1, 0, 0))
