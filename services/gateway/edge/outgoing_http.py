"""One HTTP request to an address outside: the name is resolved once, and the address that was checked is connected to.

A redirect is an answer as any other: it is not followed. Each request has a connection of its own.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping

import httptools

from services.gateway.outgoing.delivery import Attempt
from services.gateway.outgoing.settings import TargetAddress

#: Seconds of one request in all, and bytes of an answer that are read.
REQUEST_S, ANSWER_BYTES_MAX = 30.0, 256 << 10
_READ_BYTES = 16 << 10
_FINAL = 200
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Carries IPv4 addresses of any kind through a translator.
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))


class AddressRefused(Exception):
    """A name leads to an address that nothing is sent to."""


class TargetAnswer(Attempt, frozen=True, kw_only=True):
    """An attempt with the body of its answer."""

    body: bytes = b""


async def send(
    endpoint: TargetAddress,
    *,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
) -> TargetAnswer:
    """Send one request; a failure is an answer without a status."""
    try:
        async with asyncio.timeout(REQUEST_S):
            return await _sent(endpoint, method, path, headers, body=body)
    except TimeoutError:
        return TargetAnswer(error=f"no answer within {REQUEST_S:.0f} s")
    except AddressRefused as err:
        return TargetAnswer(error=str(err))
    except (OSError, httptools.HttpParserError, UnicodeError, ValueError) as err:
        return TargetAnswer(error=f"{type(err).__name__}: {err}")


async def _sent(
    endpoint: TargetAddress, method: str, path: str, headers: Mapping[str, str], *, body: bytes
) -> TargetAnswer:
    parts = endpoint.parts
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    address = await resolved(host, port, allow_private=endpoint.allow_private)
    context = ssl.create_default_context(cafile=endpoint.ca_file or None) if is_tls else None
    reader, writer = await asyncio.open_connection(
        address, port, ssl=context, server_hostname=host if is_tls else None
    )
    try:
        told = {
            "Host": parts.netloc,
            "User-Agent": "caravan",
            "Accept": "application/json",
            "Connection": "close",
            "Content-Length": str(len(body)),
            **headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.close()


async def resolved(host: str, port: int, *, allow_private: bool) -> str:
    """The address of a host that a connection goes to. Raises AddressRefused, OSError.

    One address that is refused refuses all: a name that mixes them is an attempt to get around the rule.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    addresses = [str(one[4][0]) for one in found]
    if not allow_private:
        inner = next((one for one in addresses if not is_public(one)), "")
        if inner:
            text = inner if host == inner else f"{inner}, the address of {host},"
            raise AddressRefused(f"{text} is not public; allow_private = true permits it")
    return addresses[0]


def is_public(text: str) -> bool:
    """Whether an address is of the internet: not loopback, link-local, private, multicast, or one within another."""
    address: _Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.sixtofour or address.teredo or any(address in one for one in _NAT64):
            return False
    return address.is_global and not address.is_multicast


class _Parsed:
    """What the parser reports of an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body = b""
        self.is_complete = False

    def on_headers_complete(self) -> None:
        """Take the status: before, it may be half of one."""
        self.status = self.parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self.body += part

    def on_message_complete(self) -> None:
        """Take the end, of the answer itself and not of a `100 Continue` before it."""
        self.is_complete = self.status >= _FINAL


async def _answer(reader: asyncio.StreamReader) -> TargetAnswer:
    """Read an answer up to its end, or as much of it as is read at all. Raises ConnectionError."""
    parsed = _Parsed()
    while not parsed.is_complete and len(parsed.body) < ANSWER_BYTES_MAX:
        data = await reader.read(_READ_BYTES)
        if not data:
            break
        parsed.parser.feed_data(data)
    if parsed.status < _FINAL:
        raise ConnectionError("the connection was closed without an answer")
    return TargetAnswer(status=parsed.status, body=parsed.body)
