"""The server's config: what is committed is what the code renders, and the server takes it."""

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from shared.bus.server import accounts, nats_server

pytestmark = pytest.mark.bus

COMPOSE = Path(__file__).parents[2] / "deploy" / "nats.conf"
NODES = ("node-1", "node-2", "node-3")


def test_the_committed_config_is_the_rendered_one() -> None:
    """deploy/nats.conf says what the accounts say; CARAVAN_BLESS=1 rewrites it."""
    rendered = nats_server.render_compose(NODES)
    if os.environ.get("CARAVAN_BLESS") == "1":
        COMPOSE.write_text(rendered)
    assert COMPOSE.read_text() == rendered


@pytest.mark.parametrize("servers", [1, 3])
def test_the_server_takes_the_config_with_its_passwords(tmp_path: Path, servers: int) -> None:
    """nats-server parses it, alone or as one of three, with the passwords beside it, and refuses it without."""
    known = accounts.new_credentials(NODES)
    users = {**known.users, accounts.ROUTE: "0123e4"}
    hosts = tuple(f"nats-{number}" for number in range(1, servers + 1)) if servers > 1 else ()
    named = msgspec.structs.replace(known, users=users)
    (tmp_path / "nats.conf").write_text(nats_server.render_compose(NODES, servers))
    command = [nats_server.find_binary(), "-t", "-c", str(tmp_path / "nats.conf")]
    environ = {"CARAVAN_SERVER_NAME": "nats-1"}
    secret = tmp_path / accounts.PASSWORDS_FILE
    secret.write_text(accounts.render_passwords(named, hosts))
    taken = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert taken.returncode == 0, taken.stderr
    secret.write_text("")
    refused = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert refused.returncode != 0


def test_the_config_for_containers_holds_no_secret() -> None:
    """Every password in it is a name; values stand in the other file alone, as text and never as a number."""
    known = accounts.new_credentials(NODES)
    rendered = nats_server.render_compose(NODES, 3)
    told = re.findall(r"password: (\S+?)[,\s]", rendered)
    assert told
    assert all(one.startswith("$CARAVAN_NATS_") for one in told)
    passwords = accounts.render_passwords(known)
    assert all(
        f'"{secret}"' in passwords for secret in (*known.users.values(), *known.nodes.values())
    )


def test_no_config_lets_a_client_in_without_a_password() -> None:
    """Neither in containers nor on loopback has a server a user for clients without one."""
    assert "no_auth_user" not in nats_server.render_compose(NODES)
    assert "no_auth_user" not in accounts.render(accounts.new_credentials())


def test_only_the_applier_may_write_the_log() -> None:
    """No other user's permissions name a subject of the log, and no wildcard covers one."""
    for role in accounts.ROLES:
        allowed = accounts.role_user(role, "").publish or ()
        writes = [one for one in allowed if one.split(".")[0] in ("log", "*", ">")]
        assert bool(writes) is (role == "plan_applier"), role
    for user in (accounts.agent_user("n1", ""), accounts.public_user("")):
        assert not [one for one in user.publish or () if one.split(".")[0] in ("log", "*", ">")]
