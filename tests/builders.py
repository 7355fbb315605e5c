"""Builders with defaults, and a cluster in one state that decides commands the way the applier does."""

from typing import Any

import msgspec

from schemas.base import EvalKey, Event, JobId, NodeId
from schemas.envelope import AnyCommand
from schemas.jobs import GroupSpec, RegisterJob, StopJob
from schemas.nodes import AllocReport, NodeSpec, ReportNode
from schemas.plans import GroupPlacement, Origin, SubmitPlan
from schemas.policy import ClusterCreated, Policy
from shared.core.decide.consequences import apply_facts
from shared.core.decide.garbage import LogTimeIndex
from shared.core.decide.route import decide
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place
from shared.core.state.invariants import check
from shared.core.state.state import State

SECOND = 1_000_000_000


def group(name: str = "web", **fields: Any) -> GroupSpec:
    fields = {"count": 1, "cpu_mhz": 100, "memory_mib": 100, "digest": "d1"} | fields
    return GroupSpec(name=name, **fields)


def register(job_id: str = "app", *groups: GroupSpec, **fields: Any) -> RegisterJob:
    spec = msgspec.json.encode({"ID": job_id, "groups": groups, "salt": fields.pop("salt", 0)})
    fields = {"submission_id": f"s-{job_id}-{len(spec)}", "digest": "x"} | fields
    return RegisterJob(
        job_id=JobId(job_id), groups=groups or (group(),), spec=msgspec.Raw(spec), **fields
    )


def stop(job_id: str = "app", **fields: Any) -> StopJob:
    fields = {"submission_id": f"stop-{job_id}", "digest": "y"} | fields
    return StopJob(job_id=JobId(job_id), **fields)


def node(node_id: str = "n1", **fields: Any) -> NodeSpec:
    fields = {"cpu_mhz": 1000, "memory_mib": 1000, "disk_mib": 1000} | fields
    return NodeSpec(node_id=NodeId(node_id), **fields)


def join(
    node_id: str = "n1", *, number: int = 1, host: str = "", boot: str = "b1", **fields: Any
) -> ReportNode:
    return ReportNode(
        node_id=NodeId(node_id),
        host_id=host or f"host-{node_id}",
        boot_id=boot,
        number=number,
        spec=node(node_id, **fields),
    )


class Cluster:
    """A state, and the commands that made it. Every transaction leaves the invariants whole."""

    def __init__(self, *, policy: Policy | None = None) -> None:
        self.state = State()
        self.horizon = LogTimeIndex()
        self.now_ns = 1_000 * SECOND
        self.masks = PlacementCache()
        self.numbers: dict[str, int] = {}
        self.shrinks = False
        self.apply(ClusterCreated(cluster_id="c1", policy=policy or Policy()))

    def apply(self, *events: Event) -> None:
        self.state.begin(self.state.seq + 1, self.now_ns)
        self.horizon.note(self.state.seq, self.now_ns)
        for event in events:
            self.state.evolve(event, self.state.seq)
        self.check()

    def check(self) -> None:
        assert check(self.state, capacity=not self.shrinks) == []

    def do(self, *commands: AnyCommand) -> list[Event]:
        """Decide commands in one transaction; return its events."""
        seq = self.state.seq + 1
        self.state.begin(seq, self.now_ns)
        self.horizon.note(seq, self.now_ns)
        out: list[Event] = []
        for command in commands:
            events = decide(self.state, command, self.now_ns, self.horizon)
            out += apply_facts(self.state, events, self.now_ns)
        self.check()
        return out

    def later(self, seconds: float) -> "Cluster":
        self.now_ns += int(seconds * SECOND)
        return self

    # ---- what a worker does ----

    def pending(self, job_id: str = "app") -> EvalKey:
        """The oldest pending evaluation of a job."""
        table = self.state.evaluations
        keys = [
            k for k in table.open_of.get(JobId(job_id), {}) if table.by_key[k].status == "pending"
        ]
        assert keys, f"no pending evaluation of {job_id}"
        return keys[0]

    def propose(self, job_id: str = "app", *, lane: int = 0, lanes: int = 1) -> Proposal:
        snapshot = Snapshot(self.state, self.state.allocations.held, self.masks)
        assignment = Assignment(self.pending(job_id), JobId(job_id))
        return place(snapshot, assignment, seed=0, lane=lane, lanes=lanes)

    def plan(
        self, job_id: str = "app", *, worker: str = "w1", key: EvalKey | None = None, **fields: Any
    ) -> SubmitPlan:
        """A plan as a worker would send it now; `fields` override."""
        proposal = self.propose(job_id) if "placements" not in fields else None
        number = self.numbers[worker] = self.numbers.get(worker, 0) + 1
        origin = Origin(worker=worker, number=number, snapshot_seq=self.state.seq)
        base: dict[str, Any] = {"end": "complete"}
        if proposal is not None:
            base |= {
                name: getattr(proposal, name)
                for name in (
                    "placements",
                    "stops",
                    "updates",
                    "evictions",
                    "all_at_once",
                    "end",
                    "end_reason",
                    "follow_ups",
                    "sizes",
                    "decision",
                )
            }
        return SubmitPlan(
            key=key or self.pending(job_id), job_id=JobId(job_id), origin=origin, **(base | fields)
        )

    def schedule(self, job_id: str = "app") -> list[Event]:
        """Plan and commit the oldest pending evaluation of a job."""
        return self.do(self.plan(job_id))

    def run(self, command: RegisterJob) -> list[Event]:
        """Submit a job and schedule it."""
        self.do(command)
        return self.schedule(command.job_id)

    # ---- what an agent does ----

    def report(self, node_id: str, *states: tuple[int, str], **fields: Any) -> list[Event]:
        """Report (allocation row, status) pairs of a node."""
        fleet = self.state.fleet
        row = fleet.row_of[NodeId(node_id)]
        entries = tuple(
            AllocReport(key=int(self.state.allocations.key[at]), row=at, status=status)
            for at, status in states
        )
        base = {
            "host_id": fleet.host_ids[row],
            "boot_id": fleet.boot_ids[row],
            "number": int(fleet.reports_seen[row]) + 1,
            "states": entries,
        }
        return self.do(ReportNode(node_id=NodeId(node_id), **(base | fields)))

    def rows(self, job_id: str = "app", *, alive: bool = True) -> list[int]:
        table = self.state.allocations
        rows = table.rows_of(JobId(job_id))
        if alive:
            rows = rows[(table.desired[rows] == 0) & (table.client[rows] < 2)]
        return rows.tolist()

    def nodes_of(self, job_id: str = "app") -> list[str]:
        table = self.state.allocations
        return sorted(self.state.fleet.ids[int(table.node[row])] for row in self.rows(job_id))


def placement(rows: tuple[int, ...], counts: tuple[int, ...], **fields: Any) -> GroupPlacement:
    fields = {"group": "web", "version": 0, "names": (0, sum(counts))} | fields
    return GroupPlacement(rows=rows, counts=counts, **fields)
