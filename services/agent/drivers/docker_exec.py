"""Commands beside a container's own process, with or without a terminal.

Decides how one is ended: the engine cannot, so its process is killed by pid where it is still in that container. Must
not know who asked.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import docker

from services.agent.drivers.docker_engine import Engine, EngineAway, EngineRefused
from services.agent.drivers.driver import Output

_CHUNK = 1 << 16
#: More is cut off; it would all be held in memory.
OUTPUT_MAX = 4 << 20


class DockerSession:
    """A command that runs: an `ExecSession`."""

    def __init__(self, engine: Engine, container: str, *, tty: bool) -> None:
        self._engine = engine
        self._container = container
        self._tty = tty
        self._id = ""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def begin(self, command: tuple[str, ...], *, stdin: bool) -> None:
        """Start the command. Raises EngineAway or EngineRefused."""
        made = await self._engine.call(
            _create, self._container, command, stdin=stdin, tty=self._tty
        )
        self._id = str(made["Id"])
        body = {"Detach": False, "Tty": self._tty}
        self._reader, self._writer = await self._engine.open(
            "POST", f"/exec/{self._id}/start", body, upgrade=True
        )

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr; empty: there is no more."""
        try:
            if self._tty:
                return 1, await self._reader.read(_CHUNK)
            head = await self._reader.readexactly(8)
            return head[0], await self._reader.readexactly(int.from_bytes(head[4:], "big"))
        except (asyncio.IncompleteReadError, OSError):
            return 1, b""

    async def write(self, data: bytes) -> None:
        """Send input; empty: there is no more."""
        with contextlib.suppress(OSError):
            if data:
                self._writer.write(data)
                await self._writer.drain()
            elif self._writer.can_write_eof():
                self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        """Tell the terminal its size."""
        if self._tty:
            await self._engine.call(docker.APIClient.exec_resize, self._id, rows, columns)

    async def wait(self) -> int:
        """Wait for the end, with nothing left to read. Returns the exit code."""
        pause_s = 0.01
        while True:
            found = await self._look()
            if not found.get("Running"):
                return int(found.get("ExitCode") or 0)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    async def close(self) -> None:
        """End the command if it runs still."""
        if self._id:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            with contextlib.suppress(EngineAway, EngineRefused):
                await self._end()

    async def _end(self) -> None:
        for _ in range(100):
            found = await self._look()
            if found.get("Running") and found.get("Pid"):
                _kill(int(found["Pid"]), self._container)
                return
            if found.get("ExitCode") is not None:
                return
            # Asked for, and not begun yet.
            await asyncio.sleep(0.02)

    async def _look(self) -> dict[str, Any]:
        return await self._engine.call(docker.APIClient.exec_inspect, self._id)


async def run_command(
    engine: Engine, container: str, command: tuple[str, ...], timeout_s: float
) -> Output:
    """Run a command to its end. Raises TimeoutError when it takes longer; then it was killed."""
    session = DockerSession(engine, container, tty=False)
    said = {1: bytearray(), 2: bytearray()}
    try:
        async with asyncio.timeout(timeout_s):
            await session.begin(command, stdin=False)
            while True:
                source, data = await session.read()
                if not data:
                    break
                kept = said.get(source, said[1])
                kept += data[: max(OUTPUT_MAX - len(kept), 0)]
            code = await session.wait()
    finally:
        await session.close()
    return Output(code=code, stdout=bytes(said[1]), stderr=bytes(said[2]))


def _create(
    api: docker.APIClient, container: str, command: tuple[str, ...], *, stdin: bool, tty: bool
) -> dict[str, Any]:
    return api.exec_create(container, list(command), stdin=stdin, tty=tty)


def _kill(pid: int, container: str) -> None:
    """Kill a process if it is in that container: a pid may have a new owner by now."""
    if pid <= 1:
        return
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if container in Path(f"/proc/{pid}/cgroup").read_text():
                if os.getpgid(pid) == pid:
                    os.killpg(pid, signal.SIGKILL)
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
