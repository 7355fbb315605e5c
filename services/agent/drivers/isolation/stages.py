"""From an order to a running task: three processes, each with one duty.

    starter ─fork→ keeper ─fork→ init ─fork→ task

The keeper stands outside: it waits for init, kills what is left, takes the cgroups away. Init is pid 1 of the task's
namespaces: it reaps orphans, writes the task's exit where every life of the agent finds it, and ends, at which the
kernel kills whatever else is in there. The task does all the rest: it makes its cgroups and its view, claims its run
(see `watcher.py`: the same files), gives up its rights, and executes the command. So a killed agent or keeper loses
nothing, and a killed init ends its task. Keeper and init are forks of the starter that touch as little as they can
while the task runs: they do not even read the order before it has ended.

Decides the order of these steps. Every function here ends its process.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Sequence

from services.agent.drivers.isolation import cgroups, kernel, landlock, network, seccomp, view
from services.agent.drivers.isolation.orders import DECODER, Jail, Start
from services.agent.drivers.outputs import open_log

#: Exit codes of a shell for a command that cannot be executed, and one that is not found.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
_SIGNAL_BASE = 128
#: Errors that another try would meet again.
_FINAL = (1, 2, 7, 8, 13, 20, 22, 36, 40)


class Failed(Exception):
    """A step did not work; `again`: it may the next time."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def keep(order_fd: int, tell: int, namespaces: int) -> None:
    """Be the keeper of a run; never returns."""
    os.setsid()
    kernel.call_me("caravan-keep")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = NOT_EXECUTABLE
    try:
        kernel.unshare(namespaces)
        child = os.fork()
        if child == 0:
            _init(order_fd, tell)
        os.close(tell)
        tell = -1
        code = _code(os.waitpid(child, 0)[1])
    except OSError as err:
        _say(tell, err)
    order = _read(order_fd)
    if order.groups is not None:
        cgroups.Groups(order.groups.found, order.groups.parent).end(order.groups.name)
    # Init was killed before it could write: the kernel has killed the task with it.
    with contextlib.suppress(OSError):
        if _claimed(f"{order.directory}/proc", order.kernel_boot):
            write_exit(order.directory, code, "")
    os._exit(0)


def _read(order_fd: int) -> Start:
    """Read the order, which nobody needs in memory while the task runs."""
    found = DECODER.decode(os.pread(order_fd, os.fstat(order_fd).st_size, 0))
    assert isinstance(found, Start)
    return found


def _init(order_fd: int, tell: int) -> None:
    """Be pid 1 of a run."""
    kernel.call_me("caravan-init")
    code = NOT_EXECUTABLE
    try:
        child = os.fork()
        if child == 0:
            _task(_read(order_fd), tell)
        os.close(tell)
        tell = -1
        code = _reap(child)
        order = _read(order_fd)
        if _claimed(f"{order.directory}/proc", order.kernel_boot):
            write_exit(order.directory, code, _out_of_memory(order, code))
    except OSError as err:
        _say(tell, err)
    os._exit(code if code < _SIGNAL_BASE else NOT_EXECUTABLE)


def _out_of_memory(order: Start, code: int) -> str:
    """Say that the kernel killed for lack of memory; empty: it did not."""
    groups = order.groups
    if groups is None:
        return ""
    try:
        path = cgroups.Groups(groups.found, groups.parent).oom_file(groups.name)
        kills = cgroups.oom_kills(_line_of(path)) if path else 0
    except OSError:
        return ""
    if not kills:
        return ""
    whom = "it" if code == _SIGNAL_BASE + signal.SIGKILL else "a process of it"
    return f"out of memory: the kernel killed {whom} at its limit of {groups.limits.memory_hard_mib} MiB"


