"""The rare edge of the view: FastStream subscribes to what is asked, on the shell's own connection.

Decides how a question gets from FastStream to the role: as it came, undecoded, so that the role sees what any other
source would bring and answers by its Reply. Must not know a noun. The only import of FastStream in a running process:
half a second and 48 MB, which nobody else pays and no start waits for (`early.py`). Its log lines, two a message, are
DEBUG.
"""

import logging
from typing import Any

import structlog
from faststream.middlewares import AckPolicy
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client

from shared.bus.connect import BusClient, header_block
from shared.bus.frames import Handler
from shared.core.role import Listen

_MSG_ID = "Nats-Msg-Id"


class SharedBroker(NatsBroker):
    """A broker on a connection that belongs to somebody else: it neither opens nor drains it."""

    def __init__(self, bus: Client) -> None:
        super().__init__(
            # Undecoded bodies in, nothing out: no signatures to inspect, no models to build.
            apply_types=False,
            decoder=_undecoded,
            ack_policy=AckPolicy.MANUAL,
            logger=structlog.get_logger(),
            log_level=logging.DEBUG,
        )
        self._bus = bus

    async def _connect(self) -> Client:
        self.config.connect(self._bus)
        return self._bus


async def _undecoded(message: NatsMessage) -> Any:
    return message


async def carry(bus: BusClient, source: Listen, deliver: Handler) -> None:
    """Subscribe for a Listen source of core NATS and hand each message over; the role answers, not the handler."""
    broker = SharedBroker(bus)

    async def take(message: NatsMessage) -> None:
        try:
            raw = message.raw_message
            # A status or an empty id is nothing that a role is told.
            msg_id = (raw.headers or {}).get(_MSG_ID, "")
            headers = header_block(nats_msg_id=msg_id) if msg_id else b""
            deliver(raw.subject.encode(), raw.reply.encode(), headers, raw.data)
        except Exception as err:
            # FastStream would log it and go on without the question.
            if bus.on_failure is None:
                raise
            bus.on_failure(err)

    broker.subscriber(source.subject, queue=source.queue, no_reply=True)(take)
    await broker.start()
