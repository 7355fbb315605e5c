"""Projections of the state: nodes, jobs, allocations and submissions as the Structs of schemas/projections.py.

Defines the words of every status. Loops over many allocations are vector operations.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from typing import TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES, DESIRED_STATUSES, HEALTHS
from schemas.base import EvalKey
from schemas.jobs import SYSTEM_JOB_TYPES, ErrorDetail, Verdict
from schemas.nodes import NODE_STATUSES
from schemas.projections import (
    AllocSummary,
    DesiredExtra,
    GroupRef,
    GroupSummary,
    JobProjection,
    NodeProjection,
    NodeSummary,
    Rollout,
)
from schemas.variables import VariableProjection
from shared.core.columns import Rows
from shared.core.state.ids import (
    ALLOC_SALT,
    EVAL_SALT,
    alloc_id,
    deployment_id,
    eval_id,
    rollout_id,
    shown_ids,
)
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    COMPLETE,
    EVICT,
    FAILED,
    LOST,
    PENDING,
    RUN,
    RUNNING,
    STOP,
    TERMINAL,
    UNKNOWN,
)
from shared.core.state.tables.jobs import Job, SubmissionRecord
from shared.query import resource_usage
from shared.query.blocked_shapes import BlockedShapes
from shared.query.evaluation_index import EvaluationIndex
from shared.query.host_volumes import volume_orders
from shared.query.job_progress import SettlingClock, current_rows, job_progress, newest_event_ns
from shared.query.job_wait import job_wait
from shared.query.remotes import remote_endings, remotes_wanted

#: Below this number a loop is faster than vector operations.
_SCALAR_MAX = 16
#: If the nodes are less than one in this many of all, the rows on them are selected first.
_SPARSE_RATIO = 10
RESOURCE_NAMES = ("cpu_mhz", "memory_mib", "disk_mib")


# ---- nodes ----


def desired_rows(state: State, nodes: Rows) -> Rows:
    """Rows of the allocations that these nodes hold and that have not ended. Shape: (A,), by node, then row."""
    rows = _live_rows_on(state, nodes)
    return rows[np.argsort(state.allocations.node[rows], kind="stable")]


def _live_rows_on(state: State, nodes: Rows) -> Rows:
    """Rows of the allocations on these nodes that have not ended, ascending. Shape: (A,)."""
    table, size = state.allocations, state.allocations.size
    chosen = np.zeros(max(state.fleet.size, 1), dtype=np.bool_)
    chosen[nodes] = True
    is_there = chosen[table.node[:size]]
    if _SPARSE_RATIO * len(nodes) < state.fleet.size:
        # Rows on other nodes, the majority, are skipped.
        rows: Rows = np.flatnonzero(is_there).astype(np.int32)
        held_rows: Rows = rows[(table.key[rows] != 0) & ~TERMINAL[table.client[rows]]]
        return held_rows
    held = is_there & (table.key[:size] != 0) & ~TERMINAL[table.client[:size]]
    return np.flatnonzero(held).astype(np.int32)


def node_projections(state: State, nodes: Rows, rows: Rows, epoch: int = 0) -> list[NodeProjection]:
    """Desired sets of nodes. `rows`: the result of `desired_rows` for these nodes, or for more."""
    fleet = state.fleet
    columns = _NodeRuns(state, rows)
    endings = remote_endings(state)
    owner = state.allocations.node[rows]
    begins = np.searchsorted(owner, nodes, "left").tolist()
    ends = np.searchsorted(owner, nodes, "right").tolist()
    return [
        NodeProjection(
            cluster_id=state.policy.cluster_id,
            seq=state.seq,
            incarnation=state.policy.incarnations.newest,
            first_seq=state.policy.incarnations.first_seq,
            former_incarnation=state.policy.incarnations.former,
            node_id=fleet.ids[node],
            host_id=fleet.host_ids[node],
            boot_id=fleet.boot_ids[node],
            reports_seen=int(fleet.reports_seen[node]),
            refused=host_conflict_text(state, node),
            operator_meta=fleet.operator_meta.get(fleet.ids[node], {}),
            epoch=epoch,
            volumes=volume_orders(state, fleet.ids[node]),
            remote_ends=endings.get(fleet.ids[node], ()),
            **columns.between(begin, end),
        )
        for node, begin, end in zip(nodes.tolist(), begins, ends, strict=True)
    ]


class _Part(TypedDict, total=False):
    """The fields of a NodeProjection about its allocations."""

    groups: tuple[GroupRef, ...]
    keys: tuple[int, ...]
    rows: tuple[int, ...]
    groups_at: tuple[int, ...]
    indexes: tuple[int, ...]
    counts: tuple[int, ...]
    stops: tuple[int, ...]
    evicts: tuple[int, ...]
    extras: tuple[DesiredExtra, ...]


class _NodeRuns:
    """Allocations of many nodes as runs, computed at once; each node has a slice of every column."""

    def __init__(self, state: State, rows: Rows) -> None:
        """`rows` are by node, then ascending. Shape: (A,)."""
        table, count = state.allocations, len(rows)
        keys, group, index = table.key[rows], table.group[rows], table.index[rows]
        node = table.node[rows]
        # Where a run begins, and where a group does: at another node, too.
        group_heads, heads = np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
        if count:
            group_heads[1:] = (group[1:] != group[:-1]) | (node[1:] != node[:-1])
            steps = (keys[1:] - keys[:-1] != 1) | (rows[1:] - rows[:-1] != 1)
            heads[1:] = group_heads[1:] | steps | (index[1:] - index[:-1] != 1)
        at = np.flatnonzero(heads)
        self._head_of = np.concatenate((np.cumsum(heads) - heads, [len(at)])).tolist()
        self._keys: list[int] = keys[at].tolist()
        self._rows: list[int] = rows[at].tolist()
        self._indexes: list[int] = index[at].tolist()
        self._heads = np.append(at, count)
        refs, self._groups_at = group[group_heads], np.cumsum(group_heads)[at] - 1
        self._group_of = np.concatenate((np.cumsum(group_heads) - 1, [len(refs)]))
        self._groups = _group_refs(state, refs)
        desired = table.desired[rows]
        self._stops, self._evicts = (
            np.flatnonzero(desired == STOP),
            np.flatnonzero(desired == EVICT),
        )
        self._extras = _extras(state, rows)

    def between(self, begin: int, end: int) -> _Part:
        """The projection fields of the allocations at these positions of `rows`."""
        if begin == end:
            return {}
        first, last = self._head_of[begin], self._head_of[end]
        group, groups_end = int(self._group_of[begin]), int(self._group_of[end - 1]) + 1
        part: _Part = {
            "groups": tuple(self._groups[group:groups_end]),
            "keys": tuple(self._keys[first:last]),
            "rows": tuple(self._rows[first:last]),
            "indexes": tuple(self._indexes[first:last]),
        }
        if groups_end - group < last - first:
            part["groups_at"] = tuple((self._groups_at[first:last] - group).tolist())
        if last - first < end - begin:
            part["counts"] = tuple(
                (self._heads[first + 1 : last + 1] - self._heads[first:last]).tolist()
            )
        if len(self._stops):
            part["stops"] = _within(self._stops, begin, end)
        if len(self._evicts):
            part["evicts"] = _within(self._evicts, begin, end)
        if self._extras:
            part["extras"] = self._extras_between(begin, end)
        return part

    def _extras_between(self, begin: int, end: int) -> tuple[DesiredExtra, ...]:
        found = self._extras
        first = bisect_left(found, begin, key=lambda one: one.at)
        last = bisect_left(found, end, key=lambda one: one.at)
        return tuple(msgspec.structs.replace(one, at=one.at - begin) for one in found[first:last])


def _within(places: NDArray[np.intp], begin: int, end: int) -> tuple[int, ...]:
    first, last = np.searchsorted(places, (begin, end)).tolist()
    return tuple((places[first:last] - begin).tolist())


def _group_refs(state: State, refs: NDArray[np.int32]) -> list[GroupRef]:
    """The groups of refs; each Struct is made once. Shapes: refs (R,)."""
    groups = state.allocations.groups
    is_named = np.zeros(len(groups.names), dtype=np.bool_)
    is_named[refs] = True
    made = {
        ref: GroupRef(groups.job_ids[ref], groups.versions[ref], groups.names[ref])
        for ref in np.flatnonzero(is_named).tolist()
    }
    return list(map(made.__getitem__, refs.tolist()))


def _extras(state: State, rows: Rows) -> list[DesiredExtra]:
    """Ports, instances and predecessors of the allocations that have any; `at`: position in `rows`."""
    table = state.allocations
    if not table.holdings and not table.previous and not state.remotes.tracked:
        return []
    keys = table.key[rows].tolist()
    remotes = remotes_wanted(state, keys)
    return [
        DesiredExtra(
            at=at,
            previous=table.previous.get(row, 0),
            remote=remotes.get(keys[at]),
            **(
                resource_usage.held_resources(state, row)
                if row in table.holdings
                else resource_usage.NO_HELD_RESOURCES
            ),
        )
        for at, row in enumerate(rows.tolist())
        if row in table.holdings or row in table.previous or keys[at] in remotes
    ]


def host_conflict_text(state: State, node: int) -> str:
    """Text about another host that was refused this node's id; empty: none."""
    refused = state.fleet.refused.get(state.fleet.ids[node])
    if refused is None or refused.host_id == state.fleet.host_ids[node]:
        return ""
    return f"host {refused.host_id}: {refused.code}: {refused.reason}"


