"""Writes files of tasks in threads that outlive no cancellation."""

import asyncio
from collections.abc import Callable

#: A file that is being written when its input is not wanted any more is awaited so long.
_WRITE_S = 5.0


async def write_in_thread(write: Callable[[], object]) -> None:
    """Write in a thread, which is not left behind: a file that is written later would undo what came after it."""
    work = asyncio.get_running_loop().run_in_executor(None, write)
    work.add_done_callback(asyncio.Future.exception)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work}, timeout=_WRITE_S)
        raise
