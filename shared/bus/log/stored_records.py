"""Records as they are in a stream of the log: by direct get in batches, or one from the stream's leader.

Decides which messages were appended to the log at all: what the server itself put there as a reply is marked, and is
foreign to every reader. Independent of events. Next: `generations.py`.
"""

import base64

import msgspec

from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import BATCH_MESSAGES, direct_get_batch
from shared.core.runtime.chain import DAMAGED_PREFIX, is_framed
from shared.core.runtime.messages import Record
from shared.errors import BusUnavailable
from shared.protocol import subjects

BATCH_RECORDS = BATCH_MESSAGES
#: Precedes the bytes of a message that no client with the right to write the log has appended.
NOT_APPENDED_PREFIX = b"not appended to this stream: "

_SUM_DIGITS = 32


class _MessageGet(msgspec.Struct, frozen=True):
    seq: int


class ApiStoredMessage(msgspec.Struct, frozen=True):
    """One message as `STREAM.MSG.GET` shows it; hdrs and data are base64."""

    subject: str
    seq: int
    data: str = ""
    hdrs: str = ""


class _MessageGot(msgspec.Struct, frozen=True):
    message: ApiStoredMessage | None = None
    error: streams.ApiError | None = None


def as_record(stream: str, seq: int, *, subject: str, headers: bytes, data: bytes) -> Record:
    """Create a record from a stored message; a message that was not appended to this stream is marked as foreign.

    A client that may read a stream can name `log.<g>.tx` as the reply subject, and the server obeys without looking
    at permissions: the reply may be any text that the client stored elsewhere before. But it keeps the headers of
    that message, and no other stream takes one that expects to be stored in ours. So that header, where `appender.py`
    puts it, proves that a client with the permission to publish to the log did. (It is first: a decoy before it
    could hide it from the server.)

    The server's checksum leaves out the length of the headers: where that is damaged, headers and body are parted at
    another place. The message id then still names the seq of a record, and the chain must not take it for foreign.
    """
    lines = headers.split(b"\r\n", 3)
    is_ours = (
        len(lines) == 4
        and lines[1].startswith(b"Nats-Msg-Id: ")
        and b"Nats-Expected" not in lines[1]
        and lines[2] == b"Nats-Expected-Stream: " + stream.encode()
    )
    if not is_ours:
        data = NOT_APPENDED_PREFIX + data
    elif not is_framed(data) and _names_record(lines[1], seq):
        data = DAMAGED_PREFIX + data
    return Record(seq, subject, data)


def _names_record(line: bytes, seq: int) -> bool:
    """Tell whether a message id is that of the record at `seq`: with its sum, as the applier gives it."""
    begins = b"Nats-Msg-Id: %d-" % seq
    return line.startswith(begins) and len(line) == len(begins) + _SUM_DIGITS


async def read_batch(
    bus: BusClient, stream: str, seq: int, records: int = BATCH_RECORDS
) -> list[Record]:
    """Read up to a batch from `seq` on by direct get; empty at the end. Raises BusUnavailable.

    Any replica may answer. One with a damaged block leaves messages out: the caller checks the numbers.
    """
    return [
        as_record(stream, one.seq, subject=one.subject, headers=one.headers, data=one.data)
        for one in await direct_get_batch(bus, stream, seq, messages=records)
    ]


async def read_one(bus: BusClient, stream: str, seq: int) -> Record | None:
    """Read one message from the stream's leader; None where there is none. Raises BusUnavailable."""
    body = await bus.ask(subjects.js_message_get(stream), msgspec.json.encode(_MessageGet(seq)))
    answer = msgspec.json.decode(body, type=_MessageGot)
    if answer.message is not None:
        found = answer.message
        headers, data = base64.b64decode(found.hdrs), base64.b64decode(found.data)
        return as_record(stream, found.seq, subject=found.subject, headers=headers, data=data)
    if answer.error is not None and answer.error.code != 404:
        raise BusUnavailable(f"{stream} at seq {seq}: {answer.error.description}")
    return None
