"""A process around one role or several: settings, logging, signals, health, shells, exit code.

The process ends with 0 after SIGTERM or SIGINT, and with 1 when continuing would do harm. Several roles share the loop
and the health server; each keeps its own login, connection and replica. The first role that fails ends the others.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from shared.bus.connection.nats_client import Login, redacted_url
from shared.bus.process.event_lines import write_event_lines
from shared.bus.process.health_server import Health, HealthServer, merged_metrics
from shared.bus.process.process_metrics import process_metrics
from shared.bus.process.settings import RunSettings, configure_logging, log_settings, run_settings
from shared.bus.server.accounts import read_credentials
from shared.bus.shell.shell import EffectHandler, Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.bus.shell.sources import SubscribeFunction
from shared.bus.shell.tape import record_to_tape
from shared.core.runtime.role import Role
from shared.errors import CaravanError

log = structlog.get_logger()
#: Allocations before the young are looked through, and how often before the older ones are.
_GC_THRESHOLDS = (20_000, 50, 100)
#: How long the end of a service waits for what runs beside its role.
_SIDE_TASK_END_S = 5.0


def shell_settings(settings: RunSettings, role: str, node_id: str = "") -> ShellSettings:
    """Find the login of a role, or of a node's agent. Raises ConfigInvalid."""
    user, password = settings.nats_user, settings.nats_password
    sys_user, sys_password = settings.sys_user, settings.sys_password
    if settings.credentials:
        known = read_credentials(Path(settings.credentials))
        user, password = known.node_login(node_id) if node_id else known.login(role)
        if role == "plan_applier":
            sys_user, sys_password = known.login("sys")
    url = settings.nats_url
    login = Login(url=url, name=role, user=user, password=password)
    asks_sys = role == "plan_applier" and bool(sys_user)
    return ShellSettings(
        login=login,
        sys_login=Login(url=url, name=role, user=sys_user, password=sys_password)
        if asks_sys
        else None,
        replicas=settings.replicas,
        in_core=not node_id,
        # What a snapshot holds could not be on a tape.
        snapshots=settings.snapshots and not settings.tape,
        start_timeout_s=settings.start_timeout_s,
    )


