"""Processes of the kernel: pid and start time, end, signals, use.

Decides when two pids name one process. Independent of tasks. Linux only: /proc and pidfds.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shared.signal_names import signal_error, signal_number

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Pause between two polls if the kernel gives no pidfd (none left, or an old kernel).
_LOOK_AGAIN_S = 0.25


class OsProcess(msgspec.Struct, frozen=True):
    """One process, forever: the kernel uses a pid again, but not with the same start."""

    pid: int
    start_ticks: int


def parse_stat(line: str) -> tuple[OsProcess, list[str]]:
    """Read a line of /proc/<pid>/stat. Returns the process and its fields from `state` (field 3) on.

    The name in field 2 may hold spaces and parentheses. Raises ValueError for any other line.
    """
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    if len(fields) < 22:
        raise ValueError(f"not a line of /proc/<pid>/stat: {line[:80]!r}")
    return OsProcess(int(pid), int(fields[19])), fields


def _stat(pid: int) -> tuple[OsProcess, list[str]] | None:
    """Look at a process; None: there is none. Raises OSError: no descriptor is left to look with."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None


def has_pid(process: OsProcess) -> bool:
    """Return whether a process is known to still have its pid, zombies included."""
    try:
        found = _stat(process.pid)
    except OSError:
        return False
    return found is not None and found[0] == process


def is_alive(process: OsProcess) -> bool:
    """Return whether a process still runs; True if its state cannot be read."""
    try:
        found = _stat(process.pid)
    except OSError:
        return True
    return found is not None and found[0] == process and found[1][0] not in "ZX"


async def wait_for_end(process: OsProcess) -> None:
    """Wait until a process has ended; it need not be a child."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        while is_alive(process):  # noqa: ASYNC110 - the kernel has no event for us here.
            await asyncio.sleep(_LOOK_AGAIN_S)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        if has_pid(process) or is_alive(process):
            loop.add_reader(fd, over.set)
            await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def send_signal(leader: OsProcess, name: str) -> None:
    """Signal the group that a process leads, if it is there.

    Raises ValueError for an unknown signal, PermissionError where the kernel does not allow it.
    """
    number = signal_number(name)
    if number is None:
        raise ValueError(signal_error(name))
    if has_pid(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, number)


def kill_session(leader: OsProcess) -> None:
    """Kill the session that a process led, even when the leader has ended."""
    with contextlib.suppress(PermissionError):
        send_signal(leader, "SIGKILL")
    with contextlib.suppress(OSError):
        for member in _session(leader):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)


def _session(leader: OsProcess) -> Iterator[OsProcess]:
    for entry in _PROC.iterdir():
        found = _stat(int(entry.name)) if entry.name.isdigit() else None
        if found is None or int(found[1][3]) != leader.pid or found[1][0] in "ZX":
            continue
        # A pid is not given out again while a session bears it: another leader has another session.
        now = _stat(leader.pid)
        if now is None or now[0] == leader:
            yield found[0]


def process_usage(process: OsProcess) -> tuple[int, int]:
    """Processor time (ns, reaped children included) and resident bytes of a process; zeros when it is gone."""
    try:
        found = _stat(process.pid)
    except OSError:
        found = None
    if found is None or found[0] != process:
        return 0, 0
    fields = found[1]
    ticks = sum(int(field) for field in fields[11:15])
    return ticks * 1_000_000_000 // _TICKS, int(fields[21]) * _PAGE
