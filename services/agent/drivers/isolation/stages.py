"""From an order to a running task: three processes, each with one duty.

    starter ─fork→ keeper ─fork→ init ─fork→ task

The keeper is outside: it waits for init, kills what is left, takes the cgroups away. Init is pid 1 of the task's
namespaces: it reaps orphans, writes the task's exit where every life of the agent finds it, and ends, at which the
kernel kills whatever else is in there. The task does all the rest: it makes its cgroups and its view, claims its run
(`process/run_record.py`), gives up its rights, and executes the command. So a killed agent or keeper loses nothing, and
a killed init ends its task. A task of raw_exec has one process for both, which adopts the task's orphans and ends them
with it: a session of their own is not a way out. Keeper and init are forks of the starter that touch as little as they
can while the task runs: they do not even read the order before it has ended.

Decides the order of these steps. Every function here ends its process.
"""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Sequence

from services.agent.drivers.isolation import (
    cgroups,
    descendants,
    ending,
    kernel,
    landlock,
    mount_view,
    seccomp,
)
from services.agent.drivers.isolation.starter_protocol import ORDER_DECODER, Jail, StartOrder
from services.agent.safe_open import open_log

#: Exit codes of a shell for a command that cannot be executed, and one that is not found.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
#: Errors that another try would meet again.
_FINAL = (1, 2, 7, 8, 13, 20, 22, 36, 40)


class StageFailed(Exception):
    """A step did not work; `again`: it may the next time."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def run_keeper(order_fd: int, tell: int, namespaces: int) -> None:
    """Be the keeper of a run; never returns."""
    os.setsid()
    kernel.set_process_name("caravan-keep")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended = ending.Ended(code=NOT_EXECUTABLE)
    try:
        kernel.unshare(namespaces)
        child = os.fork()
        if child == 0:
            _run_init(order_fd, tell)
        os.close(tell)
        tell = -1
        ended = ending.ended_by(os.waitpid(child, 0)[1])
    except OSError as err:
        _report_error(tell, err)
    order = _read(order_fd)
    if order.groups is not None:
        cgroups.CgroupTree(order.groups.found, order.groups.parent).end(order.groups.name)
    # Init was killed before it could write: the kernel has killed the task with it.
    with contextlib.suppress(OSError):
        if ending.is_claimed(f"{order.directory}/proc", order.kernel_boot):
            ending.write_exit(order.directory, ended)
    os._exit(0)


def run_plain(order_fd: int, tell: int) -> None:
    """Be keeper and init in one of a run without namespaces and cgroups; never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _run_init(order_fd, tell)


def _read(order_fd: int) -> StartOrder:
    """Read the order again: it is not kept in memory while the task runs."""
    found = ORDER_DECODER.decode(os.pread(order_fd, os.fstat(order_fd).st_size, 0))
    assert isinstance(found, StartOrder)
    return found


def _run_init(order_fd: int, tell: int) -> None:
    """Be pid 1 of a run."""
    kernel.set_process_name("caravan-init")
    code = NOT_EXECUTABLE
    try:
        if os.getpid() != 1:
            descendants.adopt_orphans()
        child = os.fork()
        if child == 0:
            _run_task(_read(order_fd), tell)
        os.close(tell)
        tell = -1
        ended = ending.reap(child)
        code = ended.code
        order = _read(order_fd)
        ended = ending.explain(order, ended)
        if ending.is_claimed(f"{order.directory}/proc", order.kernel_boot):
            ending.write_exit(order.directory, ended)
    except OSError as err:
        _report_error(tell, err)
    os._exit(code)


