"""Host volumes by request in a whole cluster: made, offered, kept over a kill of the agent, deleted."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import until
from tests.bus.up import Up

pytestmark = pytest.mark.bus
MODE = ("--access-mode", "single-node-writer")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path, "--agents", "1")
    yield running
    running.end()


def shown(up: Up, name: str) -> dict[str, Any]:
    """A volume as the command shows it."""
    code, found = up.run("volume", "status", name)
    assert code == 0, found
    return found


def test_a_volume_lives_over_a_kill_of_the_agent(up: Up) -> None:
    """S75: one for an id; kept by the next life of the agent; deleted with what is in it."""
    code, made = up.run("volume", "create", "--name", "data", *MODE, "--parameter", "mode=0750")
    assert (code, made["volume_status"]) == (0, "ready")
    place = Path(made["path"])
    (place / "kept").touch()
    again = (*MODE, "--parameter", "mode=0750", "--id", made["volume"])
    code, same = up.run("volume", "create", "--name", "data", *again)
    assert (code, same["changed"], same["volume"]) == (0, False, made["volume"])
    assert up.run("volume", "create", "--name", "data", *MODE)[0] == 1
    os.kill(up.said["services"]["agent-node-1"], signal.SIGKILL)
    until(lambda: shown(up, "data")["status"] == "ready")
    code, bad = up.run("volume", "create", "--name", "bad", *MODE, "--parameter", "size=1")
    assert (code, bad["volume_status"]) == (1, "failed")
    assert "'size'" in bad["reason"]
    assert up.run("volume", "delete", "bad")[0] == 0
    assert (place / "kept").exists()
    code, gone = up.run("volume", "delete", "data")
    assert (code, gone["volume_status"]) == (0, "deleted")
    assert not place.exists()
    assert up.run("volume", "list")[1]["volumes"] == []
