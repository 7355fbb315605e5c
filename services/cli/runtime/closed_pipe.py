"""A command that follows something ends when the reader of its output has left, not at its next line."""

import asyncio
import contextlib
import select
import sys
from collections.abc import AsyncIterator

_POLL_S = 0.2


@contextlib.asynccontextmanager
async def ending_with_reader() -> AsyncIterator[None]:
    """Run the block until the reader of stdout closes its end; a file and a terminal never do.

    Raises BrokenPipeError. For commands that only print: another one must finish its work.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while not _has_reader_left():  # noqa: ASYNC110 - the loop cannot wait for it.
            await asyncio.sleep(_POLL_S)
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise BrokenPipeError from None
    finally:
        watching.cancel()


def _has_reader_left() -> bool:
    poll = select.poll()
    try:
        # No events requested: the kernel reports an error on a pipe whose other end is closed all the same.
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))
