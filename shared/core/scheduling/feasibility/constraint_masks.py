"""Feasibility: which nodes may take an allocation at all, regardless of their free capacity.

Decides what a constraint, a datacenter pattern, a node pool and a driver mean for every row of the fleet. Capacity,
scores and readiness play no part. greedy.py takes the conjunction of the masks.

Attributes are dictionary-coded columns (state/node_attributes.py): an operator is evaluated once for each distinct
value, and its verdicts are spread by the rows' codes. So an operator is one scalar function in operators.py.

Meanings are Nomad's (scheduler/feasible.go resolveTarget and checkConstraint, Node.IsInAnyDC, Node.IsInPool):
a target is interpolated only if it starts with `${`; what a node does not have is the empty string, not found;
`=` needs both sides found, `!=` does not.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Codes, Mask
from shared.core.constraints.operators import OPERATORS, TRUE, Operand
from shared.core.state.node_attributes import DATACENTER, POOL, AttributeColumns

#: Names of machines that nodes had before they took Nomad's: a job in the log may compare with one.
_FORMER_ARCHES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_ARCH: Final = "${attr.cpu.arch}"

#: The pool every node is in.
ALL_POOLS: Final = "all"


class UnknownOperatorError(ValueError):
    """A constraint names an unknown operator; validation should have refused the job."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"constraint operator {operator!r} is not one of {sorted(OPERATORS)}")
        self.operator = operator


def constraint_mask(columns: AttributeColumns, ltarget: str, operator: str, rtarget: str) -> Mask:
    """Say which rows satisfy `ltarget operator rtarget`. Shapes: result (rows,), writable.

    Raises: UnknownOperatorError.
    """
    operation = OPERATORS.get(operator)
    if operation is None:
        raise UnknownOperatorError(operator)
    left, left_codes = _resolve_operand(columns, ltarget)
    right, right_codes = _resolve_operand(columns, rtarget)
    if left_codes is None:
        verdicts = [operation(left[0], one) for one in right]
        if right_codes is None:
            return np.full(columns.rows, verdicts[0])
        return _verdicts_by_row(verdicts, right_codes)
    if right_codes is None:
        text = right[0].text
        if ltarget == _ARCH and text in _FORMER_ARCHES:
            now = Operand(_FORMER_ARCHES[text])
            rights = [now if one == now else right[0] for one in left]
            verdicts = [operation(one, other) for one, other in zip(left, rights, strict=True)]
            return _verdicts_by_row(verdicts, left_codes)
        return _verdicts_by_row([operation(one, right[0]) for one in left], left_codes)
    pairs = left_codes.astype(np.int64) * len(right) + right_codes
    distinct, codes = np.unique(pairs, return_inverse=True)
    split = (divmod(pair, len(right)) for pair in distinct.tolist())
    return _verdicts_by_row([operation(left[a], right[b]) for a, b in split], codes)


def datacenter_mask(columns: AttributeColumns, patterns: Iterable[str]) -> Mask:
    """Say which rows are in a datacenter that any of the patterns matches (`glob_matches`)."""
    codes = columns.codes(DATACENTER)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    patterns = tuple(patterns)
    values = columns.values(DATACENTER)
    verdicts = [any(glob_matches(pattern, value) for pattern in patterns) for value in values]
    verdicts[0] = False
    return _verdicts_by_row(verdicts, codes)


def pool_mask(columns: AttributeColumns, pool: str) -> Mask:
    """Say which rows are in a node pool; every node is in `all`."""
    codes = columns.codes(POOL)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    verdicts = [pool in (ALL_POOLS, value) for value in columns.values(POOL)]
    verdicts[0] = False
    return _verdicts_by_row(verdicts, codes)


def driver_mask(columns: AttributeColumns, driver: str) -> Mask:
    """Say which rows have a task driver, from the attribute `driver.NAME` that its agent reports."""
    name = f"attr.driver.{driver}"
    codes = columns.codes(name)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    return _verdicts_by_row([value in TRUE for value in columns.values(name)], codes)


def glob_matches(pattern: str, text: str) -> bool:
    """Match a pattern in which `*` stands for any text, empty included; all else is literal.

    Linear: each part is taken where it first occurs. Source: ryanuber/go-glob, which Nomad uses.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(rest[-1]) and len(text) - len(rest[-1]) >= at


def _resolve_operand(columns: AttributeColumns, target: str) -> tuple[list[Operand], Codes | None]:
    """Resolve one side: its operand for each code, and the rows' codes; None if it is the same everywhere."""
    if not target.startswith("${"):
        return [Operand(target)], None
    name = target[2:].removesuffix("}")
    codes = columns.codes(name)
    if codes is None:
        return [Operand("", found=False)], None
    first, *values = columns.values(name)
    return [Operand(first, found=False), *map(Operand, values)], codes


def _verdicts_by_row(verdicts: list[bool], codes: NDArray[np.integer]) -> Mask:
    """Give every row the verdict on its code."""
    spread: Mask = np.array(verdicts, np.bool_).take(codes)
    return spread
