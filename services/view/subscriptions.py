"""Subscriptions of a view: messages reach the role as from any other source, but without headers.

A query needs no id, and no header of a client may crash its reader.
"""

from shared.bus.connection.frame_parser import MessageHandler
from shared.bus.connection.nats_client import BusClient
from shared.core.runtime.messages import Listen


async def subscribe_without_headers(
    bus: BusClient, source: Listen, deliver: MessageHandler
) -> None:
    """Subscribe for a Listen source of core NATS and hand each message over; the role answers by its Reply."""

    def deliver_bare(subject: bytes, reply: bytes, _headers: bytes, data: bytes) -> None:
        deliver(subject, reply, b"", data)

    await bus.listen(source.subject, deliver_bare, source.queue)
