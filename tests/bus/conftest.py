"""A real nats-server for each test that asks for one: own directory, free port, ended by pid."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.bus.server import accounts, nats_server
from tests.bus.toys import Bus


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """A running server whose log is bootstrapped by the test that needs one."""
    credentials = accounts.new_credentials(("n1", "n2"))
    running = nats_server.NatsServer(
        nats_server.ServerSettings(data_dir=tmp_path / "bus"), credentials
    )
    running.start()
    yield Bus(running, credentials)
    running.stop()
