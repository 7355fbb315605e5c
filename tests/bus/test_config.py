"""The server's config: what is committed is what the code renders, and the server takes it."""

import os
import subprocess
from pathlib import Path

import pytest

from shared.bus import accounts, server

pytestmark = pytest.mark.bus

COMPOSE = Path(__file__).parents[2] / "deploy" / "nats.conf"
NODES = ("node-1", "node-2", "node-3")


def test_the_committed_config_is_the_rendered_one() -> None:
    """deploy/nats.conf says what the accounts say; CARAVAN_BLESS=1 rewrites it."""
    rendered = server.render_compose(NODES)
    if os.environ.get("CARAVAN_BLESS") == "1":
        COMPOSE.write_text(rendered)
    assert COMPOSE.read_text() == rendered


def test_the_server_takes_the_committed_config(tmp_path: Path) -> None:
    """nats-server parses it with every password in its environment, and refuses it without them."""
    known = accounts.environment_credentials(NODES)
    names = [one.removeprefix("$") for one in (*known.users.values(), *known.nodes.values())]
    command = [server.find_binary(), "-t", "-c", str(COMPOSE)]
    environ = {name: f"p{number}" for number, name in enumerate(names)}
    taken = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert taken.returncode == 0, taken.stderr
    refused = subprocess.run(command, env={}, capture_output=True, check=False)
    assert refused.returncode != 0


def test_nobody_without_a_password_enters_a_container() -> None:
    """Only a server that listens on loopback takes strangers in, as PUBLIC."""
    assert "no_auth_user" not in server.render_compose(NODES)
    assert "no_auth_user: public" in accounts.render(accounts.new_credentials())


def test_only_the_applier_may_write_the_log() -> None:
    """No other user's permissions name a subject of the log, and no wildcard covers one."""
    for role in accounts.ROLES:
        allowed = accounts.role_user(role, "").publish or ()
        writes = [one for one in allowed if one.split(".")[0] in ("log", "*", ">")]
        assert bool(writes) is (role == "plan_applier"), role
    for user in (accounts.agent_user("n1", ""), accounts.public_user("")):
        assert not [one for one in user.publish or () if one.split(".")[0] in ("log", "*", ">")]
