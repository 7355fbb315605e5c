"""Maps blocks of a job file to Nomad's JSON by the Structs' schema.

Resolves names, labels and repetition, and converts values: `"30s"` to nanoseconds, `"3"` to a number where one is
expected, and back. Unknown names are kept. Every error has its path and line; `lines` gives the line of each path of
the JSON. Special cases of single blocks are in `legacy_blocks.py`. Independent of HCL and YAML: both arrive as
`ResolvedBlock`.
"""

from typing import Any

import msgspec

from shared.durations import InvalidDuration, parse_duration
from shared.jobspec.files.legacy_blocks import complete_block, normalize_block
from shared.jobspec.hcl.blocks import UNKNOWN_VALUE, Diagnostic, ResolvedBlock
from shared.jobspec.hcl.errors import DEPTH_MAX, DIAGNOSTICS_MAX, HclError
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    convert_named,
    kind_of,
)
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import BlockSchema, FieldSchema, block_schema
from shared.jobspec.strict_json import INT64_MAX, JsonObject


class MappedBlock(msgspec.Struct, frozen=True):
    """A block as JSON, the lines of its paths, and the errors."""

    value: JsonObject
    lines: dict[str, int]
    faults: list[Diagnostic]
    #: paths whose value is missing because of an error that is reported.
    broken: set[str]


class BlockMapper:
    """Maps one file."""

    def __init__(self) -> None:
        self.mapped = MappedBlock({}, {}, [], set())

    def job(self, struct: type[JobBlock], made: ResolvedBlock, path: str) -> MappedBlock:
        """Map the outermost block."""
        value = self.block(struct, made, path)
        return msgspec.structs.replace(self.mapped, value=value)

    def block(self, struct: type[JobBlock], made: ResolvedBlock, path: str) -> JsonObject:
        """Map one block."""
        shape = block_schema(struct)
        made = normalize_block(struct, made)
        self.mapped.lines.setdefault(path, made.line)
        found: JsonObject = {}
        self._label(shape, made, path, found)
        for name, (value, line) in made.attributes.items():
            self._attribute(shape, (name, value, line), path, found)
        for inner in made.blocks:
            self._inner(shape, inner, path, found)
        complete_block(struct, found, made, path=path, lines=self.mapped.lines)
        return found

    def fault(self, message: str, path: str, line: int) -> None:
        """Record an error."""
        if len(self.mapped.faults) < DIAGNOSTICS_MAX:
            self.mapped.faults.append(Diagnostic(message=message, path=path, line=line))

    def _label(self, shape: BlockSchema, made: ResolvedBlock, path: str, found: JsonObject) -> None:
        wanted = shape.struct.LABEL
        if len(made.labels) == 1 and wanted:
            found[wanted] = made.labels[0]
            self.mapped.lines[f"{path}.{wanted}"] = made.line
        elif made.labels:
            at_most = "one label" if wanted else "no label"
            text = f"{made.name} takes {at_most}, was {len(made.labels)}"
            self.fault(text, path, made.line)

    def _attribute(
        self, shape: BlockSchema, given: tuple[str, Value, int], path: str, found: JsonObject
    ) -> None:
        name, value, line = given
        field = shape.names.get(name)
        here = f"{path}.{field.json if field else name}"
        self.mapped.lines[here] = line
        if value is UNKNOWN_VALUE:
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
            for block in self._blocks_from_value(field, value, line, here):
                self._inner(shape, block, path, found)
            return
        try:
            found[field.json] = convert_value(field.kind, value)
        except (HclError, InvalidDuration) as fault:
            text = fault.message if isinstance(fault, HclError) else str(fault)
            self.fault(text, here, line)
            self.mapped.broken.add(here)

    def _blocks_from_value(
        self, field: FieldSchema, value: Value, line: int, path: str
    ) -> list[ResolvedBlock]:
        """Read a block that is written as a value: an object, or a list of them."""
        items = value if isinstance(value, list) else [value]
        found: list[ResolvedBlock] = []
        for item in items:
            if isinstance(item, dict):
                attributes = {key: (one, line) for key, one in item.items()}
                found.append(ResolvedBlock(field.hcl, (), attributes, (), line))
            else:
                self.fault(f"must be a block, was {kind_of(item)}", path, line)
        return found

    def _inner(self, shape: BlockSchema, made: ResolvedBlock, path: str, found: JsonObject) -> None:
        """Map a block inside a block."""
        field = shape.names.get(made.name)
        here = f"{path}.{field.json if field else made.name}"
        if field is None:
            self.mapped.lines[here] = made.line
            found.setdefault(made.name, []).append(to_plain_object(made))
        elif field.kind == "blocks":
            assert field.inner is not None
            blocks = found.setdefault(field.json, [])
            self.mapped.lines.setdefault(here, made.line)
            blocks.append(self.block(field.inner, made, f"{here}[{len(blocks)}]"))
        elif field.kind == "labelled":
            assert field.inner is not None
            self.mapped.lines.setdefault(here, made.line)
            block = self.block(
                field.inner, made, f"{here}[{made.labels[0] if made.labels else ''}]"
            )
            found.setdefault(field.json, {})[str(block.get(field.inner.LABEL, ""))] = block
        elif field.json in found:
            self.fault(f"{made.name} may occur only once", here, made.line)
        elif field.kind == "block":
            assert field.inner is not None
            found[field.json] = self.block(field.inner, made, here)
        else:
            self._plain(field, made, here, found)

    def _plain(self, field: FieldSchema, made: ResolvedBlock, path: str, found: JsonObject) -> None:
        """Map a block that is an object of values: env, meta, a driver's config."""
        self.mapped.lines[path] = made.line
        for name, (_, line) in made.attributes.items():
            self.mapped.lines[f"{path}.{name}"] = line
        if any(value is UNKNOWN_VALUE for value, _ in made.attributes.values()):
            self.mapped.broken.add(path)
        if made.labels:
            self.fault(f"{made.name} takes no label", path, made.line)
        value = to_plain_object(made)
        try:
            found[field.json] = value if field.kind == "raw" else convert_value(field.kind, value)
        except (HclError, InvalidDuration) as fault:
            self.fault(str(fault), path, made.line)
            self.mapped.broken.add(path)