def allocation_counts(state: State, nodes: Rows | None = None) -> NDArray[np.int64]:
    """Allocations that have not ended, by fleet row. Shape: (fleet.size,). `nodes`: of others 0 or the right number."""
    table, size = state.allocations, state.allocations.size
    if nodes is not None and _SPARSE_RATIO * len(nodes) < state.fleet.size:
        on = table.node[_live_rows_on(state, nodes)]
    else:
        on = table.node[:size][(table.key[:size] != 0) & ~TERMINAL[table.client[:size]]]
    return np.bincount(on, minlength=state.fleet.size).astype(np.int64)


def node_summary(state: State, node: int, allocations: int) -> NodeSummary:
    """One node in one line."""
    fleet = state.fleet
    spec = fleet.specs[node]
    used = state.allocations.used(fleet.size)[node].tolist()
    # Reserved cores count as used CPU.
    used[0] += resource_usage.cores_mhz(state, node)
    return NodeSummary(
        cluster_id=state.policy.cluster_id,
        seq=state.seq,
        id=spec.node_id,
        name=spec.name or spec.node_id,
        datacenter=spec.datacenter,
        pool=spec.node_pool,
        node_class=spec.node_class,
        status=NODE_STATUSES[fleet.status[node]],
        eligibility="eligible" if fleet.eligible[node] else "ineligible",
        draining=node in fleet.drains,
        drain_deadline_ns=fleet.drains.get(node, 0),
        capacity=dict(zip(RESOURCE_NAMES, fleet.capacity[node].tolist(), strict=True)),
        used=dict(zip(RESOURCE_NAMES, used, strict=True)),
        pools=resource_usage.node_pools(state, node),
        ports_free=resource_usage.free_port_count(state, node),
        allocations=allocations,
        incarnation=state.policy.incarnations.newest or msgspec.UNSET,
    )


