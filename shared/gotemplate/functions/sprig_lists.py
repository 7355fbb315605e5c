"""The hermetic functions of Sprig on lists, maps and paths, under their names in consul-template: `sprig_*`."""

# The types of parameters are in the kinds of each row.
# pyright: reportUnknownLambdaType=false

import posixpath
from typing import Any, Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.collections import merged
from shared.gotemplate.functions.registry import (
    Body,
    declare_pure,
    pure_function,
    template_function,
)
from shared.gotemplate.functions.sprig_text import as_plain_text
from shared.gotemplate.values import (
    UNDEFINED,
    Channel,
    GoObject,
    Unsigned,
    Value,
    is_true,
    sorted_items,
    type_name,
)


def _base(path: str) -> str:
    return posixpath.basename(path.rstrip("/")) or ("/" if path else ".")


def _ext(path: str) -> str:
    name = path.rpartition("/")[2]
    return "." + name.rpartition(".")[2] if "." in name else ""


def _clean(path: str) -> str:
    found = posixpath.normpath(path)
    return found[1:] if found.startswith("//") else found


def _dir(path: str) -> str:
    return _clean(path.rpartition("/")[0] + "/" if "/" in path else ".")


def _kind(value: Value) -> str:
    if value is None or value is UNDEFINED:
        return "invalid"
    kinds = (
        (dict, "map"),
        (list, "slice"),
        (Channel, "chan"),
        (GoObject, "ptr"),
        (Unsigned, "uint64"),
    )
    for kind, name in kinds:
        if isinstance(value, kind):
            return name
    return type_name(value)


def _texts(value: Value) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [as_plain_text(one) for one in items if one is not None]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _same(left: Value, right: Value) -> bool:
    """Compare as Go's DeepEqual: the kinds count, too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


@template_function("sprig_until", "int")
def _until(execution: Any, count: int) -> Value:
    """List the numbers from 0 to a count."""
    return _numbers(execution, 0, count, -1 if count < 0 else 1)


@template_function("sprig_untilStep", "int int int")
def _until_step(execution: Any, start: int, stop: int, step: int) -> Value:
    """List the numbers from a start to a stop by steps."""
    return _numbers(execution, start, stop, step)


def _numbers(execution: Any, start: int, stop: int, step: int) -> list[int]:
    if not step or (stop < start) is (step > 0):
        return []
    found = range(start, stop, step)
    if start == stop:
        return []
    # A range knows its length without being made.
    execution.charge((abs(stop - start) + abs(step) - 1) // abs(step))
    return list(found)


@pure_function("sprig_dict", "any…")
def _dict(*values: Value) -> Value:
    """Make a map of keys and values."""
    pairs = [*values, ""] if len(values) % 2 else list(values)
    return {as_plain_text(pairs[at]): pairs[at + 1] for at in range(0, len(pairs), 2)}


@pure_function("sprig_set", "map text any", is_light=True)
def _set(map_: dict[str, Value], key: str, value: Value) -> Value:
    """Put an entry into a map."""
    map_[key] = value
    return map_


@pure_function("sprig_unset", "map text", is_light=True)
def _unset(map_: dict[str, Value], key: str) -> Value:
    """Take an entry out of a map."""
    map_.pop(key, None)
    return map_


@pure_function("sprig_keys", "map…")
def _keys(*maps: dict[str, Value]) -> Value:
    """List the keys of maps, in order. Sprig's own order is by chance."""
    return [key for one in maps for key, _ in sorted_items(one)]


@pure_function("sprig_values", "map")
def _values(map_: dict[str, Value]) -> Value:
    """List the values of a map in the order of its keys. Sprig's own order is by chance."""
    return [value for _, value in sorted_items(map_)]


@pure_function("sprig_pluck", "text map…")
def _pluck(key: str, *maps: dict[str, Value]) -> Value:
    """List an entry of each map that has it."""
    return [one[key] for one in maps if key in one]


@pure_function("sprig_pick", "map text…")
def _pick(map_: dict[str, Value], *keys: str) -> Value:
    """Return a map of some entries."""
    return {key: map_[key] for key in keys if key in map_}


@pure_function("sprig_omit", "map text…")
def _omit(map_: dict[str, Value], *keys: str) -> Value:
    """Return a map without some entries."""
    left_out = set(keys)
    return {key: value for key, value in map_.items() if key not in left_out}


