"""Asks an address of the bus which server is there: a server says its name before any login. No right is needed."""

import asyncio
import contextlib
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

_ANSWER_S = 0.7
#: Of one address before the next: a server that is well answers within it.
_HEAD_START_S = 0.1


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
    """The first of several addresses at which a server answers; empty: none does.

    Each has a head start before the next, so that the order of the addresses decides, and not whose server is faster.
    """
    asked: set[asyncio.Task[str]] = set()
    try:
        for at, url in enumerate(urls, 1):
            asked.add(asyncio.create_task(_answering(url)))
            is_last = at == len(urls)
            while asked:
                done, asked = await asyncio.wait(
                    asked,
                    timeout=None if is_last else _HEAD_START_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if found := [one.result() for one in done if one.result()]:
                    return found[0]
                if not is_last:
                    break
        return ""
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _answering(url: str) -> str:
    return url if await probe(url) else ""
