"""Functions of lists and maps."""

from typing import Any

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.convert import parse_int
from shared.gotemplate.functions.registry import pure_function, template_function
from shared.gotemplate.values import (
    Channel,
    GoObject,
    TextMap,
    Value,
    sorted_items,
    type_name,
)


def contains_value(where: Value, value: Value) -> bool:
    """Return whether a list has a text or number, or a text a part; other kinds are never found."""
    if isinstance(where, str):
        return isinstance(value, str) and value in where
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    kind = str if isinstance(value, str) else int if isinstance(value, int) else float
    return isinstance(where, list) and any(
        isinstance(one, kind) and not isinstance(one, bool) and one == value for one in where
    )


@pure_function("in", "any any")
def _in(where: Value, value: Value) -> Value:
    """Return whether a list or text contains a value: `in list value`."""
    return contains_value(where, value)


@pure_function("contains", "any any")
def _contains(value: Value, where: Value) -> Value:
    """Return whether a list or text contains a value: `list | contains value`."""
    return contains_value(where, value)


def _count(execution: Any, values: list[Value], where: Value) -> int:
    execution.charge(len(values) * (len(where) if isinstance(where, list) else 1))
    return sum(contains_value(where, one) for one in values)


@template_function("containsAll", "list? any")
def _contains_all(execution: Any, values: list[Value], where: Value) -> Value:
    """Return whether all values are in a list."""
    return _count(execution, values, where) == len(values)


@template_function("containsAny", "list? any")
def _contains_any(execution: Any, values: list[Value], where: Value) -> Value:
    """Return whether any of the values is in a list."""
    return _count(execution, values, where) > 0


@template_function("containsNone", "list? any")
def _contains_none(execution: Any, values: list[Value], where: Value) -> Value:
    """Return whether none of the values is in a list."""
    return _count(execution, values, where) == 0


@template_function("containsNotAll", "list? any")
def _contains_not_all(execution: Any, values: list[Value], where: Value) -> Value:
    """Return whether any of the values is missing in a list."""
    return _count(execution, values, where) < len(values)


@pure_function("loop", "any any…")
def _loop(*bounds: Value) -> Value:
    """Count up: `loop 3` is 0 1 2, `loop 2 4` is 2 3."""
    if len(bounds) > 2:
        raise TemplateError(f"wrong number of arguments, expected 1 or 2, but got {len(bounds)}")
    numbers = [_bound(one) for one in bounds]
    return Channel(*([0, *numbers] if len(numbers) == 1 else numbers))


def _bound(value: Value) -> int:
    if isinstance(value, str):
        return parse_int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TemplateError(f"bad argument type: {type_name(value)}")


# ---- maps ----


def _nest(target: dict[str, Value], path: str, value: Value) -> None:
    """Put a value below a path with slashes. Raises TemplateError."""
    *parents, name = path.split("/")
    for parent in parents:
        inner = target.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise TemplateError("a part of a key has a value that is not a map")
        target = inner
    if name:
        target[name] = value


@template_function("explodeMap", "map?")
def _explode_map(execution: Any, source: dict[str, Value]) -> Value:
    """Turn a map whose keys are paths into maps inside one another."""
    found: dict[str, Value] = {}
    for key, value in sorted_items(source):
        execution.charge(1 + len(key) // 2)
        _nest(found, str(key), value)
    return found


@template_function("explode", "list?")
def _explode(execution: Any, pairs: list[Value]) -> Value:
    """Turn pairs with .Key and .Value into maps inside one another."""
    found: dict[str, Value] = {}
    for pair in pairs:
        key = _pair_key(pair)
        execution.charge(1 + len(key) // 2)
        _nest(found, key, pair.fields["Value"])
    return found


def _pair_key(pair: Value) -> str:
    if not isinstance(pair, GoObject) or not {"Key", "Value"} <= pair.fields.keys():
        raise TemplateError(f"wrong type for value; expected pairs; got {type_name(pair)}")
    return str(pair.fields["Key"])


@pure_function("byKey", "list?")
def _by_key(pairs: list[Value]) -> Value:
    """Group pairs with .Key and .Value by the first part of the key."""
    found: dict[str, Value] = {}
    for pair in pairs:
        top, _, key = _pair_key(pair).partition("/")
        if key:
            entry = GoObject(pair.kind, {**pair.fields, "Key": key}, pair.methods, pair.text)
            found.setdefault(top, {})[key] = entry
    return found


def _grouped(name: str, values: Value, field: str) -> Value:
    if values is None:
        return {}
    found: dict[Value, Value] = {}
    for one in values if isinstance(values, list) else [values]:
        if not isinstance(one, GoObject) or field not in one.fields:
            raise TemplateError(f"{name}: wrong argument type {type_name(one)}")
        keys = one.fields[field]
        for key in keys if isinstance(keys, list) else [keys]:
            found.setdefault(key, []).append(one)
    return found


@pure_function("byTag", "any")
def _by_tag(services: Value) -> Value:
    """Group services by their tags."""
    return _grouped("byTag", services, "Tags")


@pure_function("byPort", "any")
def _by_port(services: Value) -> Value:
    """Group services by their port."""
    return _grouped("byPort", services, "Port")


@pure_function("mergeMap", "map map?")
def _merge(target: dict[str, Value], source: dict[str, Value]) -> Value:
    """Add what a map lacks from another one: `mergeMap target source`."""
    return merged(target, source, overrides=False)


@pure_function("mergeMapWithOverride", "map map?")
def _merge_over(target: dict[str, Value], source: dict[str, Value]) -> Value:
    """Put another map over a map: `mergeMapWithOverride target source`."""
    return merged(target, source, overrides=True)


def merged(target: dict[str, Value], source: dict[str, Value], *, overrides: bool) -> Value:
    """Merge two maps, maps inside them too."""
    found = type(target)() if isinstance(target, TextMap) else {}
    found.update(target)
    for key, value in source.items():
        known = found.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            found[key] = merged(known, value, overrides=overrides)
        elif overrides or (_is_empty(known) and value is not None):
            found[key] = value
    return found


def _is_empty(value: Value) -> bool:
    """Return whether a value is the zero of its type."""
    return not value if isinstance(value, bool | int | float | str | list | dict) else value is None
