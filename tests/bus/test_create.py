"""`caravan operator create`: the streams of a cluster are made once in its life, and missed loudly afterwards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.main import main
from shared.bus.server import accounts, nats_server

Create = Callable[[], tuple[int, dict[str, object]]]


@pytest.fixture
def create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Create:
    """Run the command as compose does, as admin of the server of the test."""
    monkeypatch.setenv("CARAVAN_CLUSTER_ID", "c1")
    monkeypatch.setenv("CARAVAN_CREDENTIALS", str(tmp_path / "credentials.json"))
    (tmp_path / "state").mkdir()

    def run() -> tuple[int, dict[str, object]]:
        capsys.readouterr()
        code = main(["operator", "create", "--state", str(tmp_path / "state"), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_lost_log_is_not_made_again(
    tmp_path: Path, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made, then only checked; where the bus has lost its store the command fails instead of starting from nothing."""
    credentials = accounts.new_credentials()
    accounts.write_credentials(tmp_path / "credentials.json", credentials)
    settings = nats_server.ServerSettings(data_dir=tmp_path / "bus", port=nats_server.free_port())
    running = nats_server.NatsServer(settings, credentials)
    monkeypatch.setenv("CARAVAN_NATS_URL", running.url)
    running.start()
    try:
        assert create() == (0, {"cluster_id": "c1", "streams": "created"})
        assert create() == (0, {"cluster_id": "c1", "streams": "checked"})
        running.stop()
        shutil.rmtree(tmp_path / "bus" / "jetstream")
        running.start()
        code, told = create()
        assert code == 1
        assert "LOG_1" in str(told) or "JOBS" in str(told)
    finally:
        running.stop()


def test_another_cluster_is_refused(tmp_path: Path, create: Create) -> None:
    """The folder that remembers belongs to one cluster: secrets of another one are not used with it."""
    known = {"format": 1, "cluster_id": "c2", "bootstrapped": True}
    (tmp_path / "state" / "cluster.json").write_text(json.dumps(known))
    code, told = create()
    assert code == 1
    assert "c2" in str(told["error"])
