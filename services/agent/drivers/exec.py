"""exec: a task is a process kept apart from its node by what the kernel offers here.

Decides, for one task: who it runs as, what it sees, what it may use; and whether this node may run any. How it is done
is `isolation/stages.py`'s matter; claims and ends are the files of `watcher.py`. Rejected: a runtime beside the agent
(runc: another program to install and to trust), Docker for everything (its start takes ten times as long).
"""

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from services.agent.drivers import watcher
from services.agent.drivers.beside import order_beside, refuse_faults
from services.agent.drivers.driver import Exit, Gone, Output, Run, StartRefused, Usage
from services.agent.drivers.exec_offer import Offer
from services.agent.drivers.exec_settings import ExecSettings, User
from services.agent.drivers.exec_shape import Shape
from services.agent.drivers.isolation import cgroups
from services.agent.drivers.isolation.orders import Jail, Start
from services.agent.drivers.isolation.probe import Found
from services.agent.drivers.process import (
    Process,
    alive,
    ended,
    exists,
    kill_session,
    parse_stat,
    send_signal,
    usage,
)
from services.agent.drivers.sessions import Session, open_session
from services.agent.drivers.starting import Starter, probe
from services.agent.drivers.watcher import Watched
from services.agent.environment import interpolate_json
from shared.core.tasks import TaskLaunch
from shared.jobspec.drivers.exec import ExecOptions, IsolationOptions, read_exec

_JAIL = "jail.json"


class Jailed(msgspec.Struct, kw_only=True):
    """A live run: its keeper and itself (`watched`), and pid 1 of its namespaces."""

    watched: Watched
    init: Process

    @property
    def pid(self) -> int:
        """Process id of the task."""
        return self.watched.process.pid


