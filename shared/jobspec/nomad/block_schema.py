"""The shapes of all blocks of a job, read off the Structs: what a name in a job file means, and of which kind it is.

Decides, for each Struct, the names its fields go by in job files, and how a value gets there. Nothing is listed twice:
a new field of a Struct is known here at once.
"""

import re
import types
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from shared.jobspec.nomad.base import JobBlock

#: text, whole, amount (with decimals), bool, duration, texts, wholes, map (of texts), lists (of texts by name), raw
#: (JSON of any shape), block, blocks (a list), labelled (blocks by label).
FieldKind = str
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SIMPLE: dict[Any, FieldKind] = {str: "text", int: "whole", bool: "bool", msgspec.Raw: "raw"}
_LISTS: dict[Any, FieldKind] = {str: "texts", int: "wholes"}


class FieldSchema(NamedTuple):
    """One field: its JSON name, its name in job files, its kind, the Struct inside it, its default in JSON."""

    json: str
    hcl: str
    kind: FieldKind
    inner: type[JobBlock] | None
    default: Any


class BlockSchema(NamedTuple):
    """One block. `names` has every spelling of its fields: of job files, of JSON, and JSON's in snake_case."""

    struct: type[JobBlock]
    fields: tuple[FieldSchema, ...]
    names: dict[str, FieldSchema]
    by_json: dict[str, FieldSchema]


def snake_case(name: str) -> str:
    """Write a JSON name in snake_case: MaxParallel, TLSServerName -> max_parallel, tls_server_name."""
    return _WORD.sub("_", name).lower()


@cache
def block_schema(struct: type[JobBlock]) -> BlockSchema:
    """Read a Struct's shape."""
    fields = tuple([_field(struct, one) for one in msgspec.structs.fields(struct)])
    names: dict[str, FieldSchema] = {}
    for field in fields:
        for name in (snake_case(field.json), field.json, field.hcl):
            names[name] = field
    # The job file's own names win where they are another field's spelling.
    names |= {field.hcl: field for field in fields}
    return BlockSchema(struct, fields, names, {field.json: field for field in fields})


def _field(struct: type[JobBlock], one: msgspec.structs.FieldInfo) -> FieldSchema:
    kind, inner = _kind(one.type, one.name)
    default = one.default if one.default is not msgspec.NODEFAULT else None
    if isinstance(default, msgspec.Raw):
        default = {}
    elif default is not None:
        default = msgspec.to_builtins(default)
    name = one.encode_name
    return FieldSchema(name, struct.HCL.get(name, snake_case(name)), kind, inner, default)


def _kind(annotation: Any, name: str) -> tuple[FieldKind, type[JobBlock] | None]:
    if get_origin(annotation) in {Union, types.UnionType}:
        said = [one for one in get_args(annotation) if one is not type(None)]
        if said == [int, float]:
            return "amount", None
        annotation = said[0]
    if name.endswith("_ns"):
        return "duration", None
    if annotation in _SIMPLE:
        return _SIMPLE[annotation], None
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        inner = arguments[0]
        return ("blocks", inner) if inner not in _LISTS else (_LISTS[inner], None)
    if origin is dict:
        inner = arguments[1]
        if inner is str:
            return "map", None
        return ("lists", None) if get_origin(inner) is tuple else ("labelled", inner)
    return "block", annotation
