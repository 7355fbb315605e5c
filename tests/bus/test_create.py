"""`caravan operator create`: the streams of a cluster are made once in its life, and missed loudly afterwards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.main import main
from services.cli.operator import bootstrap
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.server import accounts, nats_server
from tests.bus.toys import Bus

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
        assert "restore a copy" in str(told)
    finally:
        running.stop()


def test_what_cannot_succeed_ends_at_once_with_the_way_out(
    bus: Bus, tmp_path: Path, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused login and another number of servers do not get better by waiting: exit 1, and what to do."""
    monkeypatch.setenv("CARAVAN_NATS_URL", bus.server.url)
    # A minute would pass in a wait, and the test's own bound is longer: the time is taken away.
    monkeypatch.setattr(bootstrap, "_CREATE_S", 1e9)
    accounts.write_credentials(tmp_path / "credentials.json", accounts.new_credentials())
    code, told = create()
    assert code == 1
    assert "--force-recreate nats-1" in str(told)
    accounts.write_credentials(tmp_path / "credentials.json", bus.credentials)
    assert create() == (0, {"cluster_id": "c1", "streams": "created"})
    monkeypatch.setenv("CARAVAN_REPLICAS", "3")
    code, told = create()
    assert code == 1
    assert "operator bootstrap --servers" in str(told)


def test_a_bus_that_is_not_there_is_waited_for_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line says what is waited for; the last one who was asked, for how long, and what to start."""
    monkeypatch.setattr(bootstrap, "_CREATE_S", -1.0)
    monkeypatch.setenv("CARAVAN_CLUSTER_ID", "c1")
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:1,nats://127.0.0.1:2")
    monkeypatch.delenv("CARAVAN_CREDENTIALS", raising=False)
    with pytest.raises(CliError) as told:
        bootstrap.create(CommandOutput(), state=str(tmp_path))
    assert "0 of 2 servers of the bus answer; start those at" in told.value.message
    # As the operations page starts them.
    assert "up -d` starts all three where `COMPOSE_PROFILES` names `cluster`" in told.value.message
    assert "--profile" not in told.value.message
    assert "asked for" in told.value.message
    assert capsys.readouterr().err.startswith("waiting for the bus, up to ")


def test_another_cluster_is_refused(tmp_path: Path, create: Create) -> None:
    """The folder that remembers belongs to one cluster: secrets of another one are not used with it."""
    known = {"format": 1, "cluster_id": "c2", "bootstrapped": True}
    (tmp_path / "state" / "cluster.json").write_text(json.dumps(known))
    code, told = create()
    assert code == 1
    assert "c2" in str(told["error"])
