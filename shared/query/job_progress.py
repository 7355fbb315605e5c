"""Progress of the newest version of a job, as shown by `view.job`, `query.job`, `job run` and `job status`.

Counts are of the newest version alone, so that an update is not taken for done while the old allocations run; one with
a deployment is done when that ended. Computed
from the state; loops over many allocations are vector operations, except over those with reported tasks.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from schemas.evaluation_answers import QueuedWait
from schemas.jobs import FINITE_JOB_TYPES
from schemas.node_answers import TaskShown
from schemas.projections import GroupSummary, Rollout
from shared.core.columns import Rows
from shared.core.decide.garbage import LogTimeIndex
from shared.core.scheduling.reservations.own_rooms import WAITS_FOR_OWN
from shared.core.state.state import State
from shared.core.state.tables.allocations import FAILED, PENDING, RUN, RUNNING, TERMINAL
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.jobs import Job
from shared.query.blocked_shapes import BlockedShapes
from shared.query.deployments import (
    deployment_line,
    deployment_waits,
    description,
    newest_deployment,
)
from shared.query.evaluation_index import EvaluationIndex
from shared.query.job_wait import PARKED, JobWait, job_wait
from shared.query.task_causes import failure_text, restart_ns, wait_text

#: How long tasks must run after their start until a job counts as running: Nomad's default of min_healthy_time.
MIN_RUNNING_NS = 10_000_000_000


class SettlingClock:
    """What tells how long ago tasks started. `now_ns` 0: the state's own time, for a past one."""

    def __init__(self, log_times: LogTimeIndex) -> None:
        self.now_ns = 0
        self._log_times = log_times

    def settles_ns(self, state: State, rows: Rows) -> int:
        """When the newest start of a task of these allocations is MIN_RUNNING_NS ago; 0: it is. Shape: (A,).

        Only reported tasks count. The time of the report bounds a node's clock that is ahead.
        """
        table = state.allocations
        now_ns = self.now_ns or state.t_ns
        newest_ns = 0
        written: dict[int, int] = {}
        for row in rows.tolist() if table.details else ():
            raw = table.details.get(row)
            seq = int(table.modify_seq[row])
            if raw is None:
                continue
            if seq not in written:
                written[seq] = self._log_times.written_ns(seq, since_ns=now_ns - MIN_RUNNING_NS)
            if written[seq]:
                newest_ns = max(newest_ns, min(written[seq], _start_ns(raw) or written[seq]))
        settles_ns = newest_ns + MIN_RUNNING_NS if newest_ns else 0
        return settles_ns if settles_ns > now_ns else 0


class _Tasks(msgspec.Struct, frozen=True):
    """The tasks of one allocation, as reported."""

    name: str
    tasks: dict[str, TaskShown]


class _Lifecycle(msgspec.Struct, frozen=True):
    hook: str = msgspec.field(name="Hook", default="")


class _Task(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="Name", default="")
    lifecycle: _Lifecycle | None = msgspec.field(name="Lifecycle", default=None)


class _Group(msgspec.Struct, frozen=True):
    tasks: list[_Task] | None = msgspec.field(name="Tasks", default=None)


class _Spec(msgspec.Struct, frozen=True):
    groups: list[_Group] | None = msgspec.field(name="TaskGroups", default=None)


_TASKS = msgspec.json.Decoder(dict[str, TaskShown])
_SPEC = msgspec.json.Decoder(_Spec)


def current_rows(state: State, job: Job) -> Rows:
    """Rows of the newest version's allocations that should run, or ran to completion. Shape: (A,)."""
    table = state.allocations
    rows = table.rows_of(job.id)
    of_row = table.group[rows]
    is_current = np.zeros(len(rows), dtype=np.bool_)
    # A job has few groups: comparing with each is faster than a set operation.
    for ref in table.groups.refs().get(job.id, ()):
        if table.groups.versions[ref] == job.version:
            is_current |= of_row == ref
    found: Rows = rows[is_current & (table.desired[rows] == RUN)]
    return found


