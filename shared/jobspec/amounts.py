"""Amounts with decimals: from a number of a job or of an operator to 1/10,000, exactly.

A number that a float cannot hold exactly is read as written; digits after the tenth decimal place, rounding errors of
arithmetic in a job file, are dropped.
"""

from decimal import Decimal

#: Parts of one instance, or of one unit of a sum.
PARTS_PER_UNIT = 10_000
#: Units; a cluster's sum stays far below int64.
AMOUNT_MAX = 2**31 - 1
_ROUNDING = Decimal("0.000001")


def amount_error(value: float) -> str:
    """Describe what is wrong with an amount; empty: nothing."""
    if not 0 < value <= AMOUNT_MAX:
        return f"must be more than 0 and at most {AMOUNT_MAX}, was {value}"
    scaled = Decimal(repr(value)) * PARTS_PER_UNIT
    parts = scaled.to_integral_value()
    if not parts or abs(scaled - parts) > _ROUNDING:
        return f"must have at most 4 decimal places, was {value}"
    return ""


def to_parts(value: float) -> int:
    """Count an amount without fault in 1/10,000."""
    return int((Decimal(repr(value)) * PARTS_PER_UNIT).to_integral_value())


def format_amount(parts: int) -> str:
    """Write 1/10,000 for people: 25,000 is 2.5."""
    whole, rest = divmod(abs(parts), PARTS_PER_UNIT)
    text = f"{whole}.{rest:04}".rstrip("0").rstrip(".")
    return f"-{text}" if parts < 0 else text
