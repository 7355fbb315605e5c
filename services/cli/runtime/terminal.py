"""The local terminal: raw mode with a safe restore, its size, and its keys.

Keys are read in a thread, because not every input supports select().
"""

import asyncio
import atexit
import contextlib
import os
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from types import FrameType

from services.cli.sigint import is_deferred

#: Bytes that one reading takes.
CHUNK = 32 * 1024
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def raw_mode(fd: int) -> Iterator[bool]:
    """Put a terminal into raw mode, Ctrl-C included; False: not a terminal, nothing changes."""
    if not os.isatty(fd):
        yield False
        return
    before = termios.tcgetattr(fd)

    def restore() -> None:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        if is_deferred(number, frame):
            return
        # Unwinding closes the session, so that the agent ends the command.
        raise SystemExit(128 + number)

    atexit.register(restore)
    kept = {number: signal.signal(number, end) for number in _ENDING}
    tty.setraw(fd, termios.TCSADRAIN)
    try:
        yield True
    finally:
        restore()
        atexit.unregister(restore)
        for number, handler in kept.items():
            signal.signal(number, handler)


def terminal_size(fd: int) -> tuple[int, int]:
    """Rows and columns of a terminal; 24 and 80 without one."""
    try:
        found = os.get_terminal_size(fd)
    except OSError:
        return 24, 80
    return found.lines or 24, found.columns or 80


@contextlib.contextmanager
def on_resize(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` in the running loop whenever the size of the terminal changes."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, callback)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


class KeyReader:
    """Input of a descriptor, read no faster than it is taken."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._wanted = threading.Semaphore(1)
        threading.Thread(target=self._read, daemon=True, name="keys").start()

    async def take(self) -> bytes:
        """The next bytes; empty: there are no more."""
        data = await self._arrived.get()
        self._wanted.release()
        return data

    def _read(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                data = os.read(self._fd, CHUNK)
            except OSError:
                data = b""
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, data)
            if not data:
                return
