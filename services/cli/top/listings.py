"""The tables of `caravan top`: rows of a state as texts, filtered and cut. Pure.

A row has a key that stays the same from state to state, so that a table is changed in place.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES
from schemas.bounds import QUERY_LIMIT_MAX
from schemas.evaluation_answers import WaitingAnswer
from schemas.projections import AllocSummary, Query
from services.cli.runtime import tables
from services.cli.runtime.output import short_id, strip_control_chars
from shared.core.columns import Rows
from shared.core.state.ids import ALLOC_SALT
from shared.core.state.state import State
from shared.display.formats import format_age
from shared.query.fleet_columns import (
    DISCONNECTED,
    DOWN,
    DRAINING,
    INELIGIBLE,
    NO_JOB,
    OTHER_JOB,
    FleetColumns,
)
from shared.query.historical_state import HistoricalState
from shared.query.lookup import match_ids
from shared.query.projections import alloc_summaries, display_order

#: Rows of a table; a filter finds the others.
ROWS_MAX = 500
_STATES = (
    (DOWN, "down"),
    (DISCONNECTED, "disconnected"),
    (DRAINING, "draining"),
    (INELIGIBLE, "ineligible"),
)
_WHOLE = 65_535
_ID_CHARS = frozenset("0123456789abcdef-")
_NO_ROWS: Rows = np.zeros(0, dtype=np.int32)


class Row(NamedTuple):
    """One row. `key`: the id of what it is about."""

    key: str
    cells: tuple[str, ...]


class Listing(NamedTuple):
    """The rows of a table, and how many there would be without the bound."""

    rows: list[Row]
    total: int


class Wanted(NamedTuple):
    """Which rows are listed: a text that they contain, and for allocations a job or a node."""

    text: str = ""
    job: str = ""
    node: str = ""


class Table(NamedTuple):
    """One table. `columns`: a title that ends in `>` is of numbers."""

    name: str
    columns: tuple[str, ...]
    list: Callable[[HistoricalState, FleetColumns, Wanted], Listing]


def _jobs(past: HistoricalState, _fleet: FleetColumns, wanted: Wanted) -> Listing:
    ids = sorted(one for one in past.state.jobs.by_id if wanted.text in one)
    rows = [
        _row(str(job.id), *tables.job_cells(job), job.modify_index)
        for job in past.answers.jobs.lines(ids[:ROWS_MAX])
    ]
    return Listing(rows, len(ids))


def _nodes(_past: HistoricalState, fleet: FleetColumns, wanted: Wanted) -> Listing:
    flags = fleet.flags.tolist()
    found = [
        at
        for at, node_id in enumerate(fleet.ids)
        if not wanted.text
        or wanted.text in f"{node_id} {fleet.members.datacenters[at]} {node_state(flags[at])}"
    ]
    rows = []
    for at in found[:ROWS_MAX]:
        cpu, memory, disk = (f"{100 * int(one[at]) // _WHOLE}%" for one in fleet.shares)
        state, count = node_state(flags[at]), int(fleet.count[at])
        job = _job_name(fleet, at)
        rows.append(
            _row(
                fleet.ids[at],
                fleet.ids[at],
                state,
                cpu,
                memory,
                disk,
                count,
                job,
                fleet.members.datacenters[at],
            )
        )
    return Listing(rows, len(found))


def node_state(flags: int) -> str:
    """The state of a node in a word, the worst one."""
    return next((name for bit, name in _STATES if flags & bit), "ready")


def _job_name(fleet: FleetColumns, at: int) -> str:
    number = int(fleet.job[at])
    return {NO_JOB: "", OTHER_JOB: "other jobs"}.get(number) or (
        fleet.jobs[number] if number < len(fleet.jobs) else ""
    )


def _waiting(past: HistoricalState, _fleet: FleetColumns, wanted: Wanted) -> Listing:
    answer = past.answers.answer("waiting", Query(limit=QUERY_LIMIT_MAX))
    assert isinstance(answer, WaitingAnswer)
    lines = [
        one
        for one in answer.waiting
        if wanted.text in f"{one.job}.{one.group} {one.wait_class} {one.pool}"
    ]
    now_ns = past.state.t_ns
    rows = [
        _row(
            f"{one.job}\n{one.group}",
            one.position or "-",
            f"{one.job}.{one.group}",
            one.n,
            one.wait_class,
            one.priority,
            format_age(one.since_ns, now_ns),
            one.decided_seq or "-",
            "; ".join(one.reasons[:1]),
        )
        for one in lines[:ROWS_MAX]
    ]
    return Listing(rows, len(lines) if wanted.text else answer.total)


def _allocations(past: HistoricalState, _fleet: FleetColumns, wanted: Wanted) -> Listing:
    state = past.state
    rows = _filtered(state, _scoped(state, wanted), wanted.text)
    if wanted.job or wanted.node:
        rows = display_order(state, rows)
    else:
        # Newest first; row numbers are not ordered by age.
        rows = rows[np.argsort(-state.allocations.key[rows], kind="stable")]
    shown = [
        _row(
            one.id,
            short_id(one.id),
            one.name,
            one.node,
            alloc_state(one),
            one.health,
            one.version,
            one.modify_seq,
        )
        for one in alloc_summaries(state, rows[:ROWS_MAX])
    ]
    return Listing(shown, len(rows))


def alloc_state(one: AllocSummary) -> str:
    """The status that its node reports, and where it is to end the desired one."""
    is_ending = one.desired_status != "run" and one.client_status in ("pending", "running")
    return f"{one.client_status}, {one.desired_status}" if is_ending else one.client_status


def _scoped(state: State, wanted: Wanted) -> Rows:
    table = state.allocations
    if wanted.job:
        job = state.jobs.by_id.get(wanted.job)  # type: ignore[call-overload]
        return table.rows_of(job.id) if job is not None else _NO_ROWS
    if wanted.node:
        row = state.fleet.row_of.get(wanted.node)  # type: ignore[call-overload]
        return table.on_nodes(np.asarray([row], dtype=np.int32)) if row is not None else _NO_ROWS
    return table.live_rows()


def _filtered(state: State, rows: Rows, text: str) -> Rows:
    """Allocations whose group, node or status contains a text, or whose id begins with it."""
    if not text:
        return rows
    table = state.allocations
    names = (
        f"{job}.{group}"
        for job, group in zip(table.groups.job_ids, table.groups.names, strict=True)
    )
    by_group, by_status = _containing(names, text), _containing(CLIENT_STATUSES, text)
    # One more for allocations of nodes that have left.
    by_node = np.append(_containing(map(str, state.fleet.ids), text), np.False_)
    nodes = np.minimum(table.node[rows], len(by_node) - 1)
    hit = by_group[table.group[rows]] | by_node[nodes] | by_status[table.client[rows]]
    if set(text) <= _ID_CHARS:
        hit[match_ids(table.key[rows], text, ALLOC_SALT)] = True
    return rows[hit]


def _containing(names: Iterable[str], text: str) -> NDArray[np.bool_]:
    return np.asarray([text in one for one in names], dtype=np.bool_)


def _row(key: str, *cells: object) -> Row:
    return Row(key, tuple(strip_control_chars(str(one)) for one in cells))


TABLES = (
    Table(
        "jobs",
        ("JOB", "TYPE", "STATUS", "RUNNING>", "PRIO>", "VER>", "CHANGED>"),
        _jobs,
    ),
    Table(
        "nodes",
        ("NODE", "STATUS", "CPU>", "MEMORY>", "DISK>", "ALLOCS>", "LARGEST JOB", "DC"),
        _nodes,
    ),
    Table(
        "waiting",
        ("POSITION>", "GROUP", "N>", "CLASS", "PRIO>", "SINCE>", "DECIDED>", "REASON"),
        _waiting,
    ),
    Table(
        "allocations",
        ("ID", "NAME", "NODE", "STATUS", "HEALTH", "VER>", "CHANGED>"),
        _allocations,
    ),
)
