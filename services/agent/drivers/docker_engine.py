"""One engine: its calls, each in a thread and bounded in time, and its long answers as streams of the event loop.

Decides which of an engine's errors mean that it cannot be reached: those say nothing about a container. Must not know a
task. Streams (events, logs, terminals) are read here by hand: the `docker` package holds a thread for each, and loses
what arrives together with the first answer of a terminal.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import docker
import docker.errors
import requests

from shared.errors import CaravanError

P = ParamSpec("P")
T = TypeVar("T")

#: A call that takes longer is given up; its thread comes back when the engine does, or never.
CALL_S = 30.0
#: Calls at a time; a hanging engine holds so many threads and not more.
THREADS = 16
API = "1.41"
_CHUNK = 1 << 16
_HEAD_MAX = 1 << 16


class EngineAway(CaravanError):
    """The engine does not answer: nothing is known about any container."""


class EngineRefused(CaravanError):
    """The engine answered with an error. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Engine:
    """An engine at a URL, `unix://…` or `tcp://…`. Nothing is connected before the first call."""

    def __init__(self, url: str, *, call_s: float = CALL_S) -> None:
        self.url = url
        self._call_s = call_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        #: pulls take minutes: they do not stand in the way of a stop.
        self._slow = ThreadPoolExecutor(3, thread_name_prefix="docker-pull")
        self._api: docker.APIClient | None = None

    def close(self) -> None:
        """Let go of the threads; containers run on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()

    def api(self) -> docker.APIClient:
        """The client of the `docker` package; it may be used by several threads. Raises OSError: nobody listens."""
        knock(self.url)
        if self._api is None:
            self._api = docker.APIClient(
                base_url=self.url,
                version=API,
                timeout=int(self._call_s),
                max_pool_size=THREADS,
            )
        return self._api

    async def call(
        self,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a call in a thread. Raises EngineAway or EngineRefused."""
        return await self._in_thread(self._pool, self._call_s, work, *args, **kwargs)

    async def slow_call(
        self,
        limit_s: float,
        work: Callable[Concatenate[docker.APIClient, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a call that may take its time. Raises as `call` does."""
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
        future = loop.run_in_executor(pool, lambda: translated(self.api, work, *args, **kwargs))
        try:
            # Not wait_for: it may swallow a cancellation that comes together with the answer.
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError as err:
            raise EngineAway(f"the engine gave no answer within {limit_s:g} s") from err

    # ---- streams ----

    async def open(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, upgrade: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask for a long answer; its body is read until its end. Raises EngineAway or EngineRefused.

        HTTP/1.0: the body comes as it is, in no chunks.
        """
        try:
            async with asyncio.timeout(self._call_s):
                reader, writer = await self._connect()
                try:
                    text = json.dumps(body).encode() if body is not None else b""
                    writer.write(_head(method, path, len(text), upgrade=upgrade) + text)
                    await writer.drain()
                    await _answered(reader)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, TimeoutError, EOFError) as err:
            raise EngineAway(f"the engine does not answer: {err!r}") from err
        return reader, writer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        kind, _, rest = self.url.partition("://")
        if kind in {"unix", "http+unix"}:
            return await asyncio.open_unix_connection(rest, limit=_HEAD_MAX)
        host, _, port = rest.rstrip("/").rpartition(":")
        return await asyncio.open_connection(host, int(port), limit=_HEAD_MAX)

    async def lines(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Read an endless answer of JSON lines. Raises EngineAway when it ends."""
        reader, writer = await self.open("GET", path)
        try:
            while line := await reader.readline():
                yield json.loads(line)
        except (OSError, ValueError) as err:
            raise EngineAway(f"the engine hung up: {err!r}") from err
        finally:
            writer.close()
        raise EngineAway("the engine hung up")


def knock(url: str) -> None:
    """See whether anybody listens at a socket; the package leaks one for each refused try. Raises OSError."""
    kind, _, path = url.partition("://")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(5)
            one.connect(path)


def translated(
    api: Callable[[], docker.APIClient],
    work: Callable[Concatenate[docker.APIClient, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Make a call, and say what its failure means."""
    try:
        return work(api(), *args, **kwargs)
    except docker.errors.APIError as err:
        status = err.response.status_code if err.response is not None else 500
        raise EngineRefused(status, str(err.explanation or err)) from err
    except (docker.errors.DockerException, requests.RequestException, OSError) as err:
        raise EngineAway(f"the engine does not answer: {err}") from err


def _head(method: str, path: str, size: int, *, upgrade: bool) -> bytes:
    lines = [f"{method} /v{API}{path} HTTP/1.{int(upgrade)}", "Host: docker"]
    if size:
        lines += ["Content-Type: application/json", f"Content-Length: {size}"]
    if upgrade:
        lines += ["Connection: Upgrade", "Upgrade: tcp"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _answered(reader: asyncio.StreamReader) -> None:
    """Read the head of an answer. Raises EngineRefused for an error."""
    head = await reader.readuntil(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 500
    if status >= 300:
        body = await reader.read(_CHUNK)
        with contextlib.suppress(ValueError, AttributeError):
            raise EngineRefused(status, str(json.loads(body).get("message", "")))
        raise EngineRefused(status, body[:200].decode(errors="replace"))


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Take an answer without a terminal apart: (1, …) is stdout, (2, …) stderr."""
    while True:
        try:
            head = await reader.readexactly(8)
            data = await reader.readexactly(int.from_bytes(head[4:], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        yield head[0], data


def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel what runs in the background, if its loop still does."""
    if task is not None and not task.get_loop().is_closed():
        task.cancel()


def container_path(name: str, verb: str = "", **query: str | int) -> str:
    """Path of a request about a container."""
    asked = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/containers/{quote(name, safe='')}/{verb}" + (f"?{asked}" if asked else "")
