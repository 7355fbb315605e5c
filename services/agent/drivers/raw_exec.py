"""raw_exec: a task is a plain process of the agent's own user, with no isolation. Off unless the operator allows it.

Decides what a task's command, environment and directories are. How it is kept is `watcher.py`'s matter.
"""

import asyncio
import os
import pwd
import resource
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from services.agent.drivers import watcher
from services.agent.drivers.beside import order_beside, refuse_faults
from services.agent.drivers.driver import Exit, Gone, Output, Run, StartRefused, Usage
from services.agent.drivers.process import alive, ended, kill_session, send_signal, usage
from services.agent.drivers.sessions import Session, open_session
from services.agent.drivers.starting import Starter
from services.agent.drivers.watcher import Command, Watched
from services.agent.environment import interpolate, interpolate_json
from shared.core.tasks import TaskLaunch
from shared.jobspec.drivers.exec import ExecOptions, read_raw_exec

#: What a task inherits of the agent's environment; the rest may hold secrets of the agent.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL")
_NOWHERE = Path(os.devnull)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RawExec:
    """The driver."""

    name = "raw_exec"

    def __init__(self, *, kernel_boot: str, threads: int = 4) -> None:
        self._kernel_boot = kernel_boot
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="raw_exec")
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._script = watcher.watcher_script()
        #: begun with the first command beside a task.
        self._starter = Starter()

    def fingerprint(self) -> dict[str, str]:
        """Usable where /proc is; the constructor has found the programs."""
        return {"driver.raw_exec": "1"} if Path("/proc/self/stat").exists() else {}

    async def start(self, run: Run, launch: TaskLaunch) -> Watched:
        """Start a run, in a thread: it takes a few forks."""
        loop = asyncio.get_running_loop()
        child = await loop.run_in_executor(self._pool, self._begin, run, launch)
        return await watcher.came_alive(_directory(run), child, self._kernel_boot)

    async def recover(self, run: Run) -> Watched | Exit | Gone:
        """Find a run of an earlier life, or make sure that it never begins."""
        directory = _directory(run)
        for _ in range(200):
            found = watcher.void(directory, self._kernel_boot)
            if found is not None:
                return found
            # Claimed this very moment: its first lines are being written.
            await asyncio.sleep(0.01)
        return Gone(started=True, reason="its start was never finished")

    async def wait(self, handle: Watched) -> Exit:
        """Wait for the watcher, or for the task itself when somebody killed the watcher."""
        await ended(handle.watcher)
        code = watcher.reap(handle.child)
        found = watcher.read_exit(handle.directory)
        if found is not None:
            return found
        if alive(handle.process):
            await ended(handle.process)
        kill_session(handle.process)
        if code >= 0:
            return watcher.exit_of(code)
        return Exit(code=None, reason="exit code unknown, its watcher was killed")

    async def signal(self, handle: Watched, name: str) -> None:
        """Signal the task's group."""
        send_signal(handle.process, name)

    async def stop(self, handle: Watched) -> None:
        """Kill the task's group; what is left of it the watcher kills."""
        send_signal(handle.process, "SIGKILL")

    async def abandon(self, run: Run) -> None:
        """Void a start that took too long, or end what became of it."""
        found = await self.recover(run)
        if isinstance(found, Watched):
            kill_session(found.process)
            await ended(found.watcher)

    async def leave(self, run: Run) -> None:
        """Note that a run ends because its agent does: its next start is free."""
        (_directory(run) / "left").touch()

    async def exec(self, handle: Watched, command: tuple[str, ...], timeout_s: float) -> Output:
        """Run a command in the task's environment and directory."""
        session = await self.exec_stream(handle, command, tty=False)
        return await session.output(timeout_s)

    async def exec_stream(self, handle: Watched, command: tuple[str, ...], *, tty: bool) -> Session:
        """Run a command in the task's environment and directory, with its streams. Raises StartRefused."""
        return await open_session(self._starter, order_beside(handle.process, command, tty=tty))

    async def stats(self, handle: Watched) -> Usage:
        """Processor time and memory of the task's own process."""
        cpu_ns, memory_bytes = usage(handle.process)
        return Usage(cpu_ns=cpu_ns, memory_bytes=memory_bytes)

    def close(self) -> None:
        """Let go of the threads and the starter; tasks run on."""
        self._starter.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- in a thread ----

    def _begin(self, run: Run, launch: TaskLaunch) -> subprocess.Popen[bytes]:
        _check_user(launch.user)
        places = run.places
        found = places.variables()
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}
        env = {"PATH": _DEFAULT_PATH, **env, **found, **launch.env}
        env = {name: interpolate(text, found) for name, text in env.items()}
        config = _config(launch, env)
        directory = _directory(run)
        _make(run, directory)
        command = Command(
            argv=(_resolve(config.command, env, places.task), *config.args),
            env=env,
            directory=places.task / config.work_dir,
            stdout=_NOWHERE if launch.logs.disabled else places.stdout,
            stderr=_NOWHERE if launch.logs.disabled else places.stderr,
        )
        return watcher.begin(
            self._script,
            directory,
            command,
            kernel_boot=self._kernel_boot,
            open_files=self._open_files,
        )


def _directory(run: Run) -> Path:
    return run.places.runs / str(run.number)


def _make(run: Run, directory: Path) -> None:
    """Make what a start needs; of earlier runs only the last is kept."""
    places = run.places
    try:
        for path in (*places.directories(), directory):
            path.mkdir(parents=True, exist_ok=True)
        (places.task / "secrets").chmod(0o700)
        for old in places.runs.iterdir():
            if old.name.isdigit() and int(old.name) < run.number - 1:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as err:
        raise StartRefused(f"directories cannot be made: {err}", recoverable=True) from err


def _config(launch: TaskLaunch, env: dict[str, str]) -> ExecOptions:
    """Read the options. Raises StartRefused, and names the nearest known option for an unknown one."""
    given = interpolate_json(msgspec.json.decode(launch.config), env)
    if not isinstance(given, dict):
        raise StartRefused("raw_exec: its options are no map", recoverable=False)
    options, faults = read_raw_exec(given)
    refuse_faults("raw_exec", faults)
    if any("\0" in text for text in (*env, *env.values())):
        raise StartRefused("the environment holds no NUL", recoverable=False)
    return options


def _resolve(command: str, env: dict[str, str], directory: Path) -> str:
    """Find the program: a path, or a name in the task's PATH. Raises StartRefused when there is none."""
    if "/" in command:
        path = directory / command
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
    else:
        found = shutil.which(command, path=env.get("PATH", "")) if command else None
    if found is None:
        raise StartRefused(f"command {command!r} is no program here", recoverable=False)
    return found


def _check_user(user: str) -> None:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    if user not in ("", name):
        raise StartRefused(
            f"raw_exec runs tasks as {name}, the agent's user, not as {user!r}", recoverable=False
        )
