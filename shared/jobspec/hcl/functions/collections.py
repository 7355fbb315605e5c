"""Functions of lists, sets and objects. A set is a list without equal elements, sorted where its elements are texts."""

from typing import Any

from shared.jobspec.hcl.errors import DEPTH_MAX, HclError, HclLimitExceeded
from shared.jobspec.hcl.functions.registry import function
from shared.jobspec.hcl.values import (
    Value,
    as_bool,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    kind_of,
    values_equal,
)

#: Elements of one list that a function makes; range() stops at Nomad's 1,024.
LIST_MAX = 20_000
RANGE_MAX = 1024


def _check_size(size: int) -> None:
    if size > LIST_MAX:
        raise HclLimitExceeded(f"list of more than {LIST_MAX} elements")


def _without_duplicates(items: list[Value]) -> list[Value]:
    """Keep the first of equal elements."""
    found: list[Value] = []
    seen: set[tuple[str, Any]] = set()
    compared = 0
    for item in items:
        if isinstance(item, list | dict):
            compared += len(found)
            if compared > LIST_MAX:
                raise HclLimitExceeded("too many lists and objects to compare")
            if any(values_equal(item, one) for one in found):
                continue
        else:
            key = (kind_of(item), item)
            if key in seen:
                continue
            seen.add(key)
        found.append(item)
    return found


@function("length")
def _length(value: Value) -> Value:
    """Count elements, or characters."""
    if isinstance(value, list | dict | str):
        return len(value)
    raise HclError(f"must be a list, an object or a string, was {kind_of(value)}")


@function("concat")
def _concat(*lists: Value) -> Value:
    """Join lists into one."""
    _check_size(sum(len(as_list(one)) for one in lists))
    return [item for one in lists for item in one]


@function("element")
def _element(values: Value, index: Value) -> Value:
    """Take the element at an index, beginning again behind the last."""
    items, at = as_list(values), as_int(index)
    if not items or at < 0:
        raise HclError("needs an element and an index from 0")
    return items[at % len(items)]


@function("index")
def _index(values: Value, value: Value) -> Value:
    """Find the index of an element."""
    for at, item in enumerate(as_list(values)):
        if values_equal(item, value):
            return at
    raise HclError("the element is not in the list")


@function("contains")
def _contains(values: Value, value: Value) -> Value:
    """Return whether a list has an element."""
    return any(values_equal(item, value) for item in as_list(values))


@function("lookup")
def _lookup(object: Value, key: Value, default: Value = None) -> Value:  # noqa: A002 - shown in the docs
    """Take an element by its key, or the default."""
    found = as_object(object)
    name = as_text(key)
    if name not in found and default is None:
        raise HclError(f"no element {name[:40]!r}, and no default")
    return found.get(name, default)


@function("keys")
def _keys(object: Value) -> Value:  # noqa: A002
    """List the keys of an object, sorted."""
    return sorted(as_object(object))


@function("values")
def _values(object: Value) -> Value:  # noqa: A002
    """List the values of an object, in the order of its keys."""
    return [value for _, value in sorted(as_object(object).items())]


@function("merge")
def _merge(*objects: Value) -> Value:
    """Join objects; of equal keys the last wins."""
    found: dict[str, Value] = {}
    for one in objects:
        if one is not None:
            found |= as_object(one)
    return found


@function("zipmap")
def _zipmap(keys: Value, values: Value) -> Value:
    """Build an object from a list of keys and a list of values."""
    names, items = as_list(keys), as_list(values)
    if len(names) != len(items):
        raise HclError(f"{len(names)} keys for {len(items)} values")
    return {as_text(name): item for name, item in zip(names, items, strict=True)}


@function("flatten")
def _flatten(values: Value) -> Value:
    """Put the elements of inner lists in their place."""
    found: list[Value] = []

    def take(items: list[Value], depth: int) -> None:
        if depth > DEPTH_MAX:
            raise HclError("nested too deeply")
        for item in items:
            if isinstance(item, list):
                take(item, depth + 1)
            else:
                _check_size(len(found))
                found.append(item)

    take(as_list(values), 0)
    return found


@function("distinct")
def _distinct(values: Value) -> Value:
    """Drop elements that came before."""
    return _without_duplicates(as_list(values))


