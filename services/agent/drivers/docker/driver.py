"""docker: a task is a container of the node's engine.

Name and labels of a container identify its run; `runs/<n>/container` records that it may have been started, and
`runs/<n>/exit` how it ended, written before it is removed. So a run never starts twice and its end is never lost,
whenever the agent dies. While the engine does not answer, a run counts as running.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import msgspec
import structlog

from services.agent.backoff import Backoff
from services.agent.drivers.docker.container_spec import (
    LABEL,
    ContainerSpec,
    HostCpu,
    container_name,
    container_spec,
)
from services.agent.drivers.docker.container_start import (
    ContainerStart,
    PendingStart,
    StartContext,
    create_and_start,
    start_refusal,
)
from services.agent.drivers.docker.engine import (
    DockerEngine,
    EngineRefused,
    EngineUnavailable,
    cancel_task,
)
from services.agent.drivers.docker.events import (
    INSPECT_INTERVAL_S,
    RETRY_MAX_S,
    RETRY_S,
    EngineEvents,
)
from services.agent.drivers.docker.exec_session import DockerSession
from services.agent.drivers.docker.images import ImageStore
from services.agent.drivers.docker.log_copy import ContainerLogCopy
from services.agent.drivers.docker.mounts import CONTAINER_DIRECTORIES, MountPins
from services.agent.drivers.docker.pause import PauseContainers
from services.agent.drivers.docker.run_record import (
    ContainerClaim,
    container_exit,
    ended_before_boot,
    read_claim,
)
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import (
    AGENT_SHUTDOWN_MARK,
    DriverRun,
    StartRefused,
    TaskExit,
    TaskMissing,
    TaskUsage,
    record_signal,
    recorded_signals,
)
from services.agent.drivers.end_record import read_end, write_end
from services.agent.drivers.isolation.group_usage import (
    group_usage,
    places_of_process,
    second_version,
)
from services.agent.executor.data_dir import TaskDirs
from shared.core.runtime.agent_messages import TaskLaunch
from shared.signal_names import signal_error, signal_number

#: Interval of the search for containers of this agent that belong to no known run; they are removed.
SWEEP_S = 300.0
#: Pause before the first search.
SWEEP_FIRST_S = 60.0
FINGERPRINT_S = 5
_log = structlog.get_logger()


class Container:
    """A run whose container may be alive."""

    def __init__(
        self, run: DriverRun, container: str, logs: ContainerLogCopy | None, pid: int = 0
    ) -> None:
        self.run = run
        self.id = container
        self.logs = logs
        self.pid = pid
        self.end: TaskExit | None = None
        self.stop_signal = "SIGTERM"
        #: keeps its end, once.
        self.finish: asyncio.Task[TaskExit] | None = None

    @property
    def directory(self) -> Path:
        """Directory of the run's records."""
        return self.run.directory


