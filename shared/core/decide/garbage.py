"""Garbage collection: terminal entities are removed from the state by facts, by the policy's ages in log time.

Seqs stand for times: `LogTimeIndex` tells which seq was written when, from the records that went by. One pass is
bounded, so that collecting a million rows is many small transactions and not one pause.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsCollected
from schemas.base import Event, JobId
from schemas.evaluations import EvaluationsCollected
from schemas.jobs import FINITE_JOB_TYPES, SERVICE_JOB_TYPES, JobsCollected, SubmissionsCollected
from schemas.nodes import NodesCollected
from shared.core.columns import Rows
from shared.core.decide.capacity_freed import freed_by_jobs
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, RUN, TERMINAL
from shared.core.state.tables.fleet import DOWN
from shared.core.state.tables.jobs import Job

#: Entities of one kind that one pass collects, and allocations.
PASS_MAX = 5_000
ROWS_MAX = 20_000
#: Numbers that fit into a transaction with room to spare.
_NUMBERS_MAX = 90_000
_STEP_NS = 1_000_000_000
_KEPT = 100_000
_NO_ROWS: Rows = np.empty(0, dtype=np.int32)


class LogTimeIndex:
    """Log time of past seqs, at a resolution of a second. Derived by replay, or taken from a snapshot."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def note(self, seq: int, t_ns: int) -> None:
        """Remember that `seq` was written at `t_ns`."""
        if not self._marks or t_ns - self._marks[-1][1] >= _STEP_NS:
            self._marks.append((seq, t_ns))

    def marks(self) -> tuple[tuple[int, int], ...]:
        """Every (seq, time) that is kept, oldest first, for a snapshot."""
        return tuple(self._marks)

    def begin_at(self, marks: Iterable[tuple[int, int]]) -> None:
        """Take over what a snapshot knows, instead of what went by."""
        self._marks = deque(marks, maxlen=_KEPT)

    def written_ns(self, seq: int, *, since_ns: int) -> int:
        """Time at which a seq was written, at most a second late; 0: before `since_ns`, or not known."""
        later_ns = 0
        for first, when in reversed(self._marks):
            if first <= seq:
                found = when if first == seq else when + _STEP_NS
                found = min(found, later_ns) if later_ns else found
                return found if found >= since_ns else 0
            if when < since_ns:
                return 0
            later_ns = when
        return 0

    def seq_at(self, t_ns: int) -> int:
        """Newest seq written at or before `t_ns`, to the resolution; 0 when there is none."""
        marks = self._marks
        # Log time never falls, so the marks are sorted by it.
        at = bisect_right(marks, t_ns, key=lambda mark: mark[1])
        if at == 0:
            return 0
        newest = marks[at - 1][0]
        return newest if at == len(marks) else max(newest, marks[at][0] - 1)


def decide_garbage(
    state: State, horizon: LogTimeIndex, now_ns: int, *, everything: bool = False
) -> list[Event]:
    """Say what leaves now. `everything`: all that is terminal, regardless of its age.

    Verdicts keep to their age all the same: they make sending a submission again harmless.
    """
    policy = state.policy.policy

    def limit(keep_ns: int) -> int:
        # Never what the same transaction changed: a reader of one record finds in the state what its events name.
        return state.seq - 1 if everything else horizon.seq_at(now_ns - keep_ns)

    events: list[Event] = []
    old = horizon.seq_at(now_ns - policy.submission_keep_ns)
    events += _submissions(state, old, policy.terminal_keep_max)
    events += _evaluations(state, limit(policy.evaluation_keep_ns), policy.terminal_keep_max)
    rows = _allocations(state, limit(policy.allocation_keep_ns), policy.terminal_keep_max)
    if len(rows):
        events.append(allocations_collected(rows))
    events += _jobs(state, limit(policy.job_keep_ns), policy.terminal_keep_max, rows)
    events += _nodes(state, limit(policy.node_keep_ns))
    return events


