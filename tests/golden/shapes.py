"""The shape of everything on the wire as plain JSON, and what of it may change: only additions.

Every Struct omits fields that hold their default, so a default is part of what was written: it may never change.
Next: `test_evolution.py`.
"""

import importlib
import pkgutil
from typing import Any

import msgspec
from msgspec import inspect as mi

import schemas
from schemas import catalogue

Shape = dict[str, Any]
REQUIRED = "required"
ABSENT = "absent"


def summary() -> Shape:
    """Describe the Structs of today: structs by name, and the orders whose indexes travel."""
    return {
        "structs": {name: _struct(info) for name, info in catalogue.structs().items()},
        "orders": _orders(),
    }


def _struct(info: mi.StructType) -> Shape:
    return {
        "tag": info.tag,
        "tag_field": info.tag_field,
        "omits_defaults": bool(info.cls.__struct_config__.omit_defaults),
        "refuses_unknown": info.forbid_unknown_fields,
        "array": info.array_like,
        "fields": {field.encode_name: _field(field) for field in info.fields},
    }


def _field(field: mi.Field) -> Shape:
    if field.required:
        return {"type": _type(field.type), "default": REQUIRED}
    found, value = catalogue.default(field)
    shown = {"value": _plain(value)} if found else ABSENT
    return {"type": _type(field.type), "default": shown}


def _plain(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value, order="sorted"))


def _type(info: mi.Type) -> Any:
    """Write a type as a word or a list that starts with one."""
    match info:
        case mi.StructType():
            return ["struct", catalogue.published_name(info.cls)]
        case mi.UnionType():
            return ["union", *sorted((_type(one) for one in info.types), key=str)]
        case mi.VarTupleType():
            return ["list", _type(info.item_type)]
        case mi.DictType():
            return ["object", _type(info.key_type), _type(info.value_type)]
        case mi.CustomType():
            return info.cls.__name__
        case _:
            limits = {
                key: value
                for key, value in msgspec.structs.asdict(info).items()
                if value is not None
            }
            word = type(info).__name__.removesuffix("Type").lower()
            return [word, limits] if limits else word


def _orders() -> dict[str, list[Any]]:
    """Tuples of words in schemas/: events carry indexes into some of them."""
    found: dict[str, list[Any]] = {}
    for one in pkgutil.iter_modules(schemas.__path__, "schemas."):
        for name, value in vars(importlib.import_module(one.name)).items():
            if (
                name.isupper()
                and isinstance(value, tuple)
                and all(isinstance(x, str) for x in value)
            ):
                found[name] = list(value)
    return dict(sorted(found.items()))


# ---- what may change ----


def faults(old: Shape, new: Shape) -> list[str]:
    """Say how `new` breaks those who wrote or read `old`; empty: it only adds."""
    found: list[str] = []
    tags_before = {
        (s["tag_field"], s["tag"]): name for name, s in old["structs"].items() if s["tag"]
    }
    for name, struct in new["structs"].items():
        before = tags_before.get((struct["tag_field"], struct["tag"]), name)
        if before != name:
            found.append(f"{name}: its tag {struct['tag']} was that of {before}")
    for name, struct in old["structs"].items():
        now = new["structs"].get(name)
        found += [f"{name}: removed"] if now is None else _struct_faults(name, struct, now)
    for name, words in old["orders"].items():
        if new["orders"].get(name, [])[: len(words)] != words:
            found.append(f"{name}: its order changed, words are only added at the end")
    return found


def _struct_faults(name: str, old: Shape, new: Shape) -> list[str]:
    found = [
        f"{name}: {key} was {old[key]}, is {new[key]}"
        for key in old
        if key != "fields" and old[key] != new[key]
    ]
    for key, field in old["fields"].items():
        now = new["fields"].get(key)
        where = f"{name}.{key}"
        if now is None:
            found.append(f"{where}: removed")
            continue
        if not _widens(field["type"], now["type"]):
            found.append(f"{where}: type was {field['type']}, is {now['type']}")
        if field["default"] != now["default"] and not _grown(field["default"], now["default"]):
            found.append(f"{where}: default was {field['default']}, is {now['default']}")
    added = sorted(new["fields"].keys() - old["fields"].keys())
    return found + [
        f"{name}.{key}: a new field needs a default"
        for key in added
        if new["fields"][key]["default"] == REQUIRED
    ]


def _widens(old: Any, new: Any) -> bool:
    """Tell whether a type stayed, or is a union of Structs that only took in more of them."""
    if isinstance(old, list) and isinstance(new, list) and old[0] == new[0]:
        if old[0] == "union" and all(one[0] == "struct" for one in old[1:] + new[1:]):
            return all(one in new for one in old)
        return len(old) == len(new) and all(map(_widens, old[1:], new[1:]))
    return bool(old == new)


def _grown(old: Any, new: Any) -> bool:
    """Tell whether a default that is itself a Struct only has more fields: each of them is judged where it stands."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    before, now = old.get("value"), new.get("value")
    if not isinstance(before, dict) or not isinstance(now, dict) or not before:
        return False
    return all(key in now and now[key] == before[key] for key in before)