def convert_value(kind: str, value: Value) -> Any:
    """Convert a value to a field's kind. Raises HclError or InvalidDuration."""
    if kind == "text":
        return as_text(value)
    if kind == "whole":
        return _int64(as_int(value))
    if kind == "amount":
        number = as_number(value)
        return number if isinstance(number, float) else _int64(number)
    if kind == "bool":
        return as_bool(value)
    if kind == "duration":
        return parse_duration(value) if isinstance(value, str) else _int64(as_int(value))
    if kind == "texts":
        return [as_text(item) for item in as_list(value)]
    if kind == "wholes":
        return [_int64(as_int(item)) for item in as_list(value)]
    if kind == "raw":
        return as_object(value)
    items = as_object(value).items()
    if kind == "map":
        return {
            key: convert_named(key[:60], as_text, item) for key, item in items if item is not None
        }
    return {key: [as_text(one) for one in as_list(item)] for key, item in items}


def _int64(number: int) -> int:
    if not -INT64_MAX <= number <= INT64_MAX:
        raise HclError("number does not fit into 64 bits")
    return number


def to_plain_object(made: ResolvedBlock, depth: int = 0) -> JsonObject:
    """Create an object of a block without a schema, such as a driver's config: inner blocks become lists of objects."""
    if depth > DEPTH_MAX:
        raise HclError("nested too deeply")
    found: JsonObject = {
        name: value
        for name, (value, _) in made.attributes.items()
        if value is not UNKNOWN_VALUE and value is not None
    }
    for block in made.blocks:
        inner = to_plain_object(block, depth + 1)
        for label in reversed(block.labels):
            inner = {label: [inner]}
        blocks = found.setdefault(block.name, [])
        if isinstance(blocks, list):
            blocks.append(inner)
    return found
