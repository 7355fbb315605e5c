"""Attributes of nodes as dictionary-coded columns: a code for each row, a value for each code.

A constraint is evaluated once for each distinct value (scheduling/feasibility/constraint_masks.py).
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np

from schemas.nodes import NodeSpec
from shared.core.columns import Codes

DATACENTER: Final = "node.datacenter"
POOL: Final = "node.pool"
#: The only region.
REGION: Final = "global"


class AttributeColumn:
    """One attribute of every row: a code for each row, a value for each code. Code 0: the row lacks it."""

    def __init__(self, size: int) -> None:
        self.codes: Codes = np.zeros(size, np.int32)
        self.values: list[str] = [""]
        self._code_of: dict[str, int] = {}
        self._uses: list[int] = [0]
        self._free: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Tell whether no row has the attribute."""
        return not self._code_of

    def put(self, row: int, value: str) -> None:
        """Set the value of a row that has none."""
        code = self._code_of.get(value)
        if code is None:
            # Codes that no row uses are assigned again, lowest first: values of removed nodes cost nothing.
            code = heappop(self._free) if self._free else len(self.values)
            if code == len(self.values):
                self.values.append(value)
                self._uses.append(0)
            self.values[code] = value
            self._code_of[value] = code
        self._uses[code] += 1
        self.codes[row] = code

    def drop(self, row: int) -> None:
        """Clear the value of a row."""
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

    Kept by the fleet table beside its matrices; `node_attributes` lists what a node has. A row without attributes is
    not a node: it is in no datacenter and no pool.
    """

    def __init__(self, rows: int = 0) -> None:
        self._rows = rows
        self._size = rows
        self._columns: dict[str, AttributeColumn] = {}

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
                column = self._columns[name] = AttributeColumn(self._size)
            column.put(row, value)

    def clear_row(self, row: int) -> None:
        """Clear a row's attributes, and drop columns that have no value left."""
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
    """Return every attribute of a node that a constraint can refer to, for `AttributeColumns.set_row`."""
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
