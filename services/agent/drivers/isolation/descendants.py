"""The processes below this one: what a task started, whatever session or group it is in now.

A process that is not pid 1 adopts the orphans below it (`adopt_orphans`), so that the end of all of them is a walk over
/proc. Must not import more than it needs: it lives in the starter.
"""

import contextlib
import os
import select
import signal

from services.agent.drivers.isolation import kernel

#: Tries to end processes that fork while they are killed, or that the kernel holds.
_KILL_ROUNDS = 200
_ROUND_MS = 10


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    kernel.become_subreaper()


def reap_ended() -> bool:
    """Reap the children that have ended; returns whether there are others."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def end_descendants() -> list[int]:
    """Kill every process below this one. Returns those that could not be killed."""
    for _ in range(_KILL_ROUNDS):
        if not reap_ended():
            return []
        _kill(_descendants())
    return _descendants()


def _kill(pids: list[int]) -> None:
    """Kill processes as far as they are still below this one, and wait a moment for their ends."""
    poll = select.poll()
    opened = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            opened[pid] = os.pidfd_open(pid)
    # A pid may have had a new owner when it was opened: what is listed now is what is open.
    still = set(_descendants())
    for pid, fd in opened.items():
        with contextlib.suppress(OSError):
            if pid in still:
                poll.register(fd, select.POLLIN)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    poll.poll(_ROUND_MS)
    for fd in opened.values():
        os.close(fd)


def _descendants() -> list[int]:
    """List the living processes below this one."""
    children: dict[int, list[int]] = {}
    dead = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = _state_of(int(name))
            children.setdefault(parent, []).append(int(name))
            if state in {"Z", "X"}:
                dead.add(int(name))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found.extend(children.get(pid, []))
    return sorted(pid for pid in found if pid not in dead)


def _state_of(pid: int) -> tuple[str, int]:
    """Return the state of a process and its parent. Raises OSError when it is gone."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fields = os.read(fd, 4096).rpartition(b") ")[2].split()
    finally:
        os.close(fd)
    return fields[0].decode(), int(fields[1])
