"""How a plain process is started so that it outlives the agent, and its end is known whoever watches.

A small shell, the watcher, leads one session and starts the task in another; the task's session is the group that is
signalled. The watcher waits, kills what the task left in its group, and writes the exit code before it ends with it.
Rejected: no watcher (an exit while the agent is away is lost), a watcher in Python (8 MiB a task).

In `runs/<alloc>/<task>/<number>/` stand
- `proc`, made once and never replaced: kernel boot, the watcher's and the task's line of /proc/<pid>/stat. Making it is
  the claim: either the run began, or somebody voided it first and it never will begin;
- `exit`: the exit code, a shell's 128 + signal for a signal, renamed into place;
- `left`: the run was ended because its agent ended, so the next life starts it again at no charge.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec

from services.agent.drivers.driver import Exit, Gone, StartRefused
from services.agent.drivers.outputs import open_log
from services.agent.drivers.process import Process, alive, exists, kill_session, parse_stat
from shared.errors import ConfigInvalid

#: A start that has not said its pid by then is given up.
START_TIMEOUT_S = 10.0
_VOID = "void"
_SIGNAL_BASE = 128

#: $0 run directory; then kernel boot, watcher's stat, limit of open files, command and arguments.
#: Output is open already; input is the pipe that tells.
_TASK = r"""
read -r me < /proc/$$/stat
set -C
printf '%s\n%s\n%s\n' "$1" "$2" "$me" > "$0/proc" 2> /dev/null || exit 125
set +C
(echo "$me" >&0)
exec < /dev/null
ulimit -Sn "$3"
shift 3
exec "$@"
"""
#: $1 the text above, $2 run directory, $3 kernel boot; then as above. Programs stand with their full path: PATH is
#: the task's own.
_WATCHER = r"""
read -r me < /proc/$$/stat
task=$1 run=$2 boot=$3
shift 3
exec 3>&2 2> /dev/null
@setsid -- /bin/sh -c "$task" "$run" "$boot" "$me" "$@" 2>&3 3>&-
code=$?
exec < /dev/null >&- 3>&-
{ read -r boot; read -r me; read -r pid rest; } < "$run/proc" && kill -s KILL -- "-$pid"
echo "$code" > "$run/exit.new" && @sync "$run/exit.new"
@mv "$run/exit.new" "$run/exit"
exit "$code"
"""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, where, and where its output goes."""

    argv: tuple[str, ...]
    env: dict[str, str]
    directory: Path
    stdout: Path
    stderr: Path


class Watched(msgspec.Struct, kw_only=True):
    """A live run: its watcher and itself."""

    directory: Path
    watcher: Process
    process: Process
    #: the watcher's pid where it is our child, and must be reaped; else 0.
    child: int = 0

    @property
    def pid(self) -> int:
        """Process id of the task."""
        return self.process.pid


def watcher_script() -> str:
    """The watcher with full paths. Raises ConfigInvalid when this machine lacks one of its programs."""
    script = _WATCHER
    for program in ("setsid", "sync", "mv"):
        path = shutil.which(program)
        if path is None:
            raise ConfigInvalid(f"raw_exec needs the program {program}")
        script = script.replace(f"@{program}", path)
    return script


def begin(
    script: str, directory: Path, command: Command, *, kernel_boot: str, open_files: int
) -> subprocess.Popen[bytes]:
    """Start a watcher; `directory` is the run's own. Its stdout tells when the task is alive: `came_alive`.

    Raises StartRefused; then nothing was started.
    """
    argv = ["/bin/sh", "-c", script, "caravan-watch", _TASK, str(directory), kernel_boot]
    argv += [str(open_files), *command.argv]
    told, tell = os.pipe()
    opened = [tell]
    try:
        opened += [_open(command.stdout)]
        opened += [_open(command.stderr)]
        child = subprocess.Popen(
            argv,
            cwd=command.directory,
            env=command.env,
            stdin=tell,
            stdout=opened[1],
            stderr=opened[2],
            start_new_session=True,
        )
    except (OSError, ValueError) as err:
        os.close(told)
        # ValueError: a variable's name holds "=", which no retry mends; EINVAL: a log is no plain file.
        again = isinstance(err, OSError) and err.errno != errno.EINVAL
        raise StartRefused(f"cannot be started: {err}", recoverable=again) from err
    finally:
        for fd in opened:
            os.close(fd)
    # It is reaped by pid when it has ended, in this life or by init: Popen shall neither wait nor warn.
    child.returncode = 0
    child.stdout = os.fdopen(told, "rb", buffering=0)
    return child


