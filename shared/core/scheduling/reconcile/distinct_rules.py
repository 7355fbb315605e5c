"""Distinct rules in reconcile: which running allocations the rules of a new version do not leave where they are.

A rule of one node is a mask over nodes. A rule between allocations is decided in an order, so that every evaluation
keeps the same ones: those of the newest version first, since they were placed under its rules, then the lowest names.
A rule of the job counts its groups in their order: what an earlier group keeps is taken from a later one.
"""

import numpy as np
from numpy.typing import NDArray

from schemas.jobs import GroupSpec
from shared.core.columns import Mask, Rows
from shared.core.scheduling.selection.coupling_blocks import codes_of, is_job_wide
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job


def beyond_rules(
    state: State, group: GroupSpec, rows: Rows, *, stays: Mask, current: Mask, others: Rows
) -> Mask:
    """Which of the rows that would stay are more than the rules of their group allow. Shapes: all but `others` (R,).

    `others`: rows of earlier groups that stay; rules of the job count them.
    """
    table, beyond = state.allocations, np.zeros(len(rows), dtype=bool)
    counters = _counters(state, group, others)
    positions = np.flatnonzero(stays)
    names = table.index[rows[positions]]
    order = positions[np.lexsort((rows[positions], names, ~current[positions]))]
    for position in order.tolist():
        node = int(table.node[rows[position]])
        if all(one.takes(node) for one in counters):
            for one in counters:
                one.take(node)
        else:
            beyond[position] = True
    return beyond


def rows_of_earlier_groups(state: State, job: Job, group: GroupSpec, stopping: Rows) -> Rows:
    """Rows of the groups before this one that stay; none where no rule counts them."""
    table = state.allocations
    if not is_job_wide(group):
        return np.empty(0, dtype=np.int32)
    earlier = set[str]()
    for one in job.groups:
        if one.name == group.name:
            break
        earlier.add(one.name)
    rows = table.rows_of(job.id)
    rows = rows[table.is_wanted(rows) & ~np.isin(rows, stopping)]
    refs, inverse = np.unique(table.group[rows], return_inverse=True)
    is_earlier = np.array([table.groups.names[ref] in earlier for ref in refs.tolist()], dtype=bool)
    found: Rows = rows[is_earlier[inverse]] if len(rows) else rows
    return found


class _Counter:
    """One rule: how many allocations each value has, and how many it takes. Value 0 takes none."""

    def __init__(self, codes: NDArray[np.int32], most: int, held: Rows) -> None:
        self._codes = codes
        self._most = most
        self._counts: dict[int, int] = {}
        for node in held.tolist():
            self.take(node)

    def takes(self, node: int) -> bool:
        code = int(self._codes[node])
        return bool(code) and self._counts.get(code, 0) < self._most

    def take(self, node: int) -> None:
        code = int(self._codes[node])
        self._counts[code] = self._counts.get(code, 0) + 1


def _counters(state: State, group: GroupSpec, others: Rows) -> list[_Counter]:
    none: Rows = np.empty(0, dtype=np.int32)
    nodes = state.allocations.node[others]
    columns, found = state.fleet.attributes, list[_Counter]()
    if group.distinct_hosts:
        hosts = np.arange(1, state.fleet.size + 1, dtype=np.int32)
        found.append(_Counter(hosts, 1, nodes if group.distinct_hosts == "job" else none))
    for rule in group.distinct_properties:
        codes, _ = codes_of(columns, rule.attribute)
        found.append(_Counter(codes, rule.limit, nodes if rule.job_wide else none))
    return found
