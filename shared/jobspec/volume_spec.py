"""Reads specifications of host volumes that are to be created: Nomad's, in HCL, in JSON, and as its HTTP API has them.

What is not built is refused with its name and line, like in a job file. The id of the volume is not in here: who asks
draws it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from schemas.host_volumes import VolumeCapability, VolumeSpec
from schemas.jobs import Constraint
from shared.errors import CommandInvalid
from shared.jobspec.files.legacy_blocks import normalize_block
from shared.jobspec.hcl.blocks import ResolvedBlock
from shared.jobspec.hcl.document import Document, VariableInputs
from shared.jobspec.hcl.errors import HclError, did_you_mean
from shared.jobspec.nomad.placement import ConstraintBlock
from shared.jobspec.strict_json import require_unique_keys

#: Names in a file -> names in Nomad's API.
_FIELDS = {
    "id": "ID",
    "namespace": "Namespace",
    "name": "Name",
    "type": "Type",
    "plugin_id": "PluginID",
    "node_id": "NodeID",
    "node_pool": "NodePool",
    "capacity": "RequestedCapacity",
    "capacity_min": "RequestedCapacityMinBytes",
    "capacity_max": "RequestedCapacityMaxBytes",
    "capability": "RequestedCapabilities",
    "constraint": "Constraints",
    "parameters": "Parameters",
}
#: What the API answers and a request may hold again: it is no part of the request.
_ANSWERED = frozenset(
    (
        "hostpath",
        "capacitybytes",
        "state",
        "allocations",
        "createindex",
        "createtime",
        "modifyindex",
        "modifytime",
    )
)
_INNER = {
    "access_mode": "AccessMode",
    "attachment_mode": "AttachmentMode",
    "attribute": "LTarget",
    "operator": "Operand",
    "value": "RTarget",
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_THOUSANDS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([KMGTPkmgtp]?)(i?)[Bb]?")
#: Longest specification.
TEXT_BYTES_MAX = 256 * 1024


class AskedVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A specification that was read. `id`: as it says; empty: nothing."""

    spec: VolumeSpec
    node_id: str = ""
    id: str = ""


def read_size(text: str) -> int | None:
    """Read a number of bytes: `10GiB`, `10G` (thousands), `1.5TiB`, `4096`; None: it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, part, unit, is_binary = match.groups()
    if is_binary and not unit:
        return None
    factor = (_UNITS if is_binary or not unit else _THOUSANDS)[unit.upper()]
    return int(whole) * factor + (int(part) * factor // 10 ** len(part) if part else 0)


def read_volume_hcl(text: str) -> AskedVolume:
    """Read a specification in HCL. Raises CommandInvalid; its text begins with the line."""
    # One block around it: a specification has attributes and blocks outside any.
    document = Document("volume {" + text + "\n}", VariableInputs())
    blocks = document.blocks()
    for fault in document.faults:
        raise CommandInvalid("invalid", f"line {fault.line}: {fault.message}")
    if len(blocks) != 1 or blocks[0].name != "volume":
        raise CommandInvalid("invalid", "a specification is one list of attributes and blocks")
    return _read(*_of_block(blocks[0]))


def read_volume_json(text: bytes) -> AskedVolume:
    """Read a specification in JSON, with the names of a file or of the API. Raises CommandInvalid."""
    try:
        require_unique_keys(text)
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise CommandInvalid("invalid", f"not JSON: {err}") from None
    return read_volume_object(value)


def read_volume_object(value: object) -> AskedVolume:
    """Read a specification that is a JSON object. Raises CommandInvalid, with its field as path."""
    if not isinstance(value, dict):
        raise CommandInvalid("invalid", "a specification is a JSON object")
    found: dict[str, Any] = {}
    for name, one in value.items():
        known = _known(str(name), _FIELDS)
        if str(name).lower() in _ANSWERED or one is None:
            continue
        if known is None:
            _refuse_unknown(str(name), _FIELDS)
        found[known] = one
    for name in ("RequestedCapabilities", "Constraints"):
        if name in found:
            items = found[name] if isinstance(found[name], list) else [found[name]]
            found[name] = [_inner(name, one) for one in items]
    parameters = found.get("Parameters")
    if isinstance(parameters, list) and len(parameters) == 1:
        # HCL in JSON writes a block so.
        found["Parameters"] = parameters[0]
    return _read(found, {})


def _of_block(block: ResolvedBlock) -> tuple[dict[str, Any], dict[str, int]]:
    """Return fields by the API's names, and the line of each."""
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for name, (value, line) in block.attributes.items():
        if name not in _FIELDS:
            _refuse_unknown(name, _FIELDS, line)
        found[_FIELDS[name]], lines[_FIELDS[name]] = value, line
    for inner in block.blocks:
        field = _FIELDS.get(inner.name, "")
        lines.setdefault(field, inner.line)
        if inner.labels or inner.name not in ("capability", "constraint", "parameters"):
            _refuse_unknown(inner.name, _FIELDS, inner.line)
        if inner.name == "parameters":
            _no_blocks(inner)
            found[field] = {name: value for name, (value, _) in inner.attributes.items()}
            continue
        if inner.name == "constraint":
            inner = _constraint(inner)  # noqa: PLW2901
        _no_blocks(inner)
        made: dict[str, Any] = {}
        for name, (value, line) in inner.attributes.items():
            if name not in _INNER:
                _refuse_unknown(name, _INNER, line)
            made[_INNER[name]] = value
        found.setdefault(field, []).append(made)
    return found, lines


