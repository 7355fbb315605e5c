"""`caravan monitor`: follow what the services of a `caravan up` on this machine log, as Nomad's `monitor` does."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.cli.runtime import contexts
from services.cli.runtime.bus_client import run_interruptible
from services.cli.runtime.closed_pipe import ending_with_reader
from services.cli.runtime.local_clusters import running_at
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.nats_client import redacted_url

#: From least to most.
LEVELS = ("trace", "debug", "info", "warn", "error")
_ALIASES = {"warning": "warn", "critical": "error"}
_POLL_S = 0.2
#: Bytes at the end of a file that --count looks into.
_TAIL_BYTES = 1 << 20
_KNOWN = frozenset(("event", "level", "timestamp", "service", "instance", "exception"))


class MonitorLine(msgspec.Struct, frozen=True):
    """A line of `monitor --json`. `text`: of a line that is not an object, as it is."""

    service: str
    level: str
    time: str
    event: str
    fields: dict[str, object]
    text: str = ""


class LogFile:
    """A log that grows; it may be cut and begun again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.service = path.stem
        self._at = 0
        self._rest = b""

    def last(self, count: int) -> list[MonitorLine]:
        """The last lines, and what comes later begins behind them. Raises OSError."""
        size = self._path.stat().st_size
        self._at = max(size - _TAIL_BYTES, 0)
        is_cut = self._at > 0
        found = self.new()
        return (found[1:] if is_cut else found)[-count:] if count else []

    def new(self) -> list[MonitorLine]:
        """The whole lines since the last look. Raises OSError."""
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._at:
                self._at, self._rest = 0, b""
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [log_line(self.service, one) for one in lines if one]


def log_line(service: str, raw: bytes) -> MonitorLine:
    """Read a line of a service's log; what is not an object is kept as text."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return MonitorLine(service, "", "", "", {}, raw.decode("utf-8", "replace"))
    level = str(found.get("level", ""))
    return MonitorLine(
        str(found.get("service") or service),
        _ALIASES.get(level, level),
        str(found.get("timestamp", "")),
        str(found.get("event", "")),
        {name: value for name, value in found.items() if name not in _KNOWN},
        str(found.get("exception", "")),
    )


def text_of(one: MonitorLine) -> str:
    """A line for people."""
    if not one.event and one.text:
        return f"{one.service}: {one.text}"
    fields = " ".join(f"{name}={_word(value)}" for name, value in one.fields.items())
    parts = (f"{one.time} [{one.level.upper()}] {one.service}: {one.event}", fields, one.text)
    return " ".join(part for part in parts if part)


def _word(value: object) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def monitor(out: CommandOutput, *, log_level: str, service: Sequence[str], count: int) -> int:
    """Print the last lines of the services' logs, then new ones until Ctrl-C."""
    least = _ALIASES.get(log_level.lower(), log_level.lower())
    if least not in LEVELS:
        expected = ", ".join(LEVELS)
        raise CliError("usage", f"unknown log level {log_level!r}; expected one of: {expected}")
    if count < 0:
        raise CliError("usage", "--count must not be negative")
    folder = _log_folder()
    wanted = _wanted_services(folder, service)
    shown = LEVELS[LEVELS.index(least) :]

    def show(lines: list[MonitorLine]) -> None:
        for one in lines:
            # A line without a level may be a part of a traceback.
            if one.level and one.level not in shown:
                continue
            if out.is_json:
                out.result(one)
            else:
                out.line(text_of(one))

    async def work() -> int:
        files: dict[str, LogFile] = {}
        async with ending_with_reader():
            show(_first(folder, files, wanted, count))
            while True:
                await asyncio.sleep(_POLL_S)
                show(_next(folder, files, wanted))

    return run_interruptible(work())


def _log_folder() -> Path:
    """The logs of the selected cluster. Raises CliError: it is no `caravan up` of this machine."""
    url = contexts.select().context.url
    up = running_at(url)
    if up is None:
        text = f"the bus at {redacted_url(url)} does not belong to a `caravan up` on this machine"
        raise CliError(
            "unavailable", f"{text}: its services log where they run (journal, container)"
        )
    return Path(up.data_dir) / "logs"


def _wanted_services(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The logs that are asked for, by the beginning of their names. Raises CliError for one that there is not."""
    known = sorted(one.stem for one in folder.glob("*.log"))
    for name in names:
        if not any(one.startswith(name) for one in known):
            raise CliError("not_found", f"no service {name!r}; expected one of: {', '.join(known)}")
    return tuple(names)


def _next(folder: Path, files: dict[str, LogFile], wanted: tuple[str, ...]) -> list[MonitorLine]:
    """What all logs have gained, by time; a log that was created meanwhile is read from its beginning."""
    found: list[MonitorLine] = []
    for path in sorted(folder.glob("*.log")):
        if wanted and not path.stem.startswith(wanted):
            continue
        one = files.setdefault(path.stem, LogFile(path))
        try:
            found += one.new()
        except OSError:
            continue
    return sorted(found, key=lambda one: one.time) if all(one.time for one in found) else found


def _first(
    folder: Path, files: dict[str, LogFile], wanted: tuple[str, ...], count: int
) -> list[MonitorLine]:
    """The last lines of all logs together."""
    found: list[MonitorLine] = []
    for path in sorted(folder.glob("*.log")):
        if wanted and not path.stem.startswith(wanted):
            continue
        one = files.setdefault(path.stem, LogFile(path))
        found += one.last(count)
    # Parts of tracebacks have no time of their own: only whole lines are put in order.
    timed = sorted((one for one in found if one.time), key=lambda one: one.time)
    return timed[-count:] if count else []
