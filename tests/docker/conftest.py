"""One engine for all tests of this folder, and a driver on it; loud where there can be none."""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import not_tested
from tests.compose.engine import NoEngineError
from tests.docker.engine import OwnEngine

_capture: list[Any] = []


def pytest_configure(config: pytest.Config) -> None:
    """Remember who captures what is printed."""
    _capture.append(config.pluginmanager.getplugin("capturemanager"))


def say(text: str) -> None:
    """Print past pytest's capture: never a silent skip."""
    with contextlib.ExitStack() as stack:
        if _capture and _capture[0] is not None:
            stack.enter_context(_capture[0].global_and_fixture_disabled())
        print(f"\ndocker: {text}", flush=True)


@pytest.fixture(scope="session")
def engine() -> Iterator[OwnEngine]:
    """An engine that answers, with the image of the tests."""
    try:
        found = OwnEngine()
    except NoEngineError as err:
        say(f"SKIPPED, the docker driver was not tested: {err}")
        not_tested.missing_tool(str(err))
    try:
        try:
            found.import_image()
        except NoEngineError as err:
            say(f"SKIPPED, the docker driver was not tested: {err}")
            not_tested.missing_tool(str(err))
        say(f"engine {found.client.version()['Version']}, our own")
        yield found
    finally:
        found.end()


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """An agent's data directory that containers' users can walk into."""
    for path in (tmp_path, *tmp_path.parents[:3]):
        mode = path.stat().st_mode
        # A folder that is everyone's, like /tmp, lets them through, and keeps its mode.
        if not mode & (stat.S_ISVTX | stat.S_IXOTH):
            with contextlib.suppress(OSError):
                path.chmod(stat.S_IMODE(mode) | stat.S_IXGRP | stat.S_IXOTH)
    return tmp_path