# ---- jobs ----


def group_counts(state: State, job: Job, rows: Rows | None = None) -> dict[str, GroupSummary]:
    """Count a job's allocations by group and client status: `rows`, or all versions, ended ones included."""
    width = len(CLIENT_STATUSES)
    sums = {group.name: [0] * width for group in job.groups}
    groups = state.allocations.groups
    for ref, code, count in _counted(
        state, state.allocations.rows_of(job.id) if rows is None else rows
    ):
        name = groups.names[ref]
        if name not in sums:
            sums[name] = [0] * width
        sums[name][code] += count
    wanted = _desired_counts(state, job)
    return {
        name: GroupSummary(
            desired=wanted.get(name, 0),
            pending=counts[PENDING],
            running=counts[RUNNING],
            complete=counts[COMPLETE],
            failed=counts[FAILED],
            lost=counts[LOST],
            unknown=counts[UNKNOWN],
        )
        for name, counts in sorted(sums.items())
    }


def _counted(state: State, rows: Rows) -> Iterable[tuple[int, int, int]]:
    """Count allocations by ref of the group and code of the client status; a pair may occur more than once."""
    table = state.allocations
    refs, codes = table.group[rows], table.client[rows]
    if len(rows) < _SCALAR_MAX:
        return zip(refs.tolist(), codes.tolist(), repeat(1), strict=False)
    width = len(CLIENT_STATUSES)
    cells, counts = np.unique(refs * width + codes, return_counts=True)
    found: list[tuple[int, int]] = list(zip(cells.tolist(), counts.tolist(), strict=True))
    return [(cell // width, cell % width, count) for cell, count in found]


def _desired_counts(state: State, job: Job) -> dict[str, int]:
    """Desired number of allocations by group; for a system job those placed and those that wait."""
    if job.runs_nothing:
        return {}
    if job.job_type not in SYSTEM_JOB_TYPES:
        return {group.name: group.count for group in job.groups}
    table = state.allocations
    rows = table.rows_of(job.id)
    rows = rows[table.desired[rows] == RUN]
    wanted = {group.name: 0 for group in job.groups}
    for ref, count in zip(
        *(part.tolist() for part in np.unique(table.group[rows], return_counts=True)), strict=True
    ):
        name = table.groups.names[ref]
        wanted[name] = wanted.get(name, 0) + count
    for name, waiting in job_wait(state, job).groups.items():
        wanted[name] = wanted.get(name, 0) + waiting.n
    return wanted


def placed_counts(state: State, job: Job) -> dict[str, int]:
    """Count, by group, allocations of the newest version with desired status run that are neither failed nor lost."""
    table = state.allocations
    rows = table.rows_of(job.id)
    kept = rows[(table.desired[rows] == RUN) & ~np.isin(table.client[rows], (FAILED, LOST))]
    out = {group.name: 0 for group in job.groups}
    refs, counts = np.unique(table.group[kept], return_counts=True)
    for ref, count in zip(refs.tolist(), counts.tolist(), strict=True):
        if table.groups.versions[ref] == job.version and table.groups.names[ref] in out:
            out[table.groups.names[ref]] += count
    return out


def job_status(job: Job, groups: dict[str, GroupSummary], *, has_open: bool) -> str:
    """Status of a job: pending, running or dead, as in Nomad (state_store.go, getJobStatus)."""
    if job.stopped:
        return "dead"
    if job.job_type == "system" or job.is_pattern:
        return "running"
    if any(one.pending or one.running or one.unknown for one in groups.values()):
        return "running"
    if has_open:
        return "pending"
    # Nothing runs and no evaluation is open; a service of count 0 is dead too.
    return "dead"


def progress_of_job(
    state: State,
    job: Job,
    histories: EvaluationIndex,
    clock: SettlingClock,
    *,
    groups: dict[str, GroupSummary] | None = None,
    shapes: BlockedShapes | None = None,
) -> Rollout:
    """Progress of a job's newest version. `groups`: the counts of all its allocations, where they are known.

    `shapes`: who is ahead in the queue; None: as kept beside the evaluations.
    """
    mine = current_rows(state, job)
    if groups is None or len(mine) < len(state.allocations.rows_of(job.id)):
        groups = group_counts(state, job, mine)
    return job_progress(
        state,
        job,
        mine,
        groups,
        histories=histories,
        clock=clock,
        shapes=histories.shapes if shapes is None else shapes,
    )


#: A projection is published when its job changes. Who is ahead of a parked job changes without it.
_NOTHING_AHEAD = BlockedShapes(State())


def job_projection(
    state: State, job: Job, histories: EvaluationIndex, clock: SettlingClock
) -> JobProjection:
    """A job in numbers."""
    groups = group_counts(state, job)
    return JobProjection(
        cluster_id=state.policy.cluster_id,
        seq=state.seq,
        incarnation=state.policy.incarnations.newest,
        job_id=job.id,
        version=job.version,
        status=job_status(job, groups, has_open=histories.has_open(job.id)),
        stopped=job.stopped,
        modify_index=job.modify_seq,
        groups=groups,
        rollout=progress_of_job(state, job, histories, clock, groups=groups, shapes=_NOTHING_AHEAD),
    )


# ---- submissions ----


def verdict(state: State, submission_id: str) -> Verdict | None:
    """The outcome of a submission; None: unknown, or no longer stored."""
    return next(iter(verdicts(state, (submission_id,))), None)


def verdicts(state: State, submission_ids: Iterable[str]) -> list[Verdict]:
    """Outcomes of submissions, in this order, without those that are unknown or no longer stored."""
    submissions = state.jobs.submissions
    known = [(one, submissions[one]) for one in submission_ids if one in submissions]
    shown = _eval_ids([kept.evaluation for _, kept in known])
    cluster_id = state.policy.cluster_id
    return [
        recorded_verdict(submission_id, kept, cluster_id, evaluation)
        if kept.conflict not in submissions
        else _conflict(submission_id, kept, submissions[kept.conflict], cluster_id)
        for (submission_id, kept), evaluation in zip(known, shown, strict=True)
    ]


def _conflict(
    submission_id: str, first: SubmissionRecord, later: SubmissionRecord, cluster_id: str
) -> Verdict:
    """The outcome of an id that came with two contents: no client may take the first one's for its own."""
    message = (
        f"{later.reason}: {first.conflict} was refused; "
        f"the first content was {first.status} at seq {first.seq}"
    )
    return Verdict(
        submission_id=submission_id,
        status="refused",
        cluster_id=cluster_id,
        seq=later.seq,
        job_id=later.job_id,
        error=ErrorDetail(code="conflict", message=message),
    )


def recorded_verdict(
    submission_id: str, kept: SubmissionRecord, cluster_id: str, evaluation: str
) -> Verdict:
    """The outcome that the log holds; `evaluation` is the shown id of the record's evaluation."""
    is_refused = kept.status == "refused"
    return Verdict(
        submission_id=submission_id,
        status=kept.status,
        cluster_id=cluster_id,
        seq=kept.seq,
        job_id=kept.job_id,
        version=kept.version,
        modify_index=kept.modify_index,
        eval_id=evaluation if kept.evaluation else "",
        rollout_id=rollout_id(kept.rollout) if kept.rollout else "",
        warnings=kept.warnings,
        error=ErrorDetail(code=kept.code, message=kept.reason) if is_refused else None,
    )


def _eval_ids(keys: list[EvalKey]) -> list[str]:
    """Shown ids of evaluations; of no evaluation anything."""
    if len(keys) < _SCALAR_MAX:
        return [eval_id(key) for key in keys]
    return shown_ids(np.array(keys, dtype=np.int64), EVAL_SALT)


# ---- variables ----


def variable_projection(state: State, path: str) -> VariableProjection:
    """Say which revision a path has."""
    row = state.variables.find(path)
    return VariableProjection(
        cluster_id=state.policy.cluster_id,
        seq=state.seq,
        incarnation=state.policy.incarnations.newest,
        path=path,
        revision=0 if row is None else row.revision,
    )


# ---- allocations and evaluations in one line ----


def alloc_summaries(
    state: State, rows: Rows, *, with_tasks: bool = False
) -> tuple[AllocSummary, ...]:
    """Allocations in one line each, in the order of `rows`; without tasks `tasks` is `{}`."""
    table = state.allocations
    groups, fleet = table.groups, state.fleet
    keys = table.key[rows]
    out = []
    for row, key, shown in zip(
        rows.tolist(), keys.tolist(), shown_ids(keys, ALLOC_SALT), strict=True
    ):
        ref, index, node = int(table.group[row]), int(table.index[row]), int(table.node[row])
        job_id, group = groups.job_ids[ref], groups.names[ref]
        previous, deployment = table.previous.get(row, 0), int(table.deployment[row])
        tasks = table.details.get(row, b"{}") if with_tasks else b"{}"
        out.append(
            AllocSummary(
                id=shown,
                key=key,
                job_id=job_id,
                group=group,
                index=index,
                name=f"{job_id}.{group}[{index}]",
                node=fleet.ids[node] if node < fleet.size else "",
                desired_status=DESIRED_STATUSES[table.desired[row]],
                client_status=CLIENT_STATUSES[table.client[row]],
                version=groups.versions[ref],
                create_seq=state.policy.incarnations.seq(key),
                modify_seq=int(table.modify_seq[row]),
                previous=alloc_id(previous) if previous else "",
                tasks=msgspec.Raw(tasks),
                event_ns=newest_event_ns(table.details.get(row, b"")),
                health=HEALTHS[table.health[row]],
                health_reason=table.health_reasons.get(row, ""),
                canary=bool(table.canary[row]),
                deployment=deployment_id(deployment) if deployment else "",
            )
        )
    return tuple(out)


def display_order(state: State, rows: Rows) -> Rows:
    """Order allocations for people: those that have not ended first, then by group, index, newest first."""
    table = state.allocations
    refs, where = np.unique(table.group[rows], return_inverse=True)
    names = [table.groups.names[ref] for ref in refs.tolist()]
    ranks = {name: rank for rank, name in enumerate(sorted(set(names)))}
    by_name = np.asarray([ranks[name] for name in names], dtype=np.int64)[where]
    ended = TERMINAL[table.client[rows]]
    return rows[np.lexsort((-table.key[rows], table.index[rows], by_name, ended))]


#: Progress of an eviction, by client status code.
_EVICTED = (
    *("its node is stopping its tasks",) * 2,
    *("its tasks ended", "its tasks ended, at least one failed"),
    *("its node is lost", "its node is disconnected; state unknown"),
)


def status_reason(state: State, row: int, failed_tasks: str, *, ended: str = "") -> str:
    """Explain the status of an allocation in one sentence.

    `failed_tasks` describes failed tasks, `ended` is why the node ended tasks, if it did.
    """
    table, fleet = state.allocations, state.fleet
    node = int(table.node[row])
    name = fleet.ids[node] if node < fleet.size else "a removed node"
    client, stopping = int(table.client[row]), int(table.desired[row]) != RUN
    job = state.jobs.by_id.get(table.groups.job_ids[table.group[row]])
    if table.desired[row] == EVICT:
        return f"evicted by job {table.evicted_by.get(row, '(purged)')}; {_EVICTED[client]}"
    if client == LOST:
        return f"node {name} is lost: no heartbeat"
    if client == FAILED:
        return failed_tasks or ended or "a task failed and its restart policy gave up"
    if client == COMPLETE:
        if stopping:
            return "stopped on request"
        # Only the end of max_run_duration is worth a text.
        return ended if "max_run_duration" in ended else "all tasks ended successfully"
    if stopping:
        is_over = job is not None and job.stopped
        return f"{'job stopped' if is_over else 'replaced by a plan'}; node {name} is stopping its tasks"
    if client == RUNNING:
        made_seq = state.policy.incarnations.seq(int(table.key[row]))
        return f"running on node {name}, placed at seq {made_seq}"
    if client == UNKNOWN:
        return f"node {name} is disconnected; state unknown"
    status = NODE_STATUSES[fleet.status[node]] if node < fleet.size else "gone"
    return f"placed on node {name} ({status}); the node has not reported it yet"
