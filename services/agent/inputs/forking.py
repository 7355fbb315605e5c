"""Forks a helper for each socket that comes: it begins with its modules loaded, and with nothing of another's work.

The process that forks reads nothing that others wrote: it takes sockets, says how helpers ended, and kills those whose
agent's end is closed. Before the first one it gives up files and all capabilities but those for ending helpers and for
letting them become another user. The other end: `forked_helpers.py`.
"""

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from services.agent.drivers.isolation import kernel, landlock

_KEPT = ("kill", "setgid", "setuid")
_WORD_BYTES = 16


class _Helper:
    """One that works. `agent`: a copy of its socket, to see the other end close; `life`: closed when it has ended."""

    def __init__(self, pid: int, agent: socket.socket, life: int) -> None:
        self.pid = pid
        self.agent = agent
        self.life = life
        self.pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> None:
        """Say that it was killed: what else ends it, it says itself."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code < 0:
            words = f"\nkilled by {signal.Signals(-code).name}\n"
            with contextlib.suppress(OSError):
                self.agent.send(words.encode(), socket.MSG_DONTWAIT)
        self.agent.close()
        os.close(self.pidfd)
        os.close(self.life)


#: (socket to the agent, pid of the parent that it dies with).
Work = Callable[[socket.socket, int], None]


def serve(orders: socket.socket, work: Work, *, keeps_files: bool = False) -> None:
    """Fork until the agent's end of `orders` is closed; helpers that still work end then, too.

    `keeps_files`: files stay within reach for helpers, which give them up themselves.
    """
    # Opened while files can be.
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    _confine(keeps_files=keeps_files)
    gc.collect()
    gc.freeze()
    parent = os.getpid()
    waiting = select.poll()
    waiting.register(orders, select.POLLIN)
    helpers: dict[int, _Helper] = {}
    while True:
        # One at a time: what is done for it may close what another one names.
        fd = waiting.poll()[0][0]
        if fd == orders.fileno():
            word, fds, _, _ = socket.recv_fds(orders, _WORD_BYTES, 2)
            if not word:
                return
            agent, life = socket.socket(fileno=fds[0]), fds[1]
            try:
                pid = os.fork()
            except OSError as err:
                agent.send(f"\nno process: {err.strerror}\n".encode(), socket.MSG_DONTWAIT)
                agent.close()
                os.close(life)
                continue
            if pid == 0:
                _be_helper(agent, null, work, parent)
            helper = _Helper(pid, agent, life)
            helpers[helper.pidfd] = helpers[agent.fileno()] = helper
            waiting.register(helper.pidfd, select.POLLIN)
            waiting.register(agent.fileno(), 0)
        elif fd == helpers[fd].pidfd:
            helper = helpers.pop(fd)
            waiting.unregister(fd)
            if helpers.pop(helper.agent.fileno(), None) is not None:
                waiting.unregister(helper.agent.fileno())
            helper.reap()
        else:
            waiting.unregister(fd)
            helpers.pop(fd).kill()


def _confine(*, keeps_files: bool) -> None:
    kernel.no_new_privileges()
    if os.geteuid() == 0:
        # An agent that has not all of them itself: the helpers have none in any case.
        with contextlib.suppress(OSError):
            kept = tuple(kernel.CAPABILITIES[name] for name in _KEPT)
            kernel.set_capabilities(kept, ambient=False)
    if not keeps_files:
        with contextlib.suppress(OSError):
            landlock.restrict(read=(), write=())


def _be_helper(agent: socket.socket, null: int, work: Work, parent: int) -> NoReturn:
    """Work, and end; never returns."""
    try:
        for number in range(3):
            os.dup2(null, number)
        # Those of other helpers, too.
        kernel.close_all_but(agent.fileno())
        work(agent, parent)
    except BaseException as err:  # noqa: BLE001 - the child of a fork must not return.
        with contextlib.suppress(OSError):
            agent.sendall(f"\n{type(err).__name__}: {err}\n".encode())
    finally:
        os._exit(0)
