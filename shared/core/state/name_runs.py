"""Numbers as runs: start, length, start, length, …; the form of name indexes on the wire."""

import numpy as np
from numpy.typing import NDArray

#: Up to this many numbers a loop beats NumPy.
_VECTOR_MIN = 16


def expand_runs(runs: tuple[int, ...]) -> NDArray[np.int64]:
    """Turn start, length, start, length, … into the numbers themselves."""
    if len(runs) == 2:
        return np.arange(runs[0], runs[0] + runs[1])
    parts = [np.arange(runs[i], runs[i] + runs[i + 1]) for i in range(0, len(runs), 2)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def pack_runs(numbers: NDArray[np.integer]) -> tuple[int, ...]:
    """Turn numbers into start, length, … runs of consecutive ones, in their order."""
    count = len(numbers)
    if not count:
        return ()
    first = int(numbers[0])
    if count == 1:
        return first, 1
    if int(numbers[-1]) - first == count - 1 and (numbers == np.arange(first, first + count)).all():
        return (first, count)
    if count <= _VECTOR_MIN:
        runs: list[int] = []
        for number in numbers.tolist():
            if runs and number == runs[-2] + runs[-1]:
                runs[-1] += 1
            else:
                runs += (number, 1)
        return tuple(runs)
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    lengths = np.diff(starts, append=len(numbers))
    return tuple(np.column_stack((numbers[starts], lengths)).ravel().tolist())