def job_progress(
    state: State,
    job: Job,
    mine: Rows,
    groups: dict[str, GroupSummary],
    *,
    histories: EvaluationIndex,
    clock: SettlingClock,
    shapes: BlockedShapes,
) -> Rollout:
    """Describe where a job stands. `mine`: its `current_rows`, (A,); `groups`: their counts; `shapes`: who is ahead."""
    table = state.allocations
    rows = table.rows_of(job.id)
    client = table.client[rows]
    not_ended = stopping = 0
    if job.stopped or len(mine) < len(rows):
        not_ended = int(np.count_nonzero(~TERMINAL[client]))
        stopping = not_ended - int(np.count_nonzero(~TERMINAL[table.client[mine]]))
    is_failed = client == FAILED
    failed = rows[is_failed & (table.desired[rows] == RUN)] if is_failed.any() else rows[:0]
    newest = histories.newest(job.id)
    retry_ns = settles_ns = 0
    deployment = newest_deployment(state, job)
    wait = job_wait(state, job, shapes)
    if job.stopped:
        status = "progressing" if not_ended else "stopped"
        reason = f"{not_ended} allocations have not ended yet" if not_ended else ""
    elif job.is_pattern:
        status, reason = "running", ""
    elif wait.kind != PARKED and _is_undecided(state, job):
        status, reason = "progressing", "an evaluation is pending"
    elif deployment is not None and deployment.is_active:
        status, reason, retry_ns = _deploying(state, deployment, mine, failed, shapes=shapes)
    elif deployment is not None and deployment.status == "failed":
        status, reason = "failed", f"deployment failed: {description(deployment)}"
    elif newest is not None and newest.status == "failed":
        status, reason = "failed", f"evaluation failed: {newest.reason or 'no reason given'}"
    elif len(failed):
        status, reason = "failed", _failure(state, failed)
        due = [table.reschedule_at_ns.get(row, 0) for row in failed.tolist()]
        retry_ns = min((at for at in due if at), default=0)
    else:
        status, reason, retry_ns = _progress(state, job, mine, groups, wait=wait)
        # A deployment that succeeded has waited for health itself.
        if status == "running" and deployment is None:
            settles_ns = clock.settles_ns(state, mine[table.client[mine] == RUNNING])
    if settles_ns:
        settle_s = MIN_RUNNING_NS // 10**9
        status, reason = "progressing", f"all runs; a task started less than {settle_s} s ago"
    return Rollout(
        status=status,
        reason=reason,
        changed=histories.submitted_seq(job) <= job.modify_seq,
        groups=groups,
        stopping=stopping,
        restarts=_restarts(state, mine),
        retry_at_ns=retry_ns,
        settles_at_ns=settles_ns,
        deployment=deployment_line(deployment) if deployment is not None else None,
    )


def _deploying(
    state: State, deployment: Deployment, mine: Rows, failed: Rows, *, shapes: BlockedShapes
) -> tuple[str, str, int]:
    """Status, reason and time of the next retry while a deployment is active: it continues after failures."""
    waits = deployment_waits(state, deployment, shapes)
    said = [f"{one.group}: {one.reason}" for one in waits]
    status = "progressing"
    if waits and all(one.why == "place" for one in waits):
        status = "waiting"
    table, retry_ns = state.allocations, 0
    if len(failed):
        said.insert(0, _failure(state, failed))
        due = [table.reschedule_at_ns.get(row, 0) for row in failed.tolist()]
        retry_ns = min((at for at in due if at), default=0)
    elif table.details:
        job = state.jobs.by_id[deployment.job_id]
        client = table.client[mine]
        started = mine[(client == PENDING) | (client == RUNNING)]
        first, retry_ns = _first_wait(state, job, started)
        said += [first] if first else []
    return status, "; ".join(said) or description(deployment), retry_ns


def _is_undecided(state: State, job: Job) -> bool:
    """Return whether a scheduler has still to look at the job, apart from retries whose time has not come."""
    table = state.evaluations
    found = (table.by_key[key] for key in table.open_of.get(job.id, ()))
    return any(one.status == "pending" and one.wait_until_ns <= state.t_ns for one in found)


