"""The gateway's FastStream application: its broker, the router of what it hears, and its own ASGI routes.

Imports FastStream, which costs half a second and 48 MB, so that it is loaded after the start (`lifespan.py`). What
follows the log does not pass here: a record would cost more than its replay.
"""

import logging
from typing import Any

import msgspec
import structlog
from faststream.asgi import AsgiFastStream, AsgiResponse, make_ping_asgi
from faststream.asgi import get as get_route
from faststream.middlewares import AckPolicy
from faststream.nats import NatsBroker, NatsMessage, NatsRouter
from faststream.security import SASLPlaintext
from faststream.specification import AsyncAPI

from schemas.bounds import bounded_decoder
from schemas.evaluations import Presence
from services.gateway.edge.bus.asyncapi import document_text
from services.gateway.edge.bus.middleware import BusCounts, counting
from services.gateway.edge.bus.page import render_page
from services.gateway.edge.bus.workers import PresentServices
from shared.bus.connection.nats_client import Login
from shared.bus.server.accounts import inbox_prefix
from shared.protocol import subjects
from shared.release import RELEASE

__all__ = ("BusCounts", "make_router", "make_stream")
log = structlog.get_logger()
#: Below this path the application answers; its routes are compared as a whole.
PREFIX = "/bus"
_PING_S = 2.0
_PRESENCE = bounded_decoder(Presence)


async def _undecoded(message: NatsMessage) -> Any:
    return message.body


def make_router(present: PresentServices, clock_s: Any) -> NatsRouter:
    """What the gateway hears: the presence of schedulers.

    Under the names of roles with a leader it must not listen: a candidate asks the bus whether there is a listener
    under the holder's, and with one here a killed leader would count as connected until its lease ends.
    """
    router = NatsRouter()

    @router.subscriber(subjects.presences("scheduler"), no_reply=True)
    async def take(body: bytes) -> None:
        try:
            found = _PRESENCE.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as err:
            log.warning("bus.presence_unreadable", problem=str(err)[:200])
            return
        present.note(found, clock_s())

    return router


def make_stream(
    login: Login, present: PresentServices, counts: BusCounts, clock_s: Any
) -> AsgiFastStream:
    """The application with a connection of its own, in the gateway's login; it connects anew forever."""
    broker = NatsBroker(
        login.url.split(","),
        name="gateway",
        security=SASLPlaintext(login.user, login.password) if login.user else None,
        inbox_prefix=inbox_prefix(login.user) if login.user else "_INBOX",
        max_reconnect_attempts=-1,
        ack_policy=AckPolicy.MANUAL,
        decoder=_undecoded,
        middlewares=(counting(counts),),
        routers=(make_router(present, clock_s),),
        logger=structlog.get_logger(),
        # Two lines a message.
        log_level=logging.DEBUG,
    )
    described: list[bytes] = []

    def described_once() -> bytes:
        if not described:
            described.append(document_text().encode())
        return described[0]

    @get_route
    async def as_json(_request: Any) -> AsgiResponse:
        return AsgiResponse(described_once(), 200, {"Content-Type": "application/json"})

    @get_route
    async def as_page(_request: Any) -> AsgiResponse:
        page = render_page(msgspec.json.decode(described_once()))
        return AsgiResponse(page.encode(), 200, {"Content-Type": "text/html; charset=utf-8"})

    return AsgiFastStream(
        broker,
        asgi_routes=[
            (f"{PREFIX}/health", make_ping_asgi(broker, timeout=_PING_S)),
            (f"{PREFIX}/asyncapi.json", as_json),
            (f"{PREFIX}/", as_page),
        ],
        specification=AsyncAPI(title="Caravan", version=RELEASE),
        logger=structlog.get_logger(),
    )
