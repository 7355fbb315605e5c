"""Answers of `query.<noun>`: one function for each noun, from the state to a Struct of schemas/answers.py.

The view's role holds a request until the state is new enough, and bounds `limit`; lists are cut at it.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.answers import (
    ClusterAnswer,
    DeadAnswer,
    DeadLine,
    DeploymentAnswer,
    DeploymentsAnswer,
    PolicyAnswer,
    QueryAnswer,
)
from schemas.bounds import QUERY_LIMIT_MAX
from schemas.bus_answers import BusStatus
from schemas.envelope import LeaseHeld
from schemas.evaluation_answers import EvalAnswer, EvalsAnswer, WaitingAnswer, WhyAnswer
from schemas.job_answers import (
    PlanAnswer,
)
from schemas.node_answers import (
    AllocAnswer,
    AllocsAnswer,
    NodeAnswer,
    NodesAnswer,
    ResourcesAnswer,
    TaskShown,
)
from schemas.projections import EvalSummary, NodeSummary, PlanQuery, Query
from schemas.rollout_answers import RolloutAnswer, RolloutsAnswer
from schemas.variable_answers import (
    KeyLine,
    KeysAnswer,
    SigningKeyLine,
    SigningKeysAnswer,
    VariableLine,
    VariablesAnswer,
)
from schemas.volume_answers import ClaimsAnswer, VolumesAnswer
from shared.core.runtime.replica import Replica
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.state.counts import count_state
from shared.core.state.ids import ALLOC_SALT, DEPLOYMENT_SALT, EVAL_SALT
from shared.core.state.state import State
from shared.core.state.tables.allocations import CLIENT_CODE
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.variable_locks import LockRow
from shared.core.state.tables.variables import VariableRow
from shared.errors import CommandInvalid
from shared.jobspec.plugin_drivers import check_plugin_drivers
from shared.jobspec.submission import read_submission
from shared.query import deployments, projections, resource_usage, rollouts
from shared.query.claims import claim_lines
from shared.query.drain_status import drain_end, drain_status
from shared.query.evaluation_index import EvaluationIndex
from shared.query.evaluation_summary import eval_summary
from shared.query.explain import explain_candidate
from shared.query.host_volumes import volume_lines
from shared.query.job_plan import plan_job
from shared.query.job_progress import SettlingClock
from shared.query.jobs import JobAnswers
from shared.query.lookup import (
    find_alloc,
    find_deployment,
    find_evaluation,
    find_job,
    find_node,
    match_ids,
)
from shared.query.pages import AnswerPosition, answer_position, page_of, page_rows
from shared.query.service_catalog import ServiceCatalog
from shared.query.task_causes import wait_text
from shared.query.wait_queue import waiting_lines
from shared.release import RELEASE

LIMIT_MAX = QUERY_LIMIT_MAX
TASKS = msgspec.json.Decoder(dict[str, TaskShown])


class QueryEngine:
    """All queries. Raises CommandInvalid (code invalid, not_found or ambiguous) for an invalid one."""

    def __init__(
        self,
        replica: Replica,
        histories: EvaluationIndex,
        dead: deque[DeadLine],
        clock: SettlingClock,
    ) -> None:
        self._replica = replica
        self._histories = histories
        self._dead = dead
        self._masks = PlacementCache()
        self._clock = clock
        self.catalog = ServiceCatalog()
        self.lease = LeaseHeld(holder="", cluster_id="")
        #: alarms for operators beside the capacity of the log.
        self.alarms: tuple[str, ...] = ()
        #: the servers of the bus, when they were last looked at.
        self.bus = BusStatus()
        self.jobs = JobAnswers(replica, histories, clock)

    @property
    def _by_noun(self) -> dict[str, Callable[[Query], QueryAnswer]]:
        return {
            **self.jobs.by_noun,
            "policy": self._policy,
            "nodes": self._nodes,
            "node": self._node,
            "allocs": self._allocs,
            "alloc": self._alloc,
            "evals": self._evals,
            "eval": self._eval,
            "deployments": self._deployments,
            "deployment": self._deployment,
            "rollouts": self._rollouts,
            "rollout": self._joint_rollout,
            "services": self._services,
            "service": self._service,
            "waiting": self._queue,
            "cluster": self._cluster,
            "resources": self._resources,
            "variables": self._variables,
            "keys": self._keys,
            "signing_keys": self._signing_keys,
            "claims": self._claims,
            "volumes": self._volumes,
            "dead": self._dead_letters,
            "why_not": self._why_not,
        }

    def answer(self, noun: str, query: Query) -> QueryAnswer:
        """Answer one query from the state as it is."""
        by_noun = self._by_noun
        found = by_noun.get(noun)
        if found is None:
            known = ", ".join(sorted((*by_noun, "plan")))
            raise CommandInvalid("invalid", f"unknown query {noun!r}; expected one of {known}")
        return found(msgspec.structs.replace(query, limit=min(max(query.limit, 0), LIMIT_MAX)))

    def plan(self, query: PlanQuery) -> PlanAnswer:
        """Describe what registering a job would do."""
        remotes = self._state.policy.policy.remote_drivers
        accepted = {name: getattr(query, name) for name in ("accept_unbuilt", "accept_unknown")}
        body = msgspec.json.encode({"Job": query.job, **accepted})
        submission = read_submission(body, "submit", remotes)
        submission = check_plugin_drivers(submission, self._state.fleet.attributes)
        answer = plan_job(self._state, self._masks, submission)
        return msgspec.structs.replace(answer, **self._at)

    @property
    def _state(self) -> State:
        return self._replica.state

    @property
    def _at(self) -> AnswerPosition:
        return answer_position(self._replica)

    # ---- nodes ----

    def _nodes(self, query: Query) -> NodesAnswer:
        fleet = self._state.fleet
        counts = projections.allocation_counts(self._state)
        ids = sorted(
            one
            for one, row in fleet.row_of.items()
            if one.startswith(query.id) or fleet.specs[row].name.startswith(query.id)
        )
        rows = [fleet.row_of[one] for one in ids]
        if query.status:
            lines = [self._node_line(row, counts) for row in rows]
            lines = [line for line in lines if line.status == query.status]
            return NodesAnswer(**self._at, nodes=page_of(lines, query), total=len(lines))
        page = tuple(self._node_line(row, counts) for row in page_of(rows, query))
        return NodesAnswer(**self._at, nodes=page, total=len(rows))

    def _node_line(self, row: int, counts: NDArray[np.int64]) -> NodeSummary:
        return projections.node_summary(self._state, row, int(counts[row]))

    def _node(self, query: Query) -> NodeAnswer:
        row = find_node(self._state, query.id or query.node_id)
        state = self._state
        rows = state.allocations.on_nodes(np.asarray([row], dtype=np.int32))
        spec = state.fleet.shown(row)
        shown = page_rows(projections.display_order(state, rows), query)
        return NodeAnswer(
            **self._at,
            nodes=(self._node_line(row, projections.allocation_counts(state)),),
            attributes=spec.attributes,
            meta=spec.meta,
            ports=resource_usage.node_ports(state, rows),
            allocations=projections.alloc_summaries(state, shown),
            allocations_total=len(rows),
            drain=drain_status(state, row),
            drained=drain_end(state, row),
        )

    def _resources(self, query: Query) -> ResourcesAnswer:
        lines = resource_usage.all_pools(self._state, query.id)
        return ResourcesAnswer(
            **self._at,
            pools=page_of(lines, query),
            declared=resource_usage.declared(self._state),
            total=len(lines),
        )

    # ---- allocations ----

    def _allocs(self, query: Query) -> AllocsAnswer:
        table = self._state.allocations
        rows = (
            table.rows_of(find_job(self._state, query.job_id).id)
            if query.job_id
            else table.live_rows()
        )
        if query.node_id:
            rows = rows[table.node[rows] == find_node(self._state, query.node_id)]
        if query.status:
            if query.status not in CLIENT_CODE:
                known = ", ".join(CLIENT_CODE)
                raise CommandInvalid(
                    "invalid", f"unknown client status {query.status!r}; expected one of {known}"
                )
            rows = rows[table.client[rows] == CLIENT_CODE[query.status]]
        if query.id:
            rows = rows[match_ids(table.key[rows], query.id, ALLOC_SALT)]
        # Newest first; row numbers are not ordered by age.
        rows = rows[np.argsort(-table.key[rows], kind="stable")]
        lines = projections.alloc_summaries(self._state, page_rows(rows, query))
        return AllocsAnswer(**self._at, allocations=lines, total=len(rows))

    def _alloc(self, query: Query) -> AllocAnswer:
        row = find_alloc(self._state, query.id)
        found = np.array([row], dtype=np.int32)
        summary = projections.alloc_summaries(self._state, found, with_tasks=True)[0]
        tasks = TASKS.decode(summary.tasks)
        failed = [
            f"task {name} ended with {_exit_text(task)} after {task.restarts} restarts"
            for name, task in sorted(tasks.items())
            if task.failed
        ]
        ended = [
            event.message
            for task in tasks.values()
            for event in task.events
            if event.kind == "Killing"
        ]
        reason = projections.status_reason(
            self._state, row, "; ".join(failed), ended=ended[0] if ended else ""
        )
        waits = [
            wait_text(name, task)
            for name, task in sorted(tasks.items())
            if task.state == "pending" and task.events
        ]
        if summary.client_status == "pending" and summary.desired_status == "run" and waits:
            reason = "; ".join(waits)
        holding = self._state.allocations.holdings.get(row)
        return AllocAnswer(
            **self._at,
            allocation=summary,
            ports=resource_usage.alloc_ports(self._state, row),
            resources=resource_usage.alloc_shares(self._state, row),
            variant=holding.variant if holding is not None else 0,
            tasks=dict(sorted(tasks.items())),
            why=reason,
        )

    # ---- evaluations ----

    def _evals(self, query: Query) -> EvalsAnswer:
        table = self._state.evaluations
        if query.job_id:
            keys = self._histories.of_job(find_job(self._state, query.job_id).id)
        else:
            keys = sorted(table.by_key, reverse=True)
        if query.id:
            keys = [keys[at] for at in match_ids(np.array(keys, np.int64), query.id, EVAL_SALT)]
        found = [
            key for key in keys if not query.status or table.by_key[key].status == query.status
        ]
        page = tuple(self._shown(table.by_key[key]) for key in page_of(found, query))
        return EvalsAnswer(**self._at, evaluations=page, total=len(found))

    def _queue(self, query: Query) -> WaitingAnswer:
        found = [
            line
            for line in waiting_lines(self._state, self._histories.since_ns, self._histories.shapes)
            if not query.job_id or line.job == query.job_id
        ]
        page = tuple(page_of(found, query))
        return WaitingAnswer(**self._at, waiting=page, total=len(found))

    def _eval(self, query: Query) -> EvalAnswer:
        table = self._state.evaluations
        one = find_evaluation(self._state, query.id)
        after = [table.by_key[key] for key in self._histories.of_job(one.job_id)]
        return EvalAnswer(
            **self._at,
            evaluation=self._shown(one),
            follow_ups=tuple(self._shown(e) for e in after if e.previous == one.key),
        )

    def _shown(self, one: Evaluation) -> EvalSummary:
        return eval_summary(self._state, one, self._histories.shapes)

    # ---- rollouts ----

    def _rollouts(self, query: Query) -> RolloutsAnswer:
        found = rollouts.listed_rollouts(self._state, query.job_id, query.status, query.id)
        page = tuple(rollouts.rollout_line(one) for one in page_of(found, query))
        return RolloutsAnswer(**self._at, rollouts=page, total=len(found))

    def _joint_rollout(self, query: Query) -> RolloutAnswer:
        one = rollouts.find_rollout(self._state, query.id)
        return RolloutAnswer(
            **self._at,
            rollout=rollouts.rollout_line(one),
            members=rollouts.member_lines(self._state, one),
        )

    # ---- deployments ----

    def _deployments(self, query: Query) -> DeploymentsAnswer:
        job_id = find_job(self._state, query.job_id).id if query.job_id else ""
        found = deployments.listed_deployments(self._state, job_id, query.status)
        if query.id:
            keys = np.array([one.key for one in found], np.int64)
            found = [found[at] for at in match_ids(keys, query.id, DEPLOYMENT_SALT)]
        page = tuple(deployments.deployment_line(one) for one in page_of(found, query))
        return DeploymentsAnswer(**self._at, deployments=page, total=len(found))

    def _deployment(self, query: Query) -> DeploymentAnswer:
        one = find_deployment(self._state, query.id, query.job_id)
        rows = deployments.deployment_rows(self._state, one)
        shown = page_rows(projections.display_order(self._state, rows), query)
        return DeploymentAnswer(
            **self._at,
            deployment=deployments.deployment_line(one),
            waits=deployments.deployment_waits(self._state, one, self._histories.shapes),
            allocations=projections.alloc_summaries(self._state, shown),
            allocations_total=len(rows),
        )

    # ---- services ----

    def _services(self, query: Query) -> QueryAnswer:
        return msgspec.structs.replace(self.catalog.services(self._state, query), **self._at)

    def _service(self, query: Query) -> QueryAnswer:
        return msgspec.structs.replace(self.catalog.service(self._state, query), **self._at)

    # ---- variables ----

    def _variables(self, query: Query) -> VariablesAnswer:
        table, locks = self._state.variables, self._state.variable_locks
        paths = table.paths(query.id)
        # The path of a lock need not have items.
        bare = [one for one in locks.held(query.id) if table.find(one) is None]
        if bare:
            paths = sorted([*paths, *bare])
        lines = [
            _variable_line(path, table.find(path), locks.by_path.get(path))
            for path in page_of(paths, query)
        ]
        return VariablesAnswer(**self._at, variables=tuple(lines), total=len(paths))

    def _keys(self, query: Query) -> KeysAnswer:
        found = [
            KeyLine(key_id=key_id, public=row.public, create_seq=row.create_seq)
            for key_id, row in reversed(self._state.variables.keys.items())
        ]
        return KeysAnswer(**self._at, keys=page_of(found, query), total=len(found))

    def _signing_keys(self, query: Query) -> SigningKeysAnswer:
        found = [
            SigningKeyLine(
                key_id=key_id,
                algorithm=row.algorithm,
                public=row.public,
                create_seq=row.create_seq,
                create_ns=row.create_ns,
            )
            for key_id, row in reversed(self._state.signing_keys.by_id.items())
        ]
        return SigningKeysAnswer(**self._at, keys=page_of(found, query), total=len(found))

    def _volumes(self, query: Query) -> VolumesAnswer:
        found = volume_lines(self._state, query)
        return VolumesAnswer(**self._at, volumes=page_of(found, query), total=len(found))

    def _claims(self, query: Query) -> ClaimsAnswer:
        found = claim_lines(self._state, query.job_id)
        return ClaimsAnswer(**self._at, claims=page_of(found, query), total=len(found))

    # ---- why ----

    def _why_not(self, query: Query) -> WhyAnswer:
        job = find_job(self._state, query.id or query.job_id)
        row = find_node(self._state, query.node_id) if query.node_id else None
        shapes = self._histories.shapes
        return explain_candidate(self._state, self._masks, job, query.group, row=row, shapes=shapes)

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
            alarms=tuple(text for text in (self._replica.room.alarm, *self.alarms) if text),
            release=RELEASE,
            # Without servers it is of a past moment.
            bus=msgspec.structs.replace(
                self.bus, answered_ns=self._clock.now_ns if self.bus.servers else 0
            ),
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
        return DeadAnswer(**self._at, messages=page_of(newest, query), total=len(newest))


def _variable_line(path: str, row: VariableRow | None, lock: LockRow | None) -> VariableLine:
    """A path with items or a lock, as far as the log has it in plain."""
    line = VariableLine(path=path, revision=0)
    if row is not None:
        line = VariableLine(
            path=path,
            revision=row.revision,
            create_seq=row.create_seq,
            create_ns=row.create_ns,
            modify_ns=row.modify_ns,
            items=row.items,
            size=row.size,
        )
    if lock is None or not lock.lock:
        return line
    return msgspec.structs.replace(
        line,
        lock_seq=lock.since_seq,
        lock_ttl_ms=lock.ttl_ns // 1_000_000,
        lock_delay_ms=lock.delay_ns // 1_000_000,
    )


def _exit_text(task: TaskShown) -> str:
    if task.signal:
        return f"signal {task.signal}"
    return f"exit code {task.exit_code}" if task.exit_code is not None else "an unknown exit code"
