"""What holds for every test: generated examples are bounded and repeatable, minutes-long tests are asked for."""

import os
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from services.cli import chosen

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


@pytest.fixture(autouse=True)
def _nothing_chosen() -> None:
    """What the words of a command chose is for its process; a test that ran one here leaves nothing behind."""
    chosen.choose("")


class _Lanes(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types.
    """Hands out files, because a file's tests share what it started.

    All that needs a container engine is one lane: there is one engine. Where each test starts a cluster of its own,
    tests go out one by one.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.split("/")[1]
        if folder in {"compose", "docker"}:
            return "engine"
        return nodeid if folder in {"bench", "sim"} else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Say what may run beside what, where tests run side by side (`-n 2`)."""
    return _Lanes(config, log)
