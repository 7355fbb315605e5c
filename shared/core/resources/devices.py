"""Models of instances: what tells them apart, and which of them an ask accepts.

Decides what vendor, model and constraints over `${device.…}` mean. Must not know nodes. Source: Nomad
plugins/shared/structs/attribute.go and units.go, scheduler/feasible.go checkAttributeConstraint: values compare where
both are numbers whose units measure the same, both are booleans, or both are texts.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

import msgspec

from schemas.jobs import Constraint, ResourceAsk
from shared.core.constraints.operators import OPERATORS, Operand, compare

_PREFIX: Final = "${device."
_FIXED: Final = frozenset(f"{_PREFIX}{name}}}" for name in ("vendor", "type", "model"))
_QUANTITY: Final = re.compile(r"\s*([+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z/]{1,6}|)\s*")
_TEXT, _SCALAR, _BOOL = "text", "number", "bool"
#: Booleans as Go reads them; 0 and 1 are numbers first.
_TRUE: Final = dict.fromkeys(("t", "T", "true", "TRUE", "True"), 1) | dict.fromkeys(
    ("f", "F", "false", "FALSE", "False"), 0
)
_BINARY: Final = {f"{p}iB": 1024**n for n, p in enumerate(("K", "M", "G", "T", "P", "E"), 1)}
_DECIMAL: Final = {"kB": 1000} | {
    f"{p}B": 1000**n for n, p in enumerate(("K", "M", "G", "T", "P", "E"), 1)
}
#: unit -> what it measures, and how many of its base unit it is.
_UNITS: Final[dict[str, tuple[str, Fraction]]] = (
    {unit: ("byte", Fraction(n)) for unit, n in (_BINARY | _DECIMAL).items()}
    | {f"{unit}/s": ("rate", Fraction(n)) for unit, n in (_BINARY | _DECIMAL).items()}
    | {"MHz": ("hertz", Fraction(10**6)), "GHz": ("hertz", Fraction(10**9))}
    | {
        unit: ("watt", n)
        for unit, n in (
            ("mW", Fraction(1, 1000)),
            ("W", Fraction(1)),
            ("kW", Fraction(1000)),
            ("MW", Fraction(10**6)),
            ("GW", Fraction(10**9)),
        )
    }
)
_ORDERS: Final = {
    "=": {0},
    "==": {0},
    "is": {0},
    "!=": {-1, 1},
    "not": {-1, 1},
    "<": {-1},
    "<=": {-1, 0},
    ">": {1},
    ">=": {0, 1},
}


class DeviceModel(msgspec.Struct, frozen=True):
    """What instances of one kind share. `attributes`: name and value, sorted."""

    pool: str
    vendor: str = ""
    model: str = ""
    attributes: tuple[tuple[str, str], ...] = ()

    def resolve(self, target: str) -> Operand:
        """Read one side of a constraint: a literal, or what this model has of `${device.…}`."""
        if not target.startswith("${"):
            return Operand(target)
        if not target.startswith(_PREFIX):
            return Operand("", found=False)
        name = target.removeprefix(_PREFIX).removesuffix("}")
        fixed = {
            "vendor": self.vendor,
            "type": self.pool.removeprefix("device."),
            "model": self.model,
        }
        if name in fixed:
            return Operand(fixed[name])
        found = dict(self.attributes).get(name.removeprefix("attr."))
        return Operand("", found=False) if found is None else Operand(found)


def accepts(ask: ResourceAsk, model: DeviceModel) -> bool:
    """Tell whether instances of a model will do for an ask."""
    if ask.pool != model.pool or (ask.vendor and ask.vendor != model.vendor):
        return False
    if ask.model and ask.model != model.model:
        return False
    return all(holds(model, one.left, one.operator, one.right) for one in ask.constraints)


def holds(model: DeviceModel, left: str, operator: str, right: str) -> bool:
    """Tell whether `left operator right` is true of a model. An unknown operator never is.

    Two values that cannot be compared have no order and are not unequal either: no comparison of them is true.
    """
    first, second = model.resolve(left), model.resolve(right)
    if operator in _ORDERS and first.found and second.found and not _names(left, right):
        return _order(first.text, second.text) in _ORDERS[operator]
    operation = OPERATORS.get(operator)
    return operation is not None and operation(first, second)


def are_comparable(model: DeviceModel, constraint: Constraint) -> bool:
    """Tell whether the sides of a constraint can be compared, where it compares them and the model has both."""
    left, right = constraint.left, constraint.right
    first, second = model.resolve(left), model.resolve(right)
    if constraint.operator not in _ORDERS or not (first.found and second.found):
        return True
    return _names(left, right) or _order(first.text, second.text) is not None


def is_unit(text: str) -> bool:
    """Tell whether values of this unit are compared as quantities."""
    return text in _UNITS


def _names(left: str, right: str) -> bool:
    """Tell whether a side is a name, which is compared as text even if it looks like a number."""
    return not _FIXED.isdisjoint((left, right))


def _order(left: str, right: str) -> int | None:
    """Order two values: -1, 0, 1; None: they measure different things, or one is no number and the other is."""
    (kind, one), (other, two) = _parsed(left), _parsed(right)
    if kind != other:
        return None
    if kind == _TEXT:
        return compare(left, right)
    return (one > two) - (one < two)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[str, Fraction]:
    """What a value measures, and how much of its base unit it is."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return (_BOOL, Fraction(_TRUE[text])) if text in _TRUE else (_TEXT, Fraction(0))
    if not found[2]:
        return _SCALAR, Fraction(found[1])
    if found[2] not in _UNITS:
        return _TEXT, Fraction(0)
    kind, base = _UNITS[found[2]]
    return kind, Fraction(found[1]) * base


def filter_name(ask: ResourceAsk, constraint: Constraint) -> str:
    """Name one condition of an ask for people."""
    words = (constraint.left, constraint.operator, constraint.right)
    return f"{ask.pool}: {' '.join(word for word in words if word)}"