@pure_function("sprig_merge", "map map…")
def _merge(target: dict[str, Value], *sources: dict[str, Value]) -> Value:
    """Merge maps; the first one that has an entry decides."""
    for source in sources:
        target.update(merged(target, source, overrides=False))
    return target


@pure_function("sprig_mergeOverwrite", "map map…")
def _merge_over(target: dict[str, Value], *sources: dict[str, Value]) -> Value:
    """Merge maps; the last one that has an entry decides."""
    for source in sources:
        target.update(merged(target, source, overrides=True))
    return target


@template_function("sprig_has", "any list?")
def _has(execution: Any, value: Value, all_: list[Value]) -> Value:
    """Return whether a list has a value."""
    execution.charge(len(all_))
    return any(_same(value, one) for one in all_)


def _distinct(execution: Any, items: list[Value], left_out: list[Value], *, once: bool) -> Value:
    found: list[Value] = []
    for one in items:
        execution.charge(1 + len(left_out) + (len(found) if once else 0))
        if not any(_same(one, other) for other in (*left_out, *(found if once else ()))):
            found.append(one)
    return found


@template_function("sprig_uniq", "list")
def _uniq(execution: Any, items: list[Value]) -> Value:
    """Leave repeated values out."""
    return _distinct(execution, items, [], once=True)


@template_function("sprig_without", "list any…")
def _without(execution: Any, items: list[Value], *values: Value) -> Value:
    """Leave these values out."""
    return _distinct(execution, items, list(values), once=False)


@pure_function("sprig_dig", "any any any any…")
def _dig(*arguments: Value) -> Value:
    """Return an entry of maps inside one another, or a default: `sprig_dig key… default map`."""
    *keys, default, where = arguments
    for key in keys:
        if not isinstance(where, dict) or not isinstance(key, str):
            raise TemplateError("there is no map to look for a key in")
        if key not in where:
            return default
        where = where[key]
    return where


_ROWS: Final[tuple[tuple[str, str, str, Body], ...]] = (
    ("list", "any…", "Make a list.", lambda *values: list(values)),
    ("tuple", "any…", "Make a list.", lambda *values: list(values)),
    (
        "append",
        "list any",
        "Return a list with one more at its end.",
        lambda all_, one: [*all_, one],
    ),
    ("push", "list any", "Return a list with one more at its end.", lambda all_, one: [*all_, one]),
    (
        "prepend",
        "list any",
        "Return a list with one more at its start.",
        lambda all_, one: [one, *all_],
    ),
    ("concat", "list…", "Join lists.", lambda *lists: [one for all_ in lists for one in all_]),
    ("first", "list", "Return the first.", lambda all_: all_[0] if all_ else None),
    ("last", "list", "Return the last.", lambda all_: all_[-1] if all_ else None),
    ("rest", "list", "Return all but the first.", lambda all_: all_[1:]),
    ("initial", "list", "Return all but the last.", lambda all_: all_[:-1]),
    ("reverse", "list", "Return a list from its end.", lambda all_: all_[::-1]),
    (
        "compact",
        "list",
        "Leave empty values out.",
        lambda all_: [one for one in all_ if is_true(one)],
    ),
    ("get", "map text", "Return an entry, or an empty text.", lambda map_, key: map_.get(key, "")),
    ("hasKey", "map text", "Return whether there is an entry.", lambda map_, key: key in map_),
    ("base", "text", "Return the last part of a path.", _base),
    ("ext", "text", "Return the ending of a path.", _ext),
    ("clean", "text", "Shorten a path.", _clean),
    ("dir", "text", "Return a path without its last part.", _dir),
    (
        "isAbs",
        "text",
        "Return whether a path begins at the root.",
        lambda path: path.startswith("/"),
    ),
    ("kindOf", "any", "Name the kind of a value.", _kind),
    ("typeOf", "any", "Name the type of a value.", type_name),
    (
        "kindIs",
        "text any",
        "Return whether a value is of a kind.",
        lambda kind, value: kind == _kind(value),
    ),
    ("toStrings", "any", "Return all as texts.", _texts),
    ("sortAlpha", "any", "Sort as texts.", lambda value: sorted(_texts(value), key=_bytes)),
    ("deepEqual", "any any", "Return whether two values are the same.", _same),
)
for _name, _kinds, _purpose, _body in _ROWS:
    declare_pure("sprig_" + _name, _kinds, _purpose, _body)
