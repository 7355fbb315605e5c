"""A cluster on one machine: what each of its processes is told."""

import stat
from pathlib import Path

from services.cli.cluster import Cluster, ClusterSettings
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
