"""Runs a command beside a task to its end, over the driver's session."""

import asyncio
from typing import Any

import msgspec

from tests.bounds import WAIT_S


class CommandOutput(msgspec.Struct):
    """Exit code and both outputs of a command."""

    code: int
    stdout: bytes
    stderr: bytes


async def run_command(
    driver: Any, handle: Any, command: tuple[str, ...], timeout_s: float = WAIT_S
) -> CommandOutput:
    """Run a command. Raises TimeoutError after closing it."""
    session = await driver.exec_stream(handle, command, tty=False)
    texts = {1: b"", 2: b""}
    try:
        async with asyncio.timeout(timeout_s):
            await session.write(b"")
            while (part := await session.read())[1]:
                texts[part[0]] += part[1]
            return CommandOutput(await session.wait(), texts[1], texts[2])
    finally:
        await session.close()
