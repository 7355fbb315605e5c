"""Processes as the kernel knows them: a pid and a start time, their end, their signals, their use.

Decides when two pids name one process. Must not know tasks. Linux only: /proc and pidfds.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Pause between two looks where the kernel gives no pidfd (none left, or too old a kernel).
_LOOK_AGAIN_S = 0.25


class Process(msgspec.Struct, frozen=True):
    """One process, for ever: the kernel uses a pid again, but not with the same start."""

    pid: int
    start_ticks: int


def parse_stat(line: str) -> tuple[Process, list[str]]:
    """Read a line of /proc/<pid>/stat. Returns the process and its fields from `state` (field 3) on.

    The name in field 2 may hold spaces and parentheses. Raises ValueError when it is no such line.
    """
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    if len(fields) < 22:
        raise ValueError(f"no line of /proc/<pid>/stat: {line[:80]!r}")
    return Process(int(pid), int(fields[19])), fields


def _stat(pid: int) -> tuple[Process, list[str]] | None:
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError):
        return None


def exists(process: Process) -> bool:
    """Say whether a process has its pid still, be it as a zombie."""
    found = _stat(process.pid)
    return found is not None and found[0] == process


def alive(process: Process) -> bool:
    """Say whether a process still runs."""
    found = _stat(process.pid)
    return found is not None and found[0] == process and found[1][0] not in "ZX"


async def ended(process: Process) -> None:
    """Wait until a process has ended; whose child it is does not matter."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        while alive(process):  # noqa: ASYNC110 - the kernel has no event for us here.
            await asyncio.sleep(_LOOK_AGAIN_S)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        if exists(process):
            loop.add_reader(fd, over.set)
            await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def send_signal(leader: Process, name: str) -> None:
    """Signal the group that a process leads, if it is there. Raises ValueError for an unknown signal."""
    try:
        number = signal.Signals[name]
    except KeyError as err:
        raise ValueError(f"unknown signal {name!r}") from err
    if exists(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, number)


def kill_session(leader: Process) -> None:
    """Kill all of the session that a process led, even when it is gone itself."""
    send_signal(leader, "SIGKILL")
    for member in _session(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member.pid, signal.SIGKILL)


def _session(leader: Process) -> Iterator[Process]:
    for entry in _PROC.iterdir():
        found = _stat(int(entry.name)) if entry.name.isdigit() else None
        if found is None or int(found[1][3]) != leader.pid or found[1][0] in "ZX":
            continue
        # A pid is not given out again while a session bears it: another leader has another session.
        now = _stat(leader.pid)
        if now is None or now[0] == leader:
            yield found[0]


def usage(process: Process) -> tuple[int, int]:
    """Processor time (ns, reaped children included) and resident bytes of a process; zeros when it is gone."""
    found = _stat(process.pid)
    if found is None or found[0] != process:
        return 0, 0
    fields = found[1]
    ticks = sum(int(field) for field in fields[11:15])
    return ticks * 1_000_000_000 // _TICKS, int(fields[21]) * _PAGE
