"""Structs made from their own description: every field filled, or only what is required. Always the same, for ever."""

from typing import Any

import msgspec
from msgspec import inspect as mi

from schemas.catalogue import info_of

#: Words whose meaning a reader of a golden file knows; any other text is its field's name.
_TEXTS = {
    "kind": "tx",
    "prev": "0" * 32,
    "digest": "d" * 32,
    "status": "pending",
    "client_status": "lost",
    "desired": "stop",
}


def fill(struct: type[msgspec.Struct]) -> Any:
    """Return an instance with no field at its default value, as far as types allow."""
    return _fill_struct(info_of(struct))


def least(struct: type[msgspec.Struct]) -> Any:
    """Return an instance with nothing but what is required."""
    info = info_of(struct)
    return struct(**{f.name: _value(f.type, f.name) for f in info.fields if f.required})


def _fill_struct(info: mi.StructType) -> Any:
    return info.cls(**{field.name: _other_than_default(field) for field in info.fields})


def _other_than_default(field: mi.Field) -> Any:
    value = _value(field.type, field.name)
    if value == field.default:
        value = {int: lambda: value + 1, bool: lambda: not value, str: lambda: value + "-other"}[
            type(value)
        ]()
    return value


def _value(info: mi.Type, name: str) -> Any:
    """Make a value. Integers tell their field by its name's length and letters, so that no two neighbours agree."""
    match info:
        case mi.BoolType():
            return True
        case mi.IntType():
            return sum(name.encode()) % 900 + 1
        case mi.FloatType():
            return 0.5
        case mi.StrType():
            return _TEXTS.get(name, name)
        case mi.BytesType():
            return name.encode()
        case mi.RawType():
            return msgspec.Raw(b'{"%s":1}' % name.encode())
        case mi.VarTupleType():
            return tuple(_items(info.item_type, name))
        case mi.DictType():
            return {key: _value(info.value_type, name) for key in ("a", "b.c/d")}
        case mi.StructType():
            return _fill_struct(info)
        case mi.UnionType():
            return _value(next(one for one in info.types if not isinstance(one, mi.NoneType)), name)
        case _:
            raise NotImplementedError(f"{name}: no golden value for {info}")


def _items(info: mi.Type, name: str) -> list[Any]:
    if isinstance(info, mi.UnionType):
        return [_value(one, name) for one in info.types]
    if isinstance(info, mi.IntType):
        return [0, _value(info, name)]
    return [_value(info, name)]
