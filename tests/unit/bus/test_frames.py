"""Frames: what the bus sends arrives whole, however the socket cuts it."""

import asyncio
import random

import pytest

from shared.bus.connection.frame_parser import FrameParser

MESSAGES = [
    (b"hb.n1", b"", b"", b"one"),
    (b"a.b", b"_INBOX.x.1", b"", b""),
    (b"a.b", b"77", b"", b"MSG a 1 3\r\nabc\r\n"),
    (b"c", b"", b"NATS/1.0 408 Timeout\r\n\r\n", b""),
    (b"d", b"back", b"NATS/1.0\r\nNats-Msg-Id: 9\r\n\r\n", b"x" * 5000),
    (b"e", b"", b"", b"\r\nPING\r\n"),
]


class _Client:
    """What nats-py's parser calls for all that is no message of ours."""

    def __init__(self) -> None:
        self.pings = 0
        self.others: list[tuple[int, bytes]] = []

    async def _process_ping(self) -> None:
        self.pings += 1

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        del reply, data, headers
        self.others.append((sid, subject))


def _frame(sid: int, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bytes:
    to = b"%b " % reply if reply else b""
    if headers:
        sizes = b"%d %d" % (len(headers), len(headers) + len(data))
        return b"HMSG %b %d %b%b\r\n%b%b\r\n" % (subject, sid, to, sizes, headers, data)
    return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, to, len(data), data)


def _read(chunks: list[bytes]) -> tuple[list[tuple[bytes, bytes, bytes, bytes]], _Client]:
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client = _Client()

    def hear(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        got.append((subject, reply, headers, data))

    async def read() -> None:
        frames = FrameParser(client, {7: hear}, _never)
        for chunk in chunks:
            await frames.parse(chunk)
        assert not frames.buf

    asyncio.run(read())
    return got, client


def _never(err: Exception) -> None:
    raise err


@pytest.mark.parametrize("seed", range(30))
def test_messages_arrive_whole_however_the_bytes_are_cut(seed: int) -> None:
    """Every message is handed over once, in order and unchanged, wherever a chunk ends; lines between are answered."""
    draw = random.Random(seed)
    wanted = [draw.choice(MESSAGES) for _ in range(40)]
    stream = b"".join(
        _frame(7, *one) + (b"PING\r\n" if number % 8 == 0 else b"")
        for number, one in enumerate(wanted)
    )
    cuts = sorted(draw.sample(range(1, len(stream)), 25))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    got, client = _read(chunks)
    assert got == wanted
    assert client.pings == 5


def test_byte_by_byte_is_the_same() -> None:
    """A socket that gives one byte a time changes nothing."""
    stream = b"".join(_frame(7, *one) for one in MESSAGES)
    got, _ = _read([bytes([one]) for one in stream])
    assert got == MESSAGES


def test_an_empty_reply_subject_is_none() -> None:
    """The server's own services answer with two spaces where a reply subject would stand."""
    got, _ = _read([b"MSG a 7  3\r\nabc\r\n"])
    assert got == [(b"a", b"", b"", b"abc")]


def test_other_subscriptions_go_their_own_way() -> None:
    """A message of a subscription without a handler here is left to the client."""
    got, client = _read([_frame(3, *MESSAGES[0]) + _frame(7, *MESSAGES[1])])
    assert got == [MESSAGES[1]]
    assert client.others == [(3, b"hb.n1")]


def test_what_a_handler_raises_is_told() -> None:
    """An error of a handler ends its owner and is no hole in what it hears."""
    told: list[Exception] = []

    def broken(*_: bytes) -> None:
        raise RuntimeError("no")

    async def read() -> None:
        await FrameParser(_Client(), {7: broken}, told.append).parse(_frame(7, *MESSAGES[0]) * 2)

    asyncio.run(read())
    assert len(told) == 2
