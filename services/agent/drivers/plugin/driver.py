"""A driver that is a program of the node's operator: every task of it is the program's.

Decides what is written down before the program is asked, so that no run is lost or starts twice, whatever dies. While
the program does not answer, a run keeps its state. What it says is believed of its own runs alone, within bounds.
The protocol: docs/driver-plugins.md.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from services.agent.backoff import Backoff
from services.agent.drivers.driver import (
    AGENT_SHUTDOWN_MARK,
    DriverRun,
    StartRefused,
    TaskExit,
    TaskMissing,
    TaskUsage,
    raise_option_faults,
)
from services.agent.drivers.end_record import read_end, write_end
from services.agent.drivers.launch_values import fill_options, launch_environment
from services.agent.drivers.plugin.exec_session import PluginSession
from services.agent.drivers.plugin.process import DriverProcess
from services.agent.drivers.plugin.protocol import (
    HANDLE_BYTES_MAX,
    AcceptedDriver,
    DriverBroken,
    DriverGone,
    DriverRefused,
    Fingerprint,
    Found,
    RunEnd,
    Signaled,
    Started,
    Usage,
    decode,
    shown,
)
from services.agent.drivers.plugin.remote_fields import (
    known_handle,
    require_remote,
    run_fields,
    slot_fields,
)
from services.agent.drivers.plugin.run_record import (
    RunClaim,
    RunClaims,
    read_handle,
    run_key,
    write_handle,
)
from services.agent.safe_open import open_log
from shared.core.runtime.agent_messages import TaskLaunch
from shared.core.runtime.remote_messages import NO_HANDLE, RemoteRun
from shared.jobspec.drivers.config_schema import driver_attribute, fit_config
from shared.signal_names import signal_error, signal_number

#: At the first fingerprint, for the driver to come up.
FIRST_S = 5.0
FINGERPRINT_S = 5.0
#: A driver that leaves so many fingerprints in a row unanswered is started again.
UNANSWERED_MAX = 4
#: A start waits so long for a driver that is being started; recovery for less, since the run keeps its state.
START_WAIT_S, RECOVER_WAIT_S = 60.0, 10.0
#: Pauses after a question about a run that was answered with an error.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
#: Of all runs when a node is retired.
SWEEP_S = 30.0
_ATTRIBUTES_MAX, _ATTRIBUTE_CHARS_MAX = 64, 256
_log = structlog.get_logger()
T = TypeVar("T")
_DETACHED = TaskExit(code=None, reason="it is not tracked here any more", is_detached=True)


class PluginRun:
    """A run that the driver has. `generation`: the connection on which it said so; -1: on none yet."""

    def __init__(self, run: DriverRun, key: str, *, pid: int = 0, generation: int = -1) -> None:
        self.run = run
        self.key = key
        self.pid = pid
        self.generation = generation
        #: of what runs elsewhere.
        self.remote_handle = NO_HANDLE if run.remote is None else run.remote.handle
        #: its end, where it had ended before it was tracked here.
        self.ended: TaskExit | None = None
        self.detached = asyncio.Event()

    def fields(self) -> dict[str, Any]:
        """Return what names it in every verb."""
        return run_fields(self.key, self.run.remote)


class RemoteRuns:
    """What a driver does with runs that are elsewhere."""

    name: str
    _process: DriverProcess
    _claims: RunClaims

    async def detach(self, handle: PluginRun) -> None:
        """Stop tracking what runs elsewhere; nothing of it is ended."""
        await asyncio.to_thread(self._claims.remove, handle.key)
        handle.detached.set()
        with contextlib.suppress(DriverGone, DriverRefused, TimeoutError):
            async with asyncio.timeout(RECOVER_WAIT_S):
                await self._process.call("detach", **handle.fields())

    async def end_remote(self, remote: RemoteRun) -> None:
        """End what runs elsewhere, tracked here or not. Raises StartRefused when that is not known to be done."""
        handle = known_handle(remote, None)
        fields: dict[str, Any] = {} if handle is None else {"handle": handle}
        try:
            async with asyncio.timeout(RECOVER_WAIT_S):
                await self._process.ready()
                await self._process.call("abandon", **run_fields(remote.token, remote), **fields)
        except (DriverGone, DriverRefused, TimeoutError) as err:
            text = f"{self.name}: {str(err) or 'no answer'}"
            raise StartRefused(text, recoverable=True) from err
        await asyncio.to_thread(self._claims.remove, remote.token)


class PluginDriver(RemoteRuns):
    """The driver. `known`: directories of the runs that the journal names; the driver's others are ended."""

    #: a program may come and go.
    has_dynamic_fingerprint = True

    def __init__(
        self,
        name: str,
        process: DriverProcess,
        claims: RunClaims,
        *,
        host_id: str,
        kernel_boot: str,
        known: Collection[str],
    ) -> None:
        self.name = name
        self._process = process
        self._claims = claims
        self._host_id = host_id
        self._kernel_boot = kernel_boot
        self._known = frozenset(known)
        #: keys of runs that were claimed in this life.
        self._own: set[str] = set()
        self._is_first = True
        self._unanswered = 0

    # ---- the node ----

    def fingerprint(self) -> dict[str, str]:
        """Attributes `driver.NAME…`; without the driver's own name where it cannot be used, with the reason."""
        if self._is_first:
            self._is_first = False
            self._process.ready_now(FIRST_S)
        traits = self._process.traits
        if traits is None:
            off = self._process.off
            return {driver_attribute(self.name, "off"): off} if off else {}
        try:
            found = decode(self._process.post("fingerprint").result(FINGERPRINT_S), Fingerprint)
        except TimeoutError:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                self._unanswered = 0
                self._process.restart("it does not answer")
            return {}
        except (DriverGone, DriverBroken) as err:
            _log.warning("fingerprint.failed", source=self.name, error=str(err))
            return {}
        except DriverRefused as err:
            return {driver_attribute(self.name, "off"): str(err)}
        self._unanswered = 0
        if not found.healthy:
            text = shown(found.message) or "the driver says that it is not healthy"
            return {driver_attribute(self.name, "off"): text}
        return self._attributes(traits, found)

    def _attributes(self, traits: AcceptedDriver, found: Fingerprint) -> dict[str, str]:
        digest = hashlib.sha256(traits.schema_text.encode()).hexdigest()[:16]
        capabilities = ",".join(sorted(one for one, has in traits.info.capabilities.items() if has))
        said = sorted(found.attributes.items())[:_ATTRIBUTES_MAX]
        own = {
            driver_attribute(self.name, shown(key)[:64].replace(" ", "_")): shown(text)[
                :_ATTRIBUTE_CHARS_MAX
            ]
            for key, text in said
            if key
        }
        return {
            **own,
            driver_attribute(self.name): "1",
            driver_attribute(self.name, "api"): str(traits.api),
            driver_attribute(self.name, "version"): shown(traits.info.version)[:60],
            driver_attribute(self.name, "capabilities"): capabilities,
            driver_attribute(self.name, "schema"): traits.schema_text,
            driver_attribute(self.name, "schema_digest"): digest,
        }

    # ---- start and end ----

    async def start(self, run: DriverRun, launch: TaskLaunch) -> PluginRun:
        """Start a run. Raises StartRefused."""
        key = run_key(run, self._host_id)
        # What is answered after this was given up must not come alive.
        late = lambda: self._abandon_late(key, run.remote)  # noqa: E731 - bound to one key.
        while True:
            try:
                async with asyncio.timeout(START_WAIT_S):
                    traits = await self._process.ready()
            except TimeoutError:
                text = self._process.off or "it does not run"
                raise StartRefused(f"driver {self.name}: {text}", recoverable=True) from None
            require_remote(self.name, run.remote, launch, traits)
            order = await asyncio.to_thread(self._order, run, launch, traits)
            await asyncio.to_thread(self._claim, run, key)
            generation = self._process.generation
            try:
                if run.remote is not None and run.remote.state == "running":
                    return await self._take_over(run, key)
                named = {**run_fields(key, run.remote), **slot_fields(run.remote)}
                answer = await self._process.call("start", late=late, **named, **order)
                found = decode(answer, Started)
                if len(found.handle) > HANDLE_BYTES_MAX or found.pid < 0:
                    raise DriverBroken(f"a handle has at most {HANDLE_BYTES_MAX} bytes")  # noqa: TRY301
            except DriverGone:
                # A driver starts a run once, however often it is asked.
                continue
            except DriverRefused as err:
                if run.remote is None:
                    await self.abandon(run)
                raise StartRefused(
                    f"{self.name}: {err}", recoverable=err.recoverable, is_closed=not err.is_open
                ) from err
            except DriverBroken as err:
                if run.remote is None:
                    await self.abandon(run)
                raise StartRefused(f"driver {self.name}: {err}", recoverable=True) from err
            await asyncio.to_thread(write_handle, run.directory, found.handle)
            started = PluginRun(run, key, pid=found.pid, generation=generation)
            started.remote_handle = found.handle
            return started

    async def _take_over(self, run: DriverRun, key: str) -> PluginRun:
        """Find what an earlier tracker has started. Raises DriverGone, DriverRefused, DriverBroken, StartRefused."""
        handle = PluginRun(run, key)
        try:
            found = await self._look(handle)
        except DriverRefused as err:
            raise StartRefused(f"{self.name}: {err}", recoverable=err.recoverable) from err
        if isinstance(found, TaskMissing):
            text = found.reason or f"{self.name}: it is gone"
            raise StartRefused(text, recoverable=True, is_closed=not found.is_open)
        if isinstance(found, TaskExit):
            handle.ended = found
        return handle

    def _order(self, run: DriverRun, launch: TaskLaunch, traits: AcceptedDriver) -> dict[str, Any]:
        """Compose a start. Raises StartRefused for what the driver does not take."""
        if launch.volumes and not traits.can("mounts"):
            text = f"driver {self.name} cannot mount volumes"
            raise StartRefused(text, recoverable=False)
        if launch.network.mode == "none" and not traits.can("no_network"):
            text = f"driver {self.name} cannot run a task without a network"
            raise StartRefused(text, recoverable=False)
        places = run.places
        env = launch_environment(launch, places.variables())
        config = fill_options(msgspec.json.decode(launch.config), launch, env)
        config, faults = fit_config(traits.schema, config)
        raise_option_faults(self.name, faults)
        run.make_directories()
        if not launch.logs.disabled:
            for path in (places.stdout, places.stderr):
                os.close(open_log(places.top, path))
        return {"config": config, "env": env, **_start_fields(run, launch)}

    def _claim(self, run: DriverRun, key: str) -> None:
        """Write down that the driver may have a run. Raises StartRefused."""
        self._own.add(key)
        claim = RunClaim(
            directory=str(run.directory), kernel_boot=self._kernel_boot, remote=run.remote
        )
        try:
            self._claims.write(key, claim)
        except OSError as err:
            text = f"driver {self.name}: the run cannot be written down: {err.strerror or err}"
            raise StartRefused(text, recoverable=True) from err

    async def recover(self, run: DriverRun) -> PluginRun | TaskExit | TaskMissing:
        """Find a run of an earlier life, or make sure that it never begins."""
        key = run_key(run, self._host_id)
        self._own.add(key)
        if (ended := read_end(run.directory)) is not None:
            await self._forget(key)
            return ended
        claim = self._claims.read(key)
        is_marked = (run.directory / AGENT_SHUTDOWN_MARK).exists()
        if run.remote is None and (claim is None or claim.abandoned or is_marked):
            await self.abandon(run)
            return TaskMissing(started=False)
        try:
            async with asyncio.timeout(RECOVER_WAIT_S):
                await self._process.ready()
        except TimeoutError:
            # It may be alive: it keeps its state until its driver says otherwise.
            return PluginRun(run, key)
        try:
            async with asyncio.timeout(RECOVER_WAIT_S):
                return await self._look(PluginRun(run, key))
        except (DriverGone, DriverRefused, DriverBroken, TimeoutError):
            return PluginRun(run, key)

    async def _look(self, handle: PluginRun) -> PluginRun | TaskExit | TaskMissing:
        """Ask what became of a run. Raises DriverGone, DriverRefused, DriverBroken."""
        directory, generation = handle.run.directory, self._process.generation
        kept = known_handle(handle.run.remote, await asyncio.to_thread(read_handle, directory))
        fields: dict[str, Any] = {} if kept is None else {"handle": kept}
        found = decode(await self._process.call("recover", **handle.fields(), **fields), Found)
        if found.state == "running":
            handle.pid, handle.generation = max(found.pid, 0), generation
            return handle
        if found.state == "exited":
            return await self._finish(handle, found.to_exit())
        if found.state != "gone":
            raise DriverBroken(f"state {shown(found.state)[:40]!r} is not running, exited or gone")
        claim = self._claims.read(handle.key)
        is_ended = await self._abandon(handle.run) if kept is not None or found.started else False
        if kept is None and (handle.run.remote is not None or not found.started):
            # What is elsewhere may be started under the same token: that happens once.
            return TaskMissing(started=False)
        if handle.run.remote is not None:
            text = shown(found.reason) or "what ran elsewhere is gone"
            reason = f"{self.name}: {text}"
            return TaskMissing(started=True, reason=reason, is_open=not is_ended)
        if claim is not None and claim.kernel_boot != self._kernel_boot:
            reason = "node was rebooted while the task ran"
            return TaskMissing(started=True, reason=reason, charged=False)
        text = shown(found.reason) or "the driver does not know the task any more"
        return TaskMissing(started=True, reason=f"{self.name}: {text}")

    async def wait(self, handle: PluginRun) -> TaskExit:
        """Wait for the end, or until the run is detached; while the driver is away, for the driver."""
        if handle.ended is not None:
            return handle.ended
        if handle.run.remote is None:
            return await self._wait(handle)
        end = asyncio.ensure_future(self._wait(handle))
        left = asyncio.ensure_future(handle.detached.wait())
        try:
            await asyncio.wait({end, left}, return_when=asyncio.FIRST_COMPLETED)
            return end.result() if end.done() else _DETACHED
        finally:
            end.cancel()
            left.cancel()

    async def _wait(self, handle: PluginRun) -> TaskExit:
        pause = Backoff(RETRY_S, RETRY_MAX_S)
        while True:
            try:
                await self._process.ready()
                if handle.generation != self._process.generation:
                    found = await self._look(handle)
                    if isinstance(found, TaskMissing):
                        end = TaskExit(code=None, reason=found.reason or "the task never began")
                        return await self._finish(handle, end)
                    if isinstance(found, TaskExit):
                        return found
                answer = await self._process.call("wait", is_long=True, **handle.fields())
                return await self._finish(handle, decode(answer, RunEnd).to_exit())
            except DriverGone:
                continue
            except (DriverRefused, DriverBroken) as err:
                _log.warning("driver.call_failed", driver=self.name, about="wait", error=str(err))
                handle.generation = -1
                await asyncio.sleep(pause.take())

    async def _finish(self, handle: PluginRun, end: TaskExit) -> TaskExit:
        """Keep an end, and let the driver forget the run."""
        await asyncio.to_thread(write_end, handle.run.directory, end)
        await self._forget(handle.key)
        return end

    async def _forget(self, key: str) -> None:
        """Let the driver drop a run whose end is kept; a driver that is away gets it with its next connection."""
        claim = self._claims.read(key)
        if claim is None:
            return
        with contextlib.suppress(DriverGone, DriverRefused, TimeoutError):
            async with asyncio.timeout(RECOVER_WAIT_S):
                await self._process.call("forget", **run_fields(key, claim.remote))
            self._claims.remove(key)

    async def signal(self, handle: PluginRun, name: str) -> bool:
        """Send a signal by name; False: the run had ended already. Raises ValueError for an unknown one."""
        if signal_number(name) is None:
            raise ValueError(signal_error(name))
        answer = await self._repeat("signal", **handle.fields(), signal=name)
        return decode(answer, Signaled).delivered

    async def stop(self, handle: PluginRun) -> None:
        """Kill the run and all that it started."""
        await self._repeat("stop", **handle.fields())

    async def _repeat(self, verb: str, **fields: Any) -> msgspec.Raw:
        """Ask until a driver answers. Raises DriverRefused."""
        while True:
            await self._process.ready()
            with contextlib.suppress(DriverGone):
                return await self._process.call(verb, **fields)

    async def abandon(self, run: DriverRun) -> None:
        """Make sure that a run never comes alive; a driver that does not answer is asked again when it is back."""
        await self._abandon(run)

    async def _abandon(self, run: DriverRun) -> bool:
        """Say whether it answered. What runs elsewhere is not asked for again here: the log orders it."""
        key = run_key(run, self._host_id)
        if run.remote is not None:
            with contextlib.suppress(StartRefused):
                await self.end_remote(run.remote)
                return True
            return False
        claim = self._claims.read(key)
        if claim is None:
            return True
        abandoned = msgspec.structs.replace(claim, abandoned=True)
        await asyncio.to_thread(self._claims.write, key, abandoned)
        with contextlib.suppress(DriverGone, DriverRefused, TimeoutError):
            async with asyncio.timeout(RECOVER_WAIT_S):
                await self._process.call("abandon", run=key)
            self._claims.remove(key)
            return True
        return False

    def _abandon_late(self, key: str, remote: RemoteRun | None) -> None:
        if remote is not None:
            # The next start has the same token.
            return
        _log.warning("driver.late_start", driver=self.name, run=key)
        self._process.post("abandon", run=key)

    def settle_claims(self) -> None:
        """With a new connection: have the driver end what must not live. Called in the connection's thread."""
        for key, claim in self._claims.all().items():
            is_known = claim.directory in self._known or key in self._own
            if claim.abandoned or not is_known:
                # Another node may track what is elsewhere.
                self._settle(key, "abandon" if claim.remote is None else "detach", claim.remote)
            elif read_end(Path(claim.directory)) is not None:
                self._settle(key, "forget", claim.remote)

    def _settle(self, key: str, verb: str, remote: RemoteRun | None) -> None:
        answer = self._process.post(verb, **run_fields(key, remote))

        def answered(found: Any) -> None:
            if not found.cancelled() and found.exception() is None:
                self._claims.remove(key)

        answer.add_done_callback(answered)

    # ---- beside a run ----

    async def exec_stream(
        self, handle: PluginRun, command: tuple[str, ...], *, tty: bool
    ) -> PluginSession:
        """Start a command beside the task. Raises StartRefused."""
        traits = self._process.traits
        if traits is None or not traits.can("exec"):
            text = "does not run" if traits is None else "cannot run commands in a task"
            raise StartRefused(f"driver {self.name} {text}", recoverable=traits is None)
        session = PluginSession(self._process, handle.key, os.urandom(8).hex())
        try:
            await session.begin(command, tty=tty)
        except (DriverGone, DriverRefused) as err:
            raise StartRefused(f"{self.name}: {err}", recoverable=True) from err
        return session

    async def stats(self, handle: PluginRun) -> TaskUsage:
        """Return the present use of the run."""
        try:
            found = decode(await self._process.call("stats", **handle.fields()), Usage)
            if not 0 <= found.cpu_ns < 2**63 or not 0 <= found.memory_bytes < 2**63:
                raise DriverBroken("cpu_ns and memory_bytes must be 0 to 2^63 - 1")  # noqa: TRY301
        except (DriverGone, DriverRefused, DriverBroken) as err:
            raise StartRefused(f"{self.name}: {err}", recoverable=True) from err
        return TaskUsage(cpu_ns=found.cpu_ns, memory_bytes=found.memory_bytes)

    def sweep_all(self) -> int:
        """End all runs of this data directory; returns how many. Blocks."""
        claims = self._claims.all()
        if not claims or self._process.ready_now(FIRST_S) is None:
            return 0
        answers = [
            (
                key,
                self._process.post(
                    "abandon" if one.remote is None else "detach", **run_fields(key, one.remote)
                ),
            )
            for key, one in claims.items()
        ]
        count = 0
        for key, answer in answers:
            with contextlib.suppress(DriverGone, DriverRefused, TimeoutError):
                answer.result(SWEEP_S)
                self._claims.remove(key)
                count += 1
        return count

    def close(self) -> None:
        """End the driver's process; its tasks run on."""
        self._process.close()


