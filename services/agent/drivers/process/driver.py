"""What all drivers of processes do alike: start through the starter, adopt, wait, signal, end, run commands beside.

A subclass decides the order of a start: command, user, view and limits. Processes and their records:
`isolation/stages.py`, `run_record.py`. Rejected: the agent as parent (an exit while it is away is lost), a process of
its own beside each task (8 MiB; a fork of the starter has a quarter).
"""

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from services.agent.drivers.driver import (
    DriverRun,
    StartRefused,
    TaskExit,
    TaskMissing,
    TaskUsage,
    record_signal,
)
from services.agent.drivers.isolation.cgroups import CgroupTree
from services.agent.drivers.isolation.starter_protocol import (
    EnterOrder,
    Jail,
    StartOrder,
    encode_arguments,
)
from services.agent.drivers.process.exec_session import ProcessSession, open_session
from services.agent.drivers.process.os_process import (
    has_pid,
    is_alive,
    kill_session,
    process_usage,
    send_signal,
    wait_for_end,
)
from services.agent.drivers.process.run_record import (
    ProcessRun,
    find_run,
    group_name,
    read_claim,
    read_exit,
    void_run,
)
from services.agent.drivers.process.starter_client import StarterClient
from shared.signal_names import signal_number

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessDriver:
    """Base of raw_exec and exec."""

    #: at every end, kill processes that left the task's group but not its session.
    kills_session = False

    def __init__(self, *, kernel_boot: str, starter: StarterClient | None = None) -> None:
        self._kernel_boot = kernel_boot
        #: cgroups of the runs; None: this node gives none.
        self.groups: CgroupTree | None = None
        self.starter = starter or StarterClient()

    async def start_order(self, run: DriverRun, order: StartOrder) -> ProcessRun:
        """Start a run; returns when its command is being executed. Raises StartRefused."""
        try:
            await self.starter.start(order)
        except StartRefused:
            await self.abandon(run)
            raise
        found = find_run(run.directory, self._kernel_boot)
        if not isinstance(found, ProcessRun):
            # The task has ended already; its keeper may still be ending.
            found = read_claim(run.directory)
        if found is None:
            raise StartRefused("claim file cannot be read", recoverable=True)
        return found

    async def recover(self, run: DriverRun) -> ProcessRun | TaskExit | TaskMissing:
        """Find a run of an earlier agent process, or make sure that it never begins."""
        for _ in range(200):
            found = void_run(run.directory, self._kernel_boot)
            if found is None:
                # The claim is being written.
                await asyncio.sleep(0.01)
                continue
            if isinstance(found, TaskExit) and (last := read_claim(run.directory)):
                for process in (last.keeper, last.init):
                    if is_alive(process):
                        await wait_for_end(process)
            if not isinstance(found, ProcessRun):
                await self.clean(run.directory)
            return found
        return TaskMissing(started=True, reason="start was interrupted and never completed")

    async def wait(self, handle: ProcessRun) -> TaskExit:
        """Wait for the keeper, or for init and the task when the keeper was killed; then clean up."""
        await wait_for_end(handle.keeper)
        found = read_exit(handle.directory)
        if found is None or has_pid(handle.init):
            if is_alive(handle.process):
                await wait_for_end(handle.process)
            await wait_for_end(handle.init)
            found = read_exit(handle.directory)
            kill_session(handle.process)
        elif self.kills_session:
            kill_session(handle.process)
        await self.clean(handle.directory)
        if found is not None:
            return found
        reason = "exit code unknown: keeper and init processes were killed"
        if not self.ends_sessions:
            reason += "; its processes with a session of their own may still run"
        return TaskExit(code=None, reason=reason)

    @property
    def ends_sessions(self) -> bool:
        """Return whether all processes of a run end even when its keeper was killed."""
        return self.groups is not None

    async def clean(self, directory: Path) -> None:
        """Kill what is left in the cgroup of a run that has ended, and remove it."""
        name = group_name(directory)
        if self.groups is not None and self.groups.exists(name):
            await asyncio.to_thread(self.groups.end, name)

    async def signal(self, handle: ProcessRun, name: str) -> bool:
        """Signal the task's group, of which some may run when the task itself has ended; then it is False."""
        was_alive = is_alive(handle.process)
        if (number := signal_number(name)) is not None:
            record_signal(handle.directory, number)
        send_signal(handle.process, name)
        return was_alive

    async def stop(self, handle: ProcessRun) -> None:
        """Kill the task's group; init ends with it, and kills what is left."""
        await self.signal(handle, "SIGKILL")
        if not is_alive(handle.process):
            # Init ends by itself unless it is stopped.
            send_signal(handle.init, "SIGCONT")

    async def abandon(self, run: DriverRun) -> None:
        """Void a start that took too long, or end the run."""
        found = await self.recover(run)
        if isinstance(found, ProcessRun):
            await self.stop(found)
            await self.wait(found)

    def jail_of(self, _handle: ProcessRun) -> Jail:
        """Isolation of a live run, for commands beside it. Raises StartRefused."""
        raise NotImplementedError

    async def exec_stream(
        self, handle: ProcessRun, command: tuple[str, ...], *, tty: bool
    ) -> ProcessSession:
        """Run a command in the task's environment, directory and isolation. Raises StartRefused."""
        jail = self.jail_of(handle)
        env, where = _environment_of(handle.pid)
        order = EnterOrder(
            pid=handle.pid,
            start_ticks=handle.process.start_ticks,
            argv=encode_arguments(command),
            env=env,
            work_dir=b"/" if jail.view and not jail.plain else where,
            jail=jail,
            tty=tty,
        )
        return await open_session(self.starter, order)

    async def stats(self, handle: ProcessRun) -> TaskUsage:
        """Processor time and memory of the task's own process."""
        cpu_ns, memory_bytes = process_usage(handle.process)
        return TaskUsage(cpu_ns=cpu_ns, memory_bytes=memory_bytes)

    def close(self) -> None:
        """Release the starter; tasks run on. Without tasks, remove the agent's cgroups."""
        self.starter.close()
        if self.groups is not None:
            self.groups.sweep()
            self.groups.remove()


def _environment_of(pid: int) -> tuple[tuple[bytes, ...], bytes]:
    """Environment and directory of a process. Raises StartRefused when it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
        where = os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
    except OSError as err:
        raise StartRefused("the task has ended", recoverable=False) from err
    return tuple(line for line in text.split(b"\0") if line.find(b"=") > 0), where


def check_environment(texts: Iterable[str], env: dict[str, str]) -> None:
    """Raise StartRefused for what the kernel cannot hand to a program."""
    if any("\0" in text for text in (*texts, *env, *env.values())):
        raise StartRefused("options and environment must not contain NUL bytes", recoverable=False)
    if any("=" in name or not name for name in env):
        raise StartRefused(
            'environment variable names must not be empty or contain "="', recoverable=False
        )


def prune_runs(run: DriverRun) -> None:
    """Delete the records of all earlier runs but the last one."""
    for old in run.places.runs.iterdir():
        if old.name.isdigit() and int(old.name) < run.number - 1:
            shutil.rmtree(old, ignore_errors=True)
