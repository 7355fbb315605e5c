"""One call of `grpc.health.v1.Health/Check` over HTTP/2: what a check of type grpc asks.

Both messages have one field, so they are read and written here by hand; h2 does frames and headers. Needs the extra
`agent`.
"""

import asyncio
import struct
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

SERVING = "SERVING"
#: Values of HealthCheckResponse.ServingStatus.
STATUSES = ("UNKNOWN", SERVING, "NOT_SERVING", "SERVICE_UNKNOWN")
#: A HealthCheckResponse has 2 bytes.
ANSWER_BYTES_MAX = 4096
CONNECTION_BYTES_MAX = 64 * 1024
_SETTINGS = b"\x04"
#: Whether a message is compressed, and its length.
_PREFIX = struct.Struct(">BI")
_STATUS_FIELD, _STRING_FIELD = 0x08, 0x0A
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}


class HealthCall:
    """The answer to one call, as its frames come in."""

    def __init__(self) -> None:
        self.is_over = False
        self._headers: dict[str, str] = {}
        self._body = b""

    def take(self, event: Event) -> None:
        """Take what came in. Raises ValueError: it is not an answer."""
        match event:
            case ResponseReceived() | TrailersReceived():
                found = ((_text(name), _text(value)) for name, value in event.headers or ())
                self._headers.update(found)
            case DataReceived():
                self._body += event.data or b""
                if len(self._body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
            case StreamEnded():
                self.is_over = True
            case StreamReset() | ConnectionTerminated():
                raise ValueError(f"the server ended the call: HTTP/2 error {event.error_code}")
            case _:
                pass

    def status(self) -> str:
        """Return the serving status. Raises ValueError: the server refused the call, or is none of gRPC."""
        code = self._headers.get(":status", "")
        if code != "200":
            raise ValueError(f"HTTP {code}: the port does not serve gRPC")
        result = self._headers.get("grpc-status", "")
        if result != "0":
            text = unquote(self._headers.get("grpc-message", ""))
            raise ValueError(f"grpc-status {result or 'missing'}: {text}".removesuffix(": "))
        return read_answer(self._body)


async def ask_health(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, service: str
) -> str:
    """Ask whether a service serves; empty: the server as a whole. Raises OSError, ValueError."""
    link = H2Connection(H2Configuration(header_encoding="utf-8"))
    link.initiate_connection()
    stream = link.get_next_available_stream_id()
    link.send_headers(stream, _request_headers(writer, authority))
    link.send_data(stream, write_question(service), end_stream=True)
    call, received = HealthCall(), b""
    while not call.is_over:
        writer.write(link.data_to_send())
        await writer.drain()
        data = await reader.read(CONNECTION_BYTES_MAX - len(received))
        if not data:
            raise ValueError("the connection ended without an answer")
        received += data
        for event in _events(link, received, data):
            call.take(event)
    return call.status()


def _events(link: H2Connection, received: bytes, data: bytes) -> list[Event]:
    # A server begins with a short frame of settings. h2 would wait for all of a longer one before it refuses it.
    if received[0] or received[3:4] not in {b"", _SETTINGS}:
        raise ValueError("the answer is not HTTP/2")
    try:
        return link.receive_data(data)
    except ProtocolError as err:
        raise ValueError(f"the answer is not HTTP/2: {err}") from err


def _request_headers(writer: asyncio.StreamWriter, authority: str) -> list[tuple[str, str]]:
    is_tls = writer.get_extra_info("ssl_object") is not None
    return [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "caravan-check"),
    ]


def write_question(service: str) -> bytes:
    """Return a HealthCheckRequest in its frame."""
    name = service.encode()
    message = bytes((_STRING_FIELD,)) + _varint(len(name)) + name if name else b""
    return _PREFIX.pack(0, len(message)) + message


def read_answer(data: bytes) -> str:
    """Return the status of a HealthCheckResponse in its frame. Raises ValueError: it is none."""
    try:
        is_compressed, length = _PREFIX.unpack_from(data)
        message = data[_PREFIX.size :]
        if is_compressed or len(message) != length:
            raise ValueError("the answer is compressed or cut")
        code, at = 0, 0
        while at < length:
            tag, at = _read_varint(message, at)
            kind = tag & 7
            if kind in _FIXED:
                at += _FIXED[kind]
                continue
            value, at = _read_varint(message, at)
            if tag == _STATUS_FIELD:
                code = value
            elif kind == _LENGTH:
                at += value
            elif kind != _VARINT:
                raise ValueError(f"the answer has a field of the unknown kind {kind}")
    except (struct.error, IndexError) as err:
        raise ValueError("the answer is not a HealthCheckResponse") from err
    return STATUSES[code] if code < len(STATUSES) else f"status {code}"


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where the next field begins. Raises IndexError: it is cut."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
