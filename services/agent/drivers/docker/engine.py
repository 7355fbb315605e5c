"""Connection to a Docker Engine: calls in threads with a time limit, long answers as streams of the event loop.

Decides the API version, and which errors mean that the engine is unavailable: they give no information about a
container. Streams (events, logs, terminals) are read here without the `docker` package: it holds a thread for each, and
loses what arrives together with the first answer of a terminal.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import docker
import docker.errors
import requests

from shared.errors import CaravanError

P = ParamSpec("P")
T = TypeVar("T")

#: Default time limit of a call; its thread ends when the engine answers.
CALL_S = 30.0
#: Concurrent calls: an engine that hangs holds at most so many threads.
THREADS = 16
#: Oldest usable API version (Engine 20.10): `one_shot` statistics need it.
API_MIN = (1, 41)
#: Newest API version that is requested: newer engines still serve it, and the tests cover it.
API_MAX = (1, 45)
_CHUNK = 1 << 16
_HEAD_MAX = 1 << 16


class EngineUnavailable(CaravanError):
    """The engine does not answer, or speaks no common API version: nothing is known about any container."""


class EngineRefused(CaravanError):
    """The engine answered with an error. `status`: the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class DockerEngine:
    """An engine at a URL, `unix://…` or `tcp://…`. The first call connects and negotiates the API version."""

    def __init__(self, url: str, *, call_s: float = CALL_S) -> None:
        self.url = url
        self._call_s = call_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        #: Pulls take minutes and must not delay a stop.
        self._slow = ThreadPoolExecutor(3, thread_name_prefix="docker-pull")
        self._lock = threading.Lock()
        self._api: docker.APIClient | None = None

    def close(self) -> None:
        """Release threads and connections; containers run on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._forget(self._api)

    def api(self) -> docker.APIClient:
        """Return the client of the `docker` package, usable by several threads; negotiate when there is none.

        Raises EngineUnavailable when there is no common API version, OSError or the package's errors.
        """
        probe_socket(self.url)
        api = self._api
        if api is not None:
            return api
        fresh = _negotiate(self.url, int(self._call_s))
        with self._lock:
            api = self._api = self._api or fresh
        if api is not fresh:
            fresh.close()
        return api

    def _forget(self, api: docker.APIClient | None) -> None:
        """Drop a client, so that the next call negotiates again: another release of the engine may run by then."""
        with self._lock:
            if api is None or self._api is not api:
                return
            self._api = None
        api.close()

    def run(
        self,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call in this thread. Raises EngineUnavailable or EngineRefused."""
        api: docker.APIClient | None = None
        try:
            api = self.api()
            return work(api, *args, **kwargs)
        except docker.errors.APIError as err:
            status = err.response.status_code if err.response is not None else 500
            refused = EngineRefused(status, str(err.explanation or err))
            if _is_version_refused(refused):
                self._forget(api)
                raise EngineUnavailable(f"Docker Engine changed its API version: {err}") from err
            raise refused from err
        except (docker.errors.DockerException, requests.RequestException, OSError) as err:
            self._forget(api)
            raise EngineUnavailable(f"Docker Engine is not reachable: {err}") from err

    async def call(
        self,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call in another thread. Raises EngineUnavailable or EngineRefused."""
        return await self._in_thread(self._pool, self._call_s, work, *args, **kwargs)

    async def slow_call(
        self,
        limit_s: float,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call with a time limit of its own. Raises as `call` does."""
        return await self._in_thread(self._slow, limit_s, work, *args, **kwargs)

    async def _in_thread(
        self,
        pool: ThreadPoolExecutor,
        limit_s: float,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(pool, lambda: self.run(work, *args, **kwargs))
        try:
            # Not wait_for: it may swallow a cancellation that arrives together with the answer.
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError as err:
            raise EngineUnavailable(f"Docker Engine did not answer within {limit_s:g} s") from err

    # ---- streams ----

    async def open(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, upgrade: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request whose answer is a stream, read until its end. Raises EngineUnavailable or EngineRefused.

        HTTP/1.0: the body is not chunked.
        """
        api = self._api
        if api is None:
            api = await self.call(_same)
        try:
            async with asyncio.timeout(self._call_s):
                reader, writer = await self._connect()
                try:
                    text = json.dumps(body).encode() if body is not None else b""
                    head = _request_head(
                        method, f"/v{api.api_version}{path}", len(text), upgrade=upgrade
                    )
                    writer.write(head + text)
                    await writer.drain()
                    await _check_response(reader)
                except BaseException:
                    writer.close()
                    raise
        except EngineRefused as err:
            if not _is_version_refused(err):
                raise
            self._forget(api)
            raise EngineUnavailable(f"Docker Engine changed its API version: {err}") from err
        except (OSError, TimeoutError, EOFError) as err:
            self._forget(api)
            raise EngineUnavailable(f"Docker Engine is not reachable: {err!r}") from err
        return reader, writer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        kind, _, rest = self.url.partition("://")
        if kind in {"unix", "http+unix"}:
            return await asyncio.open_unix_connection(rest, limit=_HEAD_MAX)
        host, _, port = rest.rstrip("/").rpartition(":")
        return await asyncio.open_connection(host, int(port), limit=_HEAD_MAX)


def _negotiate(url: str, timeout_s: int) -> docker.APIClient:
    """Create a client of the newest API version that both sides serve. Raises EngineUnavailable if there is none."""
    api = _client(url, API_MIN, timeout_s)
    try:
        served = api.version(api_version=False)
    finally:
        api.close()
    version = common_version(
        str(served.get("ApiVersion", "")), str(served.get("MinAPIVersion") or "1.0")
    )
    return _client(url, version, timeout_s)


def _client(url: str, version: tuple[int, int], timeout_s: int) -> docker.APIClient:
    return docker.APIClient(
        base_url=url, version=_text(version), timeout=timeout_s, max_pool_size=THREADS
    )


def common_version(newest: str, oldest: str) -> tuple[int, int]:
    """Pick the API version for an engine that serves `oldest` to `newest`. Raises EngineUnavailable."""
    try:
        high, low = _parse_version(newest), _parse_version(oldest)
    except ValueError as err:
        raise EngineUnavailable(f"Docker Engine API version {newest!r} is not valid") from err
    if high < API_MIN:
        text = f"Docker Engine API {newest} is too old; at least {_text(API_MIN)} is required"
        raise EngineUnavailable(text)
    if low > API_MAX:
        text = f"Docker Engine requires API {oldest}; this release supports up to {_text(API_MAX)}"
        raise EngineUnavailable(text)
    return min(high, API_MAX)


def _parse_version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _is_version_refused(err: EngineRefused) -> bool:
    return err.status == 400 and "client version" in str(err)


def _same(api: docker.APIClient) -> docker.APIClient:
    return api


def probe_socket(url: str) -> None:
    """Check that a Unix socket accepts connections; the package leaks one for each refused try. Raises OSError."""
    kind, _, path = url.partition("://")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(path)


def engine_pid(path: Path | None) -> int:
    """Process that listens on the engine's socket; 0: not known, -1: not of this pid namespace."""
    if path is None or not hasattr(socket, "SO_PEERCRED"):
        return 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        probe.connect(str(path))
        size = struct.calcsize("3i")
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return struct.unpack("3i", found)[0] or -1
    return 0


def _request_head(method: str, path: str, size: int, *, upgrade: bool) -> bytes:
    lines = [f"{method} {path} HTTP/1.{int(upgrade)}", "Host: docker"]
    if size:
        lines += ["Content-Type: application/json", f"Content-Length: {size}"]
    if upgrade:
        lines += ["Connection: Upgrade", "Upgrade: tcp"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _check_response(reader: asyncio.StreamReader) -> None:
    """Read the head of an answer. Raises EngineRefused for an error status."""
    head = await reader.readuntil(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 500
    if status >= 300:
        body = await reader.read(_CHUNK)
        with contextlib.suppress(ValueError, AttributeError):
            raise EngineRefused(status, str(json.loads(body).get("message", "")))
        raise EngineRefused(status, body[:200].decode(errors="replace"))


async def demultiplex(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Split the output of a container without a terminal: (1, …) is stdout, (2, …) stderr."""
    while True:
        try:
            head = await reader.readexactly(8)
            data = await reader.readexactly(int.from_bytes(head[4:], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        yield head[0], data


def cancel_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a background task unless its loop is closed."""
    if task is not None and not task.get_loop().is_closed():
        task.cancel()


def container_path(name: str, verb: str = "", **query: str | int) -> str:
    """Path of a request about a container."""
    parameters = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/containers/{quote(name, safe='')}/{verb}" + (f"?{parameters}" if parameters else "")
