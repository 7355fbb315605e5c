"""Blocks of a job file to Nomad's JSON, by the shapes of the Structs.

Decides names, labels, repetition, and how values of a job file become those of the JSON: `"30s"` nanoseconds, `"3"` a
number where one is wanted, and back. What no Struct knows is kept under its own name. Every fault has its path and
line, and all are told; `lines` says for each path of the JSON on which line it was written. What is special to one
block stands in `legacy.py`. Knows neither HCL nor YAML: both come as `Made`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from shared.jobspec.durations import Misread, nanoseconds
from shared.jobspec.hcl.document import BROKEN, Fault, Made
from shared.jobspec.hcl.errors import DEPTH_MAX, FAULTS_MAX, HclFault
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_list,
    as_number,
    as_object,
    as_text,
    as_whole,
    kind_of,
)
from shared.jobspec.nomad_base import Json
from shared.jobspec.shapes import Field, Shape, shape_of
from shared.jobspec.strict import INT64_MAX, JsonObject


class Mapped(msgspec.Struct, frozen=True):
    """A block as JSON, and what was found on the way."""

    value: JsonObject
    lines: dict[str, int]
    faults: list[Fault]
    #: paths whose value is missing because of a fault that is told.
    broken: set[str]


class Finish(Protocol):
    """Completes the JSON of a block, which stands at `path`."""

    def __call__(
        self, mapper: "Mapper", struct: type[Json], value: JsonObject, made: Made, *, path: str
    ) -> None:
        """Do it."""
        ...


class Mapper:
    """Maps one file. `prepare` may rewrite a block before, `finish` its JSON after."""

    def __init__(
        self,
        prepare: Callable[[type[Json], Made], Made],
        finish: "Finish",
    ) -> None:
        self._prepare = prepare
        self._finish = finish
        self.mapped = Mapped({}, {}, [], set())

    def job(self, struct: type[Json], made: Made, path: str) -> Mapped:
        """Map the outermost block."""
        value = self.block(struct, made, path)
        return msgspec.structs.replace(self.mapped, value=value)

    def block(self, struct: type[Json], made: Made, path: str) -> JsonObject:
        """Map one block."""
        shape = shape_of(struct)
        made = self._prepare(struct, made)
        self.mapped.lines.setdefault(path, made.line)
        found: JsonObject = {}
        self._label(shape, made, path, found)
        for name, (value, line) in made.attributes.items():
            self._attribute(shape, (name, value, line), path, found)
        for inner in made.blocks:
            self._inner(shape, inner, path, found)
        self._finish(self, struct, found, made, path=path)
        return found

    def fault(self, message: str, path: str, line: int) -> None:
        """Note one fault."""
        if len(self.mapped.faults) < FAULTS_MAX:
            self.mapped.faults.append(Fault(message=message, path=path, line=line))

    def _label(self, shape: Shape, made: Made, path: str, found: JsonObject) -> None:
        wanted = shape.struct.LABEL
        if len(made.labels) == 1 and wanted:
            found[wanted] = made.labels[0]
            self.mapped.lines[f"{path}.{wanted}"] = made.line
        elif made.labels:
            at_most = "one label" if wanted else "no label"
            text = f"{made.name} takes {at_most}, was {len(made.labels)}"
            self.fault(text, path, made.line)

    def _attribute(
        self, shape: Shape, given: tuple[str, Value, int], path: str, found: JsonObject
    ) -> None:
        name, value, line = given
        field = shape.names.get(name)
        here = f"{path}.{field.json if field else name}"
        self.mapped.lines[here] = line
        if value is BROKEN:
            self.mapped.broken.add(here)
            return
        if value is None:
            return
        if field is None:
            found[name] = value
            return
        if field.json in found and field.json != shape.struct.LABEL:
            self.fault(f"{name} is set twice", here, line)
            return
        if field.inner is not None:
            for block in self._as_blocks(field, value, line, here):
                self._inner(shape, block, path, found)
            return
        try:
            found[field.json] = converted(field.kind, value)
        except (HclFault, Misread) as fault:
            text = fault.message if isinstance(fault, HclFault) else str(fault)
            self.fault(text, here, line)
            self.mapped.broken.add(here)

    def _as_blocks(self, field: Field, value: Value, line: int, path: str) -> list[Made]:
        """Read a block that is written as a value: an object, or a list of them."""
        items = value if isinstance(value, list) else [value]
        found: list[Made] = []
        for item in items:
            if isinstance(item, dict):
                attributes = {key: (one, line) for key, one in item.items()}
                found.append(Made(field.hcl, (), attributes, (), line))
            else:
                self.fault(f"must be a block, was {kind_of(item)}", path, line)
        return found

    def _inner(self, shape: Shape, made: Made, path: str, found: JsonObject) -> None:
        """Map a block inside a block into its place."""
        field = shape.names.get(made.name)
        here = f"{path}.{field.json if field else made.name}"
        if field is None:
            self.mapped.lines[here] = made.line
            found.setdefault(made.name, []).append(free(made))
        elif field.kind == "blocks":
            assert field.inner is not None
            blocks = found.setdefault(field.json, [])
            self.mapped.lines.setdefault(here, made.line)
            blocks.append(self.block(field.inner, made, f"{here}[{len(blocks)}]"))
        elif field.kind == "labelled":
            assert field.inner is not None
            block = self.block(
                field.inner, made, f"{here}[{made.labels[0] if made.labels else ''}]"
            )
            found.setdefault(field.json, {})[str(block.get(field.inner.LABEL, ""))] = block
        elif field.json in found:
            self.fault(f"{made.name} may stand here once", here, made.line)
        elif field.kind == "block":
            assert field.inner is not None
            found[field.json] = self.block(field.inner, made, here)
        else:
            self._plain(field, made, here, found)

    def _plain(self, field: Field, made: Made, path: str, found: JsonObject) -> None:
        """Map a block that is an object of values: env, meta, a driver's config."""
        self.mapped.lines[path] = made.line
        for name, (_, line) in made.attributes.items():
            self.mapped.lines[f"{path}.{name}"] = line
        if any(value is BROKEN for value, _ in made.attributes.values()):
            self.mapped.broken.add(path)
        if made.labels:
            self.fault(f"{made.name} takes no label", path, made.line)
        value = free(made)
        try:
            found[field.json] = value if field.kind == "raw" else converted(field.kind, value)
        except (HclFault, Misread) as fault:
            self.fault(str(fault), path, made.line)
            self.mapped.broken.add(path)


