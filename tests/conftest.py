"""What holds for every test: generated examples are bounded and repeatable, minutes-long tests are asked for."""

import os
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
FULL = os.environ.get("CARAVAN_FULL") == "1"

# A deadline would make a timing a test; the seed is fixed, so that a run repeats. `just full` looks further.
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("full" if FULL else "quick")


#: A folder's tests carry its marker without saying so.
MARKER_OF_FOLDER = {
    "property": "property",
    "sim": "sim",
    "bus": "bus",
    "integration": "bus",
    "e2e": "bus",
    "faults": "bus",
    "bench": "bench",
    "compose": "compose",
    "docker": "docker",
    "attacks": "bus",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder, and leave out what takes minutes unless CARAVAN_FULL=1 asks for it (just full)."""
    for item in items:
        marker = MARKER_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if marker is not None:
            item.add_marker(marker)
    slow = [item for item in items if not FULL and item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
