"""A cluster on one machine: the settings of each of its processes."""

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from services.cli.local import cluster as cluster_module
from services.cli.local.cluster import (
    LocalCluster,
    LocalClusterSettings,
    complete_credentials,
)
from services.cli.local.processes import SupervisedProcess
from services.cli.runtime.local_clusters import LocalClusterRecord
from services.cli.runtime.output import CommandOutput
from shared.bus.process.runner import shell_settings
from shared.bus.process.settings import run_settings
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.errors import ConfigInvalid


def test_each_process_gets_its_own_password_alone(tmp_path: Path) -> None:
    """A process that is taken over gives away one user; only the applier also connects as SYS, no role is admin."""
    cluster = LocalCluster(LocalClusterSettings(data_dir=tmp_path, agents=2, schedulers=2), print)
    known = cluster._credentials()
    cluster._server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), known)
    children = cluster._plan()
    assert len(children) == 13
    for child in children:
        path = Path(child._env["CARAVAN_CREDENTIALS"])
        own = accounts.read_credentials(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if child.role == "agent":
            node_id = child._env["CARAVAN_AGENT_NODE_ID"]
            assert (own.users, own.nodes) == ({}, {node_id: known.nodes[node_id]})
        else:
            extra = {accounts.SYS} if child.role == "plan_applier" else set()
            assert (set(own.users), own.nodes) == ({child.role} | extra, {})
            login = shell_settings(run_settings(child._env), child.role).login
            assert login.password == known.users[child.role]
    assert stat.S_IMODE((tmp_path / "credentials").stat().st_mode) == 0o700


def test_a_directory_of_an_older_release_gets_the_users_that_it_lacks(tmp_path: Path) -> None:
    """Credentials without the keeper's user get one of its own; every other password stays as it was."""
    made = accounts.new_credentials(("node-1",))
    older = {name: secret for name, secret in made.users.items() if name != "keeper"}
    kept = accounts.Credentials(users=older, nodes=made.nodes)
    accounts.write_credentials(tmp_path / "credentials.json", kept)
    known = complete_credentials(tmp_path, ["node-1"])
    assert known == accounts.read_credentials(tmp_path / "credentials.json")
    assert known.nodes == made.nodes and set(known.users) == set(made.users)
    assert {**known.users, "keeper": ""} == {**older, "keeper": ""}
    assert known.users["keeper"] not in older.values()


def test_one_process_knows_the_users_of_its_roles_and_no_more(tmp_path: Path) -> None:
    """All roles but agents are one child, each once; no role is admin, and nodes keep their own passwords."""
    settings = LocalClusterSettings(data_dir=tmp_path, agents=2, gateways=0, one_process=True)
    cluster = LocalCluster(settings, print)
    known = cluster._credentials()
    cluster._server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), known)
    *agents, services = cluster._plan()
    assert [child.role for child in agents] == ["agent", "agent"]
    roles = services.role.split(",")
    assert (services.name, sorted(roles)) == ("services", sorted({*accounts.ROLES} - {"gateway"}))
    path = Path(services._env["CARAVAN_CREDENTIALS"])
    own = accounts.read_credentials(path)
    assert (set(own.users), own.nodes) == ({*roles, accounts.SYS}, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


HERE, THERE = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("left", "machine", "is_refused"),
    [
        ({"machine": THERE, "boot": "other"}, HERE, True),
        ({"machine": THERE, "boot": "other"}, "", True),
        # The same machine after a power loss.
        ({"machine": HERE, "boot": "other"}, HERE, False),
        # A release or a container that does not know.
        ({"machine": "", "boot": "other"}, HERE, False),
    ],
)
def test_a_copy_that_was_in_use_on_another_machine_does_not_start(
    left: dict[str, str],
    machine: str,
    *,
    is_refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No lock reaches across machines: the record of a cluster that was not shut down is asked, and says where."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(cluster_module, "machine_id", lambda: machine)
    cluster = LocalCluster(LocalClusterSettings(data_dir=tmp_path / "data"), print)
    (tmp_path / "data").mkdir(exist_ok=True)
    cluster._read_identity()
    data = str(tmp_path / "data")
    record = LocalClusterRecord(pid=4_711, url="nats://127.0.0.1:1", data_dir=data, **left)
    (tmp_path / "data" / "up.json").write_bytes(msgspec.json.encode(record))
    if is_refused:
        with pytest.raises(
            ConfigInvalid, match=r"on another machine, by pid 4711.*delete .*up.json"
        ):
            cluster._refuse_second_copy()
    else:
        cluster._refuse_second_copy()
        cluster._machine_lock.close()


def test_what_goes_on_is_told_to_nobody_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has gone (`caravan up | head`) ends neither supervision nor the taking down of services."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as broken:

        class Broken:
            def write(self, text: str) -> int:
                return broken.write(text.encode())

            def flush(self) -> None:
                pass

            def isatty(self) -> bool:
                return False

        monkeypatch.setattr(sys, "stdout", Broken())
        with pytest.raises(BrokenPipeError):
            print("x")
        CommandOutput(is_json=False).progress("view: restarted")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "(ModuleNotFoundError: No module named 'no_such_module')"),
        ("""print('{"event":"x","reason":"the bus is away"}'); exit(1)""", "(the bus is away)"),
        ("""print('{"event":"service.ended"}'); exit(1)""", "restart in 0.1 s"),
        ("exit(1)", "restart in 0.1 s"),
    ],
)
def test_who_ends_says_why(tmp_path: Path, code: str, words: str) -> None:
    """The line about a process that ended holds its last word: its reason, or the uncaught exception."""
    command = (sys.executable, "-c", code)
    child = SupervisedProcess(
        name="x", role="x", command=command, env=os.environ, log_path=tmp_path / "log"
    )
    child.start()
    assert child._process is not None
    child._process.wait()
    said = child.look(0.0)
    assert said.startswith("ended with exit code 1; ")
    assert said.endswith(words)