def converted(kind: str, value: Value) -> Any:
    """Convert a value to a field's kind. Raises HclFault or Misread."""
    if kind == "text":
        return as_text(value)
    if kind == "whole":
        return _int64(as_whole(value))
    if kind == "amount":
        number = as_number(value)
        return number if isinstance(number, float) else _int64(number)
    if kind == "bool":
        return as_bool(value)
    if kind == "duration":
        return nanoseconds(value) if isinstance(value, str) else _int64(as_whole(value))
    if kind == "texts":
        return [as_text(item) for item in as_list(value)]
    if kind == "wholes":
        return [_int64(as_whole(item)) for item in as_list(value)]
    if kind == "raw":
        return as_object(value)
    items = as_object(value).items()
    if kind == "map":
        return {key: _named(key, as_text, item) for key, item in items if item is not None}
    return {key: [as_text(one) for one in as_list(item)] for key, item in items}


def _named(key: str, convert: Callable[[Value], Any], value: Value) -> Any:
    try:
        return convert(value)
    except HclFault as fault:
        raise HclFault(f"{key[:60]}: {fault.message}") from None


def _int64(number: int) -> int:
    if not -INT64_MAX <= number <= INT64_MAX:
        raise HclFault("number does not fit 64 bits")
    return number


def free(made: Made, depth: int = 0) -> JsonObject:
    """Make an object of a block whose shape is its driver's matter: inner blocks are lists of objects."""
    if depth > DEPTH_MAX:
        raise HclFault("nested too deep")
    found: JsonObject = {
        name: value
        for name, (value, _) in made.attributes.items()
        if value is not BROKEN and value is not None
    }
    for block in made.blocks:
        inner = free(block, depth + 1)
        for label in reversed(block.labels):
            inner = {label: [inner]}
        blocks = found.setdefault(block.name, [])
        if isinstance(blocks, list):
            blocks.append(inner)
    return found
