"""Settings from `CARAVAN_*`, the name of an instance, and logging: what a service needs before there is a role.

The name of an instance is new at every start: leases and plan numbers hang on it.
"""

import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import orjson
import structlog

from shared.bus.connection.nats_client import redacted_url
from shared.bus.process.log_lines import LOG_LINES
from shared.errors import ConfigInvalid

S = TypeVar("S", bound=msgspec.Struct)
#: Never logged.
_SECRET = ("password", "credentials")


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
    #: a view reads the stored log again in the background, with so many seconds between two passes; 0: never.
    scrub_pause_s: float = 600.0
    #: an intake refuses tasks with a longer kill_timeout.
    max_kill_timeout_s: int = 600
    log_level: str = "info"
    #: folder into which the role writes every step it takes (docs/profiling.md); empty: nowhere.
    tape: str = ""


def run_settings(environ: Mapping[str, str] | None = None) -> RunSettings:
    """Read the settings of every service. Raises ConfigInvalid with the variable's name."""
    return settings_from(RunSettings, environ)


def new_instance(role: str) -> str:
    """Name this process: role, pid and three random bytes."""
    return f"{role}-{os.getpid()}-{secrets.token_hex(3)}"


def settings_from(
    kind: type[S], environ: Mapping[str, str] | None = None, *, prefix: str = "CARAVAN_"
) -> S:
    """Read a frozen Struct's fields from `<prefix><FIELD>`. Raises ConfigInvalid with the variable's name."""
    environ = os.environ if environ is None else environ
    names = {name: f"{prefix}{name.upper()}" for name in kind.__struct_fields__}
    given = {name: environ[key] for name, key in names.items() if key in environ}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as err:
        raise ConfigInvalid(f"{prefix}* settings: {err}") from err


def configure_logging(level: str = "info") -> None:
    """Log to stderr: lines for people on a terminal, JSON elsewhere. Stdlib loggers use the same format."""
    least = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    is_terminal = sys.stderr.isatty()
    # The renderer's own traces show the values of variables, secrets among them.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    render: list[structlog.typing.Processor] = [console]
    factory: Callable[..., object] = structlog.PrintLoggerFactory(sys.stderr)
    if not is_terminal:
        shared.append(structlog.processors.format_exc_info)
        render = [structlog.processors.JSONRenderer(serializer=orjson.dumps)]
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=[*shared, LOG_LINES, *render],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    _route_stdlib(least)


class _StructlogHandler(logging.Handler):
    """Hands records of stdlib loggers (asyncio, docker, FastStream) to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record, with its logger's name and its traceback."""
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        log = structlog.get_logger().bind(logger=record.name)
        log.log(record.levelno, record.getMessage(), **fields)


def _route_stdlib(least: int) -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _StructlogHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StructlogHandler())
    root.setLevel(least)
    logging.captureWarnings(capture=True)


def log_settings(role: str, *settings: msgspec.Struct, level: str = "info") -> None:
    """Write what a service was configured with, secrets left out."""
    configure_logging(level)
    known = {name: value for one in settings for name, value in msgspec.structs.asdict(one).items()}
    shown = {
        name: redacted_url(value) if name.endswith("url") else value
        for name, value in sorted(known.items())
        if not _is_secret(name)
    }
    structlog.get_logger().info("service.configured", service=role, **shown)


def _is_secret(name: str) -> bool:
    return any(part in name for part in _SECRET)