#: Builds what performs a role's own effects; gets the shell to inject what they report.
EffectHandlersFactory = Callable[[Shell], Mapping[type, EffectHandler]]
#: Runs beside the shell in the same loop.
SideTask = Callable[[Shell], Awaitable[None]]
#: What a role does between a signal and its end; the event is set by a second signal.
BeforeEnd = Callable[[Shell, asyncio.Event], Awaitable[None]]


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A role and what its process needs to run it."""

    role: Role
    #: of an agent, whose user is its node's.
    node_id: str = ""
    performers_of: EffectHandlersFactory | None = None
    side_task: SideTask | None = None
    before_end: BeforeEnd | None = None
    #: for Listen sources that are not the shell's own subscriptions.
    carriers: Mapping[str, SubscribeFunction] | None = None
    #: above 0: other processes go first where processors are scarce.
    niceness: int = 0
    #: what the role was made from, for its tape.
    given: Mapping[str, object] | None = None
    #: settings of this role alone, for the log.
    settings: msgspec.Struct | None = None
    #: numbers of what performs its effects, beside the role's own.
    metrics: Callable[[], dict[str, float]] | None = None


#: Makes a role from the settings of the process. Raises ConfigInvalid.
RoleBuilder = Callable[[RunSettings], RoleSpec]


def run_services(builders: Sequence[RoleBuilder]) -> int:
    """Build roles from the environment and run them; returns the exit code. Raises ConfigInvalid."""
    settings = run_settings()
    specs = [build(settings) for build in builders]
    for spec in specs:
        own = () if spec.settings is None else (spec.settings,)
        log_settings(spec.role.name, settings, *own, level=settings.log_level)
    return run_roles(specs, settings)


def run_role(
    role: Role,
    settings: RunSettings,
    *,
    node_id: str = "",
    performers_of: EffectHandlersFactory | None = None,
    side_task: SideTask | None = None,
    before_end: BeforeEnd | None = None,
    carriers: Mapping[str, SubscribeFunction] | None = None,
    given: Mapping[str, object] | None = None,
    metrics: Callable[[], dict[str, float]] | None = None,
) -> int:
    """Run one role until a signal; returns the exit code. The arguments are those of RoleSpec."""
    spec = RoleSpec(
        role=role,
        node_id=node_id,
        performers_of=performers_of,
        side_task=side_task,
        before_end=before_end,
        carriers=carriers,
        given=given,
        metrics=metrics,
    )
    return run_roles([spec], settings)


def run_roles(specs: Sequence[RoleSpec], settings: RunSettings) -> int:
    """Run roles in one process until a signal or a failure; returns the exit code."""
    configure_logging(settings.log_level)
    tune_garbage_collector()
    # A process of several roles goes first where one of them does.
    if niceness := min(spec.niceness for spec in specs):
        _lower_priority(niceness)
    names = ",".join(spec.role.name for spec in specs)
    instances = ",".join(spec.role.instance for spec in specs)
    structlog.contextvars.bind_contextvars(service=names, instance=instances)
    try:
        running = [_shell_of(spec, settings) for spec in specs]
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(running, settings))
    except CaravanError as err:
        log.critical("service.stopped", reason=str(err), error=type(err).__name__)
    except Exception:
        log.exception("service.failed")
    return 1


class _RunningRole(msgspec.Struct, frozen=True):
    role: Role
    shell: Shell
    side_task: SideTask | None
    before_end: BeforeEnd | None = None
    more_metrics: Callable[[], dict[str, float]] | None = None

    @property
    def seq(self) -> int:
        return self.role.next_seq - 1

    def health(self) -> Health:
        role, shell = self.role, self.shell
        return Health(
            role=role.name,
            instance=role.instance,
            ready=shell.is_ready and not shell.problems.by_name,
            seq=self.seq,
            lag=shell.lag,
            problems=dict(shell.problems.by_name),
            alarms=(*getattr(role, "alarms", ()), *shell.problems.alarms),
        )


def _shell_of(spec: RoleSpec, settings: RunSettings) -> _RunningRole:
    write_event_lines(spec.role)
    role = record_to_tape(spec.role, settings.tape, spec.given)
    own = shell_settings(settings, role.name, spec.node_id)
    shell = Shell(role, own, carriers=spec.carriers)
    shell.on_replayed = lambda seq: log.info("log.replayed", seq=seq)
    if spec.performers_of is not None:
        shell.add_performers(spec.performers_of(shell))
    return _RunningRole(role, shell, spec.side_task, spec.before_end, spec.metrics)


def tune_garbage_collector() -> None:
    """Run the cyclic garbage collector rarely: a role creates little such garbage and holds very many live objects."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _lower_priority(niceness: int) -> None:
    """Let processes of the same machine go first; where the system weighs sessions, by the session, too."""
    os.nice(niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, where it is installed; None: Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - not there on Windows and PyPy; the event loop of Python serves.
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(running: Sequence[_RunningRole], settings: RunSettings) -> int:
    """Run the shells until all have ended; the first that ends stops the others."""
    stop, asked, again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    leaving = asyncio.create_task(_leave(running, stop, asked=asked, again=again))
    http = HealthServer(lambda: _health(running), lambda: _metrics(running))
    await http.start(
        settings.health_port, host=settings.health_host, port_file=settings.health_port_file
    )
    fields = {"pid": os.getpid(), "health_port": http.port, "bus": redacted_url(settings.nats_url)}
    tasks = [asyncio.create_task(_run(one, stop, fields)) for one in running]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        return max(await asyncio.gather(*tasks))
    finally:
        for task in (leaving, *tasks):
            task.cancel()
        await http.stop()


async def _leave(
    running: Sequence[_RunningRole],
    stop: asyncio.Event,
    *,
    asked: asyncio.Event,
    again: asyncio.Event,
) -> None:
    """At a signal, let the roles do what they have to before their end, then stop them."""
    await asked.wait()
    try:
        await asyncio.gather(
            *(one.before_end(one.shell, again) for one in running if one.before_end is not None)
        )
    except Exception:
        log.exception("service.end_failed")
    finally:
        stop.set()


async def _run(one: _RunningRole, stop: asyncio.Event, fields: Mapping[str, object]) -> int:
    """Run one shell; its log lines carry its role and instance."""
    role = one.role
    structlog.contextvars.bind_contextvars(service=role.name, instance=role.instance)
    log.info("service.started", **fields)
    edge = asyncio.ensure_future(one.side_task(one.shell)) if one.side_task is not None else None
    if edge is not None:
        # What runs beside a role ends the process where it fails, as the role does.
        edge.add_done_callback(lambda _: stop.set())
    try:
        await one.shell.run(stop)
        if edge is not None and edge.done():
            edge.result()
        log.info("service.ended")
    except CaravanError as err:
        log.critical("service.stopped", reason=str(err), error=type(err).__name__, seq=one.seq)
        return 1
    except Exception:
        log.exception("service.failed", seq=one.seq)
        return 1
    finally:
        if edge is not None:
            edge.cancel()
            # It may need its own connection and tasks to end, and all tasks are cancelled once this has returned.
            await asyncio.wait([edge], timeout=_SIDE_TASK_END_S)
    return 0


def _health(running: Sequence[_RunningRole]) -> Health:
    """Of one role, or of all: ready when all are, at the lowest seq, with the largest lag."""
    each = [one.health() for one in running]
    if len(each) == 1:
        return each[0]
    return Health(
        role=",".join(one.role for one in each),
        instance=",".join(one.instance for one in each),
        ready=all(one.ready for one in each),
        seq=min(one.seq for one in each),
        lag=max(one.lag for one in each),
        problems={name: text for one in each for name, text in one.problems.items()},
        alarms=tuple(dict.fromkeys(text for one in each for text in one.alarms)),
        roles=each,
    )


def _metrics(running: Sequence[_RunningRole]) -> dict[str, float]:
    each = {
        one.role.name: one.shell.metrics() | (one.more_metrics() if one.more_metrics else {})
        for one in running
    }
    return {**merged_metrics(each), **process_metrics()}
