"""What nodes say of their allocations: statuses become facts, ends free room, failures and services are tried again.

Decides which status may follow which, and whose allocation it is to say. Reports of many nodes are decided as one, and
brief ones in columns: a few vector passes, and no object an allocation but for those that failed. Must not know whether
a node's word counts at all: `registration.py`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import Event, JobId
from schemas.envelope import ENCODER
from schemas.nodes import AllocReport, ReportNode
from schemas.remotes import RemoteSlot
from shared.core.columns import Rows, StatusCodes
from shared.core.decide.capacity_freed import freed_by_allocations
from shared.core.decide.deployments.requests import health_changed
from shared.core.decide.nodes.brief_reports import LEGAL_TRANSITIONS, brief_words
from shared.core.decide.nodes.drains import drain_last_jobs
from shared.core.decide.plans.kept_rooms import wake_successors
from shared.core.decide.purge import purge_job
from shared.core.decide.remotes import remotes_reported, reported_slot
from shared.core.decide.reschedules import is_stopped, reschedule_evaluations, reschedule_time
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    CLIENT_CODE,
    COMPLETE,
    FAILED,
    HEALTHY,
    RUN,
    TERMINAL,
    UNHEALTHY,
    keeps_room,
)

#: Of what an agent says of an unhealthy allocation.
REASON_CHARS_MAX = 200


class _ReportFacts:
    """What the reports amount to."""

    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns
        self.rows: list[int] = []
        #: rows of which more than a status was said.
        self.told: set[int] = set()
        self.codes: list[int] = []
        self.details: list[AllocDetail] = []
        self.slots: list[RemoteSlot] = []
        #: when a job is to be looked at again.
        self.retries: dict[JobId, int] = {}
        #: row -> code and reason, of those whose health is new.
        self._healths: dict[int, tuple[int, str]] = {}
        #: of others, without reasons. Shapes: (A,).
        self._brief_healths = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8))

    def tell(self, entry: AllocReport, node: int) -> None:
        """Take one allocation with all that is known of its tasks."""
        code = _legal_code(self._state, entry, node)
        table, at = self._state.allocations, entry.row
        if code is None or at in self.told:
            return
        self.told.add(at)
        if entry.remotes and (slot := reported_slot(self._state, entry)) is not None:
            self.slots.append(slot)
        health = entry.health if self._is_of_version(at, entry.health_version) else 0
        if health or code == FAILED:
            self._tell_health(at, code, health, entry.health_reason)
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

    def _is_of_version(self, at: int, version: int) -> bool:
        """Tell whether health counts: an update in place may have come between it and its report."""
        table = self._state.allocations
        return version < 0 or version == table.groups.versions[int(table.group[at])]

    def add_brief_states(self, rows: Rows, codes: StatusCodes) -> None:
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

    def _tell_health(self, at: int, code: int, health: int, reason: str) -> None:
        """Take the first word about the health of an allocation; one that failed without a word is unhealthy."""
        table = self._state.allocations
        if table.health[at] or table.desired[at] != RUN or TERMINAL[table.client[at]]:
            return
        if not health and code == FAILED and table.deployment[at]:
            health, reason = UNHEALTHY, reason or "the allocation failed"
        if HEALTHY <= health <= UNHEALTHY:
            kept = reason[:REASON_CHARS_MAX] if health == UNHEALTHY else ""
            self._healths[at] = (health, kept)

    def add_brief_healths(self, rows: Rows, healths: StatusCodes) -> None:
        """Take the first words about the health of many; rows are distinct. Shapes: (A,)."""
        table = self._state.allocations
        fresh = (table.health[rows] == 0) & (table.desired[rows] == RUN)
        fresh &= ~TERMINAL[table.client[rows]]
        self._brief_healths = (rows[fresh], healths[fresh])

    def health_events(self) -> list[Event]:
        """Return the fact of all health that is new, if there is any."""
        rows, healths = self._brief_healths
        told = self._healths
        if not told and not len(rows):
            return []
        reasons: list[str] = []
        if told:
            own = np.array(list(told), dtype=np.int32)
            codes = np.array([code for code, _ in told.values()], dtype=np.int8)
            reasons = [reason for _, reason in told.values()]
            rows, healths = np.concatenate((own, rows)), np.concatenate((codes, healths))
        kept = reasons if any(reasons) else ()
        now_ns = max(self._now_ns, self._state.t_ns)
        return [health_changed(self._state, rows, healths, now_ns, reasons=kept)]

    def _again(self, at: int, code: int) -> tuple[int, tuple[int, ...]]:
        """Note when an ended allocation's job is looked at; returns from when a failed one may be replaced."""
        state, table = self._state, self._state.allocations
        if table.desired[at] != RUN:
            return 0, ()
        job_id = table.groups.job_ids[int(table.group[at])]
        due, chain = reschedule_time(state, at, code, self._now_ns)
        if due and not is_stopped(state, job_id):
            self.retries[job_id] = min(due, self.retries.get(job_id, due))
        return (due if code == FAILED else 0), chain


