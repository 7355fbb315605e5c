"""Models of instances: what tells them apart, and which of them an ask accepts.

Decides what vendor, model and constraints over `${device.…}` mean. Must not know nodes. Source: Nomad
plugins/shared/structs/attribute.go and units.go: values with units compare where their units measure the same.
"""

import re
from fractions import Fraction
from typing import Final

import msgspec

from schemas.jobs import Constraint, ResourceAsk
from shared.core.constraints.operators import OPERATORS, Operand

_PREFIX: Final = "${device."
_QUANTITY: Final = re.compile(r"\s*([+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z/]{1,6})\s*")
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
    """Tell whether `left operator right` is true of a model. An unknown operator never is."""
    first, second = model.resolve(left), model.resolve(right)
    order = _order(first, second)
    if order is not None and operator in _ORDERS:
        return order in _ORDERS[operator]
    operation = OPERATORS.get(operator)
    return operation is not None and operation(first, second)


def _order(left: Operand, right: Operand) -> int | None:
    """Order two values with units: -1, 0, 1; None: not both have one that measures the same."""
    a, b = _QUANTITY.fullmatch(left.text), _QUANTITY.fullmatch(right.text)
    if a is None or b is None or a[2] not in _UNITS or b[2] not in _UNITS:
        return None
    (kind, one), (other, two) = _UNITS[a[2]], _UNITS[b[2]]
    if kind != other:
        return None
    x, y = Fraction(a[1]) * one, Fraction(b[1]) * two
    return (x > y) - (x < y)


def filter_name(ask: ResourceAsk, constraint: Constraint) -> str:
    """Name one condition of an ask for people."""
    words = (constraint.left, constraint.operator, constraint.right)
    return f"{ask.pool}: {' '.join(word for word in words if word)}"
