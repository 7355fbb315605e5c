"""docker: a task is a container of the node's engine.

Decides how a run and its container stay one: the container's name and labels say whose it is, `runs/<n>/container` that
it may have been started, `runs/<n>/exit` how it ended, written before it is removed. So a run never starts twice and
its end is never lost, whenever the agent dies. An engine that does not answer says nothing about a container: the run
goes on until the engine says otherwise.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import structlog

from services.agent.drivers.docker_begin import Ground, Order, Starting, begin, refusal
from services.agent.drivers.docker_create import (
    LABEL,
    Machine,
    Plan,
    container_name,
    plan_of,
)
from services.agent.drivers.docker_engine import (
    Engine,
    EngineAway,
    EngineRefused,
    end_task,
    translated,
)
from services.agent.drivers.docker_exec import DockerSession, run_command
from services.agent.drivers.docker_images import Images
from services.agent.drivers.docker_logs import LogCopy
from services.agent.drivers.docker_mounts import Pins
from services.agent.drivers.docker_settings import DockerSettings
from services.agent.drivers.docker_state import (
    Claim,
    ended_before_boot,
    exit_of_state,
    read_claim,
    read_end,
    write_end,
)
from services.agent.drivers.docker_watch import LOOK_S, PAUSE_MAX_S, PAUSE_S, Watch
from services.agent.drivers.driver import Exit, Gone, Output, Run, StartRefused, Usage
from shared.core.tasks import TaskLaunch

#: Containers of ours that no run of this life knows are removed; looked for that often.
SWEEP_S = 300.0
#: Not younger than that: a start may be under way.
SWEEP_FIRST_S = 60.0
FINGERPRINT_S = 5
_log = structlog.get_logger()


class Container:
    """A run whose container may be alive."""

    def __init__(self, run: Run, container: str, logs: LogCopy | None, pid: int = 0) -> None:
        self.run = run
        self.id = container
        self.logs = logs
        self.pid = pid
        self.end: Exit | None = None
        self.stop_signal = "SIGTERM"
        #: keeps its end, once.
        self.finish: asyncio.Task[Exit] | None = None

    @property
    def directory(self) -> Path:
        """Where the run keeps its claim and its end."""
        return self.run.places.runs / str(self.run.number)


class Docker:
    """The driver. `tell`: (run, kind, message) for the task's events."""

    name = "docker"
    #: an engine comes and goes, and says in a moment what it is.
    is_fleeting = True

    def __init__(
        self,
        settings: DockerSettings,
        *,
        data_dir: Path,
        node_id: str,
        home_id: str,
        kernel_boot: str,
        machine: Machine,
        engine: Engine | None = None,
    ) -> None:
        self._settings = settings
        self._home_id = home_id
        self._kernel_boot = kernel_boot
        self._own = {f"{LABEL}node": node_id, f"{LABEL}home": home_id}
        self._ground = Ground(
            settings=settings,
            data_dir=data_dir,
            kernel_boot=kernel_boot,
            machine=machine,
            own=self._own,
        )
        self._engine = engine or Engine(settings.url)
        self._images = Images(self._engine, settings)
        self._watch = Watch(self._engine, f"{LABEL}home={home_id}", self._noted)
        self._live: dict[str, Container] = {}
        self._starting: dict[str, Starting] = {}
        self._known: set[str] = set()
        self._sweeper: asyncio.Task[None] | None = None
        #: why the engine did not say what it is, when it was asked last.
        self._away = ""
        #: set by who shows a task's events.
        self.tell: Callable[[Run, str, str], None] = _tell_nobody

    def fingerprint(self) -> dict[str, str]:
        """Ask the engine what it is, for a few seconds."""
        if not self._settings.enabled:
            return {}
        engine = Engine(self._settings.url, call_s=FINGERPRINT_S)
        try:
            found = translated(engine.api, _describe, self._settings)
        except (EngineAway, EngineRefused) as err:
            if str(err) != self._away:
                self._away = str(err)
                _log.info("docker.not_available", url=self._settings.url, reason=str(err))
            return {}
        else:
            self._away = ""
            return found
        finally:
            engine.close()

    async def start(self, run: Run, launch: TaskLaunch) -> Container:
        """Make a container and start it; its image is pulled when it is not there."""
        self._tend()
        plan = plan_of(self._name(run), launch)
        starting = self._starting[plan.name] = Starting()
        self._known.add(plan.name)
        try:
            return await self._start(run, launch, plan, starting)
        except EngineAway as err:
            starting.void = True
            raise StartRefused(str(err), recoverable=True) from err
        except BaseException:
            starting.void = True
            raise
        finally:
            self._starting.pop(plan.name, None)

    async def recover(self, run: Run) -> Container | Exit | Gone:
        """Find a run of an earlier life, by name; an engine that is away is waited for by `wait`."""
        self._tend()
        name = self._name(run)
        self._known.add(name)
        directory = run.places.runs / str(run.number)
        Pins(directory / "pins").release()
        if (directory / "left").exists():
            await self._remove(name)
            return Gone(started=False)
        if (ended := read_end(directory)) is not None:
            await self._remove(name)
            return ended
        claim = read_claim(directory)
        try:
            found = await self._engine.call(docker.APIClient.inspect_container, name)
        except EngineAway:
            if claim is None:
                # It was never told to start; the container, if there is one, is swept.
                return Gone(started=False)
            return self._handle(run, claim.container, None)
        except EngineRefused as err:
            if claim is None:
                return Gone(started=False)
            return Gone(started=True, reason=f"its container is not there any more: {err}")
        return await self._recovered(run, found, claim)

    async def wait(self, handle: Container) -> Exit:
        """Wait for the end; while the engine is away, for the engine."""
        pause_s = PAUSE_S
        async with self._watch.waiting(handle.id) as changed:
            while handle.end is None:
                changed.clear()
                try:
                    found = await self._engine.call(docker.APIClient.inspect_container, handle.id)
                except EngineAway:
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, PAUSE_MAX_S)
                    continue
                except EngineRefused as err:
                    end = Exit(code=None, reason=f"its container was removed by somebody: {err}")
                    return await self._finish(handle, end)
                pause_s = PAUSE_S
                if handle.logs is None:
                    self._follow_logs(handle, found)
                state = found["State"]
                if not (state["Running"] or state["Paused"] or state["Restarting"]):
                    return await self._finish(handle, exit_of_state(state))
                handle.pid = int(state["Pid"])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await changed.wait()
        return handle.end

    async def signal(self, handle: Container, name: str) -> None:
        """Signal the container's first process; an empty name is the kill signal of the job or its image."""
        name = name or handle.stop_signal
        if name not in signal.Signals.__members__:
            raise ValueError(f"unknown signal {name!r}")
        await self._kill(handle, name)

    async def stop(self, handle: Container) -> None:
        """Kill all of the container."""
        await self._kill(handle, "SIGKILL")

    async def abandon(self, run: Run) -> None:
        """Void a start that took too long, or end what became of it."""
        name = self._name(run)
        starting = self._starting.get(name)
        if starting is not None:
            starting.void = True
        await self._remove(name)

    async def leave(self, run: Run) -> None:
        """Note that a run ends because its agent does: its next start is free."""
        (run.places.runs / str(run.number) / "left").touch()

    async def exec(self, handle: Container, command: tuple[str, ...], timeout_s: float) -> Output:
        """Run a command in the container."""
        try:
            return await run_command(self._engine, handle.id, command, timeout_s)
        except (EngineAway, EngineRefused) as err:
            raise StartRefused(str(err), recoverable=True) from err

    async def exec_stream(
        self, handle: Container, command: tuple[str, ...], *, tty: bool
    ) -> DockerSession:
        """Start a command in the container, to be talked to."""
        session = DockerSession(self._engine, handle.id, tty=tty)
        try:
            await session.begin(command, stdin=True)
        except (EngineAway, EngineRefused) as err:
            raise StartRefused(str(err), recoverable=True) from err
        return session

    async def stats(self, handle: Container) -> Usage:
        """Processor time and memory of the container, without the page cache it could give back."""
        try:
            found = await self._engine.call(_stats, handle.id)
        except (EngineAway, EngineRefused) as err:
            raise StartRefused(str(err), recoverable=True) from err
        memory = found.get("memory_stats", {})
        detail = memory.get("stats", {})
        cache = detail.get("total_inactive_file", detail.get("inactive_file", 0))
        used = int(found.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0))
        return Usage(cpu_ns=used, memory_bytes=max(int(memory.get("usage", 0)) - int(cache), 0))

    def close(self) -> None:
        """Let go of threads and streams; containers run on."""
        end_task(self._sweeper)
        self._watch.close()
        for handle in self._live.values():
            if handle.logs is not None:
                handle.logs.abandon()
        self._engine.close()

    def _name(self, run: Run) -> str:
        return container_name(run, self._home_id)

    # ---- start ----

    async def _start(
        self, run: Run, launch: TaskLaunch, plan: Plan, starting: Starting
    ) -> Container:
        options = plan.options
        if refused := self._settings.forbids(options):
            raise StartRefused(refused, recoverable=False)
        await self._images.ensure(
            options.image.removeprefix("https://"),
            force=options.force_pull,
            timeout_s=options.image_pull_timeout / 1e9,
            soft_auth=options.auth_soft_fail,
            tell=lambda text: self.tell(run, "Driver", text),
        )
        try:
            order = Order(run=run, launch=launch, plan=plan, starting=starting)
            container, pid, stop_signal = await self._engine.call(begin, self._ground, order)
        except EngineRefused as err:
            raise refusal(err) from err
        handle = self._handle(run, container, None, pid)
        handle.stop_signal = stop_signal or "SIGTERM"
        if not launch.logs.disabled:
            handle.logs = LogCopy(self._engine, run, container, tty=options.tty)
            handle.logs.begin()
        return handle

    def _handle(self, run: Run, container: str, logs: LogCopy | None, pid: int = 0) -> Container:
        handle = Container(run, container, logs, pid)
        self._live[container] = handle
        return handle

    # ---- recovery and end ----

    async def _recovered(
        self, run: Run, found: dict[str, Any], claim: Claim | None
    ) -> Container | Exit | Gone:
        labels = found["Config"].get("Labels") or {}
        if any(labels.get(name) != text for name, text in self._own.items()):
            return Gone(started=claim is not None, reason="its container's name is another's")
        container, state = str(found["Id"]), found["State"]
        if state["Status"] == "created":
            await self._remove(container)
            return Gone(started=False)
        handle = self._handle(run, container, None, int(state["Pid"]))
        self._follow_logs(handle, found)
        if state["Running"] or state["Paused"] or state["Restarting"]:
            return handle
        rebooted = claim is not None and claim.kernel_boot != self._kernel_boot
        if rebooted and not ended_before_boot(state):
            gone = Gone(started=True, reason="the machine was restarted")
            await self._finish(handle, Exit(code=None, reason=gone.reason))
            return gone
        return await self._finish(handle, exit_of_state(state))

    def _follow_logs(self, handle: Container, found: dict[str, Any]) -> None:
        handle.stop_signal = str(found["Config"].get("StopSignal") or "SIGTERM")
        if found["HostConfig"]["LogConfig"]["Type"] != "none":
            tty = bool(found["Config"]["Tty"])
            handle.logs = LogCopy(self._engine, handle.run, handle.id, tty=tty)
            handle.logs.begin()

    async def _finish(self, handle: Container, end: Exit) -> Exit:
        """Copy the last output, keep the end, remove the container; who comes second waits for the first."""
        loop = asyncio.get_running_loop()
        if handle.finish is None or handle.finish.get_loop() is not loop:
            handle.finish = loop.create_task(self._finish_once(handle, end), name="docker end")
        return await asyncio.shield(handle.finish)

    async def _finish_once(self, handle: Container, end: Exit) -> Exit:
        if handle.logs is not None:
            await handle.logs.finish()
        await asyncio.to_thread(write_end, handle.directory, end)
        self._live.pop(handle.id, None)
        await self._remove(handle.id)
        self._known.discard(self._name(handle.run))
        handle.end = end
        return end

    async def _kill(self, handle: Container, name: str) -> None:
        try:
            await self._engine.call(_signal, handle.id, name)
        except EngineRefused as err:
            # 404, 409: it has ended.
            if err.status not in {404, 409}:
                raise

    async def _remove(self, container: str) -> None:
        """Remove a container with its anonymous volumes; what cannot be now is swept later."""
        with contextlib.suppress(EngineAway, EngineRefused):
            await self._engine.call(_remove, container)

    # ---- around ----

    def _noted(self, container: str, action: str) -> None:
        handle = self._live.get(container)
        if handle is not None:
            kind, _, text = action.partition(": ")
            if kind == "health_status":
                self.tell(handle.run, "Health", f"container is {text}")
            else:
                self.tell(handle.run, "Out Of Memory", "a process of the container was killed")

    def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        sweeper = self._sweeper
        if sweeper is None or sweeper.done() or sweeper.get_loop() is not loop:
            self._sweeper = loop.create_task(self._sweep_often(), name="docker sweep")

    async def _sweep_often(self) -> None:
        pause_s = SWEEP_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = SWEEP_S
            with contextlib.suppress(EngineAway, EngineRefused):
                await self._sweep()

    async def _sweep(self) -> int:
        """Remove containers of this agent's home that no run of this life knows. Returns how many."""
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


def _tell_nobody(_run: Run, _kind: str, _text: str) -> None:
    """Nobody shows events."""


def _describe(api: docker.APIClient, settings: DockerSettings) -> dict[str, str]:
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
        ".host_network": "1" if settings.allow_host_network else "",
        ".pull": "1" if settings.allow_pull else "",
    }
    return {f"driver.docker{name}": text for name, text in found.items() if text}


def _signal(api: docker.APIClient, container: str, name: str) -> None:
    api.kill(container, name)


def _remove(api: docker.APIClient, container: str) -> None:
    api.remove_container(container, force=True, v=True)


def _list(api: docker.APIClient, labels: list[str]) -> list[dict[str, Any]]:
    return list(api.containers(all=True, filters={"label": labels}))


def _stats(api: docker.APIClient, container: str) -> dict[str, Any]:
    return dict(api.stats(container, stream=False, one_shot=True))
