"""How long a test waits at most: one bound for the whole suite, because no timing is a test.

A wait ends as soon as what it waits for holds. What never comes costs WAIT_S, and is named. On a machine that is slow
or busy CARAVAN_TEST_WAIT lengthens every wait, and pytest's own timeout with them.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def read_factor(text: str) -> float:
    """Read CARAVAN_TEST_WAIT; empty is 1. Raises ValueError."""
    wrong = f"CARAVAN_TEST_WAIT is {text!r}: it must be a number of at least 1, by which every wait is longer"
    try:
        found = float(text or "1")
    except ValueError:
        raise ValueError(wrong) from None
    if not 1 <= found < math.inf:
        raise ValueError(wrong)
    return found


FACTOR = read_factor(os.environ.get("CARAVAN_TEST_WAIT", ""))
#: For one answer, one state, the end of one process.
WAIT_S: float = 60 * FACTOR
#: For what does many such things in a row: a build, a whole cluster, a story in which leases and redeliveries run out.
#: It stays below pytest's timeout, which would not name what never came.
LONG_S: float = 4 * WAIT_S


def until(
    holds: Callable[[], T],
    what: str | Callable[[], object] = "",
    within_s: float = WAIT_S,
    *,
    every_s: float = 0.1,
) -> T:
    """Wait until it holds; returns what was found. Raises AssertionError that names it.

    `what`: what never came, or a function that tells what is there instead; by default the place of the condition.
    """
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(_never(holds, what, within_s))
        time.sleep(every_s)
    return found


async def level(
    holds: Callable[[], T],
    what: str | Callable[[], object] = "",
    within_s: float = WAIT_S,
    *,
    every_s: float = 0.005,
) -> T:
    """Wait for a level that no event tells of, as `until` does, and let the loop run meanwhile."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(_never(holds, what, within_s))
        await asyncio.sleep(every_s)
    return found


def _never(holds: Callable[[], object], what: str | Callable[[], object], within_s: float) -> str:
    """Name what never came."""
    told = what if isinstance(what, str) else str(what())
    if not told:
        code = getattr(holds, "__code__", None)
        told = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(holds)
    return f"not within {within_s:g} s: {told}"
