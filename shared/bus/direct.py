"""Many messages of a stream by one direct get: any replica may answer, and nobody keeps a consumer for it.

Decides when an answer is over and when the server has gone silent. Knows no message. Next: `replay.py`.
"""

import asyncio
import time
from typing import NamedTuple

import msgspec

from shared.bus import subjects
from shared.bus.connect import BusClient, header, status
from shared.errors import BusUnavailable

BATCH_MESSAGES = 1024
BATCH_BYTES = 8 << 20
#: A server that has begun to answer and then says nothing for this long is asked again.
_ANSWER_S = 3.0
_NOBODY = 503


class NobodyAnswers(BusUnavailable):
    """There is no such stream, or none that answers now."""


class Stored(NamedTuple):
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


async def read_stored(
    bus: BusClient, stream: str, seq: int, *, messages: int = BATCH_MESSAGES, subject: str = ""
) -> list[Stored]:
    """Read up to a batch from `seq` on, only those of `subject` where one is given (wildcards allowed).

    Empty at the end. Raises BusUnavailable.
    """
    got: list[Stored] = []
    ended = asyncio.Event()
    heard = time.monotonic()
    failed = 0

    def on_message(_subject: bytes, _reply: bytes, headers: bytes, data: bytes) -> None:
        nonlocal heard, failed
        heard = time.monotonic()
        code = status(headers)
        if code:
            failed = code if code not in (204, 404) else 0
            ended.set()
            return
        at = int(header(headers, b"Nats-Sequence"))
        got.append(Stored(at, header(headers, b"Nats-Subject").decode(), headers, data))

    inbox = bus.new_inbox()
    number = await bus.listen(inbox, on_message)
    try:
        body = msgspec.json.encode(_BatchGet(seq, messages, BATCH_BYTES, subject))
        if not bus.send(subjects.js_direct_get(stream), body, inbox.encode()):
            raise BusUnavailable("the bus is away")
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
        raise NobodyAnswers(why) if failed == _NOBODY else BusUnavailable(why)
    return got
