"""The starter: one small process beside the agent that turns orders into processes by forking.

It imports what a launch needs once, so that a launch costs forks and no imports, and what it forks shares its memory.
Orders come over one socket as memory files with their descriptors; it answers nothing itself. It ends when the agent
does; what it started stays.
"""

import contextlib
import gc
import os
import signal
import socket

from services.agent.drivers.isolation.cgroups import join
from services.agent.drivers.isolation.enter import enter
from services.agent.drivers.isolation.stages import (
    close_standard_streams,
    report_crash,
    run_keeper,
    run_plain,
)
from services.agent.drivers.isolation.starter_protocol import (
    ENTER,
    MOVE,
    ORDER_DECODER,
    PLAIN,
    EnterOrder,
    MoveOrder,
)

_MOST_DESCRIPTORS = 8


def serve(inbox: socket.socket) -> None:
    """Take orders until the agent's end of the socket is closed."""
    # The kernel reaps children: their ends are known by files and descriptors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    while True:
        word, fds, _, _ = socket.recv_fds(inbox, 32, _MOST_DESCRIPTORS)
        if not word:
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        if word == MOVE:
            _move_to_cgroup(fds[0])
        elif os.fork() == 0:
            close_standard_streams()
            inbox.detach()
            try:
                _execute_order(word, fds)
            except BaseException as err:  # noqa: BLE001 - the child of a fork must not return.
                report_crash(fds[1], err)
        for fd in fds:
            os.close(fd)


def _move_to_cgroup(order_fd: int) -> None:
    order = ORDER_DECODER.decode(os.pread(order_fd, os.fstat(order_fd).st_size, 0))
    if isinstance(order, MoveOrder):
        for entry in order.entries:
            with contextlib.suppress(OSError):
                join(entry, 0)


def _execute_order(word: bytes, fds: list[int]) -> None:
    """A start says its namespaces in the word itself: its keeper reads no more than that."""
    if word == PLAIN:
        run_plain(fds[0], fds[1])
    if word != ENTER:
        run_keeper(fds[0], fds[1], int(word))
    order = ORDER_DECODER.decode(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
    if isinstance(order, EnterOrder):
        enter(order, fds[1], fds[2], (fds[3], fds[4], fds[5]))


def main() -> None:
    """Serve the socket that is descriptor 0."""
    serve(socket.socket(fileno=0))