class DockerDriver:
    """The driver. `tell`: (run, kind, message) for the task's events."""

    name = "docker"
    #: an engine may appear and disappear, and its fingerprint is cheap.
    has_dynamic_fingerprint = True

    def __init__(
        self,
        settings: DockerSettings,
        *,
        data_dir: Path,
        node_id: str,
        home_id: str,
        kernel_boot: str,
        machine: HostCpu,
        engine: DockerEngine | None = None,
    ) -> None:
        self._settings = settings
        self._home_id = home_id
        self._kernel_boot = kernel_boot
        self._own = {f"{LABEL}node": node_id, f"{LABEL}home": home_id}
        self._ground = StartContext(
            settings=settings,
            data_dir=data_dir,
            kernel_boot=kernel_boot,
            machine=machine,
            own=self._own,
        )
        self._engine = engine or DockerEngine(settings.url)
        self._images = ImageStore(self._engine, settings)
        self._watch = EngineEvents(self._engine, f"{LABEL}home={home_id}", self._noted)
        self._live: dict[str, Container] = {}
        self._starting: dict[str, PendingStart] = {}
        self._known: set[str] = set()
        #: containers that have the network namespaces of groups.
        self.pause = PauseContainers(self._engine, self._own, self._known)
        self._sweeper: asyncio.Task[None] | None = None
        #: why the last fingerprint failed; empty: it did not.
        self._away = ""
        #: API version at the last successful fingerprint.
        self._api_version = ""
        #: receives the task events; set by the executor.
        self.tell: Callable[[DriverRun, str, str], None] = _discard_event

    def fingerprint(self) -> dict[str, str]:
        """Query the engine's version, with a short timeout."""
        if not self._settings.enabled:
            return {}
        engine = DockerEngine(self._settings.url, call_s=FINGERPRINT_S)
        try:
            found = engine.run(_engine_attributes, self._settings)
        except (EngineUnavailable, EngineRefused) as err:
            if str(err) != self._away:
                self._away = str(err)
                _log.info("docker.not_available", url=self._settings.url, reason=str(err))
            return {}
        else:
            version = engine.api().api_version
            if (self._away, self._api_version) != ("", version):
                self._away, self._api_version = "", version
                _log.info("docker.available", url=self._settings.url, api_version=version)
            return found
        finally:
            engine.close()

    async def start(self, run: DriverRun, launch: TaskLaunch) -> Container:
        """Create a container and start it; its image is pulled when it is not there."""
        self._ensure_sweeper()
        plan = container_spec(self._name(run), launch)
        starting = self._starting[plan.name] = PendingStart()
        self._known.add(plan.name)
        try:
            return await self._start(run, launch, plan, starting)
        except EngineUnavailable as err:
            starting.void = True
            raise StartRefused(str(err), recoverable=True) from err
        except BaseException:
            starting.void = True
            raise
        finally:
            self._starting.pop(plan.name, None)

    async def recover(self, run: DriverRun) -> Container | TaskExit | TaskMissing:
        """Find a run of an earlier agent process by name; `wait` waits for an engine that is away."""
        self._ensure_sweeper()
        name = self._name(run)
        self._known.add(name)
        directory = run.directory
        MountPins(directory / "pins").release()
        if (directory / AGENT_SHUTDOWN_MARK).exists():
            await self._remove(name)
            return TaskMissing(started=False)
        if (ended := read_end(directory)) is not None:
            await self._remove(name)
            return ended
        claim = read_claim(directory)
        try:
            found = await self._engine.call(docker.APIClient.inspect_container, name)
        except EngineUnavailable:
            if claim is None:
                # It was never started; its container, if there is one, is swept.
                return TaskMissing(started=False)
            return self._handle(run, claim.container, None)
        except EngineRefused as err:
            if claim is None:
                return TaskMissing(started=False)
            return TaskMissing(started=True, reason=f"container no longer exists: {err}")
        return await self._recovered(run, found, claim)

    async def wait(self, handle: Container) -> TaskExit:
        """Wait for the end; while the engine is away, for the engine."""
        pause = Backoff(RETRY_S, RETRY_MAX_S)
        async with self._watch.waiting(handle.id) as changed:
            while handle.end is None:
                changed.clear()
                try:
                    found = await self._engine.call(docker.APIClient.inspect_container, handle.id)
                except EngineUnavailable:
                    await asyncio.sleep(pause.take())
                    continue
                except EngineRefused as err:
                    end = TaskExit(
                        code=None, reason=f"container was removed outside of Caravan: {err}"
                    )
                    return await self._finish(handle, end)
                pause.reset()
                if handle.logs is None:
                    self._follow_logs(handle, found)
                state = found["State"]
                if not (state["Running"] or state["Paused"] or state["Restarting"]):
                    return await self._finish(handle, self._end_of(handle, state))
                handle.pid = int(state["Pid"])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INSPECT_INTERVAL_S):
                        await changed.wait()
        return handle.end

    async def signal(self, handle: Container, name: str) -> bool:
        """Signal the container's first process; an empty name is the kill signal of the job or its image.

        False: the container has ended.
        """
        number = signal_number(name or handle.stop_signal)
        if number is None:
            raise ValueError(signal_error(name or handle.stop_signal))
        return await self._kill(handle, number)

    async def stop(self, handle: Container) -> None:
        """Kill all of the container."""
        await self._kill(handle, signal.SIGKILL)

    async def abandon(self, run: DriverRun) -> None:
        """Void a start that took too long, or end the run."""
        name = self._name(run)
        starting = self._starting.get(name)
        if starting is not None:
            starting.void = True
        await self._remove(name)

    async def exec_stream(
        self, handle: Container, command: tuple[str, ...], *, tty: bool
    ) -> DockerSession:
        """Start a command in the container, with its streams."""
        session = DockerSession(self._engine, handle.id, tty=tty)
        try:
            await session.begin(command)
        except (EngineUnavailable, EngineRefused) as err:
            raise StartRefused(str(err), recoverable=True) from err
        return session

    @staticmethod
    def directories(_places: TaskDirs) -> dict[str, str]:
        """Return the directories as a container sees them."""
        return dict(CONTAINER_DIRECTORIES)

    async def stats(self, handle: Container) -> TaskUsage:
        """Return the use of the container: of its cgroup where that is visible, since the engine takes far longer."""
        if handle.pid and (seen := await asyncio.to_thread(_group_usage, handle.pid, handle.id)):
            return seen
        try:
            found = await self._engine.call(_stats, handle.id)
        except (EngineUnavailable, EngineRefused) as err:
            raise StartRefused(str(err), recoverable=True) from err
        memory = found.get("memory_stats", {})
        detail = memory.get("stats", {})
        cache = detail.get("total_inactive_file", detail.get("inactive_file", 0))
        used = int(found.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0))
        return TaskUsage(cpu_ns=used, memory_bytes=max(int(memory.get("usage", 0)) - int(cache), 0))

    def close(self) -> None:
        """Release threads and streams; containers run on."""
        cancel_task(self._sweeper)
        self._watch.close()
        for handle in self._live.values():
            if handle.logs is not None:
                handle.logs.abandon()
        self._engine.close()

    def _name(self, run: DriverRun) -> str:
        return container_name(run, self._home_id)

    # ---- start ----

    async def _start(
        self, run: DriverRun, launch: TaskLaunch, plan: ContainerSpec, starting: PendingStart
    ) -> Container:
        options = plan.options
        if refused := self._settings.forbids(options, launch.memory_max_mib):
            raise StartRefused(refused, recoverable=False)
        await self._images.ensure(
            options.image.removeprefix("https://"),
            force=options.force_pull,
            timeout_s=options.image_pull_timeout / 1e9,
            soft_auth=options.auth_soft_fail,
            tell=lambda text: self.tell(run, "Driver", text),
        )
        try:
            order = ContainerStart(run=run, launch=launch, plan=plan, starting=starting)
            container, pid, stop_signal = await self._engine.call(
                create_and_start, self._ground, order
            )
        except EngineRefused as err:
            raise start_refusal(err) from err
        handle = self._handle(run, container, None, pid)
        handle.stop_signal = stop_signal or "SIGTERM"
        if not launch.logs.disabled:
            handle.logs = ContainerLogCopy(self._engine, run, container, tty=options.tty)
            handle.logs.begin()
        return handle

    def _handle(
        self, run: DriverRun, container: str, logs: ContainerLogCopy | None, pid: int = 0
    ) -> Container:
        handle = Container(run, container, logs, pid)
        self._live[container] = handle
        return handle

    # ---- recovery and end ----

    async def _recovered(
        self, run: DriverRun, found: dict[str, Any], claim: ContainerClaim | None
    ) -> Container | TaskExit | TaskMissing:
        labels = found["Config"].get("Labels") or {}
        if any(labels.get(name) != text for name, text in self._own.items()):
            return TaskMissing(
                started=claim is not None,
                reason="container name is in use by a container that Caravan does not manage",
            )
        container, state = str(found["Id"]), found["State"]
        if state["Status"] == "created":
            await self._remove(container)
            return TaskMissing(started=False)
        handle = self._handle(run, container, None, int(state["Pid"]))
        self._follow_logs(handle, found)
        if state["Running"] or state["Paused"] or state["Restarting"]:
            return handle
        rebooted = claim is not None and claim.kernel_boot != self._kernel_boot
        if rebooted and not ended_before_boot(state):
            gone = TaskMissing(
                started=True, reason="node was rebooted while the task ran", charged=False
            )
            await self._finish(handle, TaskExit(code=None, reason=gone.reason))
            return gone
        return await self._finish(handle, self._end_of(handle, state))

    def _follow_logs(self, handle: Container, found: dict[str, Any]) -> None:
        handle.stop_signal = str(found["Config"].get("StopSignal") or "SIGTERM")
        if found["HostConfig"]["LogConfig"]["Type"] != "none":
            tty = bool(found["Config"]["Tty"])
            handle.logs = ContainerLogCopy(self._engine, handle.run, handle.id, tty=tty)
            handle.logs.begin()

    async def _finish(self, handle: Container, end: TaskExit) -> TaskExit:
        """Copy the last output, keep the end, remove the container; a second caller waits for the first."""
        loop = asyncio.get_running_loop()
        if handle.finish is None or handle.finish.get_loop() is not loop:
            handle.finish = loop.create_task(self._finish_once(handle, end), name="docker end")
        return await asyncio.shield(handle.finish)

    async def _finish_once(self, handle: Container, end: TaskExit) -> TaskExit:
        if handle.logs is not None:
            await handle.logs.finish()
        await asyncio.to_thread(write_end, handle.directory, end)
        self._live.pop(handle.id, None)
        await self._remove(handle.id)
        self._known.discard(self._name(handle.run))
        handle.end = end
        return end

    def _end_of(self, handle: Container, state: dict[str, Any]) -> TaskExit:
        return container_exit(state, recorded_signals(handle.directory))

    async def _kill(self, handle: Container, number: int) -> bool:
        # As a number: the engine has names for some of the real-time signals only.
        record_signal(handle.directory, number)
        try:
            await self._engine.call(_signal, handle.id, str(number))
        except EngineRefused as err:
            # 404, 409: it has ended.
            if err.status not in {404, 409}:
                raise
            return False
        return True

    async def _remove(self, container: str) -> None:
        """Remove a container with its anonymous volumes; failures are left to the sweep."""
        with contextlib.suppress(EngineUnavailable, EngineRefused):
            await self._engine.call(_remove, container)

    # ---- around ----

    def _noted(self, container: str, action: str) -> None:
        handle = self._live.get(container)
        if handle is not None:
            kind, _, text = action.partition(": ")
            if kind == "kill":
                record_signal(handle.directory, signal_number(text) or 0)
            elif kind == "health_status":
                self.tell(handle.run, "Health", f"container is {text}")
            else:
                self.tell(handle.run, "Out Of Memory", "a process of the container was killed")

    def _ensure_sweeper(self) -> None:
        loop = asyncio.get_running_loop()
        sweeper = self._sweeper
        if sweeper is None or sweeper.done() or sweeper.get_loop() is not loop:
            self._sweeper = loop.create_task(self._sweep_often(), name="docker sweep")

    async def _sweep_often(self) -> None:
        pause_s = SWEEP_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = SWEEP_S
            with contextlib.suppress(EngineUnavailable, EngineRefused):
                await self._sweep()

    def sweep_all(self) -> int:
        """Remove every container of this agent; returns how many. Before anything was started or recovered."""
        try:
            return asyncio.run(self._sweep())
        except (EngineUnavailable, EngineRefused) as err:
            _log.warning("docker.not_swept", reason=str(err))
            return 0

    async def _sweep(self) -> int:
        """Remove containers of this agent that belong to no known run. Returns how many."""
        labels = [f"{name}={text}" for name, text in self._own.items()]
        found = await self._engine.call(_list, labels)
        strays = [
            one["Id"]
            for one in found
            if not any(name.removeprefix("/") in self._known for name in one["Names"])
        ]
        for container in strays:
            _log.info("docker.swept", container=container)
            await self._remove(container)
        return len(strays)


