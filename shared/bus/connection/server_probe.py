"""Asks an address of the bus which server is there: a server says its name before any login. No right is needed."""

import asyncio
import contextlib
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

_ANSWER_S = 0.7


class _Greeting(msgspec.Struct, frozen=True):
    server_name: str = ""


async def probe(url: str) -> str:
    """Name of the server at an address; empty: it does not answer."""
    where = urlsplit(url if "://" in url else f"nats://{url}")
    with contextlib.suppress(OSError, TimeoutError, ValueError, msgspec.MsgspecError):
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(where.hostname, where.port or 4222)
            try:
                line = await reader.readline()
            finally:
                writer.close()
        if line.startswith(b"INFO "):
            return msgspec.json.decode(line[5:], type=_Greeting).server_name
    return ""


async def first_to_answer(urls: Sequence[str]) -> str:
    """The one of several addresses at which a server answers first; empty: none does."""
    asked = [asyncio.create_task(_answering(one)) for one in urls]
    try:
        for each in asyncio.as_completed(asked):
            if found := await each:
                return found
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return ""


async def _answering(url: str) -> str:
    return url if await probe(url) else ""
