"""Run a command inside a run that is under way: same namespaces, view, user, rights and cgroups.

Two processes: one that enters the namespaces and waits, and the command. When the agent closes the second pipe,
because it ended or the client has left, the command is killed. What a command leaves behind ends with the task.
Every function here ends its process.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import termios

import msgspec

from services.agent.drivers.isolation import descendants, ending, kernel
from services.agent.drivers.isolation.stages import (
    StageFailed,
    confine,
    run_program,
)
from services.agent.drivers.isolation.starter_protocol import EnterOrder, Jail

#: Namespace files in the order in which they are entered: the view last, /proc is of the old one.
_FILES = (
    ("ipc", kernel.CLONE_NEWIPC),
    ("uts", kernel.CLONE_NEWUTS),
    ("net", kernel.CLONE_NEWNET),
    ("pid", kernel.CLONE_NEWPID),
    ("mnt", kernel.CLONE_NEWNS),
)


#: The terminals of a view: a devpts of its own.
_PTS = "/dev/pts"
#: Exit code of a command that was killed.
_KILLED = 128 + signal.SIGKILL
#: What ends a task kills its commands, too, in any order: so long a killed one waits for the end of its task, in s.
_TASK_END_S = 1.0


def enter(order: EnterOrder, tell: int, life: int, std: tuple[int, int, int]) -> None:
    """Run the command; never returns. Says `exit <code>`, or `error 0 <reason>`."""
    os.setsid()
    kernel.set_process_name("caravan-exec")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    said = "error 0 process exited before exec"
    given = std
    task = -1
    try:
        task = os.pidfd_open(order.pid)
        wanted = entered_namespaces(order.jail)
        entries = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in order.jail.cgroup_entries]
        spaces = [
            (os.open(f"/proc/{order.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag)
            for name, flag in _FILES
            if wanted & flag
        ]
        _check_same_process(order)
        for fd, flag in spaces:
            kernel.setns(fd, flag)
        if not order.jail.namespaces & kernel.CLONE_NEWPID:
            descendants.adopt_orphans()
        if order.tty:
            std = _open_terminal(order.jail, std[0])
        child = os.fork()
        if child == 0:
            _exec_command(order, entries, std)
        for fd in {*std, *given}:
            os.close(fd)
        code = _wait(child, life, order.jail)
        said = f"exit {code}"
        if code == _KILLED and select.select([task], [], [], _TASK_END_S)[0]:
            said = "error 0 the task has ended"
    except (FileNotFoundError, ProcessLookupError):
        said = "error 0 the task has ended"
    except OSError as err:
        said = f"error 0 {err.strerror or err}"
    with contextlib.suppress(OSError):
        os.write(tell, f"{said}\n".encode())
    for fd in (tell, life):
        os.close(fd)
    if not order.jail.namespaces & kernel.CLONE_NEWPID:
        _end_with_task(task)
    os._exit(0)


def _open_terminal(jail: Jail, to: int) -> tuple[int, int, int]:
    """Open a terminal of its user where the command sees it, and hand the master over. Returns the command's 0 to 2."""
    is_inside = entered_namespaces(jail) & kernel.CLONE_NEWNS
    master, slave = kernel.open_terminal(_PTS) if is_inside else os.openpty()
    with socket.socket(fileno=os.dup(to)) as socket_:
        socket.send_fds(socket_, [b"t"], [master])
    os.close(master)
    if not jail.plain:
        os.fchown(slave, jail.uid, -1)
    return slave, slave, slave


def entered_namespaces(jail: Jail) -> int:
    """Say which namespaces a command enters, as kernel.CLONE_NEW*. A plain task is in those of the agent.

    But the network of its group is any task's. To enter even one's own needs root.
    """
    network = kernel.CLONE_NEWNET if jail.network else 0
    if jail.plain:
        return network
    return jail.namespaces | network | (kernel.CLONE_NEWNS if jail.view else 0)


def _end_with_task(task: int) -> None:
    """Wait for what the command left behind, and kill it when the task ends."""
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while descendants.reap_ended():
        if task in select.select([task, woken], [], [])[0]:
            descendants.end_descendants()
            return
        os.read(woken, 4096)


def _check_same_process(order: EnterOrder) -> None:
    """Raise OSError when the pid is not that process any more; what was opened before is its own if it is."""
    with open(f"/proc/{order.pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(") ")[2].split()
    if int(fields[19]) != order.start_ticks or fields[0] in "ZX":
        raise OSError(3, "the task has ended")


def _wait(child: int, life: int, jail: Jail) -> int:
    """Wait for the command, or for the agent to close the pipe."""
    fd = os.pidfd_open(child)
    ready, _, _ = select.select([fd, life], [], [])
    if fd not in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
    code = ending.ended_by(os.waitpid(child, 0)[1]).code
    if fd not in ready and not jail.namespaces & kernel.CLONE_NEWPID:
        descendants.end_descendants()
    return code


def _without_landlock(jail: Jail) -> Jail:
    """In a view the rules of Landlock would part a visitor from the task: it could neither see nor signal it."""
    if not jail.view:
        return jail
    return msgspec.structs.replace(jail, landlock_read=(), landlock_write=())


def _exec_command(order: EnterOrder, entries: list[int], std: tuple[int, int, int]) -> None:
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        for fd in entries:
            os.write(fd, b"0")
        for number, fd in enumerate(std):
            os.dup2(fd, number)
        kernel.close_all_but()
        if order.tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        confine(_without_landlock(order.jail))
        # A change of user takes that word back.
        kernel.die_with_parent(signal.SIGKILL)
        os.chdir(order.work_dir)
        run_program(order.argv, order.env)
    except (OSError, StageFailed) as err:
        with contextlib.suppress(OSError):
            text = str(err) if isinstance(err, StageFailed) else (err.strerror or str(err))
            os.write(2, f"{text}\r\n".encode())
    os._exit(127)