def _discard_event(_run: DriverRun, _kind: str, _text: str) -> None:
    """The default of `tell`: does nothing."""


def _engine_attributes(api: docker.APIClient, settings: DockerSettings) -> dict[str, str]:
    info = api.info()
    if info.get("OSType", "linux") != "linux":
        return {}
    found = {
        "": "1",
        ".version": str(info["ServerVersion"]),
        ".os_type": "linux",
        ".cgroup_driver": str(info.get("CgroupDriver", "")),
        ".cgroup_version": str(info.get("CgroupVersion", "1")),
        ".storage_driver": str(info.get("Driver", "")),
        ".runtimes": ",".join(sorted(info.get("Runtimes", {}))),
        ".volumes": "1" if settings.allowed_roots or settings.allowed_volumes else "",
        ".pull": "1" if settings.allow_pull else "",
    }
    found = {f"driver.docker{name}": text for name, text in found.items() if text}
    return {**found, **settings.attributes()}


def _signal(api: docker.APIClient, container: str, name: str) -> None:
    api.kill(container, name)


def _remove(api: docker.APIClient, container: str) -> None:
    api.remove_container(container, force=True, v=True)


def _list(api: docker.APIClient, labels: list[str]) -> list[dict[str, Any]]:
    return list(api.containers(all=True, filters={"label": labels}))


def _group_usage(pid: int, container: str) -> TaskUsage | None:
    """Read a container's cgroup; None: it is not visible here, or the process is another's by now."""
    with contextlib.suppress(OSError, ValueError):
        places = places_of_process(pid, Path("/proc/self/mounts").read_text())
        memory = places.get("memory")
        if memory is not None and container in str(memory) and memory.is_dir():
            found = group_usage(places, second_version(places))
            return TaskUsage(**msgspec.structs.asdict(found))
    return None


def _stats(api: docker.APIClient, container: str) -> dict[str, Any]:
    return dict(api.stats(container, stream=False, one_shot=True))