@function("compact")
def _compact(values: Value) -> Value:
    """Drop empty texts and nulls."""
    return [item for item in as_list(values) if item is not None and item != ""]


@function("coalesce")
def _coalesce(*values: Value) -> Value:
    """Return the first value that is neither null nor an empty text."""
    for value in values:
        if value is not None and value != "":
            return value
    raise HclError("all values are null or empty")


@function("coalescelist")
def _coalescelist(*lists: Value) -> Value:
    """Return the first list that is not empty."""
    for one in lists:
        if as_list(one):
            return one
    raise HclError("all lists are empty")


@function("reverse")
def _reverse(values: Value) -> Value:
    """Turn a list around."""
    return as_list(values)[::-1]


@function("sort")
def _sort(values: Value) -> Value:
    """Sort texts."""
    return sorted(map(as_text, as_list(values)))


@function("slice")
def _slice(values: Value, start: Value, end: Value) -> Value:
    """Take the elements from `start` up to before `end`."""
    items, first, last = as_list(values), as_int(start), as_int(end)
    if not 0 <= first <= last <= len(items):
        raise HclError(f"{first} to {last} is out of range for a list of {len(items)}")
    return items[first:last]


@function("chunklist")
def _chunklist(values: Value, size: Value) -> Value:
    """Cut a list into lists of `size` elements."""
    items, count = as_list(values), as_int(size)
    if count < 0:
        raise HclError("the size must not be negative")
    return [items[at : at + count] for at in range(0, len(items), count)] if count else [items]


@function("range")
def _range(*limits: Value) -> Value:
    """Count: range(end), range(start, end) or range(start, end, step)."""
    if not 1 <= len(limits) <= 3:
        raise HclError("takes 1 to 3 arguments")
    numbers = [as_number(one) for one in limits]
    start, end = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) == 3 else (1 if start <= end else -1)
    if not step:
        raise HclError("the step must not be 0")
    found: list[Value] = []
    at = start
    while (at < end) if step > 0 else (at > end):
        if len(found) == RANGE_MAX:
            raise HclError(f"more than {RANGE_MAX} values")
        found.append(at)
        at += step
    return found


@function("setunion")
def _setunion(*lists: Value) -> Value:
    """Join sets."""
    return toset([item for one in lists for item in as_list(one)])


@function("setintersection")
def _setintersection(first: Value, *others: Value) -> Value:
    """Keep what all sets have."""
    _check_size(len(as_list(first)) * sum(len(as_list(one)) for one in others) // 64)
    return toset([i for i in first if all(any(values_equal(i, j) for j in one) for one in others)])


@function("setsubtract")
def _setsubtract(first: Value, second: Value) -> Value:
    """Keep what the second set has not."""
    _check_size(len(as_list(first)) * len(as_list(second)) // 64)
    return toset([item for item in first if not any(values_equal(item, one) for one in second)])


@function("setproduct")
def _setproduct(*lists: Value) -> Value:
    """List all ways to take one element of each list."""
    size = 1
    for one in lists:
        size *= max(len(as_list(one)), 1)
        _check_size(size)
    found: list[Value] = [[]]
    for one in lists:
        found = [[*row, item] for row in found for item in one]
    return found


@function("toset")
def toset(values: Value) -> Value:
    """Convert a list to a set."""
    found = _without_duplicates(as_list(values))
    if all(isinstance(item, str) for item in found):
        found.sort()
    return found


@function("tolist")
def _tolist(values: Value) -> Value:
    """Convert a set to a list."""
    return as_list(values)


@function("tomap")
def _tomap(object: Value) -> Value:  # noqa: A002
    """Convert an object to a map."""
    return as_object(object)


@function("one")
def _one(values: Value) -> Value:
    """Return the only element of a list, or null if it is empty."""
    items = as_list(values)
    if len(items) > 1:
        raise HclError(f"the list has {len(items)} elements")
    return items[0] if items else None


@function("alltrue")
def _alltrue(values: Value) -> Value:
    """Return whether all elements are true."""
    return all(as_bool(item) for item in as_list(values))


@function("anytrue")
def _anytrue(values: Value) -> Value:
    """Return whether an element is true."""
    return any(as_bool(item) for item in as_list(values))


@function("sum")
def _sum(values: Value) -> Value:
    """Add numbers."""
    return sum(as_number(item) for item in as_list(values))
