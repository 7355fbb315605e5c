"""Scores: exact integers near Nomad's formulas, the same for vectors and for one node."""

import hashlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.scheduling.scoring.pow10 import POW10, SCALE, STEPS, exact_table
from shared.core.scheduling.scoring.scores import (
    CPU,
    DISK,
    MEMORY,
    Algorithm,
    Int64s,
    anti_affinity_score,
    anti_affinity_scores,
    fit_of_free,
    fit_score,
    mean_score,
    mean_scores,
    node_scores,
)
from tests.examples import examples

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
SIZES = st.sampled_from((0, 1, 2, 3, 1000, 20_800, 65_536, 1 << 40)) | st.integers(0, 1 << 40)


def fit_scores(capacity: Int64s, used_after: Int64s, algorithm: Algorithm) -> Int64s:
    """Score nodes by their columns. Shapes: capacity, used_after (N, 3), the new allocation included; result (N,)."""
    free = capacity[:, :DISK] - used_after[:, :DISK]
    divisor = np.maximum(capacity[:, :DISK], 1)
    return fit_of_free(
        free[:, CPU], free[:, MEMORY], divisor[:, CPU], divisor[:, MEMORY], algorithm=algorithm
    )


def test_the_table_is_pinned() -> None:
    """The committed table has these bytes: another table decides differently."""
    digest = hashlib.sha256(POW10.astype("<i4").tobytes()).hexdigest()
    assert digest == "f2f9e159a4a158546257eea8e9adee27e61c280fab6fd4913e336eddeab17d54"


def test_the_table_is_what_exact_arithmetic_gives() -> None:
    """Regenerating the table with integers alone gives the committed one; it cannot be written to."""
    np.testing.assert_array_equal(exact_table(), POW10)
    assert not POW10.flags.writeable


@pytest.mark.parametrize("step", [0, 1, 2, 19_728, 32_768, 65_535, 65_536])
def test_a_table_entry_brackets_the_power(step: int) -> None:
    """An entry v is the floor of 10**(step / 65536) * 2**20: v**65536 <= 10**step * 2**(20 * 65536)."""
    power = 10**step << (20 * STEPS)
    assert int(POW10[step]) ** STEPS <= power < (int(POW10[step]) + 1) ** STEPS


def formula(capacity: list[int], used: list[int], algorithm: Algorithm) -> float:
    """Nomad's fit in floats, over 18."""
    total = sum(10 ** (1 - use / size) for use, size in zip(used, capacity, strict=True))
    raw = 20 - total if algorithm == "binpack" else total - 2
    return min(max(raw, 0.0), 18.0) / 18


@examples(300)
@given(st.lists(st.integers(1, 1 << 41), min_size=2, max_size=2), st.data())
def test_the_fit_is_close_to_the_formula(capacity: list[int], data: st.DataObject) -> None:
    """The integer fit differs from the real-valued formula by less than 1e-4, at any size and use."""
    used = [data.draw(st.integers(0, size)) for size in capacity]
    for algorithm in ALGORITHMS:
        score = fit_score([*capacity, 0], [*used, 0], algorithm) / SCALE
        assert abs(score - formula(capacity, used, algorithm)) < 1e-4


def test_the_ends_of_the_scale_are_exact() -> None:
    """A full node is the best pack, an empty one the best spread, each worth exactly one."""
    full = np.array([[4000, 8192, 1], [4000, 8192, 1]])
    used = np.array([[4000, 8192, 0], [0, 0, 0]])
    assert fit_scores(full, used, "binpack").tolist() == [SCALE, 0]
    assert fit_scores(full, used, "spread").tolist() == [0, SCALE]


def test_no_capacity_and_too_much_use_count_as_full() -> None:
    """Zero capacity has nothing free, nor has a node used beyond its capacity; neither is an error."""
    capacity = np.array([[0, 0, 0], [100, 100, 0], [0, 100, 0]])
    used = np.array([[0, 0, 0], [150, 100, 5], [0, 0, 0]])
    half = (20 * SCALE - 11 * SCALE) // 18
    assert fit_scores(capacity, used, "binpack").tolist() == [SCALE, SCALE, half]


