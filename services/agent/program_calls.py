"""Calls of programs of the node's operator that answer once, on their standard output, and end.

A call is bounded in time and size, and ends with everything that it started. What is printed on the error output is
dropped: it may hold anything.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

import msgspec


class ProgramFailed(Exception):
    """A program cannot be run, or gave no answer. Not `recoverable`: another try would fail the same way."""

    def __init__(self, reason: str, *, recoverable: bool = True) -> None:
        super().__init__(reason)
        self.recoverable = recoverable


class ProgramCall(msgspec.Struct, frozen=True):
    """One call: path of the program, arguments, and its whole environment."""

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]

    async def run(self, *, limit_s: float, end_s: float, bytes_max: int) -> tuple[bytes, int]:
        """Return the answer and the exit code. `end_s`: from SIGTERM to SIGKILL. Raises ProgramFailed.

        A call that is cancelled ends the program.
        """
        try:
            child = await asyncio.create_subprocess_exec(
                self.program,
                *self.arguments,
                env=self.env,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as err:
            text = getattr(err, "strerror", "") or "its path or a variable cannot be passed on"
            raise ProgramFailed(f"cannot be run: {text}") from None
        try:
            async with asyncio.timeout(limit_s):
                said = await _read(child, bytes_max)
                code = await child.wait()
        except TimeoutError:
            raise ProgramFailed(f"gave no answer within {limit_s:g} s") from None
        finally:
            await _end(child, end_s)
        return said, code


async def _read(child: asyncio.subprocess.Process, bytes_max: int) -> bytes:
    assert child.stdout is not None
    said = b""
    while part := await child.stdout.read(bytes_max + 1):
        said += part
        if len(said) > bytes_max:
            raise ProgramFailed(f"gave more than {bytes_max} bytes", recoverable=False)
    return said


async def _end(child: asyncio.subprocess.Process, end_s: float) -> None:
    """End a program, and what it started."""
    if child.returncode is None:
        _signal(child.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(end_s):
                await child.wait()
        except TimeoutError:
            pass
        finally:
            _signal(child.pid, signal.SIGKILL)
        await child.wait()
    else:
        _signal(child.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
