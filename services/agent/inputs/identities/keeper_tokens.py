"""Tokens from the keeper: one question, one answer that only this question's key opens.

The keeper decides from the log which identities a node may have signed. What an answer says of times is not sealed: it
decides only when the token is renewed.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec
import structlog

from schemas.bounds import bounded_decoder
from schemas.identities import IdentityAnswers, IdentityAsk, SignedIdentity
from schemas.jobs import ErrorDetail
from shared.bus.connection.nats_client import BusClient
from shared.errors import BusUnavailable, CaravanError
from shared.protocol import subjects
from shared.protocol.identity_names import identity_context
from shared.sealed_box import SealedBoxInvalid, new_pair, open_box

#: A question waits so long for its answer.
ANSWER_S = 5.0
TOKEN_BYTES_MAX = 64 * 1024
#: Codes that say no; all others say not now.
_REFUSALS = frozenset({"forbidden", "denied", "invalid", "not_found"})
#: The JSON of a JWT: three parts in base64url.
_TOKEN = re.compile(rb"[A-Za-z0-9_.-]+")
_DECODER = bounded_decoder(IdentityAnswers)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
log = structlog.get_logger()


class TokenUnavailable(CaravanError):
    """There is no answer now."""


class TokenRefused(CaravanError):
    """The keeper says no. It may learn of an allocation later than its node."""


class SignedToken(NamedTuple):
    """A token as its task gets it. `life_s` 0: it does not expire."""

    token: str
    life_s: int


class TokenSource(Protocol):
    """Where identities are signed."""

    async def signed(self, alloc_id: str, task: str, name: str) -> SignedToken:
        """Have an identity of a task signed. Raises TokenUnavailable and TokenRefused."""
        ...


class KeeperTokens:
    """The keeper, asked over the agent's own connection."""

    def __init__(self, node_id: str, cluster_id: Callable[[], str]) -> None:
        #: the agent's connection; None: there is none yet.
        self.bus: Callable[[], BusClient | None] = lambda: None
        #: answers that could not be used.
        self.ignored = 0
        self._subject = subjects.node_identities(node_id)
        self._cluster_id = cluster_id

    async def signed(self, alloc_id: str, task: str, name: str) -> SignedToken:
        """See TokenSource."""
        bus, cluster_id = self.bus(), self._cluster_id()
        if bus is None or not bus.is_connected or not cluster_id:
            raise TokenUnavailable("the bus is away")
        private, public = new_pair()
        ask = IdentityAsk(alloc_id=alloc_id, task=task, names=(name,), public=public)
        try:
            _, body = await bus.request_raw(
                self._subject, msgspec.json.encode(ask), timeout_s=ANSWER_S
            )
        except BusUnavailable as err:
            raise TokenUnavailable("the keeper does not answer") from err
        found = self._answer(body, name)
        return self._opened(found, private, identity_context(cluster_id, alloc_id, task, name))

    # ---- inside ----

    def _answer(self, body: bytes, name: str) -> SignedIdentity:
        """Find the answer about one identity. Raises TokenUnavailable and TokenRefused."""
        try:
            found = _DECODER.decode(body)
        except _UNREADABLE:
            raise self._unusable("it cannot be read") from None
        if found.error is not None:
            raise _said(found.error)
        if len(found.identities) != 1 or found.identities[0].name != name:
            raise self._unusable("it is about another identity")
        if (error := found.identities[0].error) is not None:
            raise _said(error)
        return found.identities[0]

    def _opened(
        self, found: SignedIdentity, private: bytes, context: tuple[str, ...]
    ) -> SignedToken:
        try:
            token = open_box(found.sealed, private, context)
        except SealedBoxInvalid as err:
            raise self._unusable(type(err).__name__) from None
        life_s = found.expires_s - found.issued_s if found.expires_s else 0
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token) or life_s < 0:
            raise self._unusable("it holds no token")
        if found.expires_s and not life_s:
            raise self._unusable("its token has expired")
        return SignedToken(token.decode(), life_s)

    def _unusable(self, reason: str) -> TokenUnavailable:
        """Count an answer that cannot be used, and log the first, the second, the fourth, and so on."""
        self.ignored += 1
        if not self.ignored & (self.ignored - 1):
            log.warning("identity.unreadable", reason=reason, count=self.ignored)
        return TokenUnavailable(f"the keeper's answer cannot be used: {reason}")


def _said(error: ErrorDetail) -> CaravanError:
    text = f"{error.code}: {error.message[:200]}"
    return TokenRefused(text) if error.code in _REFUSALS else TokenUnavailable(text)
