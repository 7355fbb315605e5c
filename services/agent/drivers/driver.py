"""The interface of every driver: fingerprint, start, wait, stop, signal, exec, stats, recover.

A driver may hang or raise: `executor/executor.py` bounds every call, so that a fault costs its own task alone.
"""

import contextlib
import signal
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from services.agent.drivers.isolation.ending import SENT_SIGNALS
from services.agent.executor.data_dir import TaskDirs
from services.agent.safe_open import is_swapped, make_below
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.runtime.remote_messages import RemoteRun
from shared.errors import CaravanError
from shared.jobspec.drivers.options import OptionDiagnostic


class StartRefused(CaravanError):
    """A task could not be started. Not `recoverable`: trying again would fail the same way.

    `is_closed`: of what runs elsewhere, that nothing of it is there, and nothing will be.
    """

    def __init__(self, reason: str, *, recoverable: bool, is_closed: bool = False) -> None:
        super().__init__(reason)
        self.recoverable = recoverable
        self.is_closed = is_closed


def raise_option_faults(driver: str, faults: Sequence[OptionDiagnostic]) -> None:
    """Raise StartRefused when options have faults: intake lets references through, which are resolved here."""
    if faults:
        text = "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:10])
        raise StartRefused(f"{driver}: {text}", recoverable=False)


def split_list(text: str) -> tuple[str, ...]:
    """Read a setting that is a list separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def directories_refused(err: OSError) -> StartRefused:
    """Refuse a start without its directories; what a task put in the place of one stays there for the next try."""
    where = f"{err.filename}: " if err.filename else ""
    text = f"failed to create task directories: {where}{err.strerror or err}"
    return StartRefused(text, recoverable=not is_swapped(err))


#: File in a run's directory: the run was ended because its agent ended.
AGENT_SHUTDOWN_MARK = "left"
_ALL = range(signal.NSIG)


class DriverRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a task, and its directories."""

    alloc_id: str
    task: str
    number: int
    places: TaskDirs
    #: id of the allocation.
    key: int = 0
    #: what runs elsewhere; None: it runs here.
    remote: RemoteRun | None = None

    @property
    def directory(self) -> Path:
        """Directory of the run's records."""
        return self.places.runs / str(self.number)

    def make_directories(self) -> None:
        """Create the directories that a start needs. Raises StartRefused."""
        try:
            for path in (*self.places.directories(), self.directory):
                make_below(self.places.top, path)
        except OSError as err:
            raise directories_refused(err) from err


class TaskExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended; `code` None: unknown."""

    code: int | None
    #: 0: it exited by itself; a code above 128 alone does not tell.
    signal: int = 0
    reason: str = ""
    #: how many processes of it could not be ended.
    left: int = 0
    #: it runs on elsewhere, and is not tracked any more.
    is_detached: bool = False


def exit_from_code(code: int, reason: str = "", *, signals: Container[int] = _ALL) -> TaskExit:
    """Read a shell's exit code: above 128 it may name a signal. `signals`: those that it can be."""
    number = code - 128
    is_signal = 0 < number < signal.NSIG and number in signals
    return TaskExit(code=code, signal=number if is_signal else 0, reason=reason)


def record_signal(directory: Path, number: int) -> None:
    """Keep that a run was sent a signal, before it is sent: how the run ended depends on it."""
    with contextlib.suppress(OSError), (directory / SENT_SIGNALS).open("a") as file:
        file.write(f"{number}\n")


def recorded_signals(directory: Path) -> frozenset[int]:
    """Return the signals that a run was sent."""
    try:
        words = (directory / SENT_SIGNALS).read_text().split()
    except OSError:
        return frozenset()
    return frozenset(int(word) for word in words if word.isdigit())


class TaskMissing(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is there; `started` False: the run never began and never will."""

    started: bool
    reason: str = ""
    #: its end is the task's own; False: the machine went down, and the next start is not counted.
    charged: bool = True
    #: whether it runs elsewhere is not known.
    is_open: bool = False


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The present use of a run, with its children if the kernel reports them. Zero: none, or not counted."""

    cpu_ns: int
    memory_bytes: int
    #: the most memory so far, caches of files included.
    memory_peak_bytes: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0
    pids: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class ExecSession(Protocol):
    """A command that runs beside a task; its opener closes it."""

    async def read(self) -> tuple[int, bytes]:
        """The next output: 1 is stdout, 2 stderr (only 1 for a terminal); empty: end of output."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input; empty: end of input."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal; without one this does nothing."""
        ...

    async def wait(self) -> int:
        """Wait for the end; called after the last output. Returns the exit code."""
        ...

    async def close(self) -> None:
        """End the command if it runs still, and all that it started."""
        ...


class RunHandle(Protocol):
    """A run that was alive when the driver said so."""

    @property
    def pid(self) -> int:
        """Process id of the task itself; 0: not known."""
        ...


@runtime_checkable
class EventingDriver(Protocol):
    """A driver that reports events of a run beside its start and end: (run, kind, message)."""

    tell: Callable[[DriverRun, str, str], None]


@runtime_checkable
class RemoteDriverProtocol(Protocol):
    """A driver whose tasks run elsewhere."""

    async def detach(self, handle: Any) -> None:
        """Stop tracking a run; `wait` then returns an end that is detached."""
        ...

    async def end_remote(self, remote: RemoteRun) -> None:
        """End what runs elsewhere, tracked here or not. Raises StartRefused when that is not known to be done."""
        ...


@runtime_checkable
class ViewingDriver(Protocol):
    """A driver whose tasks see their directories under other paths than the node."""

    def directories(self, places: TaskDirs) -> Mapping[str, str]:
        """Return NOMAD_ALLOC_DIR, NOMAD_TASK_DIR and NOMAD_SECRETS_DIR as the task sees them."""
        ...


@runtime_checkable
class OwningDriver(Protocol):
    """A driver whose tasks run as another user than the agent."""

    def owner(self, user: str) -> tuple[int, int]:
        """Return uid and gid of a task with this `user`; -1: the agent's. Raises StartRefused."""
        ...


class Driver(Protocol):
    """Interface of a driver. Handles are never shared between drivers."""

    name: str

    def fingerprint(self) -> dict[str, str]:
        """Node attributes, `driver.<name>` = "1" among them; empty: not usable here."""
        ...

    async def start(self, run: DriverRun, launch: TaskLaunch) -> RunHandle:
        """Start a run. Raises StartRefused; then no process of it is left."""
        ...

    async def recover(self, run: DriverRun) -> RunHandle | TaskExit | TaskMissing:
        """Find a run of an earlier life."""
        ...

    async def wait(self, handle: Any) -> TaskExit:
        """Wait for the end, and clean up the run."""
        ...

    async def signal(self, handle: Any, name: str) -> bool | None:
        """Send a signal by name; False: the run had ended already. Raises ValueError for an unknown one."""
        ...

    async def stop(self, handle: Any) -> None:
        """Kill the run and all that it started."""
        ...

    async def abandon(self, run: DriverRun) -> None:
        """Make sure that a start which took too long never comes alive."""
        ...

    async def exec_stream(self, handle: Any, command: tuple[str, ...], *, tty: bool) -> ExecSession:
        """Start a command beside the task, to be talked to. Raises StartRefused."""
        ...

    async def stats(self, handle: Any) -> TaskUsage:
        """Return the present use of the run."""
        ...
