"""Performs the agent's effects on a real node: journal, drivers, directories.

Bounds drivers in time, and turns their results into the inputs that
shared/core/runtime/agent_messages.py promises. Each run is one asyncio task, so that a driver that hangs holds up
its own run alone.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from services.agent.devices.device_lines import DeviceReservation
from services.agent.devices.device_plugins import DevicePlugins, with_devices
from services.agent.drivers.driver import (
    Driver,
    DriverRun,
    EventingDriver,
    RemoteDriverProtocol,
    StartRefused,
    TaskExit,
    TaskMissing,
    directories_refused,
)
from services.agent.drivers.launch_values import with_values
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.alloc_story import AllocStory
from services.agent.executor.check_runner import CheckRunner
from services.agent.executor.data_dir import DataDir
from services.agent.executor.disk_usage import DiskUsageMonitor
from services.agent.executor.log_rotation import OpenLog, rotate
from services.agent.executor.log_shipper import LogShipper
from services.agent.executor.ports_in_use import find_port_in_use
from services.agent.executor.run_answers import names_of, run_exited, run_gone, start_failed
from services.agent.executor.task_command import ChangeScripts
from services.agent.executor.usage_sampler import UsageSampler
from services.agent.host_volumes import HostVolumes
from services.agent.inputs.input_handler import InputHandler
from services.agent.inputs.input_runner import InputRunner, refused
from services.agent.inputs.secrets.filled_inputs import Values, missing_key
from services.agent.network.group_networks import GroupNetworks
from services.agent.network.settings import BridgeSettings
from services.agent.safe_open import open_below
from services.agent.task_api.sockets import TaskSockets
from services.agent.tasks.resolved_inputs import DEFAULT_TOKEN
from services.agent.volumes.volume_maker import VolumeMaker
from shared.core.runtime.agent_messages import (
    AgentInput,
    CancelPrepare,
    CloseAlloc,
    KillTask,
    LimitLogs,
    LogLimits,
    PrepareTask,
    RecoverTask,
    RemoveAlloc,
    RunChangeScript,
    SignalTask,
    StartTask,
    SweepAllocs,
    TaskInput,
    TaskLaunch,
    TaskNoted,
    TasksEnded,
    TaskStarted,
    WatchChecks,
    WatchInputs,
    WriteJournal,
)
from shared.core.runtime.network_messages import PrepareNetwork
from shared.core.runtime.remote_messages import NO_HANDLE, DetachTask, EndRemote, RemoteEnded
from shared.core.runtime.volume_messages import (
    CreateVolume,
    DeleteVolume,
    VolumeNotMade,
    VolumeNotRemoved,
)

#: A driver's answer to start and recover is awaited this long; docker pulls have their own limit within it.
DRIVER_TIMEOUT_S = 300.0
#: How often the logs of what runs are looked at.
LOG_ROTATE_INTERVAL_S = 1.0
#: Not more than so many tasks a second, however many run.
LOG_CHECKS_PER_S = 2_000
#: Signals, kills and abandoned starts.
DRIVER_SHORT_TIMEOUT_S = 15.0

#: Kind of the event that says that a task has no task API, and the name of its socket.
API_EVENT, SOCKET = "Task API", "secrets/api.sock"
_log = structlog.get_logger()

_RunKey = tuple[int, str, int]


class TaskExecutor:
    """One per agent, on its event loop. `inject` hands an input to the shell."""

    def __init__(
        self,
        *,
        home: DataDir,
        drivers: Mapping[str, Driver],
        inject: Callable[[AgentInput], None],
        directories: AllocDirs | None = None,
        handlers: Mapping[str, InputHandler] | None = None,
        volumes: HostVolumes | None = None,
        networks: GroupNetworks | None = None,
        devices: DevicePlugins | None = None,
        sockets: TaskSockets | None = None,
        shipper: LogShipper | None = None,
        maker: VolumeMaker | None = None,
    ) -> None:
        self._home = home
        self._sockets = sockets
        self._directories = directories or AllocDirs(home.top)
        self._volumes = volumes or HostVolumes({})
        self._maker = maker
        self._networks = networks or GroupNetworks(
            top=home.top, host_id=home.host_id, settings=BridgeSettings(enabled=False)
        )
        self._networks.tell = self._inject
        self._devices = devices or DevicePlugins()
        self._inputs = InputRunner(home, self._directories, handlers)
        self._drivers = dict(drivers)
        for driver in drivers.values():
            if isinstance(driver, EventingDriver):
                driver.tell = self._note
        self._tell = inject
        self._live: dict[_RunKey, tuple[Driver, Any, DriverRun]] = {}
        #: how many runs of an allocation are alive or about to be, and what was found of its ports before the first.
        self._busy: Counter[int] = Counter()
        self._ports: dict[int, asyncio.Future[str]] = {}
        self._logs: dict[_RunKey, tuple[DriverRun, LogLimits]] = {}
        self._tends_logs = False
        self._work: set[asyncio.Task[None]] = set()
        #: runs that a signal or a kill reached.
        self._signaled: set[_RunKey] = set()
        self._story = AllocStory(home.journal.entries)
        self._checks = CheckRunner(self._inject, self.runs, self._inputs.mask)
        self._scripts = ChangeScripts(self._inject, self.runs, self._inputs.known_secrets)
        self.disk = DiskUsageMonitor(self._directories, self._live_allocs, self._inject)
        self.usage = UsageSampler(self.runs)
        #: None: the operator does not allow it.
        self._shipper = shipper
        if shipper is not None:
            shipper.live = lambda: {(one.alloc_id, one.task) for _, _, one in self.runs()}
        #: why the last write to the journal failed; nothing starts while it does.
        self._journal_error = ""
        #: the role ended all tasks with the agent.
        self.tasks_ended = asyncio.Event()

    def performers(self) -> dict[type, Callable[[Any], None]]:
        """What the shell calls for each effect that is not the bus's."""
        return {
            WriteJournal: self._write,
            PrepareTask: self._prepare_inputs,
            CancelPrepare: self._inputs.cancel,
            StartTask: self._start,
            RecoverTask: self._recover,
            SignalTask: self._signal,
            KillTask: self._kill,
            DetachTask: self._detach,
            EndRemote: self._end_remote,
            LimitLogs: self._limit_logs,
            CloseAlloc: self._close,
            RemoveAlloc: self._remove,
            SweepAllocs: self._sweep,
            WatchChecks: self._checks.watch,
            WatchInputs: lambda effect: self._inputs.watch(effect, self._inject),
            RunChangeScript: self._scripts.run,
            PrepareNetwork: self._networks.prepare,
            CreateVolume: self._create_volume,
            DeleteVolume: self._delete_volume,
            TasksEnded: lambda _: self.tasks_ended.set(),
        }

    def runs(self, alloc_id: str = "") -> list[tuple[Driver, Any, DriverRun]]:
        """List what is alive, with driver and handle; of one allocation, or of all."""
        return [one for one in self._live.values() if alloc_id in ("", one[2].alloc_id)]

    def held_values(
        self, run: DriverRun, inputs: tuple[TaskInput, ...]
    ) -> tuple[dict[str, str], Values]:
        """Return what inputs of a run hold, as far as it is in memory: variables, and values of secrets."""
        variables = self._inputs.known_environment(run.alloc_id, run.task, inputs)
        return variables, self._inputs.known_secrets(run.alloc_id, run.task)

    def note(self, run: DriverRun, kind: str, text: str) -> None:
        """Report an event of a run, without the values of its secrets."""
        self._note(run, kind, text)

    def disk_mib(self) -> dict[str, int]:
        """Return the last measured sizes of the directories of live allocations, by shown id."""
        known = self.disk.used_mib
        return {alloc_id: known.get(key, 0) for key, alloc_id in self._live_allocs().items()}

    async def settle(self) -> None:
        """Wait for the effects that are being performed; once tasks are ended."""
        calls = [one for one in self._work if one.get_name().startswith("call ")]
        await asyncio.gather(*calls, return_exceptions=True)

    async def close(self) -> None:
        """Stop watching; tasks run on."""
        await self._checks.close()
        await self._scripts.close()
        await self._inputs.close()
        await self._networks.close()
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._sockets is not None:
            await self._sockets.close()
        self._home.close()

    # ---- effects ----

    def _write(self, effect: WriteJournal) -> None:
        try:
            self._home.journal.append(effect.entries, sync=effect.sync)
        except OSError as err:
            self._journal_error = f"journal cannot be written: {err}"
            _log.error("journal.failed", error=str(err))
        else:
            self._journal_error = ""
        self._story.log(effect.entries)

    def _prepare_inputs(self, effect: PrepareTask) -> None:
        if self._journal_error:
            self._inject(refused(effect, self._journal_error))
        else:
            self._inputs.prepare(effect, self._inject)

    def _start(self, effect: StartTask) -> None:
        driver = self._drivers.get(effect.driver)
        if self._journal_error:
            self._inject(start_failed(effect, self._journal_error, recoverable=True))
        elif driver is None:
            reason = f"driver {effect.driver!r} is not available on this node"
            self._inject(start_failed(effect, reason, recoverable=False))
        else:
            if not self._busy[effect.key] and effect.launch.ports:
                # Checked once for all tasks that start together: a running sibling may hold the ports.
                ports, shared = effect.launch.ports, effect.launch.shared_ports
                loop = asyncio.get_running_loop()
                self._ports[effect.key] = loop.run_in_executor(
                    None, find_port_in_use, ports, shared
                )
            self._spawn_run(effect.key, self._run(driver, effect))

    def _recover(self, effect: RecoverTask) -> None:
        driver = self._drivers.get(effect.driver)
        if driver is None:
            # The task may still run; without its driver its state is unknown.
            reason = f"driver {effect.driver!r} is no longer available on this node"
            is_open = effect.remote is not None
            missing = TaskMissing(started=True, reason=reason, is_open=is_open)
            self._inject(run_gone(effect, missing))
        else:
            self._spawn_run(effect.key, self._find(driver, effect))

    def _signal(self, effect: SignalTask) -> None:
        live = self._live.get((effect.key, effect.task, effect.run))
        if live is not None:
            self._signaled.add((effect.key, effect.task, effect.run))
            self._spawn("call", self._send_signal(*live, effect.signal))

    def _kill(self, effect: KillTask) -> None:
        live = self._live.get((effect.key, effect.task, effect.run))
        if live is not None:
            driver, handle, _ = live
            self._signaled.add((effect.key, effect.task, effect.run))
            self._spawn("call", self._bounded(driver.stop(handle), effect.task))

    def _detach(self, effect: DetachTask) -> None:
        live = self._live.get((effect.key, effect.task, effect.run))
        if live is not None and isinstance(live[0], RemoteDriverProtocol):
            self._spawn("call", self._bounded(live[0].detach(live[1]), effect.task))

    def _end_remote(self, effect: EndRemote) -> None:
        driver: object = self._drivers.get(effect.driver)
        if isinstance(driver, RemoteDriverProtocol):
            self._spawn("call", self._ended_remotely(driver, effect))

    async def _ended_remotely(self, driver: RemoteDriverProtocol, effect: EndRemote) -> None:
        """Have a driver end what no allocation tracks; without an answer the role asks again."""

        async def work() -> None:
            await driver.end_remote(effect.remote)
            self._inject(RemoteEnded(remote=effect.remote, task=effect.task))

        await self._bounded(work(), effect.task)

    def _limit_logs(self, effect: LimitLogs) -> None:
        name = (effect.key, effect.task, effect.run)
        if name in self._logs:
            self._logs[name] = (self._logs[name][0], effect.logs)

    def _create_volume(self, effect: CreateVolume) -> None:
        if self._maker is None or self._journal_error:
            reason = self._journal_error or "this node makes no volumes"
            self._inject(VolumeNotMade(id=effect.spec.id, attempt=effect.attempt, reason=reason))
        else:
            self._spawn("call", self._maker.create(effect, self._inject))

    def _delete_volume(self, effect: DeleteVolume) -> None:
        if self._maker is None or self._journal_error:
            reason = self._journal_error or "this node makes no volumes"
            self._inject(VolumeNotRemoved(id=effect.spec.id, reason=reason))
        else:
            self._spawn("call", self._maker.delete(effect, self._inject))

    def _close(self, effect: CloseAlloc) -> None:
        _log.info("allocation.ended", **self._story.names(effect.key))
        self._inputs.forget(effect.alloc_id)
        self._spawn("call", self._bounded(self._close_alloc(effect.alloc_id), effect.alloc_id))
        self._spawn("call", self._networks.end(effect.alloc_id))

    def _remove(self, effect: RemoveAlloc) -> None:
        work = asyncio.to_thread(self._directories.remove, effect.alloc_id)
        self._spawn("call", self._bounded(work, effect.alloc_id))

    def _sweep(self, effect: SweepAllocs) -> None:
        # Named before anything new can be there; an allocation that was forgotten never comes back.
        self._networks.sweep(effect.kept)
        names = self._directories.strangers(effect.kept)
        if names:
            _log.info("directories.swept", count=len(names))
            work = asyncio.to_thread(self._directories.sweep, names)
            self._spawn("call", self._bounded(work, "sweep"))

    # ---- one asyncio task each ----

    def _inject(self, event: AgentInput) -> None:
        self._tell(event)

    def _note(self, run: DriverRun, kind: str, text: str) -> None:
        text = self._inputs.mask(run.alloc_id, run.task, text)
        noted = TaskNoted(key=run.key, task=run.task, run=run.number, kind=kind, message=text)
        self._inject(noted)

    def _spawn(self, kind: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{kind} {len(self._work)}")
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _spawn_run(self, key: int, work: Coroutine[Any, Any, None]) -> None:
        self._busy[key] += 1
        self._spawn("run", self._counted(key, work))

    async def _counted(self, key: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._busy[key] -= 1
            if not self._busy[key]:
                del self._busy[key]
                self._ports.pop(key, None)

    async def _run(self, driver: Driver, effect: StartTask) -> None:
        run = None
        try:
            run = self._run_of(effect)
            found = self._ports.get(effect.key)
            problem = await asyncio.shield(found) if found is not None else ""
            await asyncio.to_thread(self._prepare, run, effect, problem)
            await self._offer_api(run, effect)
            if self._shipper is not None:
                await self._shipper.begin(run, effect.launch.logs, effect.launch.names)
            # Not wait_for: it may swallow a cancellation that comes together with the answer.
            async with asyncio.timeout(DRIVER_TIMEOUT_S):
                # Asked before every start: a plugin keeps nothing, so that a crash in between leaves nothing.
                reserved = await self._devices.reserve(effect.driver, effect.launch)
                launch = self._with_variables(effect, reserved)
                handle = _checked(await driver.start(run, launch))
        except StartRefused as err:
            reason = self._inputs.mask(effect.alloc_id, effect.task, str(err))
            await self._end_api(run)
            self._inject(
                start_failed(effect, reason, recoverable=err.recoverable, is_closed=err.is_closed)
            )
            return
        except Exception as err:  # noqa: BLE001 - a driver may fail in any way; its task alone pays.
            reason = str(err) if isinstance(err, ValueError) else repr(err)
            reason = self._inputs.mask(effect.alloc_id, effect.task, reason)
            if isinstance(err, TimeoutError):
                reason = f"driver did not answer within {DRIVER_TIMEOUT_S:.0f} s"
            elif not isinstance(err, ValueError):
                _log.warning("driver.failed", driver=driver.name, task=effect.task, error=reason)
            if run is not None and effect.remote is None:
                await self._bounded(driver.abandon(run), effect.task)
            await self._end_api(run)
            recoverable = not isinstance(err, ValueError)
            self._inject(start_failed(effect, reason, recoverable=recoverable))
            return
        await self._watch(driver, handle, run, effect, adopted=False)

    def _with_variables(self, effect: StartTask, reserved: DeviceReservation) -> TaskLaunch:
        """Resolve volumes, and add devices and the variables and secrets that inputs hold. Raises StartRefused."""
        launch = with_devices(self._volumes.resolved(effect.launch), reserved)
        try:
            found, secrets = self._inputs.environment(effect), self._inputs.secrets(effect)
        except KeyError as err:
            text = f"{err.args[0]}: its values are not prepared in this life of the agent"
            raise StartRefused(text, recoverable=True) from err
        if text := missing_key([launch.env, msgspec.json.decode(launch.config)], secrets):
            raise StartRefused(text, recoverable=False)
        return with_values(launch, {**found, **reserved.env}, secrets)

    def _prepare(self, run: DriverRun, effect: StartTask, problem: str) -> None:
        """Make directories, in a thread. Raises StartRefused, at once where its ports are a problem."""
        if problem:
            raise StartRefused(problem, recoverable=True)
        secrets_mib = effect.launch.secrets_mib
        try:
            self._directories.prepare(run.places, inherit=effect.inherit, secrets_mib=secrets_mib)
        except OSError as err:
            raise directories_refused(err) from err

    async def _find(self, driver: Driver, effect: RecoverTask) -> None:
        try:
            run = self._run_of(effect)
            async with asyncio.timeout(DRIVER_TIMEOUT_S):
                found = await driver.recover(run)
            if self._shipper is not None:
                await self._shipper.begin(run, effect.logs)
            if not isinstance(found, TaskExit | TaskMissing):
                _checked(found)
        except Exception as err:  # noqa: BLE001 - as above.
            _log.warning("driver.failed", driver=driver.name, task=effect.task, error=repr(err))
            is_open = effect.remote is not None
            text = f"recovery failed: {err!r}"
            found = TaskMissing(started=True, reason=text, is_open=is_open)
            self._inject(run_gone(effect, found))
            return
        if isinstance(found, TaskMissing):
            self._inject(run_gone(effect, found))
        elif isinstance(found, TaskExit):
            self._inject(run_exited(effect, found))
        else:
            await self._offer_api(run, effect)
            await self._watch(driver, found, run, effect, adopted=True)

    async def _offer_api(self, run: DriverRun, effect: StartTask | RecoverTask) -> None:
        """Serve the task API to a run; without it the run goes its way, and an event says why."""
        if self._sockets is None:
            return
        names = self._story.variable_names(effect.key)
        try:
            if isinstance(effect, RecoverTask):
                await self._sockets.adopt(run, names)
            elif any(one.name == DEFAULT_TOKEN for one in effect.inputs):
                user = effect.launch.user
                await self._sockets.start(run, driver=effect.driver, user=user, names=names)
        except OSError as err:
            self._note(run, API_EVENT, f"{SOCKET} is not served: {err.strerror or err}")

    async def _end_api(self, run: DriverRun | None) -> None:
        if self._sockets is not None and run is not None:
            await self._bounded(self._sockets.end(run), run.task)

    async def _watch(
        self,
        driver: Driver,
        handle: Any,
        run: DriverRun,
        effect: StartTask | RecoverTask,
        *,
        adopted: bool,
    ) -> None:
        key = (effect.key, effect.task, effect.run)
        self._live[key] = (driver, handle, run)
        self._tend_logs(key, run, effect)
        if not self.disk.is_running:
            self.disk.is_running = True
            self._spawn("disk", self.disk.run())
        if not self.usage.is_running:
            self.usage.is_running = True
            self._spawn("usage", self.usage.run())
        names = {**self._story.names(effect.key), "task": effect.task, "run": effect.run}
        word = "task.adopted" if adopted else "task.started"
        _log.info(word, **names, driver=driver.name, pid=handle.pid)
        self._inject(
            TaskStarted(
                **names_of(effect),
                pid=handle.pid,
                adopted=adopted,
                handle=getattr(handle, "remote_handle", NO_HANDLE),
            )
        )
        try:
            end = await driver.wait(handle)
            if not isinstance(end, TaskExit):
                raise TypeError(f"driver returned no task exit: {end!r}")  # noqa: TRY301 - handled below.
        except asyncio.CancelledError:
            raise
        except Exception as err:  # noqa: BLE001 - as above.
            await self._bounded(driver.stop(handle), effect.task)
            end = TaskExit(code=None, reason=f"driver lost track of the task: {err!r}")
        if end.reason:
            reason = self._inputs.mask(effect.alloc_id, effect.task, end.reason)
            end = msgspec.structs.replace(end, reason=reason)
        del self._live[key]
        # Before the role hears of it: the next run has a socket of its own.
        await self._end_api(run)
        self._logs.pop(key, None)
        if self._shipper is not None:
            self._shipper.wake(run)
        by_itself = key not in self._signaled
        self._signaled.discard(key)
        _log.info("task.ended", **names, exit_code=end.code, signal=end.signal, reason=end.reason)
        self._inject(run_exited(effect, end, by_itself=by_itself))

    async def _close_alloc(self, alloc_id: str) -> None:
        # A template that is just written must not come into secrets/ after its memory is gone.
        await self._inputs.settle()
        await asyncio.to_thread(self._directories.close, alloc_id)

    def _tend_logs(self, key: _RunKey, run: DriverRun, effect: StartTask | RecoverTask) -> None:
        limits = effect.launch.logs if isinstance(effect, StartTask) else effect.logs
        if limits.disabled:
            return
        self._logs[key] = (run, limits)
        if not self._tends_logs:
            self._tends_logs = True
            self._spawn("logs", self._rotate_logs())

    async def _rotate_logs(self) -> None:
        """Keep logs within bounds while any task runs: two sizes are checked for each task."""
        try:
            while self._logs:
                await asyncio.to_thread(_rotate_all, self._home.top, list(self._logs.values()))
                await asyncio.sleep(max(LOG_ROTATE_INTERVAL_S, len(self._logs) / LOG_CHECKS_PER_S))
        finally:
            self._tends_logs = False

    def _live_allocs(self) -> dict[int, str]:
        return {key: run.alloc_id for (key, _, _), (_, _, run) in self._live.items()}

    async def _send_signal(self, driver: Driver, handle: Any, run: DriverRun, name: str) -> None:
        """Send a signal; a signal that was not sent is an event of the task."""
        try:
            async with asyncio.timeout(DRIVER_SHORT_TIMEOUT_S):
                if await driver.signal(handle, name) is False:
                    self._signaled.discard((run.key, run.task, run.number))
        except Exception as err:  # noqa: BLE001 - a driver may fail in any way.
            late = f"the driver did not answer within {DRIVER_SHORT_TIMEOUT_S:.0f} s"
            reason = late if isinstance(err, TimeoutError) else str(err) or repr(err)
            _log.warning("driver.signal_failed", task=run.task, signal=name, error=repr(err))
            self._note(
                run, "Failed Signaling", f"{name or 'the kill signal'} was not sent: {reason}"
            )

    async def _bounded(self, work: Awaitable[object], about: str) -> None:
        try:
            async with asyncio.timeout(DRIVER_SHORT_TIMEOUT_S):
                await work
        except Exception as err:  # noqa: BLE001 - as above; the role's timers continue.
            _log.warning("driver.call_failed", about=about, error=repr(err))

    def _run_of(self, effect: StartTask | RecoverTask) -> DriverRun:
        return DriverRun(
            alloc_id=effect.alloc_id,
            task=effect.task,
            number=effect.run,
            key=effect.key,
            places=self._home.places(effect.alloc_id, effect.task),
            remote=effect.remote,
        )


def _rotate_all(top: Path, logs: list[tuple[DriverRun, LogLimits]]) -> None:
    """Rotate what has grown too long; a log that cannot be read is its own task's matter."""
    for run, limits in logs:
        for path in (run.places.stdout, run.places.stderr):
            with contextlib.suppress(OSError):
                if path.lstat().st_size <= limits.file_bytes:
                    continue
                fd = open_below(top, path.parent)
                try:
                    rotate(OpenLog(fd, path.name), limits)
                finally:
                    os.close(fd)


def _checked(handle: Any) -> Any:
    """Take a handle for one. Raises TypeError for anything else that a driver may return."""
    if not isinstance(getattr(handle, "pid", None), int):
        raise TypeError(f"driver returned no task handle: {handle!r}")
    return handle