@examples(300)
@given(st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=8))
def test_vectors_equal_their_scalar_twins(nodes: list[tuple[int, int, int, int]]) -> None:
    """Every row of the vector score is the score of that node alone, whatever its neighbours."""
    capacity = np.array([[cpu, memory, 7] for cpu, memory, _, _ in nodes], np.int64)
    used = np.array([[cpu, memory, 9] for _, _, cpu, memory in nodes], np.int64)
    for algorithm in ALGORITHMS:
        expected = [
            fit_score(size, use, algorithm)
            for size, use in zip(capacity.tolist(), used.tolist(), strict=True)
        ]
        assert fit_scores(capacity, used, algorithm).tolist() == expected


def test_the_order_of_memory_changes_nothing() -> None:
    """Row-major and column-major matrices score alike."""
    row = np.arange(1, 50)
    capacity = np.stack([row * 1000, row * 700, row], 1)
    used = capacity // 3
    for algorithm in ALGORITHMS:
        np.testing.assert_array_equal(
            fit_scores(capacity, used, algorithm),
            fit_scores(np.asfortranarray(capacity), np.asfortranarray(used), algorithm),
        )


def test_anti_affinity_fades_with_the_desired_count() -> None:
    """The penalty is (collisions + 1) / desired, floored away from zero, and never beyond -1."""
    assert anti_affinity_score(1, 10) == -((2 * SCALE + 9) // 10)
    assert anti_affinity_score(10, 1000) == -((11 * SCALE + 999) // 1000)
    assert anti_affinity_score(30, 10) == -SCALE
    assert anti_affinity_score(1, 0) == -SCALE
    collisions = np.arange(1, 200)
    expected = [anti_affinity_score(c, 150) for c in collisions.tolist()]
    assert anti_affinity_scores(collisions, 150).tolist() == expected


@pytest.mark.parametrize("with_penalty", [False, True])
@pytest.mark.parametrize("anti_affinity", [False, True])
def test_the_mean_divides_by_the_scorers_that_apply(
    *, anti_affinity: bool, with_penalty: bool
) -> None:
    """A scorer that does not apply is absent, not a zero; the vector mean is the scalar mean."""
    capacity, used = [1000, 2000, 10], [337, 1999, 1]
    expected = []
    for collisions in (0, 0, 1, 5):
        for penalised in (False, True):
            scores = node_scores(
                capacity=capacity,
                used_after=used,
                collisions=collisions,
                desired_count=7,
                algorithm="binpack",
                anti_affinity=anti_affinity,
                penalised=penalised and with_penalty,
            )
            applied = 1 + (anti_affinity and collisions > 0) + (penalised and with_penalty)
            assert len(scores) == applied
            expected.append(mean_score(list(scores.values())))
    fit = fit_scores(np.array([capacity] * 8), np.array([used] * 8), "binpack")
    means = mean_scores(
        fit,
        collisions=np.array([0, 0, 0, 0, 1, 1, 5, 5]) if anti_affinity else None,
        desired_count=7,
        penalised=np.array([False, True] * 4) if with_penalty else None,
    )
    assert means.tolist() == expected


def test_a_decision_names_its_scorers_as_nomad_does() -> None:
    """`why` shows each scorer that applied under Nomad's name."""
    scores = node_scores(
        capacity=[10, 10, 10],
        used_after=[5, 5, 5],
        collisions=1,
        desired_count=4,
        algorithm="spread",
        anti_affinity=True,
        penalised=True,
    )
    assert sorted(scores) == ["job-anti-affinity", "node-reschedule-penalty", "spread"]
    assert scores["job-anti-affinity"] == -SCALE // 2