def _constraint(block: ResolvedBlock) -> ResolvedBlock:
    try:
        return normalize_block(ConstraintBlock, block)
    except HclError as err:
        raise CommandInvalid("invalid", f"line {block.line}: {err.message}") from None


def _no_blocks(block: ResolvedBlock) -> None:
    if block.blocks:
        inner = block.blocks[0]
        text = f"line {inner.line}: block {block.name} has no block {inner.name[:40]!r}"
        raise CommandInvalid("invalid", text)


def _inner(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CommandInvalid("invalid", "must be a list of objects", name)
    found: dict[str, Any] = {}
    for key, one in value.items():
        known = _known(str(key), _INNER)
        if known is None:
            _refuse_unknown(str(key), _INNER)
        found[known] = one
    return found


def _known(name: str, fields: Mapping[str, str]) -> str | None:
    """Name of a field as the API has it, however it is written."""
    lowered = name.lower()
    return fields.get(lowered) or next(
        (one for one in fields.values() if one.lower() == lowered), None
    )


def _refuse_unknown(name: str, fields: Mapping[str, str], line: int = 0) -> NoReturn:
    where = f"line {line}: " if line else ""
    near = did_you_mean(name, fields)
    text = f"{where}{name[:40]!r} is not built, or not part of a host volume{near}"
    raise CommandInvalid("invalid", text, name[:40])


def _read(found: Mapping[str, Any], lines: Mapping[str, int]) -> AskedVolume:
    read = _Fields(found, lines)
    kind = read.text("Type", "host")
    if kind != "host":
        built = "csi is not built; use type host" if kind == "csi" else "must be host"
        read.refuse("Type", f"{built}, was {kind[:40]!r}")
    namespace = read.text("Namespace", "default")
    if namespace not in ("", "default"):
        read.refuse("Namespace", f"namespaces are not built, was {namespace[:40]!r}")
    both = read.size("RequestedCapacity")
    spec = VolumeSpec(
        id="",
        name=read.text("Name"),
        plugin=read.text("PluginID") or "mkdir",
        node_pool=read.text("NodePool"),
        constraints=tuple(read.constraints()),
        capacity_min_bytes=read.size("RequestedCapacityMinBytes") or both,
        capacity_max_bytes=read.size("RequestedCapacityMaxBytes") or both,
        capabilities=tuple(read.capabilities()),
        parameters=read.parameters(),
    )
    if not spec.name:
        read.refuse("Name", "must not be empty")
    return AskedVolume(spec=spec, node_id=read.text("NodeID"), id=read.text("ID"))


class _Fields:
    """Fields of a specification by the API's names; each reader raises CommandInvalid."""

    def __init__(self, found: Mapping[str, Any], lines: Mapping[str, int]) -> None:
        self._found = found
        self._lines = lines

    def refuse(self, field: str, text: str) -> NoReturn:
        """Refuse a field."""
        name = next(one for one, known in _FIELDS.items() if known == field)
        where = f"line {self._lines[field]}: " if field in self._lines else ""
        raise CommandInvalid("invalid", f"{where}{name}: {text}", name)

    def text(self, field: str, default: str = "") -> str:
        """A text."""
        value = self._found.get(field, default)
        if not isinstance(value, str):
            self.refuse(field, "must be a text")
        return value

    def size(self, field: str) -> int:
        """A number of bytes, or a text with a unit; 0: not said."""
        value = self._found.get(field, 0)
        if isinstance(value, bool) or not isinstance(value, int | str):
            self.refuse(field, "must be a number of bytes, or a text as 10GiB")
        if isinstance(value, int):
            return value
        found = read_size(value)
        if found is None:
            self.refuse(field, f"must be a number of bytes, or a text as 10GiB, was {value[:40]!r}")
        return found

    def parameters(self) -> dict[str, str]:
        """Texts by name; numbers and booleans are written as texts."""
        value = self._found.get("Parameters") or {}
        if not isinstance(value, dict):
            self.refuse("Parameters", "must be a list of names and texts")
        return {str(name): self._plain("Parameters", value[name]) for name in sorted(value)}

    def capabilities(self) -> list[VolumeCapability]:
        """The capabilities, without duplicates."""
        made = []
        for one in self._list("RequestedCapabilities"):
            access = self._inner("RequestedCapabilities", one, "AccessMode")
            attachment = self._inner("RequestedCapabilities", one, "AttachmentMode")
            made.append(
                VolumeCapability(access_mode=access, attachment_mode=attachment or "file-system")
            )
        return list(dict.fromkeys(made))

    def constraints(self) -> list[Constraint]:
        """The constraints."""
        field, sides = "Constraints", ("LTarget", "Operand", "RTarget")
        found = [[self._inner(field, one, side) for side in sides] for one in self._list(field)]
        return [Constraint(left=a, operator=b or "=", right=c) for a, b, c in found]

    def _list(self, field: str) -> list[dict[str, Any]]:
        value = self._found.get(field) or []
        if not isinstance(value, list):
            self.refuse(field, "must be a list of blocks")
        return value

    def _inner(self, field: str, one: Mapping[str, Any], name: str) -> str:
        return self._plain(field, one.get(name, ""))

    def _plain(self, field: str, value: object) -> str:
        if not isinstance(value, str | int):
            self.refuse(field, "its values must be texts")
        return str(value).lower() if isinstance(value, bool) else str(value)


#: How a specification of a format is read.
READERS: Mapping[str, Callable[[str], AskedVolume]] = {
    "hcl": read_volume_hcl,
    "json": lambda text: read_volume_json(text.encode()),
}
