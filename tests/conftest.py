"""What holds for every test: generated examples are bounded and repeatable, minutes-long tests are asked for."""

import os

import hypothesis
import pytest

FULL = os.environ.get("CARAVAN_FULL") == "1"

# A deadline would make a timing a test; the seed is fixed, so that a run repeats. `just full` looks further.
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("full" if FULL else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless CARAVAN_FULL=1 asks for it (just full)."""
    if FULL:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
