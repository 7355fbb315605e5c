"""Checks made for real: sockets, small HTTP servers and commands of a driver."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from services.agent.executor.check_runner import OUTPUT_BYTES_MAX, CheckRunner, http_request
from shared.core.runtime.agent_messages import CheckChanged, CheckSpec, WatchChecks
from tests.bounds import WAIT_S

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


#: Of checks that get no answer.
SHORT = {"timeout_ns": 300_000_000}


def spec(**more: Any) -> CheckSpec:
    fields = {"name": "up", "run": 1, "kind": "http", "address": "127.0.0.1", "path": "/health"}
    fast = {"interval_ns": 1_000_000, "timeout_ns": int(WAIT_S * 1e9)}
    return CheckSpec(**{**fields, **fast, **more})


async def said(*specs: CheckSpec, count: int = 1, runs: Any = None) -> list[CheckChanged]:
    """The first changes that a runner tells of these checks."""
    told: asyncio.Queue[CheckChanged] = asyncio.Queue()
    runner = CheckRunner(told.put_nowait, runs or (lambda _: []))
    runner.watch(WatchChecks(key=7, alloc_id="a", checks=specs))
    try:
        return [await asyncio.wait_for(told.get(), WAIT_S) for _ in range(count)]
    finally:
        await runner.close()


def answering(*answers: bytes) -> tuple[Served, list[bytes]]:
    """A server that gives these answers in turn, the last one forever, and the requests it read."""
    asked: list[bytes] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer == b"hang":
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            # A check of a port sends nothing, and one that was ended leaves before its last line.
            pass
        finally:
            writer.close()

    return serve, asked


async def with_server(serve: Served, count: int = 1, **more: Any) -> list[CheckChanged]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await said(spec(port=port, **more), count=count)


@pytest.mark.parametrize(
    ("answer", "status", "output"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nfine", "passing", "HTTP 200"),
        (b"HTTP/1.1 201 Created\r\nX: y\r\n\r\nmade", "passing", "HTTP 201: made"),
        (b"HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n", "passing", "HTTP 302"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "critical", "HTTP 404"),
        (b"HTTP/1.1 500 Oops\r\n\r\nbroken", "critical", "HTTP 500: broken"),
        (b"no http at all\r\n\r\n", "critical", "the answer is not HTTP"),
        (b"hang", "critical", "no answer within the timeout of 0.3 s"),
    ],
)
def test_an_http_status_below_400_passes(answer: bytes, status: str, output: str) -> None:
    """What an answer means, and what is kept of it; no answer is critical at the timeout (S83)."""
    serve, _ = answering(answer)
    (found,) = asyncio.run(with_server(serve, **(SHORT if answer == b"hang" else {})))
    assert (found.status, found.output, found.run) == (status, output, 1)


def test_output_is_cut() -> None:
    """A long answer is kept in part."""
    serve, _ = answering(b"HTTP/1.1 500 Oops\r\n\r\n" + b"x" * 100_000)
    (found,) = asyncio.run(with_server(serve))
    assert len(found.output) == OUTPUT_BYTES_MAX


def test_only_changes_are_told() -> None:
    """Equal results after each other are one change."""
    good, bad = b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 503 No\r\n\r\n"
    serve, asked = answering(good, good, good, bad, bad, good)
    found = asyncio.run(with_server(serve, count=3))
    assert [one.status for one in found] == ["passing", "critical", "passing"]
    assert len(asked) >= 6


def test_a_request_has_method_headers_and_body() -> None:
    """Method, path with its query, headers and body are sent as they stand; a given Host wins."""
    asks = spec(
        method="POST",
        path="live?full=1",
        header={"Host": ("web.local",), "X": ("a", "b")},
        body="{}",
    )
    lines = http_request(asks).decode().split("\r\n")
    assert lines[0] == "POST /live?full=1 HTTP/1.1"
    assert [one for one in lines if one.startswith("Host")] == ["Host: web.local"]
    assert lines.count("X: a") == lines.count("X: b") == 1
    assert lines[-1] == "{}" and "Content-Length: 2" in lines
    assert "Host: [::1]:80" in http_request(spec(address="::1", port=80)).decode()


def test_tcp_connects() -> None:
    """A port with a listener passes; one without is critical."""
    serve, _ = answering(b"")
    (found,) = asyncio.run(with_server(serve, kind="tcp"))
    assert found.status == "passing"

    async def closed_port() -> list[CheckChanged]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await said(spec(kind="tcp", port=port))

    (found,) = asyncio.run(closed_port())
    assert found.status == "critical" and found.output


class Session:
    """A command that prints and ends, or hangs."""

    def __init__(self, code: int, output: bytes) -> None:
        self.code, self.left, self.closed = code, [output, b""], False

    async def read(self) -> tuple[int, bytes]:
        return 1, self.left.pop(0)

    async def write(self, data: bytes) -> None:
        pass

    async def wait(self) -> int:
        if self.code < 0:
            await asyncio.sleep(3600)
        return self.code

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [
        (0, "passing", "hello"),
        (1, "warning", "exit code 1: hello"),
        (2, "critical", "exit code 2: hello"),
        (-1, "critical", "no answer within the timeout of 0.3 s"),
    ],
)
def test_a_script_runs_in_its_task(code: int, status: str, output: str) -> None:
    """Exit 0 passes, 1 warns, all else is critical; a command over its time is ended (S82)."""
    sessions: list[Session] = []

    class Driver:
        async def exec_stream(self, handle: Any, command: tuple[str, ...], *, tty: bool) -> Session:
            assert (handle, command, tty) == ("h", ("check", "-x"), False)
            sessions.append(Session(code, b"hello\n"))
            return sessions[-1]

    runs = lambda _: [(Driver(), "h", SimpleNamespace(task="main"))]  # noqa: E731
    (found,) = asyncio.run(
        said(
            spec(
                kind="script", task="main", command=("check", "-x"), **(SHORT if code < 0 else {})
            ),
            runs=runs,
        )
    )
    assert (found.status, found.output) == (status, output)
    assert sessions[0].closed


@pytest.mark.parametrize("task", ["main", ""])
def test_an_output_shows_no_secret(task: str) -> None:
    """That of a task's check lacks its own secrets, that of a group's check those of all its tasks."""

    async def story() -> CheckChanged:
        async with await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            told: asyncio.Queue[CheckChanged] = asyncio.Queue()
            runs = lambda _: [(None, "h", SimpleNamespace(task="main"))]  # noqa: E731
            masked: list[tuple[str, str]] = []

            def mask(alloc_id: str, name: str, text: str) -> str:
                masked.append((alloc_id, name))
                return text.replace(str(port), "${secret.s.k}")

            runner = CheckRunner(told.put_nowait, runs, mask)
            checked = spec(kind="tcp", task=task, port=port)
            runner.watch(WatchChecks(key=7, alloc_id="a", checks=(checked,)))
            try:
                found = await asyncio.wait_for(told.get(), WAIT_S)
            finally:
                await runner.close()
            assert masked == [("a", "main")]
            return found

    assert asyncio.run(story()).output == "connected to 127.0.0.1:${secret.s.k}"


def test_a_script_without_its_task_is_critical() -> None:
    """The task may just have ended."""
    (found,) = asyncio.run(said(spec(kind="script", task="main", command=("x",))))
    assert (found.status, found.output) == ("critical", "task 'main' is not running")


def test_what_is_no_longer_wanted_ends_and_the_rest_goes_on() -> None:
    """Another set of checks ends those that are not in it, and leaves equal ones as they are."""

    async def story() -> tuple[int, list[str]]:
        told: list[CheckChanged] = []
        runner = CheckRunner(told.append, lambda _: [])
        one, two = spec(name="one"), spec(name="two")
        runner.watch(WatchChecks(key=7, alloc_id="a", checks=(one, two)))
        before = runner._tasks[7, "one"][1]
        runner.watch(WatchChecks(key=8, alloc_id="b", checks=(one,)))
        runner.watch(WatchChecks(key=7, alloc_id="a", checks=(one,)))
        kept = runner._tasks[7, "one"][1] is before
        names = [f"{key} {name}" for key, name in runner._tasks]
        await runner.close()
        return int(kept), names

    assert asyncio.run(story()) == (1, ["7 one", "8 one"])
