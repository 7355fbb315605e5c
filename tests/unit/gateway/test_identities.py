"""`/.well-known/…` and the list of keys: public keys of the replica, by which others verify without our code."""

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from schemas.variables import KeyCreated
from services.gateway.edge.app import make_app
from services.gateway.edge.faults import permission_denied
from services.gateway.role import Gateway
from shared.core.runtime.messages import CaughtUp
from shared.identity_tokens import new_signing_key, public_bytes, sign_token, signing_key_id
from tests.unit.core.state.written_log import START_NS, WrittenLog

DOOR = "0123456789abcdef"
PRIVATES = tuple(new_signing_key() for _ in range(2))
PUBLICS = tuple(public_bytes(one) for one in PRIVATES)
IDS = tuple(signing_key_id(one) for one in PUBLICS)


def created(at: int) -> SigningKeyCreated:
    """The fact of a key."""
    return SigningKeyCreated(
        key_id=IDS[at], algorithm="RS256", public=PUBLICS[at], at_ns=START_NS + at
    )


class Site:
    """A gateway that has replayed a log; requests have no login."""

    def __init__(self, *events: Any, issuer: str = "", is_ready: bool = True) -> None:
        log = WrittenLog()
        self.role = Gateway(instance="g")
        for event in events:
            log.tx(event)
        self.role.step([*log.records, CaughtUp(log.seq)], 0)
        self._login = False

        async def caller_of(_headers: object) -> Any:
            if not self._login:
                raise permission_denied("a login is required")
            return SimpleNamespace(name="public", users=0)

        server = SimpleNamespace(
            role=self.role,
            settings=SimpleNamespace(names="", oidc_issuer=issuer),
            callers=SimpleNamespace(caller=caller_of),
            bus_edge=SimpleNamespace(lifespan=None),
            promised_seq=0,
            is_ready=is_ready,
            why_not_ready=lambda: "the log is still being replayed",
        )
        self._app = make_app(server)  # type: ignore[arg-type]

    def get(self, path: str, *, login: bool = False, method: str = "GET") -> tuple[int, Any]:
        """Status and body of a request."""
        self._login = login
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1:4646")],
            "scheme": "http",
            "server": ("127.0.0.1", 4646),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        body = b"".join(one.get("body", b"") for one in sent[1:])
        status = sent[0]["status"]
        return status, json.loads(body) if status == 200 else body.decode()


def decoded(text: str) -> bytes:
    """What base64url without padding holds."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verifies(token: str, answer: Any) -> bool:
    """Verify a token by a set of keys, as any library of JWT does: from `kid`, `n` and `e`."""
    head, body, signature = token.split(".")
    header = json.loads(decoded(head))
    keys = {one["kid"]: one for one in answer["keys"]}
    if header["alg"] != "RS256" or header["kid"] not in keys:
        return False
    number, exponent = (
        int.from_bytes(decoded(keys[header["kid"]][name]), "big") for name in ("n", "e")
    )
    public = RSAPublicNumbers(exponent, number).public_key()
    try:
        public.verify(decoded(signature), f"{head}.{body}".encode(), PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def test_a_token_verifies_by_the_published_keys() -> None:
    """Without a login; the older key of a rotation verifies on, one that was removed does not."""
    tokens = [sign_token(PRIVATES[at], IDS[at], b"{}") for at in range(2)]
    both = Site(created(0), created(1)).get("/.well-known/jwks.json")
    assert both[0] == 200
    assert [one["kid"] for one in both[1]["keys"]] == [IDS[1], IDS[0]]
    assert {(one["alg"], one["use"], one["kty"]) for one in both[1]["keys"]} == {
        ("RS256", "sig", "RSA")
    }
    assert [verifies(one, both[1]) for one in tokens] == [True, True]
    removed = Site(created(0), created(1), SigningKeyRemoved(key_id=IDS[0]))
    (_, rest) = removed.get("/.well-known/jwks.json")
    assert [verifies(one, rest) for one in tokens] == [False, True]
    assert not verifies(sign_token(PRIVATES[0], IDS[1], b"{}"), rest)


def test_keys_are_answered_once_the_log_is_replayed() -> None:
    """A set without the keys would have every token refused; a key that is none is left out."""
    assert Site(created(0), is_ready=False).get("/.well-known/jwks.json")[0] == 503
    assert Site().get("/.well-known/jwks.json") == (200, {"keys": []})
    other = SigningKeyCreated(key_id="0" * 16, algorithm="RS256", public=b"none", at_ns=1)
    # A key of a kind that has no name here.
    unknown = msgspec.structs.replace(
        other, key_id="1" * 16, public=bytes.fromhex("300a300406022a0303020001")
    )
    (_, found) = Site(created(0), other, unknown).get("/.well-known/jwks.json")
    assert [one["kid"] for one in found["keys"]] == [IDS[0]]


@pytest.mark.parametrize("issuer", ["https://caravan.example", "https://caravan.example/"])
def test_discovery_names_the_issuer_and_its_keys(issuer: str) -> None:
    """As the tokens have it, to the letter; without an issuer there is no discovery."""
    status, found = Site(issuer=issuer).get("/.well-known/openid-configuration")
    assert (status, found["issuer"]) == (200, issuer)
    assert found["jwks_uri"] == "https://caravan.example/.well-known/jwks.json"
    assert found["id_token_signing_alg_values_supported"] == ["RS256"]
    status, text = Site().get("/.well-known/openid-configuration")
    assert status == 404 and "CARAVAN_GATEWAY_OIDC_ISSUER" in text


@pytest.mark.parametrize("path", ["/.well-known/jwks.json", "/.well-known/openid-configuration"])
def test_what_is_public_cannot_be_written(path: str) -> None:
    """There is nothing to write."""
    assert Site(issuer="x").get(path, method="PUT")[0] == 405


def test_keys_are_listed_with_a_login() -> None:
    """Of both kinds, in Nomad's shape; of each the newest is active, and no key itself is shown."""
    site = Site(KeyCreated(key_id=DOOR, public=b"p" * 32), created(0), created(1))
    assert site.get("/v1/operator/keyring/keys")[0] == 403
    status, found = site.get("/v1/operator/keyring/keys", login=True)
    assert status == 200
    assert [(one["KeyID"], one["Algorithm"], one["State"]) for one in found] == [
        (DOOR, "x25519", "active"),
        (IDS[1], "rs256", "active"),
        (IDS[0], "rs256", "inactive"),
    ]
    assert [one["CreateIndex"] for one in found] == [3, 5, 4]
