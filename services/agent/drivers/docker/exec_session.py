"""Commands beside a container's own process, with or without a terminal.

Decides how one is ended: the engine cannot, so its process is killed by pid where it is still in that container.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import docker

from services.agent.backoff import Backoff
from services.agent.drivers.docker.engine import DockerEngine, EngineRefused, EngineUnavailable

_CHUNK = 1 << 16
_RESIZE_TRIES, _RESIZE_PAUSE_S = 100, 0.02


class DockerSession:
    """A command that runs: an `ExecSession`."""

    def __init__(self, engine: DockerEngine, container: str, *, tty: bool) -> None:
        self._engine = engine
        self._container = container
        self._tty = tty
        self._id = ""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def begin(self, command: tuple[str, ...]) -> None:
        """Start the command. Raises EngineUnavailable or EngineRefused."""
        made = await self._engine.call(_create, self._container, command, tty=self._tty)
        self._id = str(made["Id"])
        body = {"Detach": False, "Tty": self._tty}
        self._reader, self._writer = await self._engine.open(
            "POST", f"/exec/{self._id}/start", body, upgrade=True
        )

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr; empty: end of output."""
        try:
            if self._tty:
                return 1, await self._reader.read(_CHUNK)
            head = await self._reader.readexactly(8)
            return head[0], await self._reader.readexactly(int.from_bytes(head[4:], "big"))
        except (asyncio.IncompleteReadError, OSError):
            return 1, b""

    async def write(self, data: bytes) -> None:
        """Send input; empty: end of input."""
        with contextlib.suppress(OSError):
            if data:
                self._writer.write(data)
                await self._writer.drain()
            elif self._writer.can_write_eof():
                self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; of a command that has ended there is none to set."""
        for _ in range(_RESIZE_TRIES if self._tty else 0):
            with contextlib.suppress(EngineRefused):
                await self._engine.call(docker.APIClient.exec_resize, self._id, rows, columns)
                return
            with contextlib.suppress(EngineRefused):
                if (await self._look()).get("ExitCode") is not None:
                    return
            # The engine has taken the command, and not begun it yet.
            await asyncio.sleep(_RESIZE_PAUSE_S)

    async def wait(self) -> int:
        """Wait for the end, with nothing left to read. Returns the exit code."""
        pause = Backoff(0.01, 1.0)
        while True:
            found = await self._look()
            if not found.get("Running"):
                return int(found.get("ExitCode") or 0)
            await asyncio.sleep(pause.take())

    async def close(self) -> None:
        """End the command if it runs still."""
        if self._id:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            with contextlib.suppress(EngineUnavailable, EngineRefused):
                await self._end()

    async def _end(self) -> None:
        for _ in range(100):
            found = await self._look()
            if found.get("Running") and found.get("Pid"):
                _kill(int(found["Pid"]), self._container)
                return
            if found.get("ExitCode") is not None:
                return
            # Requested, and not begun yet.
            await asyncio.sleep(0.02)

    async def _look(self) -> dict[str, Any]:
        return await self._engine.call(docker.APIClient.exec_inspect, self._id)


def _create(
    api: docker.APIClient, container: str, command: tuple[str, ...], *, tty: bool
) -> dict[str, Any]:
    return api.exec_create(container, list(command), stdin=True, tty=tty)


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
