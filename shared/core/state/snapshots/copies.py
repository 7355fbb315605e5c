"""Copies of tables and of what they consist of: containers and columns are copied, values are shared.

Decides what counts as a value: texts, numbers, tuples and frozen Structs, which are replaced and never changed. A copy
costs a pass over memory, where bytes would have to be made and decoded. Hashes and all that is derived are copied, too.
"""

from collections.abc import Collection
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from shared.core.state.snapshots.lazy_entries import LazyDict

T = TypeVar("T")
#: Python's own note on an object of a generic class.
_GENERIC = "__orig_class__"
_VALUES = frozenset({bool, int, float, str, bytes, tuple, frozenset, type(None)})


def copied(value: T) -> T:
    """A copy that shares no container with `value`. Raises TypeError for a type that no table consists of."""
    return cast("T", _copied(value))


def _copied(value: Any) -> Any:
    kind: Any = type(value)
    if _is_value(kind):
        return value
    if kind is np.ndarray:
        return value.copy(order="K")
    if kind is set:
        return value.copy()
    if kind is list:
        return value.copy() if _are_values(value) else [_copied(one) for one in value]
    if kind is LazyDict:
        return value.copied()
    if kind is dict:
        if _are_values(value.values()):
            return value.copy()
        return {key: _copied(one) for key, one in value.items()}
    if kind.__module__.startswith("shared.core."):
        twin = kind.__new__(kind)
        twin.__dict__.update(
            {name: _copied(one) for name, one in value.__dict__.items() if name != _GENERIC}
        )
        return twin
    msg = f"{kind.__name__} is not what a table consists of"
    raise TypeError(msg)


def _are_values(found: Collection[Any]) -> bool:
    return all(map(_is_value, set(map(type, found))))


@cache
def _is_value(kind: type) -> bool:
    """Whether what is of this type never changes."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return kind in _VALUES
