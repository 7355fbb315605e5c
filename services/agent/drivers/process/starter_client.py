"""The agent's end of the starter: the small process that forks isolated tasks (`isolation/starter.py`).

Starts the starter process, and again when it was killed. What it started runs on either way. Orders
travel as memory files, so that no length of an environment matters; answers come over a pipe of each order's own.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence

import msgspec

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
from services.agent.drivers.process.fork_server import ENVIRONMENT, ForkServer, python_command

_SERVE = "from services.agent.drivers.isolation.starter import main; main()"
_PROBE = "from services.agent.drivers.isolation.probe import main; main({parent!r})"
PROBE_TIMEOUT_S = 20.0
#: A start that has not said anything by then is given up.
START_TIMEOUT_S = 10.0


def probe_isolation(parent: str) -> IsolationSupport:
    """Find the working isolation. On any error no isolation works."""
    try:
        done = subprocess.run(
            python_command(_PROBE.format(parent=parent)),
            env=ENVIRONMENT,
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


class StarterClient(ForkServer):
    """One per driver that needs it. What it started runs on when it ends."""

    def __init__(self) -> None:
        super().__init__()
        #: files that take a member's "0", of the group that keepers live in.
        self.shelter: tuple[str, ...] = ()

    def code(self) -> str:
        """Return what the starter runs."""
        return _SERVE

    def begun(self, to: socket.socket) -> None:
        """Move a new starter to its shelter. Raises OSError."""
        if self.shelter:
            memory = _memory(MoveOrder(entries=self.shelter))
            try:
                socket.send_fds(to, [MOVE], [memory])
            finally:
                os.close(memory)

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
            self.hand_over(_word(order), [memory, *fds])
        except OSError as err:
            raise StartRefused(f"starter process is unreachable: {err}", recoverable=True) from err
        finally:
            os.close(memory)


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
