"""Bootstrap of a cluster of containers: which secret stands where, and what a second run keeps."""

import json
import stat
from pathlib import Path

import pytest

from services.cli.main import main
from services.cli.runtime.local_clusters import login_for
from shared.bus.server import accounts
from shared.bus.server.nats_server import free_port
from shared.errors import ConfigInvalid


def bootstrap(folder: Path, *words: str) -> int:
    return main(["operator", "bootstrap", "--directory", str(folder), *words])


def test_each_login_holds_its_own_password_alone(tmp_path: Path) -> None:
    """A container that is broken into gives away one user; only the applier also asks as SYS."""
    folder = tmp_path / "secrets"
    assert bootstrap(folder, "--nodes", "node-1,view") == 0
    for role in (*accounts.ROLES, accounts.ADMIN):
        own = accounts.read_credentials(folder / f"{role}.json")
        extra = {accounts.SYS} if role == "plan_applier" else set()
        assert (set(own.users), own.nodes) == ({role} | extra, {})
    node = accounts.read_credentials(folder / "agent-view.json")
    assert (node.users, set(node.nodes)) == ({}, {"view"})


def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    """The folder and the file with everything are for their owner alone."""
    folder = tmp_path / "secrets"
    assert bootstrap(folder) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "credentials.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "agent-node-1.json").stat().st_mode) == 0o400


def test_again_adds_nodes_and_keeps_passwords(tmp_path: Path) -> None:
    """A running cluster knows the old passwords and its id: only what is new may change."""
    folder = tmp_path / "secrets"
    assert bootstrap(folder, "--nodes", "node-1") == 0
    before = accounts.read_credentials(folder / "credentials.json")
    env = (folder / "cluster.env").read_text()
    assert bootstrap(folder, "--nodes", "node-9") == 0
    after = accounts.read_credentials(folder / "credentials.json")
    assert after.users == before.users
    assert after.nodes["node-1"] == before.nodes["node-1"]
    assert set(after.nodes) == {"node-1", "node-9"}
    assert (folder / "cluster.env").read_text() == env
    assert "node-node-9" in (folder / "nats.conf").read_text()


def test_clients_are_users_of_their_own(tmp_path: Path) -> None:
    """Each named client has its URL, readable by its owner, and stays when the command is run again without it."""
    folder = tmp_path / "secrets"
    assert bootstrap(folder, "--clients", "ci,alice") == 0
    assert bootstrap(folder, "--port", "4300") == 0
    urls = {name: (folder / f"url-{name}").read_text().strip() for name in ("ci", "alice")}
    known = accounts.read_credentials(folder / "credentials.json").clients
    assert urls == {one: f"nats://{one}:{known[one]}@127.0.0.1:4300" for one in ("ci", "alice")}
    assert len(set(known.values())) == 2
    assert stat.S_IMODE((folder / "url-ci").stat().st_mode) == 0o400
    conf, secret = (
        (folder / "nats.conf").read_text(),
        (folder / accounts.PASSWORDS_FILE).read_text(),
    )
    assert 'user: "ci", password: $CARAVAN_NATS_CLIENT_CI' in conf
    assert f'CARAVAN_NATS_CLIENT_CI: "{known["ci"]}"' in secret


@pytest.mark.parametrize(
    "words",
    [["--servers", "2"], ["--nodes", "Node.1"], ["--servers", "3"], ["--clients", "view"], ["--clients", "a b"]],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers, an id that is no file name, and another size than the cluster has: one error, nothing written."""
    folder = tmp_path / "secrets"
    if words == ["--servers", "3"]:
        assert bootstrap(folder) == 0
    before = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
    capsys.readouterr()
    assert bootstrap(folder, *words, "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] in {"usage", "config"}
    assert (sorted(one.name for one in folder.iterdir()) if folder.exists() else []) == before


def test_a_password_in_the_url_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The URL that bootstrap writes holds a password: an error names the bus without it."""
    port = free_port()
    monkeypatch.setenv(
        "CARAVAN_NATS_URL",
        f"nats://public:s3cret@127.0.0.1:{port},nats://public:s3cret@127.0.0.1:1",
    )
    assert main(["operator", "status"]) == 1
    told = capsys.readouterr().err
    assert "s3cret" not in told
    assert f"nats://127.0.0.1:{port},nats://127.0.0.1:1" in told


def test_the_administrators_file_is_enough_to_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the users that a command can work as it takes the first whose password the file has; else it names one."""
    known = accounts.new_credentials()
    path = tmp_path / "admin.json"
    accounts.write_credentials(path, known.only_user(accounts.ADMIN))
    monkeypatch.setenv("CARAVAN_CREDENTIALS", str(path))
    found = login_for("nats://bus.example:4222", "view", accounts.ADMIN)
    assert found is not None and found.user == accounts.ADMIN
    with pytest.raises(ConfigInvalid, match="no credentials for 'view'"):
        login_for("nats://bus.example:4222", "view")
