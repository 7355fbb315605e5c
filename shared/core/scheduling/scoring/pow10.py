"""The table of powers of ten behind the fit scores: POW10[i] is 10**(i / 65536) in 2**-20 units.

Why a committed table: `pow`, `exp` and `exp2` differ in the last bit between libraries and between
processors, so two replicas would decide differently. The table is made once by exact integer
arithmetic (`exact_table`), stored in `pow10.npy`, loaded read-only, and held by tests: its hash,
and its regeneration. Changing it changes decisions: it is part of the core version.

Regenerate with `python -m shared.core.scheduling.scoring.pow10`. scores.py reads it.
"""

from math import isqrt
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: The free fraction of a node is counted in units of 1 / STEPS.
STEPS_LOG2: Final = 16
STEPS: Final = 1 << STEPS_LOG2
#: Scores and powers are counted in units of 1 / SCALE.
SCALE_LOG2: Final = 20
SCALE: Final = 1 << SCALE_LOG2

_FILE: Final = Path(__file__).with_name("pow10.npy")
_GUARD_BITS: Final = 256


def exact_table() -> NDArray[np.int32]:
    """Compute floor(10**(i / 65536) * 2**20) for i in 0..65536, exactly.

    The step 10**(1 / 65536) is sixteen integer square roots of ten with 256 guard bits; 65,536
    multiplications lose at most some twenty of them, and each floor asserts that what is left decides.

    Shapes: result (65537,), rising, from 2**20 to 10 * 2**20.
    """
    step = 10 << _GUARD_BITS
    for _ in range(STEPS_LOG2):
        step = isqrt(step << _GUARD_BITS)
    table = np.empty(STEPS + 1, np.int32)
    power = 1 << _GUARD_BITS
    for i in range(STEPS):
        table[i], rest = divmod(power << SCALE_LOG2, 1 << _GUARD_BITS)
        # Rounding only ever lost: a value just below a whole number could belong above it.
        assert (rest >> 64) != (1 << (_GUARD_BITS - 64)) - 1, f"10**({i}/65536) is not decided"
        power = (power * step) >> _GUARD_BITS
    table[STEPS] = 10 * SCALE
    return table


def _load() -> NDArray[np.int32]:
    table: NDArray[np.int32] = np.load(_FILE, allow_pickle=False)
    table.setflags(write=False)
    return table


#: int32[65537], read-only.
POW10: Final[NDArray[np.int32]] = _load() if _FILE.exists() else exact_table()


if __name__ == "__main__":
    np.save(_FILE, exact_table().astype("<i4"), allow_pickle=False)
