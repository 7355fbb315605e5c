"""Records of a run that outlive the agent: what claimed it, and how it ended.

In `runs/<alloc>/<task>/<number>/` stand
- `proc`, made once and never replaced: kernel boot, and the stat line (/proc) of keeper, task and init. Making it
  is the claim: either the run began, or it was voided first and never will begin;
- `exit`: the exit code, a shell's 128 + signal for a signal, and a reason; where the code is above 128 whether that
  was a signal, and how many processes could not be ended; renamed into place. Its room is taken with the claim;
- `signals`: the signals that the agent sent;
- `left`: the run was ended because its agent ended, so the next life starts it again at no charge.

Written by the starter's children (`isolation/stages.py`, `isolation/ending.py`), read by every later agent process.
"""

import contextlib
import hashlib
from pathlib import Path

import msgspec

from services.agent.drivers.driver import (
    AGENT_SHUTDOWN_MARK,
    TaskExit,
    TaskMissing,
    exit_from_code,
)
from services.agent.drivers.process.os_process import OsProcess, has_pid, is_alive, parse_stat

#: In place of a claim: the run never begins.
VOID = "void"


class ProcessRun(msgspec.Struct, kw_only=True):
    """A live run: its keeper, itself, and the init process that records its end."""

    directory: Path
    keeper: OsProcess
    process: OsProcess
    init: OsProcess

    @property
    def pid(self) -> int:
        """Process id of the task."""
        return self.process.pid


def group_name(directory: Path) -> str:
    """Name of the cgroup of the run with this directory, so that every life of the agent finds it."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:20]


def read_claim(directory: Path) -> ProcessRun | None:
    """Read the processes of a run; None: it has no claim, was voided, or its claim is being written."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (directory / "proc").read_text().splitlines()
        found = [parse_stat(line)[0] for line in lines[1:4]]
        # Runs of older releases of raw_exec have one watcher in place of keeper and init.
        return ProcessRun(directory=directory, keeper=found[0], process=found[1], init=found[-1])
    return None


def find_run(directory: Path, kernel_boot: str) -> ProcessRun | TaskExit | TaskMissing | None:
    """Search for a run that claimed its directory. None: no claim, or one that is being written."""
    ended = read_exit(directory)
    if ended is not None:
        return ended
    try:
        first = (directory / "proc").read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
    if first == VOID:
        return TaskMissing(started=False)
    found = read_claim(directory)
    if found is None:
        return None
    if first != kernel_boot:
        reason = "node was rebooted while the task ran"
        return TaskMissing(started=True, reason=reason, charged=False)
    if has_pid(found.keeper) or is_alive(found.process):
        return found
    # It may have ended since the first look.
    reason = "task ended while the agent was down; exit code unknown"
    return read_exit(directory) or TaskMissing(started=True, reason=reason)


def void_run(directory: Path, kernel_boot: str) -> ProcessRun | TaskExit | TaskMissing | None:
    """Claim a run's directory so that it never begins; or find what claimed it before."""
    if (directory / AGENT_SHUTDOWN_MARK).exists():
        return TaskMissing(started=False)
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (directory / "proc").open("x") as file:
        file.write(f"{VOID}\n")
    return find_run(directory, kernel_boot)


def read_exit(directory: Path) -> TaskExit | None:
    """Read the end of a run; None: it has not ended."""
    try:
        text = (directory / "exit").read_text()
    except FileNotFoundError:
        return None
    code, *lines = text.splitlines() or [""]
    if not code.isdigit():
        return TaskExit(code=None, reason="exit file is unreadable")
    more = dict(line.split(" ", 1) for line in lines[1:] if " " in line)
    # Older releases wrote no signal: there the code tells.
    found = exit_from_code(int(code), lines[0].strip() if lines else "")
    number, left = more.get("signal", ""), more.get("left", "")
    return msgspec.structs.replace(
        found,
        signal=int(number) if number.isdigit() else found.signal,
        left=int(left) if left.isdigit() else 0,
    )
