"""Amounts with decimals: from a number of a job or of an operator to 1/10,000, exactly.

Decides what is an amount at all. A number that a float cannot hold exactly is read as it is written, and what
arithmetic in a job file leaves behind the tenth decimal is no decimal.
"""

from decimal import Decimal

#: Parts of one instance, or of one unit of a sum.
WHOLE = 10_000
#: Units; a cluster's sum stays far below int64.
AMOUNT_MAX = 2**31 - 1
_NOISE = Decimal("0.000001")


def amount_fault(value: float) -> str:
    """Say what is wrong with an amount; empty: nothing."""
    if not 0 < value <= AMOUNT_MAX:
        return f"must be more than 0 and at most {AMOUNT_MAX}, was {value}"
    scaled = Decimal(repr(value)) * WHOLE
    parts = scaled.to_integral_value()
    if not parts or abs(scaled - parts) > _NOISE:
        return f"has at most 4 decimals, was {value}"
    return ""


def parts_of(value: float) -> int:
    """Count an amount without fault in 1/10,000."""
    return int((Decimal(repr(value)) * WHOLE).to_integral_value())


def shown_amount(parts: int) -> str:
    """Write 1/10,000 for people: 25,000 is 2.5."""
    whole, rest = divmod(abs(parts), WHOLE)
    text = f"{whole}.{rest:04}".rstrip("0").rstrip(".")
    return f"-{text}" if parts < 0 else text
