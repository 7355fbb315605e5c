"""SplitMix64: the one source of "randomness", a counter hash.

Spreads a 64-bit integer over all 64 bits, for lanes, ids and seeded draws. A draw is a pure function of its argument,
so that every replica and every replay draws the same; nothing here keeps state.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014);
the constants and the order of operations are those of java.util.SplittableRandom. The output for x
equals the first output of a SplitMix64 generator whose state is x.
"""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def splitmix64(x: int) -> int:
    """Return the 64-bit hash of `x` (taken modulo 2**64, so negative numbers are allowed)."""
    z = (x + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def splitmix64_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of every element of `x`, equal to `splitmix64` of each; same shape."""
    # Unsigned array arithmetic wraps modulo 2**64, on every processor, without a warning.
    z = np.atleast_1d(x).astype(np.uint64) + np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return (z ^ (z >> np.uint64(31))).reshape(np.shape(x))
