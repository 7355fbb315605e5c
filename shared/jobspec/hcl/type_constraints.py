"""Types of variables: `string`, `list(number)`, `object({ a = optional(bool, true) })`, and conversion to them.

A type is a function from value to value that raises HclError; its messages name the element.
"""

from collections.abc import Callable

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.functions.collections import toset
from shared.jobspec.hcl.syntax.tree import (
    Expression,
    FunctionCall,
    ListLiteral,
    Literal,
    ObjectLiteral,
    Traversal,
)
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_list,
    as_number,
    as_object,
    as_text,
    convert_named,
)

Converter = Callable[[Value], Value]
_SIMPLE: dict[str, Converter] = {
    "string": lambda value: None if value is None else as_text(value),
    "number": lambda value: None if value is None else as_number(value),
    "bool": lambda value: None if value is None else as_bool(value),
    "any": lambda value: value,
    # As old files write them.
    "list": as_list,
    "set": toset,
    "map": as_object,
}


class TypeConstraint:
    """A type as declared. `is_text`: a value given outside a file is taken as it stands."""

    def __init__(self, convert: Converter, *, is_text: bool = False) -> None:
        self.convert = convert
        self.is_text = is_text


ANY = TypeConstraint(_SIMPLE["any"], is_text=True)


def parse_type(node: Expression) -> TypeConstraint:
    """Read a type. Raises HclError."""
    name = _name(node)
    return TypeConstraint(_convert(node), is_text=name in {"string", "number", "bool"})


def _name(node: Expression) -> str:
    if isinstance(node, Traversal) and not node.steps:
        return node.root
    if isinstance(node, Literal) and isinstance(node.value, str):
        return node.value
    return ""


def _convert(node: Expression) -> Converter:
    if name := _name(node):
        if name not in _SIMPLE:
            raise HclError(f"unknown type {name[:40]!r}", node.at)
        return _SIMPLE[name]
    if isinstance(node, FunctionCall) and len(node.arguments) == 1:
        inner = node.arguments[0]
        if node.name in {"list", "set"}:
            return _list(_convert(inner), is_set=node.name == "set")
        if node.name == "map":
            return _map(_convert(inner))
        if node.name == "object" and isinstance(inner, ObjectLiteral):
            return _object(inner)
        if node.name == "tuple" and isinstance(inner, ListLiteral):
            return _tuple([_convert(item) for item in inner.items])
    raise HclError(
        "expected a type: string, number, bool, any, list(…), map(…), object({…})", node.at
    )


def _list(inner: Converter, *, is_set: bool) -> Converter:
    def convert(value: Value) -> Value:
        if value is None:
            return None
        found = [
            convert_named(f"element {at}", inner, item) for at, item in enumerate(as_list(value))
        ]
        return toset(found) if is_set else found

    return convert


def _map(inner: Converter) -> Converter:
    def convert(value: Value) -> Value:
        if value is None:
            return None
        return {
            key: convert_named(f"element {key[:40]!r}", inner, item)
            for key, item in as_object(value).items()
        }

    return convert


def _tuple(inner: list[Converter]) -> Converter:
    def convert(value: Value) -> Value:
        items = as_list(value)
        if len(items) != len(inner):
            raise HclError(f"must have {len(inner)} elements, was {len(items)}")
        return [
            convert_named(f"element {at}", one, item)
            for at, (one, item) in enumerate(zip(inner, items, strict=True))
        ]

    return convert


def _object(node: ObjectLiteral) -> Converter:
    fields: dict[str, tuple[Converter, bool, Value]] = {}
    for key, inner in node.items:
        name = _name(key)
        optional = isinstance(inner, FunctionCall) and inner.name == "optional"
        default: Value = None
        if isinstance(inner, FunctionCall) and optional:
            if len(inner.arguments) == 2 and isinstance(inner.arguments[1], Literal):
                default = inner.arguments[1].value
            inner = inner.arguments[0]  # noqa: PLW2901 - what stands inside optional()
        fields[name] = (_convert(inner), optional, default)

    def convert(value: Value) -> Value:
        if value is None:
            return None
        given = as_object(value)
        found: dict[str, Value] = {}
        for name, (inner, optional, default) in fields.items():
            if name not in given and not optional:
                raise HclError(f"element {name[:40]!r} is missing")
            chosen = given.get(name)
            found[name] = convert_named(
                f"element {name[:40]!r}", inner, default if chosen is None and optional else chosen
            )
        return found

    return convert
