"""Many messages of a stream by one direct get: any replica may answer, and no consumer is needed.

Decides when an answer is over and when the server has gone silent. Independent of messages. Next:
`shared/bus/log/log_replay.py`.
"""

import asyncio
import time
from typing import NamedTuple

import msgspec

from shared.bus.connection.nats_client import BusClient, header, header_number, status
from shared.errors import BusUnavailable
from shared.protocol import subjects

BATCH_MESSAGES = 1024
BATCH_BYTES = 8 << 20
#: A request is repeated if the server began to answer and then was silent for this long.
_ANSWER_S = 3.0
_NO_RESPONDERS = 503
#: An answer that is neither a message nor a status.
_UNREADABLE = 500


class NoResponders(BusUnavailable):
    """The stream does not exist, or does not answer now."""


class StoredMessage(NamedTuple):
    """One message of a stream. `headers` are the raw block, as it was stored."""

    seq: int
    subject: str
    headers: bytes
    data: bytes


class _BatchGet(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    batch: int
    max_bytes: int = 0
    next_by_subj: str = ""


async def direct_get_batch(
    bus: BusClient, stream: str, seq: int, *, messages: int = BATCH_MESSAGES, subject: str = ""
) -> list[StoredMessage]:
    """Read up to a batch from `seq` on, only those of `subject` where one is given (wildcards allowed).

    Empty at the end. Raises BusUnavailable.
    """
    got: list[StoredMessage] = []
    ended = asyncio.Event()
    heard = time.monotonic()
    failed = 0

    def on_message(_subject: bytes, _reply: bytes, headers: bytes, data: bytes) -> None:
        nonlocal heard, failed
        heard = time.monotonic()
        # By what the server adds: a stored message may have been given headers that look like a status.
        at = header_number(headers, b"Nats-Sequence")
        if not at:
            code = status(headers) or _UNREADABLE
            failed = code if code not in (204, 404) else 0
            ended.set()
            return
        name = header(headers, b"Nats-Subject").decode(errors="replace")
        got.append(StoredMessage(at, name, headers, data))

    inbox = bus.new_inbox()
    number = await bus.listen(inbox, on_message)
    try:
        body = msgspec.json.encode(_BatchGet(seq, messages, BATCH_BYTES, subject))
        if not bus.send(subjects.js_direct_get(stream), body, inbox.encode()):
            raise BusUnavailable("the bus is unreachable")
        while not ended.is_set():
            try:
                await asyncio.wait_for(ended.wait(), _ANSWER_S)
            except TimeoutError:
                if time.monotonic() - heard >= _ANSWER_S:
                    raise BusUnavailable(f"{stream} does not answer from seq {seq} on") from None
    finally:
        bus.forget(number)
    if failed:
        why = f"{stream} answers {failed} from seq {seq} on"
        raise NoResponders(why) if failed == _NO_RESPONDERS else BusUnavailable(why)
    return got