def _progress(
    state: State, job: Job, mine: Rows, groups: dict[str, GroupSummary], *, wait: JobWait
) -> tuple[str, str, int]:
    """Status, reason and time of the next retry of a job of which nothing failed."""
    client = state.allocations.client[mine]
    pending = int(np.count_nonzero(client == PENDING))
    said, retry_ns = "", 0
    if state.allocations.details:
        said, retry_ns = _first_wait(state, job, mine[(client == PENDING) | (client == RUNNING)])
    if pending or said:
        counted = f"{pending} pending" if pending else ""
        return "progressing", "; ".join(filter(None, (counted, said))), retry_ns
    waiting = dict(sorted(wait.groups.items()))
    if waiting:
        # What waits for nothing but the end of its own old allocations comes by itself.
        text = "; ".join(_waiting_text(name, one) for name, one in waiting.items())
        is_own = all(one.wait_class == WAITS_FOR_OWN for one in waiting.values())
        return "progressing" if is_own else "waiting", text, 0
    desired = sum(one.desired for one in groups.values())
    complete = sum(one.complete for one in groups.values())
    running = sum(one.running for one in groups.values())
    if job.job_type in FINITE_JOB_TYPES and all(
        one.complete >= one.desired for one in groups.values()
    ):
        return "complete", "", 0
    done = complete if job.job_type in FINITE_JOB_TYPES else 0
    drained = _drained(state, job) if state.allocations.final else 0
    if drained and not running and done + drained >= desired:
        # Nothing replaces them: the work is not done, and will not be in this version.
        return "failed", f"a drain ended {drained} of {desired} allocations for good", 0
    if running + done + drained >= desired:
        return "running", "", 0
    return "progressing", f"{running + done} of {desired} running", 0


def _drained(state: State, job: Job) -> int:
    """Count the newest version's allocations that a drain ended for good."""
    table = state.allocations
    rows = table.rows_of(job.id)
    ended = rows[table.is_final(rows) & TERMINAL[table.client[rows]]]
    return sum(table.groups.versions[ref] == job.version for ref in table.group[ended].tolist())


def _waiting_text(name: str, one: QueuedWait) -> str:
    return f"{one.n} of {name} waiting: {'; '.join(one.reasons) or one.wait_class}"


def _tasks(state: State, rows: Rows) -> Iterator[_Tasks]:
    """The tasks of those allocations whose node reported any."""
    table = state.allocations
    if not table.details:
        return
    for row in rows.tolist():
        raw = table.details.get(row)
        if raw is not None:
            ref = int(table.group[row])
            name = f"{table.groups.job_ids[ref]}.{table.groups.names[ref]}[{int(table.index[row])}]"
            yield _Tasks(name, _TASKS.decode(raw))


def _start_ns(details: bytes) -> int:
    """Time of the newest start of reported tasks, by their node's clock; 0: it is not known."""
    tasks = _TASKS.decode(details).values()
    return max((e.t_ns for task in tasks for e in task.events if e.kind == "Started"), default=0)


def newest_event_ns(details: bytes) -> int:
    """Time of the newest event of reported tasks, by their node's clock; 0: there is none."""
    tasks = _TASKS.decode(details).values() if details else ()
    return max((event.t_ns for task in tasks for event in task.events), default=0)


def _restarts(state: State, rows: Rows) -> int:
    return sum(task.restarts for one in _tasks(state, rows) for task in one.tasks.values())


def _failure(state: State, rows: Rows) -> str:
    """Why the first of the failed allocations failed, and how many others did."""
    others = f"; {len(rows) - 1} more failed" if len(rows) > 1 else ""
    for one in _tasks(state, rows):
        text = failure_text(one.tasks)
        if text:
            return f"{one.name}: {text}{others}"
    return f"{len(rows)} allocations failed"


def _first_wait(state: State, job: Job, rows: Rows) -> tuple[str, int]:
    """The first task that has not started, and when it is tried again (0: not known); one that failed before others.

    Such is the main task behind one that runs before it. A task that starts when all others ended does not count.
    """
    first = ("", 0)
    last: frozenset[str] | None = None
    for one in _tasks(state, rows):
        for name, task in sorted(one.tasks.items()):
            if task.state != "pending":
                continue
            last = _poststop_tasks(state, job) if last is None else last
            if name in last:
                continue
            said = f"{one.name}: {wait_text(name, task)}"
            if task.events and task.events[-1].kind == "Restarting":
                return said, restart_ns(task.events[-1])
            first = first if first[0] else (said, 0)
    return first


def _poststop_tasks(state: State, job: Job) -> frozenset[str]:
    """Names of the tasks that start after the others ended."""
    spec = _SPEC.decode(state.jobs.spec(job.id, job.version) or b"{}")
    return frozenset(
        task.name
        for group in spec.groups or ()
        for task in group.tasks or ()
        if task.lifecycle is not None and task.lifecycle.hook == "poststop"
    )