def _open(path: Path) -> int:
    if path == Path(os.devnull):
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return open_log(path.name, directory, 0o644)
    finally:
        os.close(directory)


async def came_alive(directory: Path, child: subprocess.Popen[bytes], kernel_boot: str) -> Watched:
    """Wait until a task is alive. Raises StartRefused; then nothing of it is, nor will be."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await _first_line(child)
        reason = "it ended before it began"
    except TimeoutError:
        line, reason = b"", f"hung for {START_TIMEOUT_S:g} s"
    found = find(directory, kernel_boot) if line else None
    if isinstance(found, Exit):
        # It was quicker than we: the watcher's own end is still to come, or just over.
        lines = (directory / "proc").read_text().splitlines()
        watcher, task = parse_stat(lines[1])[0], parse_stat(lines[2])[0]
        found = Watched(directory=directory, watcher=watcher, process=task)
    if isinstance(found, Watched):
        found.child = child.pid
        return found
    await asyncio.to_thread(_give_up, directory, child.pid, kernel_boot)
    raise StartRefused(f"did not come alive: {reason}", recoverable=True)


async def _first_line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    with child.stdout as pipe:
        loop.add_reader(pipe.fileno(), told.set)
        try:
            await told.wait()
        finally:
            loop.remove_reader(pipe.fileno())
        # One short line, written at once: what can be read is all of it, or the end.
        return os.read(pipe.fileno(), 4096)


def _give_up(directory: Path, child: int, kernel_boot: str) -> None:
    found = void(directory, kernel_boot)
    if isinstance(found, Watched):
        kill_session(found.process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    reap(child)


def reap(child: int) -> int:
    """Reap a watcher that has ended. Returns its exit code; -1: it was killed, or is none of ours."""
    if not child:
        return -1
    try:
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -1)
    except ChildProcessError:
        return -1


def find(directory: Path, kernel_boot: str) -> Watched | Exit | Gone | None:
    """Look for a run that claimed its directory. None: no claim, or one that is being written."""
    ended = read_exit(directory)
    if ended is not None:
        return ended
    try:
        lines = (directory / "proc").read_text().splitlines()
    except FileNotFoundError:
        return None
    if lines == [_VOID]:
        return Gone(started=False)
    if len(lines) < 3:
        return None
    if lines[0] != kernel_boot:
        return Gone(started=True, reason="the machine was restarted")
    watcher, process = parse_stat(lines[1])[0], parse_stat(lines[2])[0]
    if exists(watcher) or alive(process):
        return Watched(directory=directory, watcher=watcher, process=process)
    # It may have ended since the first look.
    reason = "it ended while nobody watched, and so did its watcher"
    return read_exit(directory) or Gone(started=True, reason=reason)


def void(directory: Path, kernel_boot: str) -> Watched | Exit | Gone | None:
    """Claim a run's directory so that it never begins; or find what claimed it before."""
    if (directory / "left").exists():
        return Gone(started=False)
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (directory / "proc").open("x") as file:
        file.write(f"{_VOID}\n")
    return find(directory, kernel_boot)


def read_exit(directory: Path) -> Exit | None:
    """Read the end that a watcher wrote; None: it has not."""
    try:
        text = (directory / "exit").read_text()
    except FileNotFoundError:
        return None
    code, _, reason = text.partition("\n")
    if not code.isdigit():
        return Exit(code=None, reason="unreadable")
    return exit_of(int(code), reason.strip())


def exit_of(code: int, reason: str = "") -> Exit:
    """Read a shell's exit code: above 128 it names a signal."""
    number = code - _SIGNAL_BASE
    return Exit(code=code, signal=number if 0 < number < signal.NSIG else 0, reason=reason)
