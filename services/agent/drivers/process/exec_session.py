"""Commands beside a task's own process, with or without a terminal: an `ExecSession` over the starter.

Decides how bytes flow and when there are no more: a command that has ended is over, even if its children still
hold its output. Its isolation is that of the task (`isolation/enter.py`).
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios

from services.agent.drivers.driver import StartRefused
from services.agent.drivers.isolation.starter_protocol import EnterOrder
from services.agent.drivers.process.starter_client import START_TIMEOUT_S, StarterClient

_CHUNK = 1 << 16
_LOOK_S = 0.2
STDOUT, STDERR = 1, 2


class ProcessSession:
    """A command that runs. Every descriptor here is its own, and not blocking."""

    def __init__(
        self, *, tell: int, life: int, stdin: int, outputs: dict[int, int], tty: bool
    ) -> None:
        self._tell = tell
        self._life = life
        self._stdin = stdin
        #: descriptor -> STDOUT or STDERR, as long as more may come.
        self._outputs = outputs
        self._tty = tty
        self._said = b""
        self._over = False
        for fd in {tell, stdin, *outputs} - {-1}:
            os.set_blocking(fd, False)

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr; empty: end of output."""
        while self._outputs:
            for fd in sorted(self._outputs):
                if (data := self._take(fd)) is not None:
                    return data
            if self._over:
                # It has ended; later output of its children is dropped.
                for fd in sorted(self._outputs):
                    self._drop(fd)
            elif self._outputs:
                await self._wait_readable([*self._outputs, self._tell])
                self._hear()
        return STDOUT, b""

    def _take(self, fd: int) -> tuple[int, bytes] | None:
        stream = self._outputs[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as err:
            if err.errno != errno.EIO:
                raise
            # No process has the terminal open any more.
            data = b""
        if data:
            return stream, data
        self._drop(fd)
        return None

    def _drop(self, fd: int) -> None:
        del self._outputs[fd]
        if fd != self._stdin:
            os.close(fd)

    async def write(self, data: bytes) -> None:
        """Send input; empty: end of input. Input that is not read any more is dropped."""
        if not data and self._stdin >= 0:
            if self._tty:
                data = b"\x04"
            else:
                os.close(self._stdin)
                self._stdin = -1
        left = memoryview(data)
        while left and self._stdin >= 0:
            try:
                left = left[os.write(self._stdin, left) :]
            except BlockingIOError:
                await self._room()
            except OSError:
                return

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        if self._tty and self._stdin >= 0:
            size = struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, size)

    async def wait(self) -> int:
        """Wait for the end. Returns the exit code. Raises StartRefused when it never began."""
        while not self._over:
            await self._wait_readable([self._tell])
            self._hear()
        words = self._said.decode(errors="replace").split(maxsplit=1)
        if words and words[0] == "exit":
            return int(words[1])
        reason = words[1].removeprefix("0 ").strip() if len(words) > 1 else "command was killed"
        raise StartRefused(reason, recoverable=False)

    async def close(self) -> None:
        """Close; a command that still runs is killed."""
        for fd in {self._tell, self._life, self._stdin, *self._outputs}:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._over = True
        self._tell = self._life = self._stdin = -1
        self._outputs = {}

    def _hear(self) -> None:
        try:
            data = os.read(self._tell, 4096)
        except BlockingIOError:
            return
        self._said += data
        if not data or self._said.endswith(b"\n"):
            self._over = True

    async def _wait_readable(self, fds: list[int]) -> None:
        """Wait until one of them can be read."""
        loop = asyncio.get_running_loop()
        come = asyncio.Event()
        for fd in fds:
            loop.add_reader(fd, come.set)
        try:
            await come.wait()
        finally:
            for fd in fds:
                loop.remove_reader(fd)

    async def _room(self) -> None:
        loop = asyncio.get_running_loop()
        come = asyncio.Event()
        # A terminal is read and written by one descriptor; the loop keeps the two apart.
        stdin = self._stdin
        loop.add_writer(stdin, come.set)
        try:
            # Polled: the reader waits for the end too, and a loop has one reader for a descriptor.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(come.wait(), _LOOK_S)
        finally:
            loop.remove_writer(stdin)
        self._hear()
        if self._over and self._stdin >= 0 and not self._tty:
            os.close(self._stdin)
            self._stdin = -1


async def open_session(starter: StarterClient, order: EnterOrder) -> ProcessSession:
    """Begin a command inside a run. Raises StartRefused."""
    opened: list[int] = []

    def pipe() -> tuple[int, int]:
        ends = os.pipe()
        opened.extend(ends)
        return ends

    try:
        told, tell = pipe()
        life, keeps = pipe()
        if order.tty:
            kept, outputs = await _begin_on_terminal(starter, order, tell, life)
            given: tuple[int, ...] = ()
        else:
            stdin, kept = pipe()
            out, stdout = pipe()
            err, stderr = pipe()
            given, outputs = (stdin, stdout, stderr), {out: STDOUT, err: STDERR}
            await asyncio.to_thread(starter.send, order, (tell, life, *given))
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    for fd in {tell, life, *given}:
        os.close(fd)
    return ProcessSession(tell=told, life=keeps, stdin=kept, outputs=outputs, tty=order.tty)


async def _begin_on_terminal(
    starter: StarterClient, order: EnterOrder, tell: int, life: int
) -> tuple[int, dict[int, int]]:
    """Begin a command on a terminal of its run. Returns the master and the outputs: -1 and none where it did not begin.

    It is opened inside, because the devices of the node's terminals are not in the view of an isolated task.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            await asyncio.to_thread(starter.send, order, (tell, life, *(3 * [theirs.fileno()])))
        ours.settimeout(START_TIMEOUT_S)
        try:
            _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1, 1)
        except TimeoutError as err:
            raise StartRefused("the terminal was not opened in time", recoverable=True) from err
    for fd in fds:
        os.set_inheritable(fd, False)
    # Without one the reason comes by the pipe.
    return (fds[0], {fds[0]: STDOUT}) if fds else (-1, {})
