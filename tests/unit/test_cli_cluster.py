"""A cluster on one machine: what each of its processes is told."""

import os
import stat
import sys
from pathlib import Path

import pytest

from services.cli.children import Child
from services.cli.cluster import Cluster, ClusterSettings
from services.cli.output import Output
from shared.bus import accounts
from shared.bus.runner import run_settings, shell_settings
from shared.bus.server import NatsServer, ServerSettings


def test_each_process_gets_its_own_password_alone(tmp_path: Path) -> None:
    """A process that is taken over gives away one user; only the applier also asks as SYS, nobody is admin."""
    cluster = Cluster(ClusterSettings(data_dir=tmp_path, agents=2, schedulers=2), print)
    known = cluster._credentials()
    cluster._server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), known)
    children = cluster._plan()
    assert len(children) == 10
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
        Output(is_json=False).progress("view: restarted")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module", "(ModuleNotFoundError: No module named 'no_such_module')"),
        ("""print('{"event":"x","reason":"the bus is away"}'); exit(1)""", "(the bus is away)"),
        ("""print('{"event":"service.ended"}'); exit(1)""", "again in 0.1 s"),
        ("exit(1)", "again in 0.1 s"),
    ],
)
def test_who_ends_says_why(tmp_path: Path, code: str, words: str) -> None:
    """The line about a process that ended holds its last word: its reason, or the exception that nobody caught."""
    command = (sys.executable, "-c", code)
    child = Child(name="x", role="x", command=command, env=os.environ, log_path=tmp_path / "log")
    child.start()
    assert child._process is not None
    child._process.wait()
    said = child.look(0.0)
    assert said.startswith("ended with exit code 1; ")
    assert said.endswith(words)
