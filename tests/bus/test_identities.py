"""Identities in a whole cluster: a node asks, the keeper signs, the gateway verifies, and no file has a token."""

import asyncio
import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.identities import IdentityAnswers, IdentityAsk, SignedIdentity
from shared.bus.connection.nats_client import ConnectionCallbacks, Login, connect
from shared.bus.connection.public_client import Client
from shared.bus.server.accounts import node_user, read_credentials
from shared.errors import BusUnavailable
from shared.identity_tokens import TokenInvalid, verify_token
from shared.protocol import subjects
from shared.protocol.identity_names import identity_context
from shared.sealed_box import new_pair, open_box
from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus

JWKS = "/.well-known/jwks.json"

TASK = {
    "Name": "main",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/sleep", "args": ["1000"]},
    "Resources": {"CPU": 10, "MemoryMB": 16},
    "Identity": {"Name": "default"},
    "Identities": [{"Name": "vault", "Audience": ["vault.example"], "TTL": 3_600_000_000_000}],
}
JOB = {
    "ID": "web",
    "Name": "web",
    "Type": "service",
    "TaskGroups": [{"Name": "g", "Count": 1, "Tasks": [TASK]}],
}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster with a gateway, a keeper and one agent, each a process of its own that writes its tape."""
    (tmp_path / "tapes").mkdir()
    running = Up(tmp_path, gateway=True, CARAVAN_TAPE=str(tmp_path / "tapes"))
    yield running
    running.end()


class Node:
    """What an agent asks, with the login of the one node."""

    def __init__(self, up: Up) -> None:
        self._url = up.said["url"]
        known = read_credentials(up.data_dir / "credentials.json")
        self.node_id, self._secret = next(iter(known.nodes.items()))
        self.private, self._public = new_pair()

    def ask(self, alloc: str, *names: str) -> IdentityAnswers:
        """Ask for identities of the task, under the node's own name."""
        body = IdentityAsk(alloc_id=alloc, task="main", names=names, public=self._public)
        data = asyncio.run(self._request(msgspec.json.encode(body)))
        return msgspec.json.decode(data, type=IdentityAnswers)

    async def _request(self, body: bytes) -> bytes:
        address = self._url.rpartition("@")[2].removeprefix("nats://")
        login = Login(url=f"nats://{address}", user=node_user(self.node_id), password=self._secret)
        bus = await connect(login, ConnectionCallbacks())
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        subject = subjects.node_identities(self.node_id)
                        return (await bus.request_raw(subject, body))[1]
                    except BusUnavailable:
                        # The keeper does not lead yet.
                        await asyncio.sleep(0.05)
        finally:
            await bus.end()


def submit(up: Up) -> str:
    """Register the job; return the id of its allocation, which runs."""

    async def ask() -> dict[str, Any]:
        async with Client(up.client_url) as client:
            body = {"accept_unbuilt": True, "Job": JOB}
            return await client.request("api.jobs.submit", body)

    verdict = asyncio.run(ask())
    assert verdict["status"] == "accepted", verdict
    up.until(lambda: up.allocs("web", "running") != [], "the allocation runs")
    return str(up.allocs("web", "running")[0]["id"])


def get(up: Up, path: str, token: str = "") -> tuple[int, Any]:
    """Status and body of a request to the gateway: without a login, or with the token of a task."""
    address = up.data_dir / "logs" / "gateway.url"
    up.until(address.exists, "the gateway listens")
    request = urllib.request.Request(f"{address.read_text().strip()}{path}")
    if token:
        request.add_header("X-Nomad-Token", token)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def judge_login(up: Up, token: str) -> None:
    """The task reads what is named after it, and nothing else."""
    for path in ("nomad/jobs/web", "app/db"):
        assert up.run("var", "put", path, f"at={path}")[0] == 0
    own, other = "/v1/var/nomad/jobs/web", "/v1/var/app/db"
    up.until(lambda: get(up, own, token)[0] == 200, "the gateway knows token and variable")
    assert get(up, own, token)[1]["Items"] == {"at": "nomad/jobs/web"}
    assert [one["Path"] for one in get(up, "/v1/vars", token)[1]] == ["nomad/jobs/web"]
    for path in (other, "/v1/jobs"):
        assert get(up, path, token)[0] == 403


