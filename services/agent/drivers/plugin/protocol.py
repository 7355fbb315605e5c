"""Messages between the agent and a driver plugin: JSON, one object a line. The page: docs/driver-plugins.md.

Decides what an answer must be. A driver may be wrong in any way: everything that it says is read within bounds, and
what is no answer of its verb raises DriverBroken.
"""

from typing import Any, TypeVar

import msgspec

from services.agent.drivers.driver import TaskExit
from shared.jobspec.drivers.config_schema import (
    CAPABILITIES,
    ConfigSchema,
    SchemaRefused,
    read_schema,
)

#: Versions of the protocol that this agent speaks.
APIS = (1,)
LINE_BYTES_MAX = 1 << 20
HANDLE_BYTES_MAX = 16 * 1024
#: Of texts that are shown.
TEXT_CHARS_MAX = 300
IN_FLIGHT_MAX = 64
_SIGNAL_MAX, _CODE_MAX = 64, 2**31 - 1
T = TypeVar("T")


class DriverGone(Exception):
    """The driver's process or its connection ended before it answered: the question may be repeated to the next."""


class DriverBroken(Exception):
    """An answer that is none of its verb."""


class DriverRefused(Exception):
    """The driver answered with an error. Not `recoverable`: another try would fail the same way.

    `is_open`: whether what it was asked for happened elsewhere is not known.
    """

    def __init__(self, reason: str, *, recoverable: bool, is_open: bool = False) -> None:
        super().__init__(reason)
        self.recoverable = recoverable
        self.is_open = is_open


class AnswerError(msgspec.Struct):
    """Why a request failed."""

    message: str = ""
    recoverable: bool = True
    #: of a remote driver: whether it happened is not known.
    open: bool = False


class Line(msgspec.Struct):
    """A line of a driver: the answer to a request."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: AnswerError | None = None


class DriverInfo(msgspec.Struct):
    """What a driver says of itself."""

    apis: tuple[int, ...] = ()
    name: str = ""
    version: str = ""
    capabilities: dict[str, bool] = {}
    config_schema: dict[str, Any] = {}
    max_in_flight: int = 16


class Fingerprint(msgspec.Struct):
    """What the driver found on its node."""

    healthy: bool = True
    message: str = ""
    attributes: dict[str, str] = {}


class Started(msgspec.Struct):
    """A run that was started."""

    handle: msgspec.Raw = msgspec.Raw(b"null")
    pid: int = 0


class RunEnd(msgspec.Struct):
    """How a run ended."""

    exit_code: int | None = None
    signal: int = 0
    reason: str = ""

    def to_exit(self) -> TaskExit:
        """Return it for the agent. Raises DriverBroken."""
        if not 0 <= self.signal <= _SIGNAL_MAX or not 0 <= (self.exit_code or 0) <= _CODE_MAX:
            raise DriverBroken(f"exit code {self.exit_code}, signal {self.signal}: out of range")
        return TaskExit(code=self.exit_code, signal=self.signal, reason=shown(self.reason))


class Found(RunEnd):
    """What is known of a run: `state` is running, exited or gone."""

    state: str = ""
    pid: int = 0
    #: of one that is gone: it had begun.
    started: bool = True


class Signaled(msgspec.Struct):
    """Whether a signal reached a run that had not ended."""

    delivered: bool = True


class Usage(msgspec.Struct):
    """The present use of a run."""

    cpu_ns: int = 0
    memory_bytes: int = 0


class Output(msgspec.Struct):
    """Output of a command beside a task; `data` is base64, empty at the end."""

    stream: int = 1
    data: str = ""


class CommandEnd(msgspec.Struct):
    """The exit code of a command beside a task."""

    exit_code: int = 0


class AcceptedDriver(msgspec.Struct, frozen=True):
    """A driver whose handshake was accepted."""

    info: DriverInfo
    api: int
    schema: ConfigSchema
    #: compact JSON.
    schema_text: str

    def can(self, capability: str) -> bool:
        """Return whether it declared a capability."""
        return self.info.capabilities.get(capability, False)


def shown(text: str) -> str:
    """Cut a text of a driver to one line that may be shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:4096]).split())[
        :TEXT_CHARS_MAX
    ]


def decode(data: msgspec.Raw | bytes, kind: type[T]) -> T:
    """Read an answer. Raises DriverBroken."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as err:
        raise DriverBroken(
            f"no answer of the form that docs/driver-plugins.md gives: {err}"
        ) from None


def accept(name: str, info: DriverInfo) -> AcceptedDriver:
    """Accept a handshake. Raises DriverBroken; the text is for the operator."""
    common = [one for one in info.apis if one in APIS]
    if not common:
        theirs = ", ".join(map(str, info.apis[:10])) or "none"
        ours = ", ".join(map(str, APIS))
        raise DriverBroken(f"it speaks api {theirs}, this agent speaks {ours}")
    if info.name != name:
        raise DriverBroken(f"it calls itself {shown(info.name)[:60]!r}, its program is {name!r}")
    wanted = sorted(word for word, has in info.capabilities.items() if has)
    strange = [word for word in wanted if word not in CAPABILITIES]
    if not 1 <= info.max_in_flight <= 10_000:
        raise DriverBroken("max_in_flight must be 1 to 10000")
    text = msgspec.json.encode(info.config_schema, order="sorted").decode()
    try:
        schema = read_schema(text)
    except SchemaRefused as err:
        raise DriverBroken(f"config_schema: {err}") from None
    for word in strange:
        # Of a later api: what an agent does not know it does not use.
        info.capabilities.pop(word)
    return AcceptedDriver(info=info, api=max(common), schema=schema, schema_text=text)