def _start_fields(run: DriverRun, launch: TaskLaunch) -> dict[str, Any]:
    """Compose what a start says beside options and variables."""
    places = run.places
    names = launch.names
    return {
        "user": launch.user,
        "names": {
            "job": names.job,
            "group": names.group,
            "task": names.task,
            "alloc": run.alloc_id,
            "alloc_name": names.alloc,
            "node": names.node_id,
            "run": run.number,
        },
        "directories": {
            "task": str(places.task),
            "local": str(places.task / "local"),
            "secrets": str(places.task / "secrets"),
            "alloc": str(places.shared),
        },
        "stdout": "" if launch.logs.disabled else str(places.stdout),
        "stderr": "" if launch.logs.disabled else str(places.stderr),
        "resources": {
            "cpu_mhz": launch.cpu_mhz,
            "memory_mib": launch.memory_mib,
            "memory_max_mib": launch.memory_max_mib,
            "cores": launch.cores,
            "devices": launch.devices,
            "device_paths": launch.device_paths,
        },
        "ports": {
            label: {"host": host, "task": own} for label, (host, own) in launch.ports.items()
        },
        "network": {
            "mode": launch.network.mode,
            "hostname": launch.network.hostname,
            "dns_servers": launch.network.dns_servers,
            "dns_searches": launch.network.dns_searches,
            "dns_options": launch.network.dns_options,
        },
        "mounts": [
            {"source": one.path, "target": one.target, "read_only": one.read_only}
            for one in launch.volumes
        ],
    }
