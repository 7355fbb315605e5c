"""HTTP/1.1 on a unix socket, as far as the task API needs it: requests without a body, answers in JSON.

Written here, as an agent has no HTTP server among its packages. A request is its head: bounded in bytes by the reader,
parsed strictly, and what has a body is refused before a byte of it is read.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

#: Of the head of a request: a token has its place.
HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 64
_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class ApiFault(Exception):
    """An answer that says why there is no other. `closes`: what follows on the connection cannot be read."""

    def __init__(self, status: int, text: str, *, closes: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.closes = closes


class ApiRequest(NamedTuple):
    """A request. `headers`: names in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    #: the connection ends with the answer.
    closes: bool


class ApiAnswer(NamedTuple):
    """JSON, and the index at which it holds."""

    value: Any
    at: int = 1


def parse_head(head: bytes) -> ApiRequest:
    """Read the head of a request, with its empty line. Raises ApiFault 400, 413."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise ApiFault(400, "this is no request of HTTP/1.1", closes=True)
    headers = _headers(lines)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise ApiFault(413, "requests to the task API have no body", closes=True)
    try:
        url = urlsplit(line[2].decode("ascii"))
        query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=HEADERS_MAX))
        path = unquote(url.path, errors="strict")
    except ValueError:
        raise ApiFault(400, "the address cannot be read", closes=True) from None
    wish = headers.get("connection", "").lower()
    closes = wish == "close" or (line[3] == b"0" and wish != "keep-alive")
    return ApiRequest(line[1].decode(), path, query, headers, closes)


def answer_bytes(answer: ApiAnswer, *, closes: bool, with_body: bool = True) -> bytes:
    """Write an answer, with the headers that clients of Nomad read."""
    body = msgspec.json.encode(answer.value)
    more = {
        "X-Nomad-Index": str(answer.at),
        "X-Nomad-LastContact": "0",
        "X-Nomad-KnownLeader": "true",
    }
    return _written(200, "application/json", body, closes=closes, more=more, with_body=with_body)


def fault_bytes(fault: ApiFault, *, closes: bool) -> bytes:
    """Write an answer that says why there is no other."""
    more = {"Retry-After": "1"} if fault.status == 503 else {}
    body = fault.text.encode(errors="replace")
    return _written(fault.status, "text/plain; charset=utf-8", body, closes=closes, more=more)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise ApiFault(431, f"more than {HEADERS_MAX} headers", closes=True)
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        key = name.decode("latin-1").lower()
        # Of two values one would be believed: by chance the other one.
        if not colon or not _NAME.fullmatch(name) or key in found:
            raise ApiFault(400, "a header cannot be read, or is there twice", closes=True)
        found[key] = value.strip(b" \t").decode("latin-1")
    return found


def _written(
    status: int,
    kind: str,
    body: bytes,
    *,
    closes: bool,
    more: Mapping[str, str],
    with_body: bool = True,
) -> bytes:
    headers = {
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Connection": "close" if closes else "keep-alive",
        **more,
    }
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body if with_body else b"")
