"""Marks: headers that prove that a message was published to its stream, and was not stored there as a reply.

Decides which streams' messages carry one. A client that may read a stream can name `cmd.plan` or `node.n1` as the
reply subject, and the server obeys without looking at permissions; what it copies there keeps the headers under which
it was stored. No stream takes a message that expects to be stored in another one, so that header, standing first,
proves a sender with the permission to publish there (docs/adr/0011; `stored_records.py` does the same for the log).
Next: `shared/bus/shell/sources.py`.
"""

from shared.bus.connection.nats_client import header_block
from shared.bus.jetstream import streams
from shared.protocol import subjects

#: By the first token of their subjects.
_STREAMS = {
    one.subjects[0].partition(".")[0]: one.name for one in (streams.CMD, streams.EVAL, streams.NODE)
}
_BLOCKS = {first: header_block(nats_expected_stream=name) for first, name in _STREAMS.items()}
#: The first header of a marked message.
_LINES = {name: b"Nats-Expected-Stream: " + name.encode() for name in _STREAMS.values()}
#: A header block that holds the mark alone, as nearly every message has it.
_BARE = {name: _BLOCKS[first] for first, name in _STREAMS.items()}
NOT_MARKED = "it was not published to this stream by a client with permission to write it"


def mark_of(subject: str) -> bytes:
    """Header block for a message on a subject; empty where its stream needs none."""
    return _BLOCKS.get(subject.partition(".")[0], b"")


def stream_marked(subject: str) -> str:
    """Name the stream of a subject, where its messages carry a mark; else empty."""
    return _STREAMS.get(subject.partition(".")[0], "")


def stream_read(subject: str) -> str:
    """Name the stream whose last value a subject requests, where its messages carry a mark; else empty."""
    return next(
        (name for name in _LINES if subject.startswith(f"{subjects.js_direct_get(name)}.")), ""
    )


def is_bare_mark(stream: str, headers: bytes) -> bool:
    """Return whether a header block holds the mark of this stream and nothing else."""
    return _BARE.get(stream) == headers


def is_marked(stream: str, headers: bytes) -> bool:
    """Return whether a message was sent to this stream; true for streams without marks.

    The mark is first: a decoy before it could hide it from the server.
    """
    line = _LINES.get(stream)
    if line is None:
        return True
    return headers.split(b"\r\n", 2)[1:2] == [line]
