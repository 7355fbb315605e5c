"""`/v1/agent/monitor`: levels, forms, frames, a slow reader, its end, and what is refused by name."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from starlette.datastructures import QueryParams

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.routes import monitor as route
from services.gateway.routes.monitor import monitor
from shared.bus.process.log_lines import LINES_MAX, LOG_LINES, LineFollower, as_text


@pytest.fixture(autouse=True)
def logged() -> Iterator[None]:
    """Lines pass the followers and are written nowhere."""
    level = structlog.processors.add_log_level
    structlog.configure(
        processors=[level, LOG_LINES, structlog.processors.KeyValueRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    yield
    structlog.reset_defaults()
    assert len(LOG_LINES) == 0


def call(query: str = "") -> Call:
    """A request of a caller."""
    found: Any = object.__new__(Call)
    found.role = SimpleNamespace(instance="gateway-1")
    found.connection = SimpleNamespace(query_params=QueryParams(query))
    found.caller = SimpleNamespace(name="public", users=0)
    return found  # type: ignore[no-any-return]


async def opened(query: str = "") -> AsyncIterator[bytes]:
    """The body of an answer, whose reader has taken the line that says so."""
    answer: Any = await monitor(call(query))
    body: AsyncIterator[bytes] = answer.body_iterator
    assert b"gateway.monitored" in text_of(await anext(body), query)
    return body


def text_of(part: bytes, query: str = "") -> bytes:
    """The lines in a part of a body."""
    return part if "plain" in query else base64.b64decode(json.loads(part).get("Data", ""))


@pytest.mark.parametrize(
    ("query", "level", "wanted"),
    [
        ("", "info", True),
        ("", "debug", False),
        ("log_level=debug", "debug", True),
        ("log_level=TRACE&plain=true", "debug", True),
        ("log_level=info&plain=true", "warning", True),
    ],
)
def test_lines_of_the_level_and_above_arrive(query: str, level: str, *, wanted: bool) -> None:
    """What is below the level is left out; frames are Nomad's, plain text is the lines themselves."""

    async def read() -> bytes:
        async with aclosing(await opened(query)) as body:  # type: ignore[type-var]
            getattr(structlog.get_logger(), level)("it.happened", job="a b", n=3)
            structlog.get_logger().error("end")
            return text_of(await anext(body), query)

    found = asyncio.run(read())
    line = f'[{level.upper()}] it.happened: job="a b" n=3\n'.encode()
    assert found == (line if wanted else b"") + b"[ERROR] end\n"


def test_json_lines_are_objects() -> None:
    """`log_json` keeps the fields; a value that JSON has not is its text."""

    async def read() -> bytes:
        async with aclosing(await opened("log_json=true")) as body:  # type: ignore[type-var]
            structlog.get_logger().info("it.happened", job="a\nb", what={1}, bad="\ud800")
            return text_of(await anext(body))

    wanted = {
        "event": "it.happened",
        "level": "info",
        "job": "a\nb",
        "what": "{1}",
        "bad": "\ud800",
    }
    assert json.loads(asyncio.run(read())) == wanted


def test_one_event_is_one_line() -> None:
    """Foreign text in a field or a name can neither end a line nor move a terminal's cursor."""
    line = as_text({"level": "info", "event": "a\nb", "job": "x\x1b[2J\ny", "empty": ""})
    assert line == b'[INFO] a\\nb: job="x\\u001b[2J\\ny" empty=""\n'


def test_a_quiet_gateway_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty frames say that the connection lives; plain text has none."""

    async def read() -> bytes:
        async with aclosing(await opened()) as body:  # type: ignore[type-var]
            monkeypatch.setattr(route, "HEARTBEAT_S", 0.0)
            return await anext(body)

    assert asyncio.run(read()) == b"{}"


def test_a_slow_reader_loses_lines_and_hears_how_many() -> None:
    """What waits for it is bounded; the lines that it gets are the oldest, whole and in order."""
    follower = LineFollower(0, lambda: None, as_json=False)
    for number in range(LINES_MAX + 7):
        follower.add(b"%d\n" % number)
    found = b""
    while part := follower.take(1_000):
        assert len(part) <= 1_000
        found += part
    lines = found.splitlines()
    assert lines[:-1] == [b"%d" % number for number in range(LINES_MAX)]
    assert lines[-1] == b"[WARNING] monitor.lines_dropped: lines=7"
    follower.add(b"x" * (1 << 20) + b"x")
    assert follower.take(1_000) == b"[WARNING] monitor.lines_dropped: lines=1\n"


def test_a_reader_that_leaves_is_forgotten() -> None:
    """Its lines are not made any more, and its login has one user less."""

    async def read() -> tuple[int, int, int, int]:
        one = call()
        answer: Any = await monitor(one)
        before = len(LOG_LINES)
        await anext(answer.body_iterator)
        during = len(LOG_LINES)
        users = one.caller.users
        await answer.body_iterator.aclose()
        # The inner stream is closed by the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return before, during, users, one.caller.users

    assert asyncio.run(read()) == (0, 1, 1, 0)


def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the bound is 503, and may come when another one has left."""
    monkeypatch.setattr(route, "READERS_MAX", 1)

    async def read() -> int:
        async with aclosing(await opened()):  # type: ignore[type-var]
            with pytest.raises(HttpFault) as err:
                await monitor(call())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with aclosing(await opened()):  # type: ignore[type-var]
            return err.value.status

    assert asyncio.run(read()) == 503


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("log_level=loud", 400, "Unknown log level: loud"),
        ("plain=maybe", 400, "plain"),
        ("node_id=node-7", 501, "node-7"),
        ("server_id=leader", 501, "leader"),
        ("server_id=a&node_id=b", 400, "simultaneously"),
    ],
)
def test_what_is_not_this_process_is_refused_by_name(query: str, status: int, text: str) -> None:
    """A reader that asks for a node's lines must not take these for them."""
    with pytest.raises(HttpFault) as err:
        asyncio.run(monitor(call(query)))
    assert (err.value.status, text in err.value.text) == (status, True), err.value.text


def test_this_gateway_may_be_named() -> None:
    """Its own instance is a server that it knows."""

    async def read() -> None:
        async with aclosing(await opened("server_id=gateway-1")):  # type: ignore[type-var]
            assert len(LOG_LINES) == 1

    asyncio.run(read())
