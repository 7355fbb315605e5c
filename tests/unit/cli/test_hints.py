"""Hints name what the selected cluster runs in, and refusals the way out."""

from pathlib import Path

import pytest

from services.cli import global_options
from services.cli.operator import bootstrap
from services.cli.runtime import hints
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.jetstream.streams import BusRefused

URL = "nats://public:secret@127.0.0.1:4222,nats://public:secret@127.0.0.1:4223"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No context, no cluster of this machine, an empty working directory."""
    global_options.set_global_options("")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("CARAVAN_NATS_URL", "CARAVAN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_without_a_selection_the_hint_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is a `caravan up`; a URL of the environment may be anything."""
    assert hints.absent_bus().startswith("is `caravan up` running?")
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://bus.example:4222")
    assert hints.absent_bus().startswith("does the cluster of CARAVAN_NATS_URL run")
    assert hints.silent_service("view") == "the log of view tells more"


@pytest.mark.parametrize("variable", [False, True])
def test_a_cluster_in_containers_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, variable: bool
) -> None:
    """The bus at the address that `operator bootstrap` wrote is one of containers, wherever its folder is."""
    folder = tmp_path / ("elsewhere" if variable else "deploy/secrets")
    folder.mkdir(parents=True)
    (folder / "url").write_text(f"{URL}\n")
    if variable:
        monkeypatch.setenv("CARAVAN_SECRETS", str(folder))
    monkeypatch.setenv("CARAVAN_NATS_URL", URL)
    assert "docker compose -f deploy/compose.yaml ps -a" in hints.absent_bus()
    assert hints.silent_service("view") == (
        "`docker compose -f deploy/compose.yaml logs view` tells more"
    )
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:5222")
    assert "docker" not in hints.absent_bus()


def test_refusals_of_create_say_the_way_out() -> None:
    """Another number of servers, a store that is lost, streams of another cluster: each has its own."""
    replicas = BusRefused("stream LOG_1: num_replicas is 1, expected 3")
    assert "--servers" in bootstrap.way_out(replicas, is_new=False)
    lost = BusRefused("stream LOG_1 is missing")
    assert "restore a copy" in bootstrap.way_out(lost, is_new=False)
    assert "empty volumes" in bootstrap.way_out(BusRefused("stream JOBS: other"), is_new=True)


def test_a_cluster_keeps_its_number_of_servers(tmp_path: Path) -> None:
    """A second bootstrap with another number says which one it was, and how to get a new cluster."""
    given = {"directory": str(tmp_path / "s"), "nodes": "n1", "clients": "", "port": 4222}
    assert bootstrap.bootstrap(CommandOutput(), servers=1, **given) == 0  # type: ignore[arg-type]
    with pytest.raises(CliError, match=r"repeat --servers 1, or .* --directory"):
        bootstrap.bootstrap(CommandOutput(), servers=3, **given)  # type: ignore[arg-type]