def verifying_keys(up: Up, count: int) -> dict[str, bytes]:
    """Public keys by id, newest first: those of the gateway's JWKS, once these are so many, as the query has them."""
    up.until(lambda: len(get(up, JWKS)[1]["keys"]) == count, f"the gateway has {count} keys")
    kids = [one["kid"] for one in get(up, JWKS)[1]["keys"]]
    lines = up.ask("signing_keys")["keys"]
    assert kids == [one["key_id"] for one in lines]
    return {one["key_id"]: msgspec.json.decode(f'"{one["public"]}"', type=bytes) for one in lines}


def kid_of(token: str) -> str:
    """The id of the key that a token names."""
    part = token.split(".", maxsplit=1)[0]
    return str(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["kid"])


def judge_rotation(up: Up, old: str, ask: Callable[[], str]) -> None:
    """The newer key signs, tokens of the older one verify until that is removed; `ask` has a token signed."""
    first = kid_of(old)
    second = up.documented("operator", "keyring", "rotate", "--signing")["key_id"]
    new = ask()
    assert kid_of(new) == second != first
    keys = verifying_keys(up, 2)
    assert list(keys) == [second, first]
    for token in (old, new):
        verify_token(token, keys, now_s=time.time(), audience="vault.example")
    up.documented("operator", "keyring", "remove", first)
    keys = verifying_keys(up, 1)
    verify_token(new, keys, now_s=time.time(), audience="vault.example")
    with pytest.raises(TokenInvalid):
        verify_token(old, keys, now_s=time.time(), audience="vault.example")


def test_a_node_is_given_what_its_jobs_ask_for(up: Up) -> None:
    """While the allocation runs; the keys of query and gateway verify it, and it stands in no file but on its node."""
    alloc = submit(up)
    node = Node(up)
    cluster = up.ask("cluster")["cluster_id"]
    up.until(lambda: node.ask(alloc, "vault").error is None, "the keeper knows the allocation")
    found = node.ask(alloc, "vault", "default", "other")
    assert [one.error.code if one.error else "" for one in found.identities] == [
        "",
        "",
        "forbidden",
    ]

    def opened(one: SignedIdentity) -> bytes:
        context = identity_context(cluster, alloc, "main", one.name)
        return open_box(one.sealed, node.private, context)

    tokens = [opened(one) for one in found.identities[:2]]
    up.until(lambda: get(up, JWKS)[0] == 200, "the gateway has replayed the log")
    keys = verifying_keys(up, 1)
    vault, default = (
        verify_token(token.decode(), keys, now_s=time.time(), audience=audience)
        for token, audience in zip(tokens, ("vault.example", "nomadproject.io"), strict=True)
    )
    assert vault["sub"] == "global:default:web:g:main:vault"
    assert vault["nomad_allocation_id"] == default["nomad_allocation_id"] == alloc
    assert vault["exp"] - vault["iat"] == 3_600 and "exp" not in default
    judge_login(up, tokens[1].decode())
    assert get(up, "/v1/vars", tokens[0].decode())[0] == 403
    old = tokens[0].decode()
    judge_rotation(up, old, lambda: opened(node.ask(alloc, "vault").identities[0]).decode())
    assert get(up, "/v1/vars", tokens[1].decode())[0] == 403
    tokens += [opened(node.ask(alloc, "default").identities[0])]
    assert get(up, "/v1/vars", tokens[2].decode())[0] == 200
    code, _ = up.run("job", "stop", "web")
    assert code in (0, 2)
    up.until(lambda: node.ask(alloc, "vault").error is not None, "nothing is signed any more")
    refused = node.ask(alloc, "vault")
    assert refused.error is not None and refused.error.code == "unavailable"
    up.until(lambda: get(up, "/v1/vars", tokens[2].decode())[0] == 403, "the token is worthless")
    files = [one for one in up.data_dir.parent.rglob("*") if one.is_file()]
    assert any(one.name.startswith("keeper") and one.suffix == ".tape" for one in files)
    marks = [part for token in tokens for part in token.split(b".")[1:]]
    shown = [one for one in files if any(mark in one.read_bytes() for mark in marks)]
    assert shown == []
