"""`/v1/agent/monitor`: the lines that this gateway logs, as they come.

Nothing is kept for readers that come later; one that is slow loses lines and hears how many (`LineFollower`).
"""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator

import msgspec
import structlog

from services.gateway.edge.agents import streamed
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault, unavailable
from services.gateway.edge.route import Endpoint
from shared.bus.process.log_lines import LOG_LINES, LineFollower

log = structlog.get_logger()
#: Readers at a time: each line is made for them while a request is answered.
READERS_MAX = 32
#: Bytes of one frame; seconds after which a reader of frames hears that nothing came, as Nomad's do.
FRAME_BYTES, HEARTBEAT_S = 64 * 1024, 1.0
#: Nomad's levels, and ours.
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


async def monitor(call: Call) -> object:
    """Stream lines of a level and above. Raises HttpFault 400, 501: another process is asked for, 503."""
    level = call.text("log_level") or "info"
    if level.lower() not in _LEVELS:
        raise HttpFault(400, f"Unknown log level: {level[:100]}")
    is_plain, is_json = call.flag("plain"), call.flag("log_json")
    _check_target(call)
    if len(LOG_LINES) >= READERS_MAX:
        raise unavailable(f"{READERS_MAX} readers follow the lines of this gateway already")
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(arrived.set)

    follower = LineFollower(_LEVELS[level.lower()], wake, as_json=is_json)
    kind = "text/plain" if is_plain else "application/json"
    return streamed(call, _lines(follower, arrived, call.caller.name, is_plain=is_plain), kind)


async def _lines(
    follower: LineFollower, arrived: asyncio.Event, reader: str, *, is_plain: bool
) -> AsyncIterator[bytes]:
    LOG_LINES.follow(follower)
    try:
        log.info("gateway.monitored", reader=reader)
        while True:
            try:
                await asyncio.wait_for(arrived.wait(), HEARTBEAT_S)
            except TimeoutError:
                if not is_plain:
                    yield b"{}"
                continue
            arrived.clear()
            while found := follower.take(FRAME_BYTES):
                yield found if is_plain else _frame(found)
    finally:
        LOG_LINES.leave(follower)


def _frame(data: bytes) -> bytes:
    return msgspec.json.encode({"Data": base64.b64encode(data).decode()})


def _check_target(call: Call) -> None:
    """Refuse another process than this one. Raises HttpFault 400, 501."""
    node, server = call.text("node_id"), call.text("server_id")
    if node and server:
        raise HttpFault(400, "Cannot target node and server simultaneously")
    own = call.role.instance
    if node:
        text = (
            f"the lines of node {node[:128]!r} are not built: its agent writes them where it runs"
        )
        raise HttpFault(501, text)
    if server and server != own:
        text = f"the lines of server {server[:128]!r} are not built: this is the gateway {own!r}"
        raise HttpFault(501, text)


ENDPOINTS = (
    Endpoint(
        pattern="/v1/agent/monitor",
        summary="Lines that the gateway logs, as they come.",
        read=monitor,
        is_stateless=True,
    ),
)
