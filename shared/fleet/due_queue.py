"""A queue of due times in columns: sorted runs, merged as they grow in number.

The order is by due time, then row. Pushing N entries in any portions costs a few vector passes each, and popping one
search per run; there is no object per entry. The caller's own columns say which entries are still valid.
"""

import numpy as np

from shared.core.columns import Int64s, Rows

#: Runs of one size class that are merged into one of the next.
_FAN = 8


class _Run:
    """Entries in order, taken from the front. Shapes: due, rows (M,)."""

    __slots__ = ("at", "due", "rows")

    def __init__(self, due: Int64s, rows: Rows) -> None:
        self.due = due
        self.rows = rows
        self.at = 0


class DueQueue:
    """Rows and when they are due, ns."""

    def __init__(self) -> None:
        #: by size class.
        self._runs: list[list[_Run]] = [[]]
        self._size = 0

    def __len__(self) -> int:
        """Number of entries, stale ones included."""
        return self._size

    def push(self, due_ns: Int64s, rows: Rows) -> None:
        """Add entries. Shapes: (K,)."""
        if not len(rows):
            return
        self._size += len(rows)
        self._runs[0].append(_sorted([due_ns], [rows]))
        level = 0
        while len(self._runs[level]) >= _FAN:
            full = self._runs[level]
            self._runs[level] = []
            if level + 1 == len(self._runs):
                self._runs.append([])
            merged = _sorted(
                [one.due[one.at :] for one in full], [one.rows[one.at :] for one in full]
            )
            if len(merged.due):
                self._runs[level + 1].append(merged)
            level += 1

    def next_ns(self) -> int:
        """When the first entry is due; 0: none."""
        heads = [int(run.due[run.at]) for level in self._runs for run in level]
        return min(heads, default=0)

    def pop(self, now_ns: int) -> tuple[Int64s, Rows]:
        """Take the entries due by now, in order. Shapes: (K,)."""
        due, rows = [], []
        for level in self._runs:
            for run in level:
                end = run.at + int(np.searchsorted(run.due[run.at :], now_ns, "right"))
                if end > run.at:
                    due.append(run.due[run.at : end])
                    rows.append(run.rows[run.at : end])
                    run.at = end
            level[:] = [run for run in level if run.at < len(run.due)]
        if not due:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        self._size -= sum(len(one) for one in rows)
        taken = _sorted(due, rows)
        return taken.due, taken.rows


def _sorted(due: list[Int64s], rows: list[Rows]) -> _Run:
    """Concatenate and sort."""
    all_due = np.concatenate(due) if len(due) > 1 else due[0]
    all_rows = np.concatenate(rows) if len(rows) > 1 else rows[0]
    order = np.lexsort((all_rows, all_due))
    return _Run(all_due[order], all_rows[order])
