"""SplitMix64: the published sequence, and vectors equal to scalars."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.core.splitmix import splitmix64, splitmix64_array
from tests.examples import examples


def test_the_published_sequence_comes_out() -> None:
    """The generator seeded with 1234567 gives the numbers every implementation gives."""
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix64(1234567 + i * gamma) for i in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@examples(100)
@given(st.lists(st.integers(0, 2**64 - 1)))
def test_vectors_equal_scalars(values: list[int]) -> None:
    """The hash of an array is the hash of each element, wrap-around included."""
    hashed = splitmix64_array(np.array(values, np.uint64))
    assert hashed.tolist() == [splitmix64(value) for value in values]