def _run_task(order: StartOrder, tell: int) -> None:
    """Become the task."""
    try:
        os.setsid()
        helper = _join(order)
        lines = _lineage(order)
        run = os.open(order.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        std = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        std += [_output(order, path) for path in (order.stdout, order.stderr)]
        _prepare_namespaces(order)
        _await_helper(helper)
        _claim(run, lines)
        for number, fd in enumerate(std):
            os.dup2(fd, number)
        kernel.close_all_but(tell)
        confine(order.jail)
        os.chdir(order.work_dir)
        os.write(tell, b"alive\n")
        run_program(order.argv, order.env)
    except (OSError, StageFailed) as err:
        _report_error(tell, err)
    os._exit(NOT_FOUND)


def _prepare_namespaces(order: StartOrder) -> None:
    """Make what is the task's alone: its network's loopback, its host name, its view."""
    jail = order.jail
    if jail.network:
        _enter_network(jail.network)
    elif jail.namespaces & kernel.CLONE_NEWNET:
        kernel.raise_loopback()
    if jail.namespaces & kernel.CLONE_NEWUTS and jail.hostname:
        kernel.libc.sethostname(jail.hostname.encode(), len(jail.hostname))
    if jail.view:
        mount_view.build_view(
            top=order.top,
            task=order.task,
            shared=order.shared,
            shown=jail.shown,
            devices=order.devices,
            volumes=jail.volumes,
            receiving=jail.receiving,
            etc=jail.etc,
        )


def _enter_network(path: str) -> None:
    """Enter the network namespace of the group. Raises StageFailed where it is not there (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.setns(fd, kernel.CLONE_NEWNET)
        finally:
            os.close(fd)
    except OSError as err:
        raise StageFailed(f"network of the group: {err.strerror}", again=True) from err


def _join(order: StartOrder) -> int:
    """Create the run's cgroups, and let a helper join this process to them. Returns its pid; 0: there are none.

    Joining waits for the kernel's other cores; the view is built meanwhile.
    """
    if order.groups is None:
        return 0
    groups = cgroups.CgroupTree(order.groups.found, order.groups.parent)
    if order.jail.plain:
        # It has no limits to keep, and init ends what it starts in any case.
        with contextlib.suppress(OSError):
            groups.make(order.groups.name, order.groups.limits)
            for path in order.jail.cgroup_entries:
                cgroups.join(path, 0)
        return 0
    groups.make(order.groups.name, order.groups.limits)
    me = os.getpid()
    helper = os.fork()
    if helper:
        return helper
    code = 1
    with contextlib.suppress(OSError):
        for path in order.jail.cgroup_entries:
            cgroups.join(path, me)
        code = 0
    os._exit(code)


def _await_helper(helper: int) -> None:
    if helper and os.waitpid(helper, 0)[1]:
        raise OSError(5, "cannot join its cgroups")


def _lineage(order: StartOrder) -> list[str]:
    """The content of a claim: kernel boot, and the stat of keeper, task and init, with pids of the node."""
    me = ending.line_of("/proc/self/stat")
    init = ending.line_of(f"/proc/{parse_parent(me)}/stat")
    keeper = init if order.jail.plain else ending.line_of(f"/proc/{parse_parent(init)}/stat")
    return [order.kernel_boot, keeper, me, init]


def parse_parent(stat: str) -> int:
    """Read the parent's pid out of a line of /proc/<pid>/stat."""
    return int(stat.rpartition(") ")[2].split()[1])


def _claim(run: int, lines: Sequence[str]) -> None:
    """Claim the run, with room for the record of its end. Raises FileExistsError when the run was voided."""
    ending.reserve_exit(run)
    fd = os.open("proc", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=run)
    os.write(fd, "".join(f"{line}\n" for line in lines).encode())
    os.close(fd)


def confine(jail: Jail) -> None:
    """Drop rights and privileges, in the only order that works. Raises OSError."""
    for number, limits in sorted(jail.rlimits.items()):
        _limit(number, *limits)
    if jail.plain:
        return
    kernel.limit_capabilities(jail.capabilities)
    if os.getuid() == 0:
        os.setgroups(jail.groups)
        os.setresgid(jail.gid, jail.gid, jail.gid)
        if jail.capabilities:
            kernel.keep_capabilities()
        os.setresuid(jail.uid, jail.uid, jail.uid)
        kernel.set_capabilities(jail.capabilities, ambient=True)
    if jail.no_new_privileges:
        kernel.no_new_privileges()
    if jail.landlock_read or jail.landlock_write:
        landlock.restrict(
            read=(*jail.landlock_read, "/proc/self"), write=jail.landlock_write, opened=(1, 2)
        )
    if jail.seccomp:
        seccomp.restrict()
    os.umask(0o022)


def _limit(number: int, soft: int, hard: int) -> None:
    try:
        resource.setrlimit(number, (soft, hard))
    except ValueError:
        # Root may not raise it everywhere: use the maximum.
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (min(soft, most), min(hard, most)))


def run_program(argv: tuple[bytes, ...], env: tuple[bytes, ...]) -> None:
    """Execute a command, found as a shell would. Returns never, or raises Failed."""
    for number in range(1, signal.NSIG):
        # Python ignores some signals; what is executed would continue ignoring them.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    # No descriptor of the agent stays open in the task.
    kernel.close_on_exec()
    variables = dict(line.split(b"=", 1) for line in env)
    command = os.fsdecode(argv[0])
    places = [argv[0]]
    if b"/" not in argv[0]:
        parts = variables.get(b"PATH", b"").split(b":")
        places = [(part or b".") + b"/" + argv[0] for part in parts]
    worst = OSError(errno.ENOENT, "")
    for place in places:
        try:
            os.execve(place, argv, variables)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as err:
            worst = err
    again = worst.errno not in _FINAL
    if worst.errno == errno.ENOENT:
        raise StageFailed(f"command {command!r} not found on this node", again=again)
    raise StageFailed(f"command {command!r} cannot be executed: {worst.strerror}", again=again)


def _output(order: StartOrder, path: str) -> int:
    if not path:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    if order.jail.plain:
        return open_log(order.top, path)
    fd = open_log(order.top, path, 0o666)
    # The task may open it again as /dev/stdout.
    os.fchmod(fd, 0o666)
    return fd


def _report_error(tell: int, err: Exception) -> None:
    if tell < 0:
        return
    if isinstance(err, StageFailed):
        again, reason = err.again, str(err)
    elif isinstance(err, OSError):
        again, reason = err.errno not in _FINAL, err.strerror or str(err)
        reason += f": {err.filename}" if err.filename else ""
    else:
        again, reason = True, repr(err)
    with contextlib.suppress(OSError):
        os.write(tell, f"error {int(again)} {reason}\n".encode())


def close_standard_streams() -> None:
    """Replace the standard descriptors of the starter: its socket and unused outputs."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number, inheritable=False)
    if null > 2:
        os.close(null)


def report_crash(tell: int, err: BaseException) -> None:
    """Report an unexpected error, and exit."""
    with contextlib.suppress(OSError):
        os.write(tell, f"error 1 {err!r}\n".encode())
    os._exit(NOT_EXECUTABLE)
