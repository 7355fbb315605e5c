"""Feasibility: which nodes may take an allocation at all, whatever room they have.

Decides: what a constraint, a datacenter pattern, a node pool and a driver mean for every row of the fleet.
Must not know: capacity, scores, jobs; which nodes are ready. cut.py takes the conjunction of the masks.

Attributes are dictionary-coded columns: an operator is asked once for each distinct value, and its verdicts
are spread by the rows' codes. So an operator is one scalar function in operators.py, and nothing else.

Meanings are Nomad's (scheduler/feasible.go resolveTarget and checkConstraint, Node.IsInAnyDC, Node.IsInPool):
a target is interpolated only if it starts with `${`; what a node does not have is the empty string, not found;
`=` needs both sides found, `!=` does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.nodes import NodeSpec
from shared.core.operators import OPERATORS, TRUE, Operand

Mask = NDArray[np.bool_]
Codes = NDArray[np.int32]

DATACENTER: Final = "node.datacenter"
POOL: Final = "node.pool"
#: The pool every node is in.
ALL_POOLS: Final = "all"
#: The one region there is.
REGION: Final = "global"


class UnknownOperatorError(ValueError):
    """A constraint names an operator nobody knows; validation should have refused the job."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"constraint operator {operator!r} is not one of {sorted(OPERATORS)}")
        self.operator = operator


class _Column:
    """One attribute of every row: a code each, and the value of each code. Code 0 is absence."""

    def __init__(self, size: int) -> None:
        self.codes: Codes = np.zeros(size, np.int32)
        self.values: list[str] = [""]
        self._code_of: dict[str, int] = {}
        self._uses: list[int] = [0]
        self._free: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not self._code_of

    def put(self, row: int, value: str) -> None:
        code = self._code_of.get(value)
        if code is None:
            # Codes no row uses come back, lowest first: unique values of nodes long gone cost nothing.
            code = heappop(self._free) if self._free else len(self.values)
            if code == len(self.values):
                self.values.append(value)
                self._uses.append(0)
            self.values[code] = value
            self._code_of[value] = code
        self._uses[code] += 1
        self.codes[row] = code

    def drop(self, row: int) -> None:
        code = int(self.codes[row])
        if not code:
            return
        self.codes[row] = 0
        self._uses[code] -= 1
        if not self._uses[code]:
            del self._code_of[self.values[code]]
            self.values[code] = ""
            heappush(self._free, code)


class AttributeColumns:
    """The attributes of a fleet, by name without `${}`: `node.class`, `attr.kernel.name`, `meta.rack`.

    Kept by the fleet table beside its matrices; `node_attributes` names what a node has. Rows without any
    attribute are no node: they are in no datacenter and no pool.
    """

    def __init__(self, rows: int = 0) -> None:
        self._rows = rows
        self._size = rows
        self._columns: dict[str, _Column] = {}

    @property
    def rows(self) -> int:
        """The length of every mask: one more than the highest row ever set, or as resized."""
        return self._rows

    def resize(self, rows: int) -> None:
        """Make masks `rows` long. Rows cut off must have been cleared."""
        if rows > self._size:
            self._size = max(rows, 2 * self._size, 16)
            for column in self._columns.values():
                column.codes = np.pad(column.codes, (0, self._size - len(column.codes)))
        self._rows = rows

    def set_row(self, row: int, attributes: Mapping[str, str]) -> None:
        """Replace all attributes of a row, growing to hold it."""
        if row >= self._rows:
            self.resize(row + 1)
        self.clear_row(row)
        for name, value in attributes.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column(self._size)
            column.put(row, value)

    def clear_row(self, row: int) -> None:
        """Forget a row's attributes; a column without any value left goes with them."""
        for name, column in list(self._columns.items()):
            column.drop(row)
            if column.is_empty:
                del self._columns[name]

    def codes(self, name: str) -> Codes | None:
        """Return a view of the rows' codes, 0 where absent; None if no row has the attribute."""
        column = self._columns.get(name)
        return None if column is None else column.codes[: self._rows]

    def values(self, name: str) -> Sequence[str]:
        """Return the value of each code; "" at 0 and at codes that are free."""
        column = self._columns.get(name)
        return ("",) if column is None else column.values

    def value(self, row: int, name: str) -> str | None:
        """Return one row's value, None if it has none."""
        codes = self.codes(name)
        code = 0 if codes is None else int(codes[row])
        return self.values(name)[code] if code else None


