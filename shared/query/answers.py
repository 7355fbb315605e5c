"""Answers of `query.<noun>`: one function a noun, from the state to a Struct of schemas/answers.py.

Decides what a question finds, and which questions are refused. Must not know tokens, timers or subjects: `role.py`
holds a request until the state is new enough, and bounds `limit`: lists are cut at it.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.answers import (
    AllocAnswer,
    AllocsAnswer,
    Answer,
    ClusterAnswer,
    DeadAnswer,
    DeadLine,
    EvalAnswer,
    EvalsAnswer,
    JobAnswer,
    JobLine,
    JobsAnswer,
    JobVersionAnswer,
    JobVersionsAnswer,
    NodeAnswer,
    NodesAnswer,
    PlanAnswer,
    PolicyAnswer,
    ResourcesAnswer,
    SubmissionAnswer,
    TaskShown,
    VersionLine,
    WaitingAnswer,
    WaitingLine,
    WhyAnswer,
)
from schemas.base import EvalKey, JobId, NodeId
from schemas.envelope import LeaseHeld
from schemas.projections import NodeSummary, PlanQuery, Query
from shared.core.columns import Rows
from shared.core.counts import count_state
from shared.core.ids import ALLOC_SALT, EVAL_SALT, match_prefix, shown_ids
from shared.core.place import MaskCache
from shared.core.replica import Replica
from shared.core.state import State
from shared.core.tables.allocations import CLIENT_CODE, TERMINAL
from shared.core.tables.jobs import Job
from shared.errors import CommandInvalid
from shared.jobspec.submission import read_submission
from shared.query import offered, projections
from shared.query.histories import Histories
from shared.query.planning import plan_job
from shared.query.waiting import parked_behind, parked_lines, waiting_lines
from shared.query.why import why_not

LIMIT_MAX = 10_000
#: Evaluations shown with a job.
EVALUATIONS_SHOWN = 20
#: Ids listed when a prefix is not unique.
AMBIGUOUS_SHOWN = 10
#: job.group[index], as allocations are called.
_NAME = re.compile(r"(.+)\.([^.]+)\[(\d{1,9})\]")
T = TypeVar("T")
TASKS = msgspec.json.Decoder(dict[str, TaskShown])


class At(TypedDict):
    """What every answer carries."""

    seq: int
    cluster_id: str


class Answers:
    """Everything that can be asked. Raises CommandInvalid (code invalid, not_found or ambiguous) for what cannot."""

    def __init__(self, replica: Replica, histories: Histories, dead: deque[DeadLine]) -> None:
        self._replica = replica
        self._histories = histories
        self._dead = dead
        self._masks = MaskCache()
        self.lease = LeaseHeld(holder="", cluster_id="")
        self._by_noun: dict[str, Callable[[Query], Answer]] = {
            "jobs": self._jobs,
            "job": self._job,
            "job_version": self._job_version,
            "job_versions": self._job_versions,
            "policy": self._policy,
            "nodes": self._nodes,
            "node": self._node,
            "allocs": self._allocs,
            "alloc": self._alloc,
            "evals": self._evals,
            "eval": self._eval,
            "waiting": self._queue,
            "cluster": self._cluster,
            "resources": self._resources,
            "submission": self._submission,
            "dead": self._dead_letters,
            "why_not": self._why_not,
        }

    def answer(self, noun: str, query: Query) -> Answer:
        """Answer one query from the state as it is."""
        found = self._by_noun.get(noun)
        if found is None:
            known = ", ".join(sorted((*self._by_noun, "plan")))
            raise CommandInvalid("invalid", f"nothing answers to {noun!r}; known are {known}")
        return found(query)

    def plan(self, query: PlanQuery) -> PlanAnswer:
        """Say what registering a job would do."""
        remotes = self._state.policy.policy.remote_drivers
        submission = read_submission(b'{"Job":%b}' % bytes(query.job), "submit", remotes)
        answer = plan_job(self._state, self._masks, submission)
        return msgspec.structs.replace(answer, **self._at)

    @property
    def _state(self) -> State:
        return self._replica.state

    @property
    def _at(self) -> At:
        return {"seq": self._replica.seq, "cluster_id": self._state.policy.cluster_id}

    # ---- jobs ----

    def _find_job(self, job_id: str) -> Job:
        job = self._state.jobs.by_id.get(JobId(job_id))
        if job is None:
            raise CommandInvalid("not_found", f"no job {job_id!r}")
        return job

    def _line(self, job: Job) -> JobLine:
        groups = projections.group_counts(self._state, job)
        has_open = self._histories.has_open(job.id)
        return JobLine(
            id=job.id,
            job_type=job.job_type,
            status=projections.job_status(job, groups, has_open=has_open),
            stopped=job.stopped,
            version=job.version,
            priority=job.priority,
            node_pool=job.node_pool,
            datacenters=job.datacenters,
            create_index=job.create_seq,
            modify_index=job.modify_seq,
            groups=groups,
        )

    def _jobs(self, query: Query) -> JobsAnswer:
        ids = sorted(one for one in self._state.jobs.by_id if one.startswith(query.id))
        if not query.status:
            page = [self._line(self._find_job(one)) for one in _page(ids, query)]
            return JobsAnswer(**self._at, jobs=tuple(page), total=len(ids))
        lines = [
            line
            for line in map(self._line, map(self._find_job, ids))
            if line.status == query.status
        ]
        return JobsAnswer(**self._at, jobs=_page(lines, query), total=len(lines))

    def _job(self, query: Query) -> JobAnswer:
        job = self._find_job(query.id or query.job_id)
        line = self._line(job)
        rows = self._state.allocations.rows_of(job.id)
        shown = _page_rows(projections.display_order(self._state, rows), query)
        return JobAnswer(
            **self._at,
            job=line,
            groups=line.groups,
            placed=projections.placed_counts(self._state, job),
            allocations=projections.alloc_summaries(self._state, shown),
            allocations_total=len(rows),
            waiting=self._waiting(job),
            evaluations=tuple(
                projections.eval_summary(self._state.evaluations.by_key[key])
                for key in self._histories.of_job(job.id, EVALUATIONS_SHOWN)
            ),
        )

    def _waiting(self, job: Job) -> tuple[WaitingLine, ...]:
        table = self._state.evaluations
        key = table.blocked_of.get(job.id)
        if key is None:
            return parked_lines(self._state, job)
        blocked = projections.eval_summary(self._state.evaluations.by_key[key])
        return tuple(
            WaitingLine(
                group=group,
                n=one.n,
                wait_class=one.wait_class,
                reasons=one.reasons,
                eval_id=blocked.id,
            )
            for group, one in blocked.waiting.items()
        )

    def _job_version(self, query: Query) -> JobVersionAnswer:
        job = self._find_job(query.id or query.job_id)
        version = job.version if query.version < 0 else query.version
        spec = self._state.jobs.spec(job.id, version)
        if spec is None:
            raise CommandInvalid("not_found", f"job {job.id!r} has no version {version} any more")
        raw = msgspec.Raw(spec)
        return JobVersionAnswer(**self._at, job_id=job.id, version=version, spec=raw)

    def _job_versions(self, query: Query) -> JobVersionsAnswer:
        job = self._find_job(query.id or query.job_id)
        kept = self._state.jobs.versions[job.id][::-1]
        page = tuple(
            VersionLine(version=one.version, seq=one.seq, spec=msgspec.Raw(one.spec))
            for one in _page(kept, query)
        )
        return JobVersionsAnswer(**self._at, job_id=job.id, versions=page, total=len(kept))

    def _submission(self, query: Query) -> SubmissionAnswer:
        verdict = projections.verdict(self._state, query.id)
        if verdict is None:
            raise CommandInvalid("not_found", f"no submission {query.id!r}, or no more")
        return SubmissionAnswer(**self._at, verdict=verdict)

    # ---- nodes ----

    def _nodes(self, query: Query) -> NodesAnswer:
        fleet = self._state.fleet
        counts = projections.allocation_counts(self._state)
        ids = sorted(one for one in fleet.row_of if one.startswith(query.id))
        rows = [fleet.row_of[one] for one in ids]
        if query.status:
            lines = [self._node_line(row, counts) for row in rows]
            lines = [line for line in lines if line.status == query.status]
            return NodesAnswer(**self._at, nodes=_page(lines, query), total=len(lines))
        page = tuple(self._node_line(row, counts) for row in _page(rows, query))
        return NodesAnswer(**self._at, nodes=page, total=len(rows))

    def _node_line(self, row: int, counts: NDArray[np.int64]) -> NodeSummary:
        return projections.node_summary(self._state, row, int(counts[row]))

    def _node(self, query: Query) -> NodeAnswer:
        row = self.find_node(query.id or query.node_id)
        state = self._state
        rows = state.allocations.on_nodes(np.asarray([row], dtype=np.int32))
        spec = state.fleet.shown(row)
        shown = _page_rows(projections.display_order(state, rows), query)
        return NodeAnswer(
            **self._at,
            nodes=(self._node_line(row, projections.allocation_counts(state)),),
            attributes=spec.attributes,
            meta=spec.meta,
            ports=offered.node_ports(state, rows),
            allocations=projections.alloc_summaries(state, shown),
            allocations_total=len(rows),
        )

    def _resources(self, query: Query) -> ResourcesAnswer:
        lines = offered.all_pools(self._state, query.id)
        return ResourcesAnswer(
            **self._at,
            pools=_page(lines, query),
            declared=offered.declared(self._state),
            total=len(lines),
        )

    def find_node(self, prefix: str) -> int:
        """Find a node's row by its id, the one beginning of it that fits, or its name."""
        fleet = self._state.fleet
        row = fleet.row_of.get(NodeId(prefix))
        if row is not None:
            return row
        found = sorted(one for one in fleet.row_of if prefix and one.startswith(prefix))
        found = found or [i for i in fleet.row_of if fleet.specs[fleet.row_of[i]].name == prefix]
        _only(found, "node", prefix)
        return fleet.row_of[NodeId(found[0])]

    # ---- allocations ----

    def _allocs(self, query: Query) -> AllocsAnswer:
        table = self._state.allocations
        rows = table.rows_of(self._find_job(query.job_id).id) if query.job_id else table.live_rows()
        if query.node_id:
            rows = rows[table.node[rows] == self.find_node(query.node_id)]
        if query.status:
            if query.status not in CLIENT_CODE:
                known = ", ".join(CLIENT_CODE)
                raise CommandInvalid(
                    "invalid", f"no client status {query.status!r}, known are {known}"
                )
            rows = rows[table.client[rows] == CLIENT_CODE[query.status]]
        if query.id:
            rows = rows[_match(table.key[rows], query.id, ALLOC_SALT)]
        # Newest first; a row number says nothing about age.
        rows = rows[np.argsort(-table.key[rows], kind="stable")]
        lines = projections.alloc_summaries(self._state, _page_rows(rows, query))
        return AllocsAnswer(**self._at, allocations=lines, total=len(rows))

    def find_alloc(self, text: str) -> int:
        """Find an allocation's row by its id, the one beginning of it that fits, or its name."""
        table = self._state.allocations
        live = table.live_rows()
        if not text:
            raise CommandInvalid("invalid", "which allocation? an id or the beginning of one")
        named = _NAME.fullmatch(text)
        if named:
            found = self._named(*named.groups())
        else:
            found = live[_match(table.key[live], text, ALLOC_SALT)]
        _only(shown_ids(table.key[found[:AMBIGUOUS_SHOWN]], ALLOC_SALT), "allocation", text)
        return int(found[0])

    def _alloc(self, query: Query) -> AllocAnswer:
        row = self.find_alloc(query.id)
        found = np.array([row], dtype=np.int32)
        summary = projections.alloc_summaries(self._state, found, with_tasks=True)[0]
        tasks = TASKS.decode(summary.tasks)
        failed = [
            f"task {name} ended with {_ending(task)} after {task.restarts} restarts"
            for name, task in sorted(tasks.items())
            if task.failed
        ]
        ended = [
            event.message
            for task in tasks.values()
            for event in task.events
            if event.kind == "Killing"
        ]
        reason = projections.why(
            self._state, row, "; ".join(failed), ended=ended[0] if ended else ""
        )
        waits = [
            f"task {name}: {task.events[-1].kind} {task.events[-1].message}"
            for name, task in sorted(tasks.items())
            if task.state == "pending" and task.events
        ]
        if summary.client_status == "pending" and summary.desired_status == "run" and waits:
            reason = "; ".join(waits)
        holding = self._state.allocations.holdings.get(row)
        return AllocAnswer(
            **self._at,
            allocation=summary,
            ports=offered.alloc_ports(self._state, row),
            resources=offered.alloc_parts(self._state, row),
            variant=holding.variant if holding is not None else 0,
            tasks=dict(sorted(tasks.items())),
            why=reason,
        )

    def _named(self, job_id: str, group: str, index: str) -> Rows:
        """The newest allocation of that name, one that has not ended before all that have."""
        table = self._state.allocations
        rows = table.rows_of(JobId(job_id))
        names = [table.groups.names[ref] == group for ref in table.group[rows].tolist()]
        rows = rows[np.array(names, dtype=bool) & (table.index[rows] == int(index))]
        newest: Rows = rows[np.lexsort((-table.key[rows], TERMINAL[table.client[rows]]))][:1]
        return newest

    # ---- evaluations ----

    def _evals(self, query: Query) -> EvalsAnswer:
        table = self._state.evaluations
        if query.job_id:
            keys = self._histories.of_job(self._find_job(query.job_id).id)
        else:
            keys = sorted(table.by_key, reverse=True)
        found = [
            key for key in keys if not query.status or table.by_key[key].status == query.status
        ]
        page = tuple(projections.eval_summary(table.by_key[key]) for key in _page(found, query))
        return EvalsAnswer(**self._at, evaluations=page, total=len(found))

    def _queue(self, query: Query) -> WaitingAnswer:
        found = [
            line
            for line in waiting_lines(self._state, self._histories.since_ns)
            if not query.job_id or line.job == query.job_id
        ]
        page = tuple(_page(found, query))
        return WaitingAnswer(**self._at, waiting=page, total=len(found))

    def _eval(self, query: Query) -> EvalAnswer:
        table = self._state.evaluations
        if not query.id:
            raise CommandInvalid("invalid", "which evaluation? an id or the beginning of one")
        keys = np.fromiter(table.by_key, dtype=np.int64, count=len(table.by_key))
        found = keys[_match(keys, query.id, EVAL_SALT)]
        _only(shown_ids(found[:AMBIGUOUS_SHOWN], EVAL_SALT), "evaluation", query.id)
        one = table.by_key[EvalKey(int(found[0]))]
        after = [table.by_key[key] for key in self._histories.of_job(one.job_id)]
        shown = projections.eval_summary(one)
        if parked_behind(self._state, one):
            shown = msgspec.structs.replace(shown, parked=True)
        return EvalAnswer(
            **self._at,
            evaluation=shown,
            follow_ups=tuple(projections.eval_summary(e) for e in after if e.previous == one.key),
        )

    # ---- why ----

    def _why_not(self, query: Query) -> WhyAnswer:
        job = self._find_job(query.id or query.job_id)
        row = self.find_node(query.node_id) if query.node_id else None
        return why_not(self._state, self._masks, job, query.group, row=row)

    # ---- the cluster ----

    def _cluster(self, query: Query) -> ClusterAnswer:
        chain = self._replica.chain
        return ClusterAnswer(
            **self._at,
            t_ns=chain.t_ns,
            counts=count_state(self._state),
            epoch=chain.epoch,
            holder=chain.holder,
            fsync=self.lease.fsync,
            replicas=self.lease.replicas,
            foreign=chain.foreign,
            policy=self._state.policy.policy_hash,
            tables=self._state.hashes() if query.id == "hashes" else {},
        )

    def _policy(self, _query: Query) -> PolicyAnswer:
        table = self._state.policy
        return PolicyAnswer(
            **self._at,
            policy=table.policy,
            policy_hash=table.policy_hash,
            modify_index=table.modify_seq,
        )

    def _dead_letters(self, query: Query) -> DeadAnswer:
        newest = list(reversed(self._dead))
        return DeadAnswer(**self._at, messages=_page(newest, query), total=len(newest))


def _window(query: Query) -> slice:
    """Say which part of a list a query wants to see."""
    start = max(query.offset, 0)
    return slice(start, start + query.limit)


def _page(items: Sequence[T], query: Query) -> tuple[T, ...]:
    return tuple(items[_window(query)])


def _page_rows(rows: Rows, query: Query) -> Rows:
    return rows[_window(query)]


def _match(keys: NDArray[np.int64], prefix: str, salt: int) -> NDArray[np.intp]:
    try:
        return match_prefix(keys, prefix, salt)
    except ValueError as err:
        message = f"{prefix!r} is no beginning of an id: hexadecimal digits and dashes"
        raise CommandInvalid("invalid", message) from err


def _only(found: Sequence[str], what: str, prefix: str) -> None:
    if not found:
        raise CommandInvalid("not_found", f"no {what} {prefix!r}")
    if len(found) > 1:
        some = ", ".join(found[:AMBIGUOUS_SHOWN])
        raise CommandInvalid("ambiguous", f"{prefix!r} is not unique among {what}s: {some}")


def _ending(task: TaskShown) -> str:
    if task.signal:
        return f"signal {task.signal}"
    return f"exit code {task.exit_code}" if task.exit_code is not None else "an unknown exit code"