def reported_events(
    state: State, reports: Sequence[ReportNode], nodes: Sequence[int], now_ns: int
) -> list[Event]:
    """Facts that reports of different nodes bring. `nodes`: their fleet rows. Shapes: (N,) both."""
    facts = _ReportFacts(state, now_ns)
    for report, node in zip(reports, nodes, strict=True):
        for entry in report.states:
            facts.tell(entry, node)
    said = brief_words(state, reports, nodes, sorted(facts.told))
    rows = said.rows
    if len(rows):
        facts.add_brief_states(rows, said.codes)
    if len(said.health_rows):
        facts.add_brief_healths(said.health_rows, said.healths)
    reported = AllocationsReported(
        nodes=tuple(nodes),
        numbers=tuple(report.number for report in reports),
        rows=tuple(facts.rows),
        statuses=tuple(facts.codes),
        details=tuple(facts.details),
    )
    # First what runs elsewhere: what ends leaves nothing of it behind.
    events: list[Event] = [*remotes_reported(facts.slots), reported, *facts.health_events()]
    ended = np.array(facts.rows, dtype=np.int32)[TERMINAL[facts.codes]] if facts.rows else rows
    if len(ended):
        events += _freed(state, ended, facts)
        for node in nodes:
            if node in state.fleet.drains:
                there = ended[state.allocations.node[ended] == node]
                events += drain_last_jobs(state, node, there.tolist())
    if facts.retries:
        events.extend(reschedule_evaluations(state, facts.retries, now_ns))
    if state.jobs.purging:
        events.extend(_purge(state, ended.tolist()))
    return events


def _freed(state: State, ended: Rows, facts: _ReportFacts) -> list[Event]:
    """What those that end give back: to everybody, or to their own replacements alone."""
    table = state.allocations
    if not table.predecessors:
        return [*freed_by_allocations(state, ended)]
    codes = np.array(facts.codes, dtype=np.int8)[TERMINAL[facts.codes]]
    kept = keeps_room(table, ended, codes)
    others = ended[~kept]
    freed: list[Event] = [*freed_by_allocations(state, others)] if len(others) else []
    return [*freed, *wake_successors(state, ended[kept])]


def _purge(state: State, ended: list[int]) -> list[Event]:
    """Forget purged jobs of which the last allocation just ended."""
    groups, group = state.allocations.groups, state.allocations.group
    ending: dict[JobId, set[int]] = {}
    for row in ended:
        job_id = groups.job_ids[int(group[row])]
        if job_id in state.jobs.purging:
            ending.setdefault(job_id, set()).add(row)
    return [
        event for job_id in sorted(ending) for event in purge_job(state, job_id, ending[job_id])
    ]


def _legal_code(state: State, entry: AllocReport, node_row: int) -> int | None:
    """Code of a reported status, None when it is not this node's to say or can not follow."""
    allocations = state.allocations
    if not 0 <= entry.row < allocations.size or allocations.key[entry.row] != entry.key:
        return None
    if allocations.node[entry.row] != node_row:
        return None
    code = CLIENT_CODE.get(entry.status)
    before = int(allocations.client[entry.row])
    if code is None or (code != before and code not in LEGAL_TRANSITIONS.get(before, ())):
        return None
    return code
