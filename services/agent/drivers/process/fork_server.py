"""The agent's end of a fork server: a small process that has loaded its modules once, and forks for each order.

Started with the first order, and again when it was killed. It has nothing of the agent's memory, files or environment.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

import services

#: Where `services` and msgspec are: such a process reads no site configuration, which takes most of Python's start.
_PATHS = [str(Path(services.__file__ or "").parents[1]), str(Path(msgspec.__file__).parents[1])]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_END_TIMEOUT_S = 2.0
_SAID_BYTES_MAX = 65_536


def python_command(code: str) -> list[str]:
    """Return the command that runs code with this tree's modules and msgspec."""
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {_PATHS!r}; {code}"]


class ForkServer:
    """One process, whose descriptor 0 is the socket of its orders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    def __del__(self) -> None:
        """Who forgets to close it leaves no process either."""
        self._end()

    @property
    def pid(self) -> int:
        """Its process; 0: not begun."""
        return self._process.pid if self._process is not None else 0

    def hand_over(self, word: bytes, fds: Sequence[int]) -> None:
        """Send an order with its descriptors; blocks for a moment. Raises OSError."""
        with self._lock:
            if self._socket is not None:
                try:
                    socket.send_fds(self._socket, [word], fds)
                except (BrokenPipeError, ConnectionError):
                    self._end()
                else:
                    return
            socket.send_fds(self._begin(), [word], fds)

    def said(self) -> str:
        """Return what it wrote to stderr since it was last asked."""
        with self._lock:
            if self._process is None or self._process.stderr is None:
                return ""
            with contextlib.suppress(BlockingIOError):
                return os.read(self._process.stderr.fileno(), _SAID_BYTES_MAX).decode(
                    errors="replace"
                )
            return ""

    def code(self) -> str:
        """Return what the process runs."""
        raise NotImplementedError

    def begun(self, to: socket.socket) -> None:
        """Send what a new process has to know first. Raises OSError."""

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                python_command(self.code()),
                env=ENVIRONMENT,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._socket = ours
        self.begun(ours)
        return ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            # It ends after its socket is closed.
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
        self._socket = self._process = None
