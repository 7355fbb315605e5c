"""Predecessors: which stops of a plan are followed by replacements, with the same plan or a later one.

What is replaced is state (`AllocationTable.predecessors`), not a matter of one evaluation: a replacement that waits for
room, for a node or behind a cut plan has the count, the delays, the penalty and the data of what it replaces.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.plans import Stops
from shared.core.columns import Rows
from shared.core.state.state import State


def split_stops(
    state: State, stops: Sequence[Stops], replaced: Rows, late: Rows
) -> tuple[Stops, ...]:
    """Split stops by whether something replaces their rows.

    `replaced`: rows that requests of the pass replace. `late`: rows whose replacements are to come since an earlier
    plan; those that nothing replaces any more are stopped once more, which settles them.
    """
    table = state.allocations
    keys = table.key[replaced]
    out: list[Stops] = []
    named: list[int] = []
    for stop in stops:
        rows = np.asarray(stop.rows, dtype=np.int32)
        again = np.isin(table.key[rows], keys)
        named += stop.rows
        for to_replace, some in ((False, rows[~again]), (True, rows[again])):
            if len(some):
                part = tuple(some.tolist())
                out.append(msgspec.structs.replace(stop, rows=part, to_replace=to_replace))
    if len(late):
        left = late[~np.isin(table.key[late], keys)]
        left = left[~np.isin(left, named)]
        if len(left):
            out.append(Stops(rows=tuple(left.tolist()), reason="not needed"))
    return tuple(out)