def node_attributes(spec: NodeSpec) -> dict[str, str]:
    """Name all that constraints can ask of a node, as `AttributeColumns.set_row` takes it."""
    fixed = {
        "node.unique.id": str(spec.node_id),
        "node.unique.name": spec.name,
        DATACENTER: spec.datacenter,
        "node.class": spec.node_class,
        POOL: spec.node_pool,
        "node.region": REGION,
    }
    attributes = {f"attr.{name}": value for name, value in spec.attributes.items()}
    return fixed | attributes | {f"meta.{name}": value for name, value in spec.meta.items()}


def constraint_mask(columns: AttributeColumns, ltarget: str, operator: str, rtarget: str) -> Mask:
    """Say which rows satisfy `ltarget operator rtarget`. Shapes: result (rows,), writable.

    Raises: UnknownOperatorError.
    """
    operation = OPERATORS.get(operator)
    if operation is None:
        raise UnknownOperatorError(operator)
    left, left_codes = _side(columns, ltarget)
    right, right_codes = _side(columns, rtarget)
    if left_codes is None:
        verdicts = [operation(left[0], one) for one in right]
        if right_codes is None:
            return np.full(columns.rows, verdicts[0])
        return _spread(verdicts, right_codes)
    if right_codes is None:
        return _spread([operation(one, right[0]) for one in left], left_codes)
    pairs = left_codes.astype(np.int64) * len(right) + right_codes
    distinct, codes = np.unique(pairs, return_inverse=True)
    split = (divmod(pair, len(right)) for pair in distinct.tolist())
    return _spread([operation(left[a], right[b]) for a, b in split], codes)


def datacenter_mask(columns: AttributeColumns, patterns: Iterable[str]) -> Mask:
    """Say which rows are in a datacenter that any of the patterns matches (`glob_matches`)."""
    codes = columns.codes(DATACENTER)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    patterns = tuple(patterns)
    values = columns.values(DATACENTER)
    verdicts = [any(glob_matches(pattern, value) for pattern in patterns) for value in values]
    verdicts[0] = False
    return _spread(verdicts, codes)


def pool_mask(columns: AttributeColumns, pool: str) -> Mask:
    """Say which rows are in a node pool; every node is in `all`."""
    codes = columns.codes(POOL)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    verdicts = [pool in (ALL_POOLS, value) for value in columns.values(POOL)]
    verdicts[0] = False
    return _spread(verdicts, codes)


def driver_mask(columns: AttributeColumns, driver: str) -> Mask:
    """Say which rows have a task driver, from the attribute `driver.NAME` that its agent reports."""
    name = f"attr.driver.{driver}"
    codes = columns.codes(name)
    if codes is None:
        return np.zeros(columns.rows, np.bool_)
    return _spread([value in TRUE for value in columns.values(name)], codes)


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


def _side(columns: AttributeColumns, target: str) -> tuple[list[Operand], Codes | None]:
    """Resolve one side: its operand for each code, and the rows' codes; None if it is the same everywhere."""
    if not target.startswith("${"):
        return [Operand(target)], None
    name = target[2:].removesuffix("}")
    codes = columns.codes(name)
    if codes is None:
        return [Operand("", found=False)], None
    first, *values = columns.values(name)
    return [Operand(first, found=False), *map(Operand, values)], codes


def _spread(verdicts: list[bool], codes: NDArray[np.integer]) -> Mask:
    """Give every row the verdict on its code."""
    spread: Mask = np.array(verdicts, np.bool_).take(codes)
    return spread
