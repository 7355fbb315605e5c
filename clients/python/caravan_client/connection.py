"""A connection with the bus: requests, direct gets, subscriptions. Knows subjects and JSON, not jobs.

Every user listens below its own inbox prefix, `_INBOX.<user>.`; JetStream's API belongs to another account, so a direct
get is a plain request. Source: docs/any-language.md.
"""

import asyncio
import json
import os
import string
from collections.abc import AsyncIterator
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from caravan_client.errors import CaravanError, NoAnswer, Refused
from caravan_client.messages import ErrorAnswer

T = TypeVar("T")
#: Seconds that an answer may take; a view with `min_seq` waits 2.
REQUEST_S = 6.0
#: Seconds between two tries of a request that may be sent again.
PAUSE_S = 0.5
_PLAIN = frozenset((string.ascii_letters + string.digits + "-_").encode())


def token(identifier: str) -> str:
    """Spell an id as one token of a subject: bytes other than `A-Za-z0-9-_` become `~XX`."""
    return "".join(chr(b) if b in _PLAIN else f"~{b:02X}" for b in identifier.encode())


class Connection:
    """A connection; one for all clients of a program is enough. Must be closed."""

    def __init__(self, nats_client: NatsClient) -> None:
        """Use a connection of nats-py whose `inbox_prefix` is `_INBOX.<user>`."""
        self.nats = nats_client

    @classmethod
    async def open(
        cls, url: str | None = None, *, name: str = "caravan-client", timeout_s: float = 10.0
    ) -> "Connection":
        """Connect to the bus at `url`, by default `CARAVAN_NATS_URL`: user and password inside, commas between servers.

        The first connect is tried again for `timeout_s`; a connection that was lost later is made again without an end.
        """
        url = url or os.environ.get("CARAVAN_NATS_URL", "")
        if not url:
            raise CaravanError(
                "no address: pass a URL, or set CARAVAN_NATS_URL (`caravan context env` prints it)"
            )
        servers = url.split(",")
        user = unquote(urlsplit(servers[0]).username or "")
        if not user:
            raise CaravanError("the URL has no user: nats://USER:PASSWORD@HOST:PORT")
        client = NatsClient()
        faults: list[Exception] = []

        async def keep(error: Exception) -> None:
            faults[:] = [error]

        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    servers,
                    name=name,
                    inbox_prefix=f"_INBOX.{user}",
                    error_cb=keep,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                )
        except (NatsError, OSError, TimeoutError) as error:
            await client.close()
            fault = faults[0] if faults else error
            raise NoAnswer(f"cannot connect to the bus: {str(fault) or 'no answer'}") from error
        return cls(client)

    async def close(self) -> None:
        """Close the connection; subscriptions end."""
        await self.nats.close()

    async def ask(
        self, subject: str, body: Any, answer: type[T], *, timeout_s: float = REQUEST_S
    ) -> T:
        """Send a request until it is answered, at most for `timeout_s` after the first try."""
        data = await self.ask_bytes(subject, msgspec.json.encode(body), timeout_s=timeout_s)
        if error := _error_of(data):
            raise Refused(error.error)
        return msgspec.json.decode(data, type=answer)

    async def ask_bytes(self, subject: str, body: bytes, *, timeout_s: float = REQUEST_S) -> bytes:
        """As `ask`, with bytes. `NoAnswer` when the time is over: a forbidden request has no answer either."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                reply = await self.nats.request(
                    subject, body, timeout=max(deadline - loop.time(), 0.05)
                )
            except NoRespondersError as error:
                # The service may be starting.
                if loop.time() + PAUSE_S > deadline:
                    raise NoAnswer(f"{subject}: no service listens") from error
                await asyncio.sleep(PAUSE_S)
            except (TimeoutError, NatsTimeoutError) as error:
                raise NoAnswer(f"{subject}: no answer within {timeout_s:g} s") from error
            else:
                return reply.data

    async def last_value(self, subject: str) -> bytes:
        """Read the last value of a subject of `view.>`; empty: none is published."""
        reply = await self.nats.request(
            f"$JS.API.DIRECT.GET.VIEW.{subject}", b"", timeout=REQUEST_S
        )
        return b"" if _status(reply) else reply.data

    async def slice_of(self, stream: str, first: int, count: int) -> AsyncIterator[Msg]:
        """Read up to `count` messages of a stream from seq `first` on; fewer at its end, none if it is missing."""
        inbox = self.nats.new_inbox()
        answers = await self.nats.subscribe(inbox)
        try:
            body = json.dumps({"seq": first, "batch": count}).encode()
            await self.nats.publish(f"$JS.API.DIRECT.GET.{stream}", body, reply=inbox)
            while True:
                message = await answers.next_msg(timeout=REQUEST_S)
                if _status(message):
                    return
                yield message
        except NatsTimeoutError as error:
            raise NoAnswer(f"{stream}: no answer within {REQUEST_S:g} s") from error
        finally:
            await answers.unsubscribe()


def _status(message: Msg) -> str:
    """Return the status line's code of a message of the server; empty: it is an ordinary message."""
    return (message.headers or {}).get("Status", "")


def _error_of(data: bytes) -> ErrorAnswer | None:
    """Return the error that an answer is; no other answer has the key, except streams' frames and verdicts."""
    if b'"error"' not in data[:200]:
        return None
    try:
        return msgspec.json.decode(data, type=ErrorAnswer)
    except msgspec.ValidationError:
        return None
