"""Feed: what a socket gives reaches handlers at once, and nothing overtakes what is no message."""

import asyncio
import random

import pytest

from shared.bus.connection.frame_parser import FrameParser
from shared.bus.connection.frame_protocol import FrameProtocol

_PING = b"PING\r\n"


class _Client:
    """What nats-py's parser calls, slowly; all that arrives is noted in one list."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    async def _process_ping(self) -> None:
        await asyncio.sleep(0)
        self.heard.append("ping")

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        del subject, reply, headers
        await asyncio.sleep(0)
        self.heard.append((sid, data))


class _Before:
    """The protocol that had the connection before."""

    def __init__(self) -> None:
        self.lost: list[Exception | None] = []

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def _never(err: Exception) -> None:
    raise err


def _fed(client: _Client) -> tuple[FrameProtocol, FrameParser, _Before]:
    before = _Before()

    def handler(_subject: bytes, _reply: bytes, _headers: bytes, data: bytes) -> None:
        client.heard.append((7, data))

    frames = FrameParser(client, {7: handler}, _never)
    return FrameProtocol(frames, before), frames, before


async def _read(feed: FrameProtocol, frames: FrameParser) -> None:
    while True:
        await frames.parse(await feed.rest())


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_once_and_in_order(seed: int) -> None:
    """Messages with and without handler, and lines between them, wherever a chunk ends and whenever it comes."""
    draw = random.Random(seed)
    wanted: list[object] = []
    stream = b""
    for number in range(60):
        sid = draw.choice([7, 7, 7, 3])
        data = b"%d" % number * draw.randrange(1, 40)
        stream += b"MSG a.b %d %d\r\n%b\r\n" % (sid, len(data), data)
        wanted.append((sid, data))
        if draw.random() < 0.2:
            stream += _PING
            wanted.append("ping")
    cuts = sorted(draw.sample(range(1, len(stream)), 30))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    client = _Client()

    async def run() -> None:
        feed, frames, _ = _fed(client)
        reading = asyncio.create_task(_read(feed, frames))
        for chunk in chunks:
            feed.data_received(chunk)
            if draw.random() < 0.5:
                await asyncio.sleep(0)
        feed.eof_received()
        with pytest.raises(EOFError):
            await reading

    asyncio.run(run())
    assert client.heard == wanted


def test_a_message_waits_for_nobody() -> None:
    """A message of a handler is handed over in the callback itself, before any task runs."""
    client = _Client()
    feed, _, _ = _fed(client)
    feed.data_received(b"MSG a 7 3\r\nabc\r\nMSG a 7 2\r\nde\r")
    assert client.heard == [(7, b"abc")]
    feed.data_received(b"\n")
    assert client.heard == [(7, b"abc"), (7, b"de")]


def test_the_end_is_told() -> None:
    """Who reads hears of a broken connection, and so does who made it."""
    fault = ConnectionResetError("gone")

    async def run() -> list[Exception | None]:
        feed, frames, before = _fed(_Client())
        reading = asyncio.create_task(_read(feed, frames))
        await asyncio.sleep(0)
        feed.connection_lost(fault)
        with pytest.raises(ConnectionResetError):
            await reading
        return before.lost

    assert asyncio.run(run()) == [fault]