def is_pass_full(events: Iterable[Event]) -> bool:
    """Tell whether a pass took all that it may: there is more to collect at once."""
    for event in events:
        match event:
            case AllocationsCollected():
                if collected_count(event) >= ROWS_MAX:
                    return True
            case EvaluationsCollected(keys=some) | JobsCollected(job_ids=some):
                if len(some) >= PASS_MAX:
                    return True
            case _:
                pass
    return False


def allocations_collected(rows: Rows) -> AllocationsCollected:
    """Say which rows leave, in the shorter way."""
    ordered = np.sort(rows)
    starts = np.flatnonzero(np.diff(ordered, prepend=-2) != 1)
    if 2 * len(starts) >= len(rows):
        return AllocationsCollected(rows=tuple(rows.tolist()))
    lengths = np.diff(starts, append=len(ordered))
    runs = np.stack((ordered[starts], lengths), axis=1).ravel()
    return AllocationsCollected(rows=(), runs=tuple(runs.tolist()))


def collected_count(event: AllocationsCollected) -> int:
    """Count the allocations that left."""
    return len(event.rows) + sum(event.runs[1::2])


def _submissions(state: State, upto: int, keep_max: int) -> list[Event]:
    table = state.jobs.submissions
    excess = len(table) - keep_max
    last = 0
    for position, entry in enumerate(table.values()):
        if position >= PASS_MAX or (entry.seq > upto and position >= excess):
            break
        last = entry.seq
    return [SubmissionsCollected(upto_seq=last)] if last else []


def _evaluations(state: State, upto: int, keep_max: int) -> list[Event]:
    table = state.evaluations
    excess = len(table.ended) - keep_max
    keys = []
    for position, key in enumerate(table.ended):
        old = table.by_key[key].modify_seq <= upto
        if position >= PASS_MAX or not (old or position < excess):
            break
        keys.append(key)
    return [EvaluationsCollected(keys=tuple(keys))] if keys else []


def _allocations(state: State, upto: int, keep_max: int) -> Rows:
    """Terminal allocations that no reconcile needs any more and that are old, too many, or purged."""
    table = state.allocations
    size = table.size
    live = table.key[:size] != 0
    ended: Rows = np.flatnonzero(TERMINAL[table.client[:size]] & live).astype(np.int32)
    if not len(ended):
        return ended
    old = table.modify_seq[ended] <= upto
    excess = len(ended) - keep_max
    if excess > 0:
        order = np.argsort(table.modify_seq[ended], kind="stable")
        old[order[:excess]] = True
    refs, inverse = np.unique(table.group[ended], return_inverse=True)
    spent = np.array([_is_spent(state, ref) for ref in refs.tolist()], dtype=bool)[inverse]
    # A failed one of a live job waits for its retry, or has used all of them and keeps its place.
    spent &= (table.client[ended] != FAILED) | _by_ref(state, refs, _is_over)[inverse]
    old |= _by_ref(state, refs, _is_purged)[inverse]
    # What a drain ended for good keeps its place in a live job, too: forgotten, it would run again.
    old &= spent | ((table.desired[ended] != RUN) & ~table.is_final(ended))
    # A replacement that is still to come reads what it replaces: count, delays, node.
    old &= ~table.predecessors.holds(table.key[ended]) | _by_ref(state, refs, _is_unneeded)[inverse]
    return ended[old][:ROWS_MAX]


def _by_ref(
    state: State, refs: NDArray[np.int32], says: Callable[[State, int], bool]
) -> NDArray[np.bool_]:
    return np.array([says(state, ref) for ref in refs.tolist()], dtype=bool)


def _job_of(state: State, ref: int) -> Job | None:
    """The job of a group reference, if that version is its newest."""
    groups = state.allocations.groups
    job = state.jobs.by_id.get(groups.job_ids[ref])
    return job if job is not None and job.version == groups.versions[ref] else None


def _is_over(state: State, ref: int) -> bool:
    job = _job_of(state, ref)
    return job is None or job.stopped


