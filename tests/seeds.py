"""Seeds of tests that draw: fixed in the gate, so that a run repeats; fresh, and printed, in the full tier.

CARAVAN_TEST_SEED chooses another one for both; `bootstrap.py test --full` draws it, prints it and sets it.
"""

import os
import random

#: The seed of the gate.
FIXED = 20_260_731


def seed() -> int:
    """Seed of this run: CARAVAN_TEST_SEED, else the fixed one."""
    return int(os.environ.get("CARAVAN_TEST_SEED", str(FIXED)))


def draws(name: str) -> random.Random:
    """Numbers for one test: those of its name and of this run's seed, whatever else runs."""
    return random.Random(f"{seed()} {name}")