def _reap(task: int) -> int:
    """Wait for the task, and bury whoever else ends meanwhile. Returns a shell's exit code."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == task:
            return _code(status)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _SIGNAL_BASE - code


def _task(order: Start, tell: int) -> None:
    """Become the task."""
    try:
        os.setsid()
        helper = _join(order)
        lines = _lineage(order.kernel_boot)
        run = os.open(order.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        std = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        std += [_output(order, path) for path in (order.stdout, order.stderr)]
        _settle(order)
        _await_helper(helper)
        _claim(run, lines)
        for number, fd in enumerate(std):
            os.dup2(fd, number)
        confine(order.jail)
        os.chdir(order.work_dir)
        os.write(tell, b"alive\n")
        run_program(order.argv, order.env)
    except (OSError, Failed) as err:
        _say(tell, err)
    os._exit(NOT_FOUND)


def _settle(order: Start) -> None:
    """Make what is the task's alone: its network's loopback, its host name, its view."""
    jail = order.jail
    if jail.namespaces & kernel.CLONE_NEWNET:
        network.raise_loopback()
    if jail.namespaces & kernel.CLONE_NEWUTS and jail.hostname:
        kernel.libc.sethostname(jail.hostname.encode(), len(jail.hostname))
    if jail.view:
        view.build(
            top=order.top,
            task=order.task,
            shared=order.shared,
            shown=jail.shown,
            devices=order.devices,
        )


def _join(order: Start) -> int:
    """Make the run's cgroups, and let a helper join this process to them. Returns its pid; 0: there are none.

    Joining waits for the kernel's other cores; the view is built meanwhile.
    """
    if order.groups is None:
        return 0
    groups = cgroups.Groups(order.groups.found, order.groups.parent)
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
        raise OSError(5, "its cgroups cannot be joined")


def _lineage(kernel_boot: str) -> list[str]:
    """What a claim says: kernel boot, and the stat of keeper, task and init, in the numbers of the node."""
    me = _line_of("/proc/self/stat")
    init = _line_of(f"/proc/{parse_parent(me)}/stat")
    keeper = _line_of(f"/proc/{parse_parent(init)}/stat")
    return [kernel_boot, keeper, me, init]


def parse_parent(stat: str) -> int:
    """Read the parent's pid out of a line of /proc/<pid>/stat."""
    return int(stat.rpartition(") ")[2].split()[1])


def _claim(run: int, lines: Sequence[str]) -> None:
    """Take the right to begin, once. Raises FileExistsError when somebody voided the run."""
    fd = os.open("proc", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=run)
    os.write(fd, "".join(f"{line}\n" for line in lines).encode())
    os.close(fd)


def confine(jail: Jail) -> None:
    """Give up what the task shall not have, in the one order that works. Raises OSError."""
    if jail.plain:
        return
    for number, limits in sorted(jail.rlimits.items()):
        _limit(number, *limits)
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
        # Not even root may raise it everywhere: as much as there is.
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (min(soft, most), min(hard, most)))


def run_program(argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Execute a command, found as a shell would. Returns never, or raises Failed."""
    for number in range(1, signal.NSIG):
        # Python ignores some signals; what is executed would go on ignoring them.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    # Nothing of ours is open in the task, however it was made.
    kernel.close_on_exec()
    command = argv[0]
    places = [command]
    if "/" not in command:
        places = [f"{part or '.'}/{command}" for part in env.get("PATH", "").split(":")]
    worst = OSError(2, "not found")
    for place in places:
        try:
            os.execve(place, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as err:
            worst = err
    again = worst.errno not in _FINAL
    raise Failed(f"command {command!r} is no program here: {worst.strerror}", again=again)


def _output(order: Start, path: str) -> int:
    if not path:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    directory = view.open_below(order.top, os.path.dirname(path))
    try:
        fd = open_log(os.path.basename(path), directory, 0o666)
    finally:
        os.close(directory)
    # The task may open it again as /dev/stdout; whoever can reach it can write here.
    os.fchmod(fd, 0o666)
    return fd


def write_exit(directory: str, code: int, reason: str) -> None:
    """Write how a run ended, once: who comes later says nothing."""
    if os.path.exists(f"{directory}/exit"):
        return
    fresh = f"{directory}/exit.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    out = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(out, f"{code}\n{reason}\n".encode())
    os.fsync(out)
    os.close(out)
    os.rename(fresh, f"{directory}/exit")


def _line_of(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace").strip()
    finally:
        os.close(fd)


def _claimed(path: str, boot: str) -> bool:
    """Say whether the run began; what was voided before never did."""
    try:
        return _line_of(path).splitlines()[0] == boot
    except FileNotFoundError:
        return False


def _say(tell: int, err: Exception) -> None:
    if tell < 0:
        return
    if isinstance(err, Failed):
        again, reason = err.again, str(err)
    elif isinstance(err, OSError):
        again, reason = err.errno not in _FINAL, err.strerror or str(err)
        reason += f": {err.filename}" if err.filename else ""
    else:
        again, reason = True, repr(err)
    with contextlib.suppress(OSError):
        os.write(tell, f"error {int(again)} {reason}\n".encode())


def nothing_open() -> None:
    """Let go of what the starter has as its first three: its socket, and words that nobody hears."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number, inheritable=False)
    if null > 2:
        os.close(null)


def fail_loudly(tell: int, err: BaseException) -> None:
    """Say what nobody expected, and end."""
    with contextlib.suppress(OSError):
        os.write(tell, f"error 1 {err!r}\n".encode())
    os._exit(NOT_EXECUTABLE)
