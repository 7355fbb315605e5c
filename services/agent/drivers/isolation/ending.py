"""The end of a run: what is left of it, why it ended, and the record that every life of the agent finds.

Decides the content of the file `exit` (read by `process/run_record.py`) and how it gets to a disk that is full. Runs in
keeper and init, and reads the order only when the task has ended.
"""

import contextlib
import errno
import os
import signal
import time

import msgspec

from services.agent.drivers.isolation import cgroups, descendants
from services.agent.drivers.isolation.starter_protocol import StartOrder

_SIGNAL_BASE = 128
#: Room on the disk that a run takes at its start for the record of its end.
_RESERVED_BYTES = 512
#: A disk that is full for so long costs the record; until then the end is not told.
_WRITE_TRIES, _WRITE_PAUSE_S = 600, 0.1
#: Name of the file with the signals that the agent sent, one number a line.
SENT_SIGNALS = "signals"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How the task's own process ended, and how many processes outlived it."""

    #: as a shell gives it: 128 + signal for a signal.
    code: int
    #: 0: it exited by itself, whatever its code.
    signal: int = 0
    reason: str = ""
    left: int = 0


def ended_by(status: int) -> Ended:
    """Read the status of a child."""
    code = os.waitstatus_to_exitcode(status)
    return Ended(code=code) if code >= 0 else Ended(code=_SIGNAL_BASE - code, signal=-code)


def reap(task: int) -> Ended:
    """Wait for the task, kill what is left of its group, reap other children."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        pid = ended.si_pid if ended is not None else task
        if pid == task:
            # Before it is reaped: its group has its number until then.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(task, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if pid == task:
            return ended_by(status)


def explain(order: StartOrder, ended: Ended) -> Ended:
    """End what a task left, and add to its end the reasons that are known."""
    # Of pid 1 the kernel ends all others.
    left = [] if os.getpid() == 1 else _end_rest(order)
    reasons = (_out_of_memory(order, ended), _told_left(left))
    text = "; ".join(filter(None, reasons))
    return Ended(code=ended.code, signal=ended.signal, reason=text, left=len(left))


def _end_rest(order: StartOrder) -> list[int]:
    """Kill what a task without pid namespace left. Returns the processes that could not be killed."""
    tree = None
    if order.jail.plain and order.groups is not None:
        tree = cgroups.CgroupTree(order.groups.found, order.groups.parent)
        tree.end(order.groups.name)
    left = descendants.end_descendants()
    if tree is not None and order.groups is not None:
        left += tree.members(order.groups.name)
    return sorted({*left})


def _told_left(left: list[int]) -> str:
    if not left:
        return ""
    shown = ", ".join(map(str, left[:10])) + (", …" if len(left) > 10 else "")
    return f"{len(left)} processes of the task could not be killed: {shown}"


def _out_of_memory(order: StartOrder, ended: Ended) -> str:
    """Text for a kill by the kernel at the memory limit; empty: there was none."""
    groups = order.groups
    if groups is None:
        return ""
    try:
        path = cgroups.CgroupTree(groups.found, groups.parent).oom_counter_path(groups.name)
        kills = cgroups.oom_kills(line_of(path)) if path else 0
    except OSError:
        return ""
    if not kills:
        return ""
    by_kernel = ended.signal == signal.SIGKILL and not _was_sent(order.directory, signal.SIGKILL)
    victim = "the task" if by_kernel else "a child process"
    return f"out of memory: {victim} was killed at the limit of {groups.limits.memory_hard_mib} MiB"


def _was_sent(directory: str, number: int) -> bool:
    """Return whether the agent sent the task a signal."""
    try:
        return str(number) in line_of(f"{directory}/{SENT_SIGNALS}").split()
    except OSError:
        return False


def reserve_exit(run: int) -> None:
    """Take room on the disk for the end of a run. `run`: its directory, open. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("exit.new", flags, 0o600, dir_fd=run)
    try:
        _write_all(fd, b" " * _RESERVED_BYTES)
    finally:
        os.close(fd)


def write_exit(directory: str, ended: Ended) -> None:
    """Write the end of a run, once; later writers do nothing. Waits a while for a full disk. Raises OSError."""
    lines = [str(ended.code), ended.reason.replace("\n", " ")]
    # Without them the end is as older releases wrote it.
    lines += [f"signal {ended.signal}"] if ended.code > _SIGNAL_BASE else []
    lines += [f"left {ended.left}"] if ended.left else []
    text = "".join(f"{line}\n" for line in lines).encode()
    for tried in range(_WRITE_TRIES):
        try:
            _write_once(directory, text)
        except FileNotFoundError:
            raise
        except OSError:
            if tried == _WRITE_TRIES - 1:
                raise
            time.sleep(_WRITE_PAUSE_S)
        else:
            return


def _write_once(directory: str, text: bytes) -> None:
    if os.path.exists(f"{directory}/exit"):
        return
    fresh = f"{directory}/exit.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Over what was reserved: it needs no new room.
        _write_all(fd, text)
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, f"{directory}/exit")


def _write_all(fd: int, data: bytes) -> None:
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_claimed(path: str, boot: str) -> bool:
    """Return whether the run began; a voided run never began."""
    try:
        return line_of(path).splitlines()[0] == boot
    except FileNotFoundError:
        return False


def line_of(path: str) -> str:
    """Read a small file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace").strip()
    finally:
        os.close(fd)
