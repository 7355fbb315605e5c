"""The agent's end of the starter: the small process that forks isolated tasks (`isolation/starter.py`).

Starts the starter process, and again when it was killed. What it started runs on either way. Orders
travel as memory files, so that no length of an environment matters; answers come over a pipe of each order's own.
"""

import asyncio
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
from services.agent.drivers.driver import StartRefused
from services.agent.drivers.isolation.probe import IsolationSupport
from services.agent.drivers.isolation.starter_protocol import (
    ENTER,
    MOVE,
    PLAIN,
    EnterOrder,
    MoveOrder,
    StarterOrder,
    StartOrder,
)

#: Where `services` and msgspec are: the starter reads no site configuration, which takes most of Python's start.
_PATHS = [str(Path(services.__file__ or "").parents[1]), str(Path(msgspec.__file__).parents[1])]
_SERVE = "from services.agent.drivers.isolation.starter import main; main()"
_PROBE = "from services.agent.drivers.isolation.probe import main; main({parent!r})"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
PROBE_TIMEOUT_S = 20.0
#: A start that has not said anything by then is given up.
START_TIMEOUT_S = 10.0


def _python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {_PATHS!r}; {code}"]


def probe_isolation(parent: str) -> IsolationSupport:
    """Find the working isolation. On any error no isolation works."""
    try:
        done = subprocess.run(
            _python(_PROBE.format(parent=parent)),
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=IsolationSupport)
    except subprocess.CalledProcessError as err:
        return IsolationSupport(why={"probe": err.stderr.decode(errors="replace")[-400:]})
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as err:
        return IsolationSupport(why={"probe": str(err)})


class StarterClient:
    """One per driver that needs it; begun with the first order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        #: files that take a member's "0", of the group that keepers live in.
        self.shelter: tuple[str, ...] = ()

    def close(self) -> None:
        """End the starter; what it started runs on."""
        with self._lock:
            self._end()

    def __del__(self) -> None:
        """A driver that was not closed leaves no process either."""
        self._end()

    @property
    def pid(self) -> int:
        """Its process; 0: not begun."""
        return self._process.pid if self._process is not None else 0

    async def start(self, order: StartOrder) -> None:
        """Start a run. Returns when its command is being executed; raises StartRefused with what the starter said."""
        read, write = os.pipe()
        try:
            try:
                await asyncio.to_thread(self.send, order, (write,))
            finally:
                os.close(write)
            said, is_closed = await read_pipe(read, START_TIMEOUT_S)
        finally:
            os.close(read)
        lines = said.decode(errors="replace").splitlines()
        for line in lines:
            if line.startswith("error "):
                _, again, reason = line.split(" ", 2)
                raise StartRefused(reason, recoverable=again == "1")
        if "alive" not in lines:
            late = f"no answer within {START_TIMEOUT_S:g} s"
            reason = "process exited before exec" if is_closed else late
            raise StartRefused(f"task did not start: {reason}", recoverable=True)

    def send(self, order: StartOrder | EnterOrder, fds: Sequence[int]) -> None:
        """Hand an order over; blocks for a moment. Raises StartRefused."""
        memory = _memory(order)
        try:
            with self._lock:
                self._send(_word(order), [memory, *fds])
        except OSError as err:
            raise StartRefused(f"starter process is unreachable: {err}", recoverable=True) from err
        finally:
            os.close(memory)

    def _send(self, word: bytes, fds: list[int]) -> None:
        if self._socket is not None:
            try:
                socket.send_fds(self._socket, [word], fds)
            except (BrokenPipeError, ConnectionError):
                self._end()
            else:
                return
        socket.send_fds(self._begin(), [word], fds)

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                _python(_SERVE),
                env=_ENVIRONMENT,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._socket = ours
        if self.shelter:
            memory = _memory(MoveOrder(entries=self.shelter))
            try:
                socket.send_fds(ours, [MOVE], [memory])
            finally:
                os.close(memory)
        return ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            # It ends after its socket is closed; a hanging starter is not awaited.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        self._socket = self._process = None


def _word(order: StartOrder | EnterOrder) -> bytes:
    if isinstance(order, EnterOrder):
        return ENTER
    return PLAIN if order.jail.plain else str(order.jail.namespaces).encode()


def _memory(order: StarterOrder) -> int:
    """Put an order into a memory file; the caller closes it."""
    memory = os.memfd_create("order", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(msgspec.json.encode(order))
    return memory


async def read_pipe(fd: int, timeout_s: float) -> tuple[bytes, bool]:
    """Read a pipe until its end or a timeout. Returns what came, and whether it ended."""
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    over = asyncio.Event()

    def come() -> None:
        try:
            part = os.read(fd, 65_536)
        except BlockingIOError:
            return
        parts.append(part)
        if not part:
            over.set()

    loop.add_reader(fd, come)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), timeout_s)
    finally:
        loop.remove_reader(fd)
    return b"".join(parts), over.is_set()
