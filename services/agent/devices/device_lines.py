"""What device plugins print: lines of JSON about the devices that there are, and the answer to `reserve`.

Decides what of it is taken. Everything is bounded, and refused as a whole where a part of it is wrong: half a line
would withdraw devices that tasks hold. Next: `plugin_process.py`.
"""

import re
from typing import TypeVar

import msgspec

from schemas.nodes import Instance, Pool
from shared.core.resources.devices import is_unit
from shared.core.resources.offers import VALUE_MAX, invalid_pools

#: Of a line, and of an answer.
LINE_BYTES_MAX, ANSWER_BYTES_MAX = 256 * 1024, 64 * 1024
#: Of a text that a program gives as a reason.
REASON_CHARS_MAX = 300
_PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Prefixes of variables that the agent gives.
_OWN_VARIABLES = ("NOMAD_", "CARAVAN_")
_DEVICE_FILE = re.compile(r"/dev/[A-Za-z0-9_./:-]*[A-Za-z0-9_:-]")
_GROUP_MAX = 1_000_000
_Kind = TypeVar("_Kind")


class PluginAnswerInvalid(Exception):
    """What a program printed cannot be taken; the text says why, and names the field."""


class _Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: int | float
    unit: str


_Value = bool | int | float | str | _Quantity


class _Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    healthy: bool = True
    #: why it is not healthy.
    reason: str = ""
    group: int = 0


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vendor: str
    type: str
    name: str
    instances: tuple[_Instance, ...] = ()
    attributes: dict[str, _Value] = {}


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: tuple[_Group, ...] | None = None
    error: str | None = None


class DeviceMount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path of the node that a task needs, and where in the task."""

    source: str
    target: str
    read_only: bool = True


class DeviceReservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a task needs to use its devices."""

    env: dict[str, str] = {}
    mounts: tuple[DeviceMount, ...] = ()
    #: device files of the node, which the task sees under the same path.
    devices: tuple[str, ...] = ()
    error: str | None = None


def read_devices(line: bytes) -> tuple[Pool, ...]:
    """Read a line about devices. Raises PluginAnswerInvalid, also where the program says an error."""
    found = _decoded(line, _Line)
    if found.error:
        raise PluginAnswerInvalid(reason_text(found.error))
    if found.devices is None:
        raise PluginAnswerInvalid('its line has neither "devices" nor "error"')
    pools = tuple(_pool(one, f"devices[{at}]") for at, one in enumerate(found.devices))
    if reason := invalid_pools(pools):
        raise PluginAnswerInvalid(f"devices: {reason}")
    return pools


def read_reservation(answer: bytes) -> DeviceReservation:
    """Read the answer to `reserve`. Raises PluginAnswerInvalid, also where the program says an error."""
    found = _decoded(answer, DeviceReservation)
    if found.error:
        raise PluginAnswerInvalid(reason_text(found.error))
    for name, text in found.env.items():
        if not _VARIABLE.fullmatch(name) or name.startswith(_OWN_VARIABLES):
            raise PluginAnswerInvalid(f"env: {name[:40]!r} is not a name that a plugin can set")
        if "\0" in text:
            raise PluginAnswerInvalid(f"env.{name}: the value has a zero byte")
    for at, mount in enumerate(found.mounts):
        for field, path in (("source", mount.source), ("target", mount.target)):
            if not _is_plain_path(path):
                text = f"{path[:80]!r} is not an absolute path without . and .."
                raise PluginAnswerInvalid(f"mounts[{at}].{field}: {text}")
    for at, path in enumerate(found.devices):
        if not _DEVICE_FILE.fullmatch(path) or not _is_plain_path(path):
            raise PluginAnswerInvalid(f"devices[{at}]: {path[:80]!r} is not a path below /dev")
    return found


def reason_text(text: str) -> str:
    """Shorten what a program says to one line."""
    return " ".join(text.split())[:REASON_CHARS_MAX]


def _decoded(data: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise PluginAnswerInvalid(f"its line cannot be read: {reason_text(str(err))}") from None


def _is_plain_path(path: str) -> bool:
    parts = path.split("/")
    return (
        path.startswith("/") and "\0" not in path and not {".", ".."} & set(parts) and path != "/"
    )


def _pool(one: _Group, where: str) -> Pool:
    for field, text in (("vendor", one.vendor), ("type", one.type)):
        if not _PART.fullmatch(text):
            most = "1 to 64 letters, digits, dashes and underscores"
            raise PluginAnswerInvalid(f"{where}.{field}: {text[:40]!r} does not have {most}")
    if not one.name or one.name.strip() != one.name:
        raise PluginAnswerInvalid(
            f"{where}.name: {one.name[:40]!r} is empty, or has blanks around it"
        )
    return Pool(
        name=f"device.{one.type}",
        instances=tuple(
            _instance(each, f"{where}.instances[{at}]") for at, each in enumerate(one.instances)
        ),
        vendor=one.vendor,
        model=one.name,
        attributes={
            key: _attribute(value, f"{where}.attributes.{key[:40]}")
            for key, value in sorted(one.attributes.items())
        },
    )


def _instance(one: _Instance, where: str) -> Instance:
    if not 0 <= one.group <= _GROUP_MAX:
        raise PluginAnswerInvalid(f"{where}.group: {one.group} is not within 0 to {_GROUP_MAX}")
    if one.healthy:
        return Instance(id=one.id, group=one.group)
    text = reason_text(one.reason) or "the plugin gives no reason"
    return Instance(id=one.id, group=one.group, unhealthy=text[:VALUE_MAX])


def _attribute(value: _Value, where: str) -> str:
    """Write a value as job files compare it: a number with its unit, `true` or `false`, or a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Quantity):
        if not is_unit(value.unit):
            raise PluginAnswerInvalid(f"{where}.unit: {value.unit[:20]!r} is not a known unit")
        return f"{_number(value.value, where)} {value.unit}"
    return value if isinstance(value, str) else _number(value, where)


def _number(value: float, where: str) -> str:
    text = str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")
    if len(text) > 20:
        raise PluginAnswerInvalid(f"{where}: {text[:20]} has too many digits")
    return text
