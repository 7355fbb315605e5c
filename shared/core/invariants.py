"""Invariants: what holds of every state after every transaction, checked from scratch.

Slow on purpose: it recomputes what the tables keep up to date. Tests and the simulated world call it; no role does.
"""

import msgspec
import numpy as np

from shared.core.state import State
from shared.core.tables.allocations import RUN, TERMINAL
from shared.core.tables.fleet import READY


class Violation(msgspec.Struct, frozen=True):
    """One broken invariant: its name, and what was found where."""

    invariant: str
    detail: str


def check(state: State, *, capacity: bool = True) -> list[Violation]:
    """Check everything. `capacity`: also that no node holds more than it offers (off where nodes may shrink)."""
    found = [
        *_usage(state),
        *_counts(state),
        *_rows(state),
        *_evaluations(state),
        *_references(state),
    ]
    return found + (_capacity(state) if capacity else [])


def _usage(state: State) -> list[Violation]:
    table = state.allocations
    rows = table.live_rows()
    rows = rows[table.is_holding(rows)]
    expected = np.zeros_like(table.held.used)
    if len(rows):
        np.add.at(expected, table.node[rows], table.groups.ask[table.group[rows]])
    wrong = np.flatnonzero((expected != table.held.used).any(axis=1)).tolist()
    return [
        Violation("usage", f"row {r} holds {table.held.used[r]}, its allocations {expected[r]}")
        for r in wrong
    ]


def _capacity(state: State) -> list[Violation]:
    fleet = state.fleet
    used = state.allocations.used(fleet.size)
    over = (used > fleet.capacity[: fleet.size]).any(axis=1)
    ready = fleet.live[: fleet.size] & (fleet.status[: fleet.size] == READY)
    return [
        Violation("oversubscribed", f"node {fleet.ids[r]} holds {used[r]} of {fleet.capacity[r]}")
        for r in np.flatnonzero(over & ready).tolist()
    ]


def _counts(state: State) -> list[Violation]:
    table = state.allocations
    found = []
    for job_id, job in state.jobs.by_id.items():
        rows = table.rows_of(job_id)
        rows = rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]]
        limits = {group.name: group.count for group in job.groups}
        by_group: dict[str, list[int]] = {}
        for row in rows.tolist():
            by_group.setdefault(table.groups.names[int(table.group[row])], []).append(row)
        for name, held in sorted(by_group.items()):
            # A group that an update removed or shrank is above its count until its plan is in.
            newer = any(int(table.modify_seq[row]) > job.modify_seq for row in held)
            if newer and name in limits and len(held) > limits[name]:
                text = f"{job_id}.{name} has {len(held)}, its count is {limits[name]}"
                found.append(Violation("count", text))
            indexes = table.index[held].tolist()
            if len(set(indexes)) != len(indexes):
                found.append(Violation("names", f"{job_id}.{name} uses a name twice: {indexes}"))
    return found


def _rows(state: State) -> list[Violation]:
    table = state.allocations
    held = np.sort(np.concatenate([*table.by_job.values(), np.empty(0, dtype=np.int32)]))
    live = table.live_rows()
    if not np.array_equal(held, live):
        return [Violation("rows", f"jobs hold {len(held)} rows, {len(live)} are in use")]
    keys = table.key[live]
    return [Violation("keys", "a key stands twice")] if len(np.unique(keys)) != len(keys) else []


def _evaluations(state: State) -> list[Violation]:
    table = state.evaluations
    is_open = {key for key, entry in table.by_key.items() if entry.is_open}
    found = []
    if is_open != set(table.open) or set(table.by_key) - is_open != set(table.ended):
        found.append(Violation("evaluations", "open and ended are not what the entries say"))
    if {key for keys in table.open_of.values() for key in keys} != is_open:
        found.append(Violation("evaluations", "open by job is not what the entries say"))
    for job_id, key in table.blocked_of.items():
        entry = table.by_key[key]
        if entry.status != "blocked" or entry.job_id != job_id:
            found.append(Violation("blocked", f"{job_id} points to {entry.status} {key}"))
    return found


def _references(state: State) -> list[Violation]:
    table = state.allocations
    live = table.live_rows()
    counted = np.bincount(table.group[live], minlength=len(table.groups.held)).tolist()
    if counted != table.groups.held:
        return [Violation("references", f"groups are held {table.groups.held}, found {counted}")]
    return []
