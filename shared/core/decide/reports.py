"""What nodes say of their allocations: statuses become facts, ends free room, failures and services are tried again.

Decides which status may follow which, and whose allocation it is to say. Reports of many nodes are decided as one, and
brief ones in columns: a few vector passes, and no object an allocation but for those that failed. Must not know whether
a node's word counts at all: `nodes.py`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES, AllocationsReported, AllocDetail
from schemas.base import Event, JobId
from schemas.envelope import ENCODER
from schemas.nodes import AllocReport, BriefStates, ReportNode
from shared.core.columns import Rows
from shared.core.decide.displacing import emptied
from shared.core.decide.freed import freed_by
from shared.core.decide.purge import forget
from shared.core.decide.reschedules import is_stopped, retry, retry_at
from shared.core.state import State
from shared.core.tables.allocations import (
    CLIENT_CODE,
    COMPLETE,
    FAILED,
    PENDING,
    RUN,
    RUNNING,
    TERMINAL,
    UNKNOWN,
)

Codes = NDArray[np.int8]
#: client status code -> those that may follow.
LEGAL = {
    PENDING: {RUNNING, COMPLETE, FAILED},
    # A task that ended is pending until it is started again in place.
    RUNNING: {PENDING, COMPLETE, FAILED},
    UNKNOWN: {PENDING, RUNNING, COMPLETE, FAILED},
}
_MAY_FOLLOW = np.zeros((len(CLIENT_STATUSES),) * 2, dtype=np.bool_)
for _before, _after in LEGAL.items():
    _MAY_FOLLOW[_before, sorted(_after)] = True


class _Facts:
    """What the reports amount to."""

    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns
        self.rows: list[int] = []
        self._told: set[int] = set()
        self.codes: list[int] = []
        self.details: list[AllocDetail] = []
        #: when a job is to be looked at again.
        self.retries: dict[JobId, int] = {}

    def tell(self, entry: AllocReport, node: int) -> None:
        """Take one allocation with all that is known of its tasks."""
        code = _legal_code(self._state, entry, node)
        table, at = self._state.allocations, entry.row
        if code is None or at in self._told:
            return
        self._told.add(at)
        tasks = msgspec.Raw(ENCODER.encode(entry.tasks) if entry.tasks else b"{}")
        known = table.details.get(at, b"{}")
        if code == table.client[at] and bytes(tasks) == known:
            return
        retry_ns, chain = self._again(at, code) if TERMINAL[code] else (0, ())
        self.rows.append(at)
        self.codes.append(code)
        if bytes(tasks) != known or retry_ns:
            self.details.append(
                AllocDetail(row=at, tasks=tasks, reschedule_at_ns=retry_ns, reschedules=chain)
            )

    def tell_briefly(self, rows: Rows, codes: Codes) -> None:
        """Take many of which there is nothing more to tell; rows are distinct. Shapes: (A,)."""
        table = self._state.allocations
        self.rows += rows.tolist()
        self.codes += codes.tolist()
        for at in rows[codes == FAILED].tolist():
            retry_ns, chain = self._again(at, FAILED)
            if retry_ns:
                tasks = msgspec.Raw(table.details.get(at, b"{}"))
                self.details.append(
                    AllocDetail(row=at, tasks=tasks, reschedule_at_ns=retry_ns, reschedules=chain)
                )
        # Whether what is complete is done again hangs on its job alone: one of each group speaks for all.
        complete = rows[(codes == COMPLETE) & (table.desired[rows] == RUN)]
        _, firsts = np.unique(table.group[complete], return_index=True)
        for at in complete[firsts].tolist():
            self._again(at, COMPLETE)

    def _again(self, at: int, code: int) -> tuple[int, tuple[int, ...]]:
        """Note when an ended allocation's job is looked at; returns from when a failed one may be replaced."""
        state, table = self._state, self._state.allocations
        if table.desired[at] != RUN:
            return 0, ()
        job_id = table.groups.job_ids[int(table.group[at])]
        due, chain = retry_at(state, at, code, self._now_ns)
        if due and not is_stopped(state, job_id):
            self.retries[job_id] = min(due, self.retries.get(job_id, due))
        return (due if code == FAILED else 0), chain