def _is_spent(state: State, ref: int) -> bool:
    """Tell whether what ended by itself may leave: a finished batch allocation of a live job would run again."""
    job = _job_of(state, ref)
    return job is None or job.stopped or job.job_type in SERVICE_JOB_TYPES


def _is_unneeded(state: State, ref: int) -> bool:
    """Tell whether nothing of a group's job will be replaced any more."""
    job = state.jobs.by_id.get(state.allocations.groups.job_ids[ref])
    return job is None or job.runs_nothing


def _is_purged(state: State, ref: int) -> bool:
    return state.allocations.groups.job_ids[ref] in state.jobs.purging


def _jobs(state: State, upto: int, keep_max: int, leaving: Rows) -> list[Event]:
    """Dead jobs that are old, too many, or purged; a finished batch job leaves together with its allocations."""
    jobs = state.jobs
    excess = len(jobs.by_id) - keep_max
    candidates: Iterable[JobId] = jobs.by_id if upto or excess > 0 else jobs.purging
    gone: list[JobId] = []
    rows: list[Rows] = []
    taken = 0
    for job_id in candidates:
        job = jobs.by_id[job_id]
        if not (job.purge or job.plan_seq <= upto or len(gone) < excess):
            continue
        if not job.stopped and (job.is_pattern or job.job_type in SERVICE_JOB_TYPES):
            # It continues: a pattern makes others; a service may be at count 0, or behind a gate that never opened.
            continue
        if not job.purge and any(one.tag for one in jobs.versions.get(job_id, ())):
            # An operator may start it again by this name.
            continue
        if len(gone) >= PASS_MAX or taken >= ROWS_MAX:
            break
        if state.evaluations.open_of.get(job_id):
            continue
        if job_id in state.deployments.active or job_id in state.rollouts.active:
            # While it is held or paused nothing of it may run, and it continues later.
            continue
        held = state.allocations.rows_of(job_id)
        if len(held) and (job.stopped or not is_finished(state, job)):
            continue
        if taken and taken + len(held) > _NUMBERS_MAX:
            break
        if _numbers(held) > _NUMBERS_MAX:
            # It leaves with all that it had or not at all, and a transaction is never split.
            continue
        gone.append(job_id)
        rows.append(np.setdiff1d(held, leaving))
        taken += len(held)
    events: list[Event] = []
    together = np.concatenate(rows) if rows else _NO_ROWS
    if len(together):
        events.append(allocations_collected(together))
    if not gone:
        return events
    return [*events, *freed_by_jobs(state, gone), JobsCollected(job_ids=tuple(gone))]


def _numbers(rows: Rows) -> int:
    """How many numbers it takes to name these."""
    if len(rows) <= _NUMBERS_MAX:
        return len(rows)
    event = allocations_collected(rows)
    return len(event.rows) + len(event.runs)


def is_finished(state: State, job: Job) -> bool:
    """Tell whether a batch job has completed its count in every group, or a sysbatch job ended wherever it ran."""
    if job.job_type not in FINITE_JOB_TYPES:
        return False
    table = state.allocations
    rows = table.rows_of(job.id)
    if not TERMINAL[table.client[rows]].all():
        return False
    if job.job_type == "sysbatch":
        return True
    refs = table.group[rows][table.client[rows] == COMPLETE]
    for group in job.groups:
        ref = table.groups.ref_of.get((job.id, job.version, group.name), -1)
        if int((refs == ref).sum()) < group.count:
            return False
    return True


def _nodes(state: State, upto: int) -> list[Event]:
    fleet = state.fleet
    size = fleet.size
    down = fleet.live[:size] & (fleet.status[:size] == DOWN) & (fleet.modify_seq[:size] <= upto)
    rows = np.flatnonzero(down)
    if not len(rows):
        return []
    table = state.allocations
    holds = np.zeros(size, dtype=bool)
    holds[table.node[table.live_rows()]] = True
    rows = rows[~holds[rows]][:PASS_MAX]
    return [NodesCollected(rows=tuple(rows.tolist()))] if len(rows) else []
