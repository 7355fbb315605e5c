"""The one interface of every driver: fingerprint, start, wait, stop, signal, exec, stats, recover.

Decides nothing. A driver may hang, lie or raise: `edge.py` bounds every call, so that it costs its own task alone.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from services.agent.edge_home import Places
from shared.core.tasks import TaskLaunch
from shared.errors import CaravanError


class StartRefused(CaravanError):
    """A task could not be started. Not `recoverable`: trying again would fail the same way."""

    def __init__(self, reason: str, *, recoverable: bool) -> None:
        super().__init__(reason)
        self.recoverable = recoverable


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Which run of which task, and where it lives."""

    alloc_id: str
    task: str
    number: int
    places: Places
    #: the allocation's, for who has to name it.
    key: int = 0


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; `code` None: nobody knows."""

    code: int | None
    signal: int = 0
    reason: str = ""


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is there; `started` False: the run never began and never will."""

    started: bool
    reason: str = ""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What a command inside a task said."""

    code: int
    stdout: bytes
    stderr: bytes


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run uses now, children included where the kernel says so."""

    cpu_ns: int
    memory_bytes: int


class ExecSession(Protocol):
    """A command beside a task, while it runs. Who opened it closes it."""

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr (a terminal has 1 alone); empty: there is no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input; empty: there is no more."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Tell the terminal its size; without one this does nothing."""
        ...

    async def wait(self) -> int:
        """Wait for the end; asked when there is nothing left to read. Returns the exit code."""
        ...

    async def close(self) -> None:
        """End the command if it runs still, and all that it started."""
        ...


class Handle(Protocol):
    """A run that was alive when the driver said so."""

    @property
    def pid(self) -> int:
        """Process id of the task itself; 0: not known."""
        ...


@runtime_checkable
class Talkative(Protocol):
    """A driver that tells of a run's life beside its start and end: (run, kind, message)."""

    tell: Callable[[Run, str, str], None]


class Driver(Protocol):
    """What the edge asks of a driver. Handles are the driver's own and never shared between drivers."""

    name: str

    def fingerprint(self) -> dict[str, str]:
        """Node attributes, `driver.<name>` = "1" among them; empty: not usable here."""
        ...

    async def start(self, run: Run, launch: TaskLaunch) -> Handle:
        """Start a run. Raises StartRefused; then nothing of it is alive."""
        ...

    async def recover(self, run: Run) -> Handle | Exit | Gone:
        """Find a run of an earlier life."""
        ...

    async def wait(self, handle: Any) -> Exit:
        """Wait for the end, and leave nothing of the run behind."""
        ...

    async def signal(self, handle: Any, name: str) -> None:
        """Send a signal by name. Raises ValueError for an unknown one."""
        ...

    async def stop(self, handle: Any) -> None:
        """Kill the run and all that it started."""
        ...

    async def abandon(self, run: Run) -> None:
        """Make sure that a start which took too long never comes alive."""
        ...

    async def leave(self, run: Run) -> None:
        """Note that a run ends because its agent does: recovered, it counts as never begun."""
        ...

    async def exec(self, handle: Any, command: tuple[str, ...], timeout_s: float) -> Output:
        """Run a command beside the task, in its environment and directory."""
        ...

    async def exec_stream(self, handle: Any, command: tuple[str, ...], *, tty: bool) -> ExecSession:
        """Start a command beside the task, to be talked to. Raises StartRefused."""
        ...

    async def stats(self, handle: Any) -> Usage:
        """Say what the run uses now."""
        ...