def reported_events(
    state: State, reports: Sequence[ReportNode], nodes: Sequence[int], now_ns: int
) -> list[Event]:
    """Facts that reports of different nodes bring. `nodes`: their fleet rows. Shapes: (N,) both."""
    facts = _Facts(state, now_ns)
    for report, node in zip(reports, nodes, strict=True):
        for entry in report.states:
            facts.tell(entry, node)
    rows, codes = _brief(state, reports, nodes, facts.rows)
    if len(rows):
        facts.tell_briefly(rows, codes)
    reported = AllocationsReported(
        nodes=tuple(nodes),
        numbers=tuple(report.number for report in reports),
        rows=tuple(facts.rows),
        statuses=tuple(facts.codes),
        details=tuple(facts.details),
    )
    events: list[Event] = [reported]
    ended = np.array(facts.rows, dtype=np.int32)[TERMINAL[facts.codes]] if facts.rows else rows
    if len(ended):
        events += freed_by(state, ended)
        if state.fleet.drains:
            for node in nodes:
                events += emptied(
                    state, node, ended[state.allocations.node[ended] == node].tolist()
                )
    if facts.retries:
        events.extend(retry(state, facts.retries, now_ns))
    if state.jobs.purging:
        events.extend(_purge(state, ended.tolist()))
    return events


def _brief(
    state: State, reports: Sequence[ReportNode], nodes: Sequence[int], told: list[int]
) -> tuple[Rows, Codes]:
    """Rows and new codes of what is said in brief: legal, and not `told` otherwise already. Shapes: (A,)."""
    table = state.allocations
    keys: list[int] = []
    rows: list[int] = []
    codes: list[int] = []
    counts: list[int] = []
    lengths: list[int] = []
    for report in reports:
        said = report.brief
        if not _holds_together(said):
            lengths.append(0)
            continue
        lengths.append(len(said.keys))
        keys += said.keys
        rows += said.rows
        codes += said.statuses[0::2]
        counts += said.statuses[1::2]
    if not keys:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8)
    at = np.array(rows, dtype=np.int64)
    after = np.repeat(np.array(codes, dtype=np.int8), counts)
    inside = (at >= 0) & (at < table.size)
    at = np.where(inside, at, 0).astype(np.int32)
    legal = inside & (table.key[at] == np.array(keys, dtype=np.int64))
    legal &= table.node[at] == np.repeat(np.array(nodes, dtype=np.int32), lengths)
    legal &= _MAY_FOLLOW[table.client[at], after]
    if told:
        legal &= ~np.isin(at, told)
    at, after = at[legal], after[legal]
    if len(at) > 1 and not (at[1:] > at[:-1]).all():
        # The first word about each counts.
        _, firsts = np.unique(at, return_index=True)
        at, after = at[firsts], after[firsts]
    return at, after


def _holds_together(said: BriefStates) -> bool:
    """Tell whether columns are of one length and of numbers that can be; others say nothing."""
    statuses = said.statuses
    counts = statuses[1::2]
    length = len(said.keys)
    if len(said.rows) != length or len(statuses) % 2 or sum(counts) != length or not length:
        return False
    if min(counts) < 1 or not all(0 <= code < len(CLIENT_STATUSES) for code in statuses[0::2]):
        return False
    try:
        np.array((said.keys, said.rows), dtype=np.int64)
    except OverflowError:
        return False
    return True


def _purge(state: State, ended: list[int]) -> list[Event]:
    """Forget purged jobs of which the last allocation just ended."""
    groups, group = state.allocations.groups, state.allocations.group
    ending: dict[JobId, set[int]] = {}
    for row in ended:
        job_id = groups.job_ids[int(group[row])]
        if job_id in state.jobs.purging:
            ending.setdefault(job_id, set()).add(row)
    return [event for job_id in sorted(ending) for event in forget(state, job_id, ending[job_id])]


def _legal_code(state: State, entry: AllocReport, node_row: int) -> int | None:
    """Code of a reported status, None when it is not this node's to say or can not follow."""
    allocations = state.allocations
    if not 0 <= entry.row < allocations.size or allocations.key[entry.row] != entry.key:
        return None
    if allocations.node[entry.row] != node_row:
        return None
    code = CLIENT_CODE.get(entry.status)
    before = int(allocations.client[entry.row])
    if code is None or (code != before and code not in LEGAL.get(before, ())):
        return None
    return code
