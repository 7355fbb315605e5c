"""Tokens of identities for tests: a keeper that signs for a connection, and one in memory."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec

from schemas.identities import IdentityAnswers, IdentityAsk, SignedIdentity
from schemas.jobs import ErrorDetail
from services.agent.inputs.identities.keeper_tokens import (
    SignedToken,
    TokenRefused,
    TokenUnavailable,
)
from shared.bus.connection.nats_client import BusClient
from shared.errors import BusUnavailable
from shared.protocol import subjects
from shared.sealed_box import seal

CLUSTER = "c1"
NODE = "n1"


class TokenKeeper:
    """What a keeper says to questions for identities: `PREFIX.NAME.NUMBER` are its tokens."""

    def __init__(self, prefix: str = "eyJ0.marker-5c2e") -> None:
        self.prefix = prefix
        self.ttl_s = 0
        self.asks: list[IdentityAsk] = []
        #: codes of refusals: of whole questions, and of identities by name.
        self.refusal = ""
        self.refused: dict[str, str] = {}
        #: instead of a token.
        self.text: str | None = None
        self.signed = 0

    def answer(self, ask: IdentityAsk, cluster: str = CLUSTER) -> IdentityAnswers:
        """Answer a question."""
        self.asks.append(ask)
        if self.refusal:
            return IdentityAnswers(error=ErrorDetail(code=self.refusal, message="not here"))
        return IdentityAnswers(identities=tuple(self._sign(ask, one, cluster) for one in ask.names))

    def _sign(self, ask: IdentityAsk, name: str, cluster: str) -> SignedIdentity:
        if code := self.refused.get(name, ""):
            return SignedIdentity(name=name, error=ErrorDetail(code=code, message="no"))
        self.signed += 1
        token = f"{self.prefix}.{name}.{self.signed}" if self.text is None else self.text
        context = ("identity", cluster, ask.alloc_id, ask.task, name)
        return SignedIdentity(
            name=name,
            sealed=seal(token.encode(), ask.public, context),
            issued_s=1_000,
            expires_s=1_000 + self.ttl_s if self.ttl_s else 0,
        )


class KeeperConnection:
    """The part of a connection that asks the keeper."""

    def __init__(self) -> None:
        self.is_connected = True
        self.is_silent = False
        self.keeper = TokenKeeper()
        #: answers given so far; `replayed`: this one is given to all questions.
        self.given: list[bytes] = []
        self.replayed: bytes | None = None
        self.client = cast("BusClient", self)

    async def request_raw(self, subject: str, data: bytes, **_more: Any) -> tuple[bytes, bytes]:
        """Ask."""
        assert subject == subjects.node_identities(NODE)
        if self.is_silent:
            raise BusUnavailable("no responder")
        if self.replayed is not None:
            return b"", self.replayed
        ask = msgspec.json.decode(data, type=IdentityAsk)
        self.given.append(msgspec.json.encode(self.keeper.answer(ask)))
        return b"", self.given[-1]


class FixedTokens:
    """A TokenSource in memory. `life_s`: of the next tokens, by identity."""

    def __init__(self) -> None:
        self.life_s: dict[str, int] = {}
        self.is_silent = False
        self.refusal = ""
        self.asked: list[tuple[str, str, str]] = []
        self.signed_count = 0

    async def signed(self, alloc_id: str, task: str, name: str) -> SignedToken:
        """See TokenSource."""
        self.asked.append((alloc_id, task, name))
        await asyncio.sleep(0)
        if self.is_silent:
            raise TokenUnavailable("the keeper does not answer")
        if self.refusal:
            raise TokenRefused(self.refusal)
        self.signed_count += 1
        return SignedToken(f"token.{name}.{self.signed_count}", self.life_s.get(name, 0))


class FileTokens:
    """A TokenSource for the lives of an agent's process: `life_s` stands in a file, questions are added to another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked = path.with_suffix(".asked")

    async def signed(self, alloc_id: str, task: str, name: str) -> SignedToken:
        """See TokenSource."""
        said = json.loads(self._path.read_text()) if self._path.exists() else {}
        with self._asked.open("a") as file:
            file.write(f"{alloc_id} {task} {name}\n")
        if said.get("is_silent"):
            raise TokenUnavailable("the keeper does not answer")
        return SignedToken(f"token.{name}.{uuid4().hex}", said.get("life_s", 0))