class Exec:
    """The driver. `home` is the agent's data directory; `found` says what works here, None: find out."""

    name = "exec"

    def __init__(
        self,
        *,
        home: Path,
        kernel_boot: str,
        settings: ExecSettings,
        found: Found | None = None,
        starter: Starter | None = None,
    ) -> None:
        self._home = home
        self._kernel_boot = kernel_boot
        self.settings = settings
        digest = hashlib.sha256(str(home).encode()).hexdigest()[:12]
        self._parent = f"{settings.cgroup_parent}/{digest}"
        self.found = found or probe(self._parent)
        self.starter = starter or Starter()
        self.groups: cgroups.Groups | None = None
        if "cgroups" in self.found.works:
            self.groups = cgroups.Groups(self.found.hierarchies, self._parent)
            self.starter.shelter = tuple(self.groups.entries(cgroups.KEEPERS))
            if found is None:
                # What of earlier lives has no member any more; nothing is started yet.
                self.groups.sweep()
                self.groups.sweep_abandoned()
        self.offer = Offer(settings, self.found)
        self._shape = Shape(home=home, settings=settings, found=self.found)

    def fingerprint(self) -> dict[str, str]:
        """Say what works, in attributes that constraints can name; `driver.exec.off`: why it does not."""
        return self.offer.attributes()

    async def start(self, run: Run, launch: TaskLaunch) -> Jailed:
        """Start a run."""
        options = self._read(launch)
        command = (options.command, *options.args)
        return await self._start_command(run, launch, command, options)

    def _read(self, launch: TaskLaunch) -> ExecOptions:
        options, faults = read_exec(msgspec.json.decode(launch.config))
        refuse_faults(self.name, faults)
        return options

    async def _start_command(
        self,
        run: Run,
        launch: TaskLaunch,
        command: tuple[str, ...],
        options: IsolationOptions,
        *,
        devices: tuple[str, ...] = (),
        shown: tuple[str, ...] = (),
    ) -> Jailed:
        """Start a run of a command that a driver on top of this one made. Raises StartRefused.

        `devices`, `shown`: full paths of the node's that it sees beside what every task does.
        """
        why = self.offer.off() or self.settings.forbids(options)
        if why:
            raise StartRefused(why, recoverable=False)
        order = await asyncio.to_thread(self._order, run, launch, command, options)
        if devices or shown:
            order = _with(order, devices, shown)
        directory = _directory(run)
        try:
            await self.starter.start(order)
        except StartRefused:
            await self._give_up(run)
            raise
        found = _jailed(directory, watcher.find(directory, self._kernel_boot))
        if isinstance(found, Jailed):
            return found
        # It was quicker than we; its keeper's end is still to come, or just over.
        quick = _from_lines(directory)
        if quick is None:
            raise StartRefused("its first lines cannot be read", recoverable=True)
        return quick

    def _order(
        self,
        run: Run,
        launch: TaskLaunch,
        command: tuple[str, ...],
        options: IsolationOptions,
    ) -> Start:
        user = self._user(launch.user)
        directory = _directory(run)
        try:
            self._shape.make_directories(run, directory, user)
        except OSError as err:
            raise StartRefused(f"directories cannot be made: {err}", recoverable=True) from err
        env = self._shape.environment(run, launch, user)
        view = self._shape.variables(run)
        texts = interpolate_json([*command, getattr(options, "work_dir", "")], {**env, **view})
        if any("\0" in text for text in (*texts, *env, *env.values())):
            raise StartRefused("options and environment hold no NUL", recoverable=False)
        if any("=" in name or not name for name in env):
            raise StartRefused("a variable's name holds no =", recoverable=False)
        groups = self._shape.groups_of(run, launch, self.groups)
        jail = self._shape.jail(run, options, launch.network, user=user, groups=groups)
        (directory / _JAIL).write_bytes(msgspec.json.encode(jail))
        return Start(
            directory=str(directory),
            kernel_boot=self._kernel_boot,
            top=str(self._home),
            task=str(run.places.task),
            shared=str(run.places.shared),
            stdout="" if launch.logs.disabled else str(run.places.stdout),
            stderr="" if launch.logs.disabled else str(run.places.stderr),
            devices=launch.device_paths,
            argv=tuple(texts[:-1]),
            env=env,
            work_dir=self._shape.work_dir(run, texts[-1]),
            jail=jail,
            groups=groups,
        )

    def _user(self, name: str) -> User:
        if "user" not in self.found.works:
            if name:
                raise StartRefused(
                    f"tasks run as the agent here, not as {name!r}", recoverable=False
                )
            return User(uid=os.getuid(), gid=os.getgid(), name="", home="/")
        found = self.settings.user_of(name)
        if isinstance(found, str):
            raise StartRefused(found, recoverable=False)
        return found

    async def recover(self, run: Run) -> Jailed | Exit | Gone:
        """Find a run of an earlier life, or make sure that it never begins."""
        directory = _directory(run)
        for _ in range(200):
            found = _jailed(directory, watcher.void(directory, self._kernel_boot))
            if found is None:
                # Claimed this very moment: its first lines are being written.
                await asyncio.sleep(0.01)
                continue
            if isinstance(found, Exit):
                last = _from_lines(directory)
                if last is not None:
                    await _all_ended(last)
            if not isinstance(found, Jailed):
                await self._clean(run)
            return found
        return Gone(started=True, reason="its start was never finished")

    async def wait(self, handle: Jailed) -> Exit:
        """Wait for the keeper; for init and the task when somebody killed that. Leaves nothing behind."""
        await ended(handle.watched.watcher)
        found = watcher.read_exit(handle.watched.directory)
        if found is None or exists(handle.init):
            if alive(handle.watched.process):
                await ended(handle.watched.process)
            await ended(handle.init)
            found = watcher.read_exit(handle.watched.directory)
        kill_session(handle.watched.process)
        await self._clean_group(self._shape.group_name(handle.watched.directory))
        if found is not None:
            return found
        return Exit(code=None, reason="exit code unknown, its keeper and init were killed")

    async def signal(self, handle: Jailed, name: str) -> None:
        """Signal the task's group."""
        send_signal(handle.watched.process, name)

    async def stop(self, handle: Jailed) -> None:
        """Kill the task; init ends with it, and the kernel kills what is left in its namespace."""
        send_signal(handle.watched.process, "SIGKILL")
        if not alive(handle.watched.process):
            # What init has to do is done in a moment; one that was stopped does nothing.
            send_signal(handle.init, "SIGCONT")

    async def abandon(self, run: Run) -> None:
        """Void a start that took too long, or end what became of it."""
        await self._give_up(run)

    async def leave(self, run: Run) -> None:
        """Note that a run ends because its agent does: its next start is free."""
        (_directory(run) / "left").touch()

    async def exec(self, handle: Jailed, command: tuple[str, ...], timeout_s: float) -> Output:
        """Run a command inside the task."""
        session = await self.exec_stream(handle, command, tty=False)
        return await session.output(timeout_s)

    async def exec_stream(self, handle: Jailed, command: tuple[str, ...], *, tty: bool) -> Session:
        """Run a command inside the task, with its streams. Raises StartRefused."""
        try:
            jail = msgspec.json.decode((handle.watched.directory / _JAIL).read_bytes(), type=Jail)
        except (OSError, msgspec.MsgspecError) as err:
            raise StartRefused(
                f"how it is kept apart is not known: {err}", recoverable=False
            ) from err
        order = order_beside(handle.watched.process, command, tty=tty)
        where = "/" if jail.view else order.work_dir
        order = msgspec.structs.replace(order, jail=jail, work_dir=where)
        return await open_session(self.starter, order)

    async def stats(self, handle: Jailed) -> Usage:
        """Processor time and memory of the task's group, else of its own process."""
        if self.groups is not None:
            name = self._shape.group_name(handle.watched.directory)
            cpu_ns, memory_bytes = self.groups.usage(name)
        else:
            cpu_ns, memory_bytes = usage(handle.watched.process)
        return Usage(cpu_ns=cpu_ns, memory_bytes=memory_bytes)

    def close(self) -> None:
        """Let go of the starter; tasks run on. Without any, nothing of ours stays in the cgroups."""
        self.starter.close()
        if self.groups is not None:
            self.groups.sweep()
            self.groups.remove()

    # ---- ends ----

    async def _give_up(self, run: Run) -> None:
        found = await self.recover(run)
        if isinstance(found, Jailed):
            await self.stop(found)
            await self.wait(found)

    async def _clean(self, run: Run) -> None:
        await self._clean_group(self._shape.group_name(_directory(run)))

    async def _clean_group(self, name: str) -> None:
        if self.groups is not None and self.groups.exists(name):
            await asyncio.to_thread(self.groups.end, name)


def _with(order: Start, devices: tuple[str, ...], shown: tuple[str, ...]) -> Start:
    jail = msgspec.structs.replace(order.jail, shown=(*order.jail.shown, *shown))
    if jail.landlock_read:
        read, write = (*jail.landlock_read, *shown), (*jail.landlock_write, *devices)
        jail = msgspec.structs.replace(jail, landlock_read=read, landlock_write=write)
    return msgspec.structs.replace(order, devices=(*order.devices, *devices), jail=jail)


def _directory(run: Run) -> Path:
    return run.places.runs / str(run.number)


def _from_lines(directory: Path) -> Jailed | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (directory / "proc").read_text().splitlines()
        keeper, task, init = (parse_stat(line)[0] for line in lines[1:4])
        watched = Watched(directory=directory, watcher=keeper, process=task)
        return Jailed(watched=watched, init=init)
    return None


def _jailed(directory: Path, found: Watched | Exit | Gone | None) -> Jailed | Exit | Gone | None:
    """Complete what the files of a run say. None: they are being written."""
    return _from_lines(directory) if isinstance(found, Watched) else found


async def _all_ended(last: Jailed) -> None:
    for process in (last.watched.watcher, last.init):
        if alive(process):
            await ended(process)
