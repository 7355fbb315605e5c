"""A state without a bus, for benchmarks of the scheduler alone.

Nodes and jobs enter the state by the events that the log would hold; jobs are read and compiled as a submission is.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from schemas.base import EvalKey, JobId
from schemas.jobs import RegisterJob
from schemas.nodes import NodeRegistered, NodeSpec, Pool, PoolDeclared
from schemas.plans import Origin, PlanCommitted
from schemas.policy import ClusterCreated, Policy
from shared.core.decide.job_fields import registration_of
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place
from shared.core.state.state import State
from shared.jobspec.submission import read_submission, to_command

SECOND_NS = 1_000_000_000


class InProcessState:
    """A state, and what a worker keeps between decisions."""

    def __init__(self, nodes: Iterable[NodeSpec], policy: Policy | None = None) -> None:
        self.state = State()
        self.masks = PlacementCache()
        self.state.begin(1, SECOND_NS)
        self.state.evolve(ClusterCreated(cluster_id="bench", policy=policy or Policy()), 1)
        for spec in nodes:
            registered = NodeRegistered(spec=spec, host_id=f"host-{spec.node_id}", boot_id="b")
            self.state.evolve(registered, 1)

    def declare(self, pool: Pool) -> None:
        """Describe what the cluster as a whole offers of a pool."""
        self.state.begin(self.state.seq + 1, SECOND_NS)
        self.state.evolve(PoolDeclared(node_id="", pool=pool), self.state.seq)

    def register(self, job: dict[str, Any]) -> JobId:
        """Put a job, as Nomad's JSON, into the state."""
        command = to_command(read_submission(orjson.dumps({"Job": job}), "submit"), job["ID"])
        assert isinstance(command, RegisterJob)
        self.state.begin(self.state.seq + 1, SECOND_NS)
        self.state.evolve(
            registration_of(
                command,
                command.job_id,
                0,
                command.spec,
                submission_id=command.submission_id,
                digest=command.digest,
                evaluation=EvalKey(0),
                warnings=command.warnings,
            ),
            self.state.seq,
        )
        return command.job_id

    def propose(self, job_id: JobId, *, seed: int = 0, fresh: bool = False) -> Proposal:
        """Decide one evaluation of a job; `fresh`: with masks to be computed."""
        if fresh:
            self.masks = PlacementCache()
        assignment = Assignment(EvalKey(0), job_id, "job-register")
        snapshot = Snapshot(self.state, self.state.allocations.held, self.masks)
        return place(snapshot, assignment, seed=seed, lane=0, lanes=1)

    def commit(self, job_id: JobId, proposal: Proposal) -> None:
        """Make a proposal desired state."""
        seq = self.state.seq + 1
        self.state.begin(seq, SECOND_NS)
        event = PlanCommitted(
            key=EvalKey(0),
            job_id=job_id,
            origin=Origin(worker="bench", number=seq, snapshot_seq=seq - 1),
            placements=proposal.placements,
            stops=proposal.stops,
            updates=proposal.updates,
            evictions=proposal.evictions,
        )
        self.state.evolve(event, seq)


def count_placed(proposal: Proposal) -> int:
    """Count what a proposal places."""
    return sum(sum(part.counts) for part in proposal.placements)
