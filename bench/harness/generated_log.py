"""A log made without a bus: submissions decided and committed one after the other by the functions of the core.

It holds nodes, jobs, a plan for each job, and checkpoints as an applier writes them. For benchmarks that read a log.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from schemas.base import Event
from schemas.envelope import CORE_VERSION, AnyCommand, LeaseHeld, LogRecord
from schemas.jobs import JobRegistered, RegisterJob
from schemas.nodes import NodeSpec, ReportNode
from schemas.plans import Origin, SubmitPlan
from schemas.policy import ClusterCreated, Policy
from shared.core.decide.consequences import apply_facts
from shared.core.decide.garbage import LogTimeIndex
from shared.core.decide.route import decide
from shared.core.runtime.chain import seal
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Snapshot
from shared.core.scheduling.place import place
from shared.core.splitmix import splitmix64
from shared.jobspec.submission import read_submission, to_command
from shared.protocol import subjects

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
CHECKPOINT_EVERY = 1000
_NODES_AT_ONCE = 200


class GeneratedLog:
    """A log that grows with each command; `records` is all of it."""

    def __init__(self, cluster_id: str = "written", policy: Policy | None = None) -> None:
        self.records: list[Record] = []
        self.replica = Replica()
        self.now_ns = START_NS
        self._masks = PlacementCache()
        self._horizon = LogTimeIndex()
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
        """Register a job, as Nomad's JSON, and commit its plan."""
        command = to_command(read_submission(orjson.dumps({"Job": job}), "submit"), job["ID"])
        assert isinstance(command, RegisterJob)
        events = self.take([command])
        key = next(one.evaluation for one in events if isinstance(one, JobRegistered))
        self.take([self._plan(Assignment(key, command.job_id, "job-register"))])

    def take(self, commands: Iterable[AnyCommand]) -> list[Event]:
        """Decide commands as one transaction; time advances by a millisecond."""
        self.now_ns += MS
        state = self.replica.state
        state.begin(self.replica.next_seq, self.now_ns)
        events: list[Event] = []
        for command in commands:
            decided = decide(state, command, self.now_ns, self._horizon)
            events += apply_facts(state, decided, self.now_ns)
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
        return proposal.to_command(assignment.key, assignment.job_id, origin)

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
