"""Which ports are held on which row, the picked ones and those that jobs name.

A set of (row, port); ranges and choice of ports: headroom.py, assign.py.
"""

import numpy as np

from shared.core.columns import Int64s, grown

_NO_COUNT: Int64s = np.zeros(0, np.int64)


class _RowsByPort:
    """Rows by port. A copy shares what it does not change."""

    def __init__(self) -> None:
        self.rows: dict[int, set[int]] = {}
        #: ports whose set is this book's own; None: all are.
        self._own: set[int] | None = None

    def copy(self) -> "_RowsByPort":
        twin = _RowsByPort()
        twin.rows = dict(self.rows)
        twin._own = set()
        return twin

    def _writable(self, port: int) -> set[int]:
        if self._own is not None and port not in self._own:
            self._own.add(port)
            self.rows[port] = set(self.rows.get(port, ()))
        return self.rows.setdefault(port, set())

    def add(self, row: int, port: int) -> bool:
        rows = self._writable(port)
        if row in rows:
            return False
        rows.add(row)
        return True

    def remove(self, row: int, port: int) -> bool:
        rows = self._writable(port)
        found = row in rows
        rows.discard(row)
        if not rows:
            del self.rows[port]
            if self._own is not None:
                self._own.discard(port)
        return found


class HeldPorts:
    """Held ports. A copy must not outlive the next change of what it was made of."""

    def __init__(self) -> None:
        self._picked = _RowsByPort()
        self._static = _RowsByPort()
        #: (N,) picked ports of each row.
        self._count = _NO_COUNT
        self._owns_count = True

    def copy(self) -> "HeldPorts":
        """Return a book to try things out on."""
        twin = HeldPorts()
        twin._picked, twin._static = self._picked.copy(), self._static.copy()
        twin._count, twin._owns_count = self._count, False
        return twin

    def grow(self, size: int) -> None:
        """Make room for rows; what is held stays the same."""
        self._count = grown(self._count, size)

    def is_held(self, row: int, port: int) -> bool:
        """Tell whether a port of a row is taken."""
        return row in self._picked.rows.get(port, ()) or row in self._static.rows.get(port, ())

    def rows_of(self, port: int) -> list[int]:
        """Rows on which a port is held, ascending."""
        return sorted(self._picked.rows.get(port, set()) | self._static.rows.get(port, set()))

    def picked(self, size: int) -> Int64s:
        """How many ports the cluster picked on each row. Shape: (size,). Do not write to it."""
        return grown(self._count, size)[:size]

    def static(self) -> list[tuple[int, list[int]]]:
        """Ports that jobs name, ascending, each with its rows where nothing picked has it."""
        found = sorted(self._static.rows.items())
        return [(port, sorted(rows - self._picked.rows.get(port, set()))) for port, rows in found]

    def pairs(self) -> list[tuple[int, int]]:
        """Every held (row, port), sorted."""
        books = (self._picked.rows, self._static.rows)
        return sorted(
            {(row, port) for book in books for port, rows in book.items() for row in rows}
        )

    def taken_on(self, rows: set[int]) -> dict[int, set[int]]:
        """Ports held on each of some rows: one pass over all ports."""
        found: dict[int, set[int]] = {}
        for book in (self._picked.rows, self._static.rows):
            for port, holders in book.items():
                for row in sorted(rows & holders):
                    found.setdefault(row, set()).add(port)
        return found

    def add(self, row: int, *, static: tuple[int, ...], picked: tuple[int, ...]) -> None:
        """Hold ports on a row."""
        for port in static:
            self._static.add(row, port)
        for port in picked:
            self._counts(row)[row] += self._picked.add(row, port)

    def remove(self, row: int, *, static: tuple[int, ...], picked: tuple[int, ...]) -> None:
        """Let go of ports on a row."""
        for port in static:
            self._static.remove(row, port)
        for port in picked:
            self._counts(row)[row] -= self._picked.remove(row, port)

    def _counts(self, row: int) -> Int64s:
        if not self._owns_count:
            self._count = self._count.copy()
            self._owns_count = True
        self._count = grown(self._count, row + 1)
        return self._count
