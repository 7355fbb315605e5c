"""Requests over HTTP: redirects are followed by hand, and every address is checked before it is connected to."""

import ssl
from collections.abc import Callable, Mapping
from typing import BinaryIO
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import urllib3

from services.agent.inputs.artifacts.addresses import AddressRules
from services.agent.inputs.artifacts.fetch_order import FetchRefused

REDIRECTS_MAX = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 1 << 20
#: Statuses after which another try may succeed, beside all of the 500s; also what is not there yet, as in Nomad.
_RETRIED = (404, 408, 425, 429)


class CheckedHttp:
    """Makes requests to addresses that were checked. `headers`: for the first host alone, since they may be secret."""

    def __init__(
        self, rules: AddressRules, *, tls: ssl.SSLContext, headers: dict[str, str], stall_s: float
    ) -> None:
        self._rules = rules
        self._tls = tls
        self._headers = headers
        self._timeout = urllib3.Timeout(connect=stall_s, read=stall_s)

    def open(
        self,
        url: str,
        method: str = "GET",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        home: str = "",
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """Make a request and follow its redirects. Returns the answer, which is closed by the caller, and its URL.

        `home`: a URL of the host that gets the secret headers, where that is not the host of `url`.
        """
        parts = urlsplit(url)
        first = urlsplit(home or url)
        for _ in range(REDIRECTS_MAX + 1):
            is_first = _origin(parts) == _origin(first)
            answer = self._ask(parts, method, {**(headers or {})}, body, is_first_host=is_first)
            if answer.status not in _REDIRECTS or "location" not in answer.headers:
                return answer, parts.geturl()
            answer.close()
            parts = _next(parts, answer.headers["location"])
        raise FetchRefused(f"more than {REDIRECTS_MAX} redirects")

    def _ask(
        self,
        parts: SplitResult,
        method: str,
        headers: dict[str, str],
        body: bytes | None,
        *,
        is_first_host: bool,
    ) -> urllib3.BaseHTTPResponse:
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = self._rules.resolve(host, port)
        name = f"[{host}]" if ":" in host else host
        headers = {"Accept": "*/*", **headers, "Accept-Encoding": "identity"}
        headers["Host"] = name if parts.port is None else f"{name}:{port}"
        if is_first_host:
            if parts.username is not None:
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                headers |= urllib3.make_headers(basic_auth=login)
            headers |= self._headers
        pool: urllib3.HTTPConnectionPool
        if parts.scheme == "https":
            pool = urllib3.HTTPSConnectionPool(
                address,
                port,
                ssl_context=self._tls,
                server_hostname=host,
                assert_hostname=host if self._tls.check_hostname else False,
                timeout=self._timeout,
                retries=False,
            )
        else:
            pool = urllib3.HTTPConnectionPool(address, port, timeout=self._timeout, retries=False)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return pool.urlopen(
            method,
            path,
            body=body,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )


def download(
    client: CheckedHttp,
    url: str,
    target: BinaryIO,
    seen: Callable[[bytes], object],
    *,
    bytes_max: int,
) -> None:
    """Write a body to `target`; `seen` gets each part. Raises FetchRefused, OSError and urllib3's errors."""
    answer, _ = client.open(url)
    try:
        check_status(answer.status)
        size = 0
        for part in answer.stream(_CHUNK_BYTES, decode_content=False):
            size += len(part)
            if size > bytes_max:
                raise FetchRefused(f"the file is larger than {bytes_max} bytes")
            seen(part)
            target.write(part)
    finally:
        answer.close()


def check_status(status: int) -> None:
    """Raise FetchRefused for every status but 200."""
    if status != 200:
        is_recoverable = status >= 500 or status in _RETRIED
        raise FetchRefused(f"HTTP status {status}", recoverable=is_recoverable)


def _next(parts: SplitResult, location: str) -> SplitResult:
    found = urlsplit(urljoin(parts.geturl(), location))
    if found.scheme not in ("http", "https") or not found.hostname:
        raise FetchRefused(f"is redirected to scheme {found.scheme[:20]!r}")
    if parts.scheme == "https" and found.scheme == "http":
        raise FetchRefused("is redirected from https to http")
    return found


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port
