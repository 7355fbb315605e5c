"""A log made without a bus: one submission after the other, decided and committed by the functions of the core.

Decides what such a log holds: nodes, jobs, a plan for each, checkpoints as an applier writes them. For benchmarks that
read a log and do not care how long its making took. Next: `p20.py`.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from schemas.base import Event
from schemas.envelope import CORE_VERSION, AnyCommand, LeaseHeld
from schemas.envelope import Record as LogRecord
from schemas.jobs import JobRegistered, RegisterJob
from schemas.nodes import NodeSpec, ReportNode
from schemas.plans import Origin, SubmitPlan
from schemas.policy import ClusterCreated, Policy
from shared.bus import subjects
from shared.core.decide.garbage import Horizon
from shared.core.decide.route import decide
from shared.core.log import seal
from shared.core.place import Assignment, MaskCache, Snapshot, place
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.splitmix import splitmix64
from shared.jobspec.submission import command_of, read_submission

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
CHECKPOINT_EVERY = 1000
_NODES_AT_ONCE = 200


class Written:
    """A log that grows by what is done to the cluster; `records` is all of it."""

    def __init__(self, cluster_id: str = "written", policy: Policy | None = None) -> None:
        self.records: list[Record] = []
        self.replica = Replica()
        self.now_ns = START_NS
        self._masks = MaskCache()
        self._horizon = Horizon()
        self._plans = 0
        held = LeaseHeld(holder="applier-1", cluster_id=cluster_id, fsync=True)
        self._seal(self.replica.chain.draft("lease", self.now_ns, lease=held))
        self._commit([ClusterCreated(cluster_id=cluster_id, policy=policy or Policy())])

    def nodes(self, specs: Iterable[NodeSpec]) -> None:
        """Register nodes, many in a transaction."""
        some: list[AnyCommand] = []
        for spec in specs:
            some.append(
                ReportNode(
                    node_id=spec.node_id,
                    host_id=f"host-of-{spec.node_id}",
                    boot_id="boot-1",
                    number=1,
                    spec=spec,
                )
            )
            if len(some) == _NODES_AT_ONCE:
                self.take(some)
                some = []
        if some:
            self.take(some)

    def job(self, job: dict[str, Any]) -> None:
        """Register a job, as Nomad's JSON, and commit the plan that is made of it."""
        command = command_of(read_submission(orjson.dumps({"Job": job}), "submit"), job["ID"])
        assert isinstance(command, RegisterJob)
        events = self.take([command])
        key = next(one.evaluation for one in events if isinstance(one, JobRegistered))
        self.take([self._plan(Assignment(key, command.job_id, "job-register"))])

    def take(self, commands: Iterable[AnyCommand]) -> list[Event]:
        """Decide commands as one transaction; a millisecond goes by."""
        self.now_ns += MS
        state = self.replica.state
        state.begin(self.replica.next_seq, self.now_ns)
        events: list[Event] = []
        for command in commands:
            for event in decide(state, command, self.now_ns, self._horizon):
                state.evolve(event, state.seq)
                events.append(event)
        self._seal(self.replica.chain.draft("tx", self.now_ns, events=events))
        self._checkpoint()
        return events

    def close(self) -> list[Record]:
        """End with a checkpoint; returns the log."""
        self._write_checkpoint()
        return self.records

    def _plan(self, assignment: Assignment) -> SubmitPlan:
        state = self.replica.state
        seed = splitmix64(assignment.key)
        snapshot = Snapshot(state, state.allocations.held, self._masks)
        proposal = place(snapshot, assignment, seed=seed, lane=0, lanes=1)
        self._plans += 1
        origin = Origin(
            worker="scheduler-1",
            number=self._plans,
            snapshot_seq=state.seq,
            policy=state.policy.policy_hash,
            seed=seed,
            core=CORE_VERSION,
        )
        return SubmitPlan(
            key=assignment.key,
            job_id=assignment.job_id,
            origin=origin,
            all_at_once=proposal.all_at_once,
            placements=proposal.placements,
            stops=proposal.stops,
            updates=proposal.updates,
            evictions=proposal.evictions,
            end=proposal.end,
            end_reason=proposal.end_reason,
            follow_ups=proposal.follow_ups,
            decision=proposal.decision,
        )

    def _commit(self, events: list[Event]) -> None:
        state = self.replica.state
        state.begin(self.replica.next_seq, self.now_ns)
        for event in events:
            state.evolve(event, state.seq)
        self._seal(self.replica.chain.draft("tx", self.now_ns, events=events))

    def _checkpoint(self) -> None:
        if self.replica.seq % CHECKPOINT_EVERY == 0:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        tables = self.replica.state.hashes()
        self._seal(self.replica.chain.draft("checkpoint", self.now_ns, tables=tables))

    def _seal(self, record: LogRecord) -> None:
        data, digest = seal(record)
        seq = self.replica.next_seq
        self.records.append(Record(seq, subjects.log(1, record.kind), data))
        self.replica.wrote(seq, record, digest, len(data))
