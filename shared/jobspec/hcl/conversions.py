"""Types of variables: `string`, `list(number)`, `object({ a = optional(bool, true) })`, and what fits them.

Decides how a type is written and how a value becomes one of it. A type is a function from value to value that raises
HclFault; its messages name the element.
"""

from collections.abc import Callable

from shared.jobspec.hcl.errors import HclFault
from shared.jobspec.hcl.functions_list import toset
from shared.jobspec.hcl.tree import Call, ListOf, Literal, Node, ObjectOf, Traversal
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_list,
    as_number,
    as_object,
    as_text,
)

Convert = Callable[[Value], Value]
_SIMPLE: dict[str, Convert] = {
    "string": lambda value: None if value is None else as_text(value),
    "number": lambda value: None if value is None else as_number(value),
    "bool": lambda value: None if value is None else as_bool(value),
    "any": lambda value: value,
    # As old files write them.
    "list": as_list,
    "set": toset,
    "map": as_object,
}


class Type:
    """A type as declared. `is_text`: a value given outside a file is taken as it stands."""

    def __init__(self, convert: Convert, *, is_text: bool = False) -> None:
        self.convert = convert
        self.is_text = is_text


ANY = Type(_SIMPLE["any"], is_text=True)


def type_of(node: Node) -> Type:
    """Read a type. Raises HclFault."""
    name = _name(node)
    return Type(_convert(node), is_text=name in {"string", "number", "bool"})


def _name(node: Node) -> str:
    if isinstance(node, Traversal) and not node.steps:
        return node.root
    if isinstance(node, Literal) and isinstance(node.value, str):
        return node.value
    return ""


def _convert(node: Node) -> Convert:
    if name := _name(node):
        if name not in _SIMPLE:
            raise HclFault(f"unknown type {name[:40]!r}", node.at)
        return _SIMPLE[name]
    if isinstance(node, Call) and len(node.arguments) == 1:
        inner = node.arguments[0]
        if node.name in {"list", "set"}:
            return _list(_convert(inner), is_set=node.name == "set")
        if node.name == "map":
            return _map(_convert(inner))
        if node.name == "object" and isinstance(inner, ObjectOf):
            return _object(inner)
        if node.name == "tuple" and isinstance(inner, ListOf):
            return _tuple([_convert(item) for item in inner.items])
    raise HclFault(
        "expected a type: string, number, bool, any, list(…), map(…), object({…})", node.at
    )


def _named(where: str, convert: Convert, value: Value) -> Value:
    try:
        return convert(value)
    except HclFault as fault:
        raise HclFault(f"{where}: {fault.message}") from None


def _list(inner: Convert, *, is_set: bool) -> Convert:
    def convert(value: Value) -> Value:
        if value is None:
            return None
        found = [_named(f"element {at}", inner, item) for at, item in enumerate(as_list(value))]
        return toset(found) if is_set else found

    return convert


def _map(inner: Convert) -> Convert:
    def convert(value: Value) -> Value:
        if value is None:
            return None
        return {
            key: _named(f"element {key[:40]!r}", inner, item)
            for key, item in as_object(value).items()
        }

    return convert


def _tuple(inner: list[Convert]) -> Convert:
    def convert(value: Value) -> Value:
        items = as_list(value)
        if len(items) != len(inner):
            raise HclFault(f"must have {len(inner)} elements, was {len(items)}")
        return [
            _named(f"element {at}", one, item)
            for at, (one, item) in enumerate(zip(inner, items, strict=True))
        ]

    return convert


def _object(node: ObjectOf) -> Convert:
    fields: dict[str, tuple[Convert, bool, Value]] = {}
    for key, inner in node.items:
        name = _name(key)
        optional = isinstance(inner, Call) and inner.name == "optional"
        default: Value = None
        if isinstance(inner, Call) and optional:
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
                raise HclFault(f"element {name[:40]!r} is missing")
            chosen = given.get(name)
            found[name] = _named(
                f"element {name[:40]!r}", inner, default if chosen is None and optional else chosen
            )
        return found

    return convert
