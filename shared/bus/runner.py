"""A process around one role: settings, logging, signals, health, shell, exit code.

Decides how a process starts and ends: 0 after SIGTERM or SIGINT, 1 when going on would do harm. Services call
`run_role` from their `__main__.py`. Knows no role by name.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import orjson
import structlog

from shared.bus.accounts import read_credentials
from shared.bus.connect import Login, without_login
from shared.bus.health import Health, HealthServer
from shared.bus.shell import Performer, Shell, ShellSettings
from shared.bus.sources import Carrier
from shared.bus.tape import taped
from shared.core.role import Role
from shared.errors import CaravanError, ConfigInvalid

log = structlog.get_logger()
#: Allocations before the young are looked through, and how often before the older ones are.
_COLLECT = (20_000, 50, 100)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service reads from `CARAVAN_*`; defaults are those of one machine."""

    nats_url: str = "nats://127.0.0.1:4222"
    #: credentials file of the cluster; or user and password, where each container gets only its own.
    credentials: str = ""
    nats_user: str = ""
    nats_password: str = ""
    sys_user: str = ""
    sys_password: str = ""
    replicas: int = 1
    health_host: str = "127.0.0.1"
    health_port: int = 0
    #: where the chosen health port is written.
    health_port_file: str = ""
    start_timeout_s: float = 10.0
    #: begin at a snapshot, where there is one.
    snapshots: bool = True
    #: a view writes one after so many records, and after so many minutes with any; 0: never.
    snapshot_records: int = 10_000
    snapshot_minutes: int = 5
    #: older ones that stay beside the newest three, spread over the log.
    snapshot_spread: int = 12
    log_level: str = "info"
    #: folder into which the role writes every step it takes (docs/profiling.md); empty: nowhere.
    tape: str = ""


def run_settings(environ: Mapping[str, str] | None = None) -> RunSettings:
    """Read the settings from the environment. Raises ConfigInvalid with the variable's name."""
    environ = os.environ if environ is None else environ
    given = {
        name: environ[key]
        for name in RunSettings.__struct_fields__
        if (key := f"CARAVAN_{name.upper()}") in environ
    }
    try:
        return msgspec.convert(given, RunSettings, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"CARAVAN_* settings: {err}") from err


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
        snapshots=settings.snapshots,
        start_timeout_s=settings.start_timeout_s,
    )


def set_up_logging(level: str = "info") -> None:
    """Lines for people on a terminal, JSON elsewhere; always on stderr."""
    least = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    wrapper = structlog.make_filtering_bound_logger(least)
    if sys.stderr.isatty():
        structlog.configure(
            processors=[*shared, structlog.dev.ConsoleRenderer()],
            wrapper_class=wrapper,
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=True,
        )
    else:
        structlog.configure(
            processors=[
                *shared,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(serializer=orjson.dumps),
            ],
            wrapper_class=wrapper,
            logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
            cache_logger_on_first_use=True,
        )


#: Builds what performs a role's own effects; gets the shell to inject what they report.
PerformersOf = Callable[[Shell], Mapping[type, Performer]]
#: Runs beside the shell in the same loop.
Beside = Callable[[Shell], Awaitable[None]]


def run_role(
    role: Role,
    settings: RunSettings,
    *,
    node_id: str = "",
    performers_of: PerformersOf | None = None,
    beside: Beside | None = None,
    carriers: Mapping[str, Carrier] | None = None,
    niceness: int = 0,
) -> int:
    """Run a role until a signal; returns the exit code.

    `niceness` above 0: others go first where processors are scarce.
    `node_id` is for agents, whose user is their node's; `carriers` are for Listen sources that FastStream carries.
    """
    set_up_logging(settings.log_level)
    collect_rarely()
    if niceness:
        _give_way(niceness)
    structlog.contextvars.bind_contextvars(service=role.name, instance=role.instance)
    try:
        role = taped(role, settings.tape)
        own = shell_settings(settings, role.name, node_id)
        shell = Shell(role, own, carriers=carriers)
        if performers_of is not None:
            shell.add_performers(performers_of(shell))
        work = _serve(role, shell, settings, beside)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(work)
    except CaravanError as err:
        log.critical(
            "service.stopped", reason=str(err), error=type(err).__name__, seq=role.next_seq - 1
        )
        return 1
    except Exception:
        log.exception("service.failed", seq=role.next_seq - 1)
        return 1
    return 0


def collect_rarely() -> None:
    """Look for cyclic garbage rarely: a role makes hardly any, and holds very many objects that are none."""
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def _give_way(niceness: int) -> None:
    """Let processes of the same machine go first; where the system weighs sessions, by the session, too."""
    os.nice(niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, where it is installed; None: Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - an optional dependency.
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(role: Role, shell: Shell, settings: RunSettings, beside: Beside | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    http = HealthServer(
        lambda: Health(
            role=role.name,
            instance=role.instance,
            ready=shell.is_ready,
            seq=role.next_seq - 1,
            lag=shell.lag,
        ),
        shell.metrics,
    )
    await http.start(
        settings.health_port, host=settings.health_host, port_file=settings.health_port_file
    )
    log.info(
        "service.started",
        pid=os.getpid(),
        health_port=http.port,
        bus=without_login(settings.nats_url),
    )
    edge = asyncio.ensure_future(beside(shell)) if beside is not None else None
    try:
        await shell.run(stop)
        log.info("service.ended")
    finally:
        if edge is not None:
            edge.cancel()
        await http.stop()
