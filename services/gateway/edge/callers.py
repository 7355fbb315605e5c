"""Callers: logins of the bus, checked by connecting with them. The one place that decides about a caller.

The bus decides what a caller may do: writes go out on the caller's own connection, and reads of the gateway's replica
need the right to ask the same of the bus, so that the login of a node or a service reads nothing here. Connections are
pooled by login; one is closed when it was idle for a while, or when the bus refuses its login later (it was revoked).
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import time
from collections.abc import Mapping

from services.gateway.edge.faults import HttpFault, permission_denied, unavailable
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from shared.protocol import subjects

#: Connections at a time, and seconds without a request after which one is closed.
CALLERS_MAX, IDLE_S = 200, 300.0
#: Logins that were refused are refused again for so long without asking the bus.
REFUSED_S, REFUSED_MAX = 2.0, 1_000
_SWEEP_S = 5.0
#: How long the first request of a login waits for an answer; a refusal of the bus comes at once.
_MAY_READ_S = 2.0
_TOKEN_CHARS_MAX = 512
_WORDS = ("authorization", "authentication", "permissions")


class Caller:
    """A login that the bus accepted, with its connection."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.used_s = time.monotonic()
        #: requests and streams that use it now.
        self.users = 0


class Callers:
    """The pool. `end` closes all."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: dict[str, asyncio.Task[Caller]] = {}
        self._refused: dict[str, float] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Number of logins with a connection."""
        return len(self._known)

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request. Raises HttpFault 403: no login or a refused one; 503: no bus."""
        token = token_of(headers)
        if not token:
            raise permission_denied("a login is required")
        return await self.of_token(token)

    async def of_token(self, token: str) -> Caller:
        """The caller with a token, `USER:PASSWORD`. Raises HttpFault 403, 503."""
        user, _, password = token.partition(":")
        if not user or not password or len(token) > _TOKEN_CHARS_MAX:
            raise permission_denied("the token is not USER:PASSWORD")
        key = hashlib.sha256(token.encode()).hexdigest()
        if time.monotonic() - self._refused.get(key, -REFUSED_S) < REFUSED_S:
            raise permission_denied()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        task = self._known.get(key)
        if task is None:
            if len(self._known) >= CALLERS_MAX and not await self._close_idle(0.0):
                raise unavailable(f"{CALLERS_MAX} logins have a connection already")
            task = self._known[key] = asyncio.create_task(self._connect(user, password))
        try:
            found = await asyncio.shield(task)
        except HttpFault as err:
            if self._known.get(key) is task:
                del self._known[key]
            if err.status == 403:
                self._note_refused(key)
            raise
        found.used_s = time.monotonic()
        if not found.client.bus.is_connected and found.client.was_refused:
            await self._drop(key)
            self._note_refused(key)
            raise permission_denied()
        return found

    async def end(self) -> None:
        """Close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for key in tuple(self._known):
            await self._drop(key)

    async def _connect(self, user: str, password: str) -> Caller:
        client = Client(self._url, user=user, password=password)
        try:
            await client.__aenter__()
        except BusUnavailable as err:
            if any(word in str(err).lower() for word in _WORDS):
                raise permission_denied() from err
            raise unavailable(str(err)) from err
        if not await _may_read(client):
            await client.bus.end()
            raise permission_denied(f"the login {user!r} may not read the cluster")
        return Caller(user, client)

    def _note_refused(self, key: str) -> None:
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[key] = time.monotonic()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self._close_idle(IDLE_S)

    async def _close_idle(self, idle_s: float) -> bool:
        """Close what was not used for so long, and what the bus refuses now; returns whether something was closed."""
        now_s, closed = time.monotonic(), False
        for key, task in tuple(self._known.items()):
            if not task.done() or task.cancelled() or task.exception() is not None:
                continue
            one = task.result()
            is_idle = one.users == 0 and now_s - one.used_s >= idle_s
            if is_idle or one.client.was_refused:
                await self._drop(key)
                closed = True
        return closed

    async def _drop(self, key: str) -> None:
        task = self._known.pop(key, None)
        if task is None:
            return
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            await task.result().client.bus.end()


async def _may_read(client: Client) -> bool:
    """Whether the bus lets this login ask for the state of the cluster; an answer is not needed."""
    with contextlib.suppress(BusUnavailable):
        await client.request_bytes(subjects.query("cluster"), b"{}", timeout_s=_MAY_READ_S)
    return client.denied == 0


def token_of(headers: Mapping[str, str]) -> str:
    """The token of a request: `X-Nomad-Token`, bearer, or basic. Empty without one. Raises HttpFault 400."""
    if token := headers.get("x-nomad-token", ""):
        return token
    kind, _, value = headers.get("authorization", "").partition(" ")
    match kind.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                return base64.b64decode(value.strip(), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError) as err:
                raise HttpFault(400, "the header Authorization cannot be read") from err
        case _:
            return ""
