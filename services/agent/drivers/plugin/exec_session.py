"""A command beside a task of a driver plugin, by the verbs `exec…` of docs/driver-plugins.md."""

import base64
import binascii
import contextlib
from typing import Any

from services.agent.drivers.plugin.process import DriverProcess
from services.agent.drivers.plugin.protocol import (
    CommandEnd,
    DriverBroken,
    DriverGone,
    DriverRefused,
    Output,
    decode,
)

#: Of input, so that its line is short enough.
_CHUNK = 128 * 1024
_FAILED = (DriverGone, DriverRefused, DriverBroken)


class PluginSession:
    """A command that runs: an `ExecSession`."""

    def __init__(self, process: DriverProcess, run: str, session: str) -> None:
        self._process = process
        self._names: dict[str, Any] = {"run": run, "session": session}

    async def begin(self, command: tuple[str, ...], *, tty: bool) -> None:
        """Start the command. Raises DriverGone, DriverRefused."""
        await self._process.call("exec", command=command, tty=tty, **self._names)

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr; empty: end of output."""
        try:
            answer = await self._process.call("exec_read", is_long=True, **self._names)
            found = decode(answer, Output)
            return 2 if found.stream == 2 else 1, base64.b64decode(found.data, validate=True)
        except (*_FAILED, binascii.Error):
            return 1, b""

    async def write(self, data: bytes) -> None:
        """Send input; empty: end of input."""
        parts = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)] or [b""]
        for part in parts:
            with contextlib.suppress(*_FAILED):
                text = base64.b64encode(part).decode()
                await self._process.call("exec_write", data=text, **self._names)

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        with contextlib.suppress(*_FAILED):
            await self._process.call("exec_resize", rows=rows, columns=columns, **self._names)

    async def wait(self) -> int:
        """Wait for the end. Returns the exit code. Raises DriverGone, DriverRefused, DriverBroken."""
        answer = await self._process.call("exec_wait", is_long=True, **self._names)
        return decode(answer, CommandEnd).exit_code

    async def close(self) -> None:
        """End the command if it runs still."""
        with contextlib.suppress(*_FAILED):
            await self._process.call("exec_close", **self._names)
