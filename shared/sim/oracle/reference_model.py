"""The reference model: the cluster as read from the log, in plain dicts that share no code with the tables.

After every transaction it checks the invariants of the log. Where it and shared/core disagree about a row, a key or
what a node holds, one of them is wrong, and the oracle reports it.
"""

import heapq

from schemas import allocations, evaluations, jobs, nodes, plans, policy
from schemas.allocations import CLIENT_STATUSES
from schemas.envelope import LogRecord
from shared.sim.environment.pool_model import PoolModel, SlotUse, with_core_mhz
from shared.sim.oracle.dispatch_checks import DispatchChecks
from shared.sim.oracle.invariants import InvariantChecks
from shared.sim.oracle.launch_checks import LaunchChecks
from shared.sim.oracle.reference_joint import ReferenceJoint
from shared.sim.oracle.reference_pace import ReferencePace
from shared.sim.oracle.reference_rollouts import ReferenceRollouts
from shared.sim.oracle.reference_submissions import ReferenceSubmissions
from shared.sim.oracle.reference_variables import ReferenceVariables
from shared.sim.oracle.stateful_checks import StatefulChecks
from shared.sim.oracle.succession_checks import SuccessionChecks
from shared.sim.oracle.version_checks import VersionChecks

KEY_SHIFT = 20
# The oracle has its own copies of these sets: a wrong one in schemas/ must not hide itself.
TERMINAL = frozenset({"complete", "failed", "lost"})
#: Job types with allocation names per node.
SYSTEM_JOB_TYPES = frozenset({"system", "sysbatch"})
#: Allowed transitions of the client status; repeating a status is always allowed.
_LEGAL = {
    "pending": frozenset({"running", "complete", "failed", "lost", "unknown"}),
    # A task that is restarted in place is pending in between.
    "running": frozenset({"pending", "complete", "failed", "lost", "unknown"}),
    "unknown": frozenset({"pending", "running", "complete", "failed", "lost"}),
    "complete": frozenset[str](),
    "failed": frozenset[str](),
    "lost": frozenset[str](),
}
ReferenceAsk = tuple[int, int, int]


class ReferenceAlloc:
    """One allocation."""

    __slots__ = (
        "ask",
        "back_seq",
        "client",
        "desired",
        "ended_seq",
        "evicted_seq",
        "extras",
        "group",
        "index",
        "is_displaced",
        "is_final",
        "job_id",
        "key",
        "node",
        "row",
        "stopped_seq",
        "version",
    )

    def __init__(self, key: int, row: int, node: int, *, job_id: str, group: str) -> None:
        self.key = key
        self.row = row
        self.node = node
        self.job_id = job_id
        self.group = group
        self.index = 0
        self.version = 0
        self.ask: ReferenceAsk = (0, 0, 0)
        #: pool and port holdings.
        self.extras: list[SlotUse] = []
        self.desired = "run"
        self.client = "pending"
        #: seq at which a plan stopped it; 0: none did.
        self.stopped_seq = 0
        #: seq at which it ended; 0: it did not.
        self.ended_seq = 0
        #: seq of its eviction; 0: none.
        self.evicted_seq = 0
        #: an operator stopped it.
        self.is_displaced = False
        #: a drain stopped it, and nothing replaces it in its version.
        self.is_final = False
        #: seq at which it reconnected after its node was away; 0: never.
        self.back_seq = 0

    @property
    def is_wanted(self) -> bool:
        """Whether it is wanted and has not ended."""
        return self.desired == "run" and self.client not in TERMINAL

    def __repr__(self) -> str:
        return (
            f"{self.job_id}.{self.group}[{self.index}] v{self.version} key {self.key} row {self.row} "
            f"node {self.node} {self.desired}/{self.client}"
        )


class ReferenceJob:
    """One job. `groups[version][name]` is (count, ask)."""

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.version = -1
        self.job_type = ""
        self.priority = 0
        self.is_stopped = False
        self.groups: dict[int, dict[str, tuple[int, ReferenceAsk]]] = {}
        self.specs: dict[tuple[int, str], jobs.GroupSpec] = {}


class ReferenceNode:
    """One node."""

    def __init__(self, node_id: str, capacity: ReferenceAsk) -> None:
        self.id = node_id
        self.capacity = capacity
        self.status = "ready"
        #: drain deadline, log time; 0: none; None: not drained.
        self.drain_ns: int | None = None
        #: an operator lets it take nothing new: it drains, or was drained.
        self.is_closed = False
        #: an operator says that nothing runs there any more.
        self.is_confirmed_dead = False
        #: its drain leaves system jobs alone.
        self.spares_system = False
        self.used: list[int] = [0, 0, 0]


class RowAllocator:
    """Row allocator: the lowest free row first."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._high = 0

    def take(self) -> int:
        """Take the lowest free row."""
        if self._free:
            return heapq.heappop(self._free)
        self._high += 1
        return self._high - 1

    def free(self, row: int) -> None:
        """Free a row."""
        heapq.heappush(self._free, row)


class ReferenceModel:
    """The cluster; `apply` checks each transaction."""

    def __init__(self, ledger: InvariantChecks) -> None:
        self.ledger = ledger
        self.jobs: dict[str, ReferenceJob] = {}
        self.nodes: dict[int, ReferenceNode] = {}
        self.allocs: dict[int, ReferenceAlloc] = {}
        #: every allocation ever made, by key.
        self.by_key: dict[int, ReferenceAlloc] = {}
        self.evals: dict[int, str] = {}
        #: meta of nodes set by an operator, by id.
        self.meta: dict[str, dict[str, str | None]] = {}
        #: operator changes of a node: seq, and drain or meta.
        self.drains_of: dict[str, list[tuple[int, bool]]] = {}
        self.metas_of: dict[str, list[tuple[int, dict[str, str | None]]]] = {}
        self.submissions = ReferenceSubmissions(ledger)
        self.transactions = 0
        #: log time.
        self.t_ns = 0
        self.launches = LaunchChecks(ledger, self._has_live)
        self.dispatches = DispatchChecks(ledger)
        self.variables = ReferenceVariables(ledger)
        self.rollouts = ReferenceRollouts(ledger, self._is_wanted)
        self.joint = ReferenceJoint(ledger, self.rollouts)
        self.versions = VersionChecks(ledger, lambda job_id: bool(self.rollouts.active(job_id)))
        self._pace = ReferencePace(self)
        self.succession = SuccessionChecks(ledger, self)
        self.stateful = StatefulChecks(ledger, self)
        self._pools = PoolModel()
        self._rows = RowAllocator()
        self._node_rows = RowAllocator()
        self._row_of: dict[str, int] = {}
        self._wanted: dict[tuple[str, str], set[int]] = {}
        self._of_group: dict[tuple[str, str], list[ReferenceAlloc]] = {}
        self._ordinals = [0, 0]
        self._seq = 0
        #: enters keys: 0 until the log began another.
        self._incarnation = 0

    def apply(self, record: LogRecord, seq: int) -> None:
        """Apply and check one transaction. Raises InvariantBroken."""
        self._seq = seq
        self.t_ns = self.rollouts.t_ns = record.t_ns
        self._ordinals = [0, 0]
        self.transactions += 1
        for event in record.events:
            self.submissions.apply(event, seq)
            self.launches.apply(event, record)
            self.dispatches.apply(event, record)
            self.versions.apply(event, seq)
            self.variables.apply(event, seq, record.t_ns)
            self.stateful.apply(event)
            match event:
                case plans.PlanCommitted():
                    self._plan(event)
                case allocations.AllocationsReported():
                    for row, code in zip(event.rows, event.statuses, strict=True):
                        self._move(row, CLIENT_STATUSES[code])
                case allocations.AllocationsCollected():
                    self._collect(event)
                case allocations.AllocationsDisplaced():
                    for row in event.rows:
                        alloc = self.allocs[row]
                        self.ledger.hold("legal_state_path", alloc.is_wanted, "stop of", alloc)
                        alloc.is_displaced = True
                case nodes.NodeDrainChanged() | nodes.NodeMetaChanged() | nodes.NodeConfirmedDead():
                    self._operated(event)
                case nodes.NodeEligibilityChanged():
                    node = self.nodes[event.row]
                    changes = node.drain_ns is None and node.is_closed == event.eligible
                    self.ledger.hold("legal_state_path", changes, event)
                    node.is_closed = not event.eligible
                case nodes.NodeDrained():
                    self._drained(event)
                case nodes.NodeRegistered() | nodes.NodesStatusChanged() | nodes.NodesCollected():
                    self._nodes(event)
                case policy.IncarnationBegan():
                    rises = event.incarnation > self._incarnation and len(record.events) == 1
                    self.ledger.hold("legal_state_path", rises, event)
                    self._incarnation = event.incarnation
                case _:
                    self._evaluations(event)
                    self._job(event)
                    self.succession.apply(event)
                    self.rollouts.apply(event)
                    self.joint.apply(event)
                    if isinstance(event, allocations.AllocationsHealthChanged):
                        self._pace.take(event, seq)
        self.rollouts.check_gates()
        self.joint.close()

    @property
    def seq(self) -> int:
        """Seq of the last transaction."""
        return self._seq

    @property
    def _number(self) -> int:
        return self._seq + self._incarnation

    def wanted(self, job_id: str, group: str) -> set[int]:
        """Wanted allocations of a group that have not ended."""
        return self._wanted.get((job_id, group), set())

    def alloc_slot(self, job: ReferenceJob, alloc: ReferenceAlloc) -> tuple[int, int]:
        """Name of an allocation, with its node for system jobs."""
        return (alloc.node if job.job_type in SYSTEM_JOB_TYPES else -1), alloc.index

    def node_id(self, alloc: ReferenceAlloc) -> str:
        """Id of the node of an allocation."""
        node = self.nodes.get(alloc.node)
        return "" if node is None else node.id

    def is_drained(self, node_id: str) -> bool:
        """Whether a known node is drained."""
        node = self.nodes.get(self._row_of.get(node_id, -1))
        return node is not None and node.drain_ns is not None

    def is_closed(self, node_id: str) -> bool:
        """Whether a known node takes no new allocations: it drains, or its drain is complete."""
        node = self.nodes.get(self._row_of.get(node_id, -1))
        return node is not None and node.is_closed

    def of_group(self, job: ReferenceJob, group: str) -> list[ReferenceAlloc]:
        """Every allocation that a group ever had, oldest first."""
        return self._of_group.get((job.id, group), [])

    def done(self, job: ReferenceJob, group: str) -> int:
        """Count allocations of a batch job's current version that completed, or were stopped for good."""
        return sum(
            alloc.version == job.version
            and (alloc.is_final or (alloc.client == "complete" and alloc.desired == "run"))
            for alloc in self.of_group(job, group)
        )

    def _is_wanted(self, row: int) -> bool:
        return row in self.allocs and self.allocs[row].is_wanted

    def _has_live(self, job_id: str) -> bool:
        """Tell whether an allocation of a job has not ended."""
        mine = (one for one in self.allocs.values() if one.job_id == job_id)
        return any(one.client not in TERMINAL for one in mine)

    # ---- jobs ----

    def _job(self, event: object) -> None:
        match event:
            case jobs.JobRegistered():
                self._register(event)
            case jobs.JobStopped():
                self.jobs[event.job_id].is_stopped = True
            case jobs.JobsCollected():
                for job_id in event.job_ids:
                    self._forget(job_id)
            case _:
                pass

    def _register(self, event: jobs.JobRegistered) -> None:
        job = self.jobs.setdefault(event.job_id, ReferenceJob(event.job_id))
        if event.version == job.version:
            return
        self.ledger.hold(
            "legal_state_path", event.version > job.version, event.job_id, event.version
        )
        job.version = event.version
        job.job_type = event.job_type
        job.priority = event.priority
        job.is_stopped = event.stopped
        job.specs |= {(event.version, group.name): group for group in event.groups}
        job.groups[event.version] = {
            group.name: (group.count, (group.cpu_mhz, group.memory_mib, group.disk_mib))
            for group in event.groups
        }

    def _forget(self, job_id: str) -> None:
        """Remove a job; it must have no allocations left."""
        job = self.jobs.pop(job_id)
        left = [alloc for alloc in self.allocs.values() if alloc.job_id == job_id]
        self.ledger.hold("forgotten_when_over", not left, job_id, "is removed before", left)
        for groups in job.groups.values():
            for name in groups:
                self._of_group.pop((job_id, name), None)

    # ---- nodes ----

    def _nodes(
        self, event: nodes.NodeRegistered | nodes.NodesStatusChanged | nodes.NodesCollected
    ) -> None:
        if isinstance(event, nodes.NodesStatusChanged):
            for row in event.rows:
                self.nodes[row].status = event.status
                self.nodes[row].is_confirmed_dead &= event.status != "ready"
        elif isinstance(event, nodes.NodesCollected):
            for row in event.rows:
                gone = self.nodes.pop(row).id
                del self._row_of[gone]
                self.meta.pop(gone, None)
                self.ledger.hold("forgotten_when_over", self._pools.gone(row), row, "holds pools")
                self._node_rows.free(row)
        else:
            spec = event.spec
            capacity = (spec.cpu_mhz, spec.memory_mib, spec.disk_mib)
            if spec.node_id not in self._row_of:
                fresh = self._row_of[spec.node_id] = self._node_rows.take()
                self.nodes[fresh] = ReferenceNode(spec.node_id, capacity)
            row = self._row_of[spec.node_id]
            self.nodes[row].capacity = capacity
            self._pools.offered(row, spec)
            self.nodes[row].status = "ready"
            self.nodes[row].is_confirmed_dead = False

    def _operated(
        self, event: nodes.NodeDrainChanged | nodes.NodeMetaChanged | nodes.NodeConfirmedDead
    ) -> None:
        if isinstance(event, nodes.NodeMetaChanged):
            self.ledger.hold("legal_state_path", event.node_id in self._row_of, event)
            self.meta[event.node_id] = event.meta
            self.metas_of.setdefault(event.node_id, []).append((self._seq, event.meta))
            return
        node = self.nodes[event.row]
        if isinstance(event, nodes.NodeConfirmedDead):
            is_away = node.status != "ready" and not node.is_confirmed_dead
            self.ledger.hold("legal_state_path", is_away, event)
            node.is_confirmed_dead = True
            return
        changes = event.draining or node.is_closed
        self.ledger.hold("legal_state_path", changes, event)
        node.drain_ns = event.deadline_ns if event.draining else None
        node.is_closed = event.draining or event.keep_ineligible
        node.spares_system = event.draining and event.ignore_system
        self.drains_of.setdefault(node.id, []).append((self._seq, event.draining))

    def _drained(self, event: nodes.NodeDrained) -> None:
        """A drain ends once nothing is left on its node."""
        node = self.nodes[event.row]
        left = [
            one
            for one in self.allocs.values()
            if one.node == event.row and one.client not in TERMINAL and not self.is_spared(one)
        ]
        self.ledger.hold("drain_waits_for_the_last", node.drain_ns is not None, event)
        self.ledger.hold("drain_waits_for_the_last", not left, event, left)
        node.drain_ns = None

    def is_spared(self, alloc: ReferenceAlloc) -> bool:
        """Whether the drain of its node leaves an allocation alone, since it is of a system job."""
        node, job = self.nodes.get(alloc.node), self.jobs.get(alloc.job_id)
        is_left = node is not None and node.drain_ns is not None and node.spares_system
        return is_left and job is not None and job.job_type == "system"

    # ---- evaluations ----

    def _evaluations(self, event: object) -> None:
        match event:
            case evaluations.EvaluationsCreated():
                for _ in event.evaluations:
                    self.evals[self._number << KEY_SHIFT | self._ordinals[0]] = "open"
                    self._ordinals[0] += 1
            case evaluations.EvaluationsWoken():
                for key in event.keys:
                    self.ledger.hold("one_terminal_fact", self.evals[key] == "open", "woken", key)
            case evaluations.EvaluationEnded():
                was = self.evals.get(event.key)
                self.ledger.hold("one_terminal_fact", was == "open", event.key, "was", was)
                self.evals[event.key] = "ended"
                # A worker survives an evaluation that it cannot decide; here that is a failure.
                decided = event.status != "failed" or event.reason.startswith("handed out")
                self.ledger.hold("roles_go_on", decided, event)
            case evaluations.EvaluationsCollected():
                for key in event.keys:
                    self.ledger.hold("one_terminal_fact", self.evals.pop(key) == "ended", key)
            case _:
                pass

    # ---- allocations ----

    def _plan(self, event: plans.PlanCommitted) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            asks = event.placements or event.updates or event.stops
            self.ledger.hold(
                "count_not_exceeded", not asks, event.job_id, "is gone, planned", event
            )
            return
        before = {name: len(rows) for (of, name), rows in self._wanted.items() if of == job.id}
        self._evict(job, event)
        self._pace.check(job, event)
        self.succession.check(job, event)
        for stop in event.stops:
            for row in stop.rows:
                alloc = self.allocs[row]
                self.ledger.hold("legal_state_path", alloc.job_id == job.id, "stop of", alloc)
                is_kept = self.is_spared(alloc) and alloc.version == job.version
                is_kept = is_kept and not (job.is_stopped or alloc.is_displaced)
                is_told = bool(stop.client_status) or alloc.client == "unknown"
                self.ledger.hold("drain_spares_system", is_told or not is_kept, alloc)
                if alloc.desired != "evict":
                    alloc.desired = "stop"
                    alloc.stopped_seq = self._seq
                alloc.is_final |= stop.final
                self._count(alloc)
                if stop.client_status:
                    self._move(row, stop.client_status)
        for update in event.updates:
            for row in update.rows:
                alloc = self.allocs[row]
                self.ledger.hold("legal_state_path", alloc.job_id == job.id, "update of", alloc)
                self._hold(alloc, -1)
                alloc.version = update.version
                ask = job.groups[update.version][update.group][1]
                alloc.ask = with_core_mhz(ask, alloc.extras)
                self._hold(alloc, 1)
                if update.deployment:
                    self._pace.update(row)
            self.rollouts.update(update)
        touched = {row for placement in event.placements for row in self._place(job, placement)}
        for node in sorted(touched):
            entry = self.nodes[node]
            fits = all(used <= room for used, room in zip(entry.used, entry.capacity, strict=True))
            self.ledger.hold("no_node_oversubscribed", fits, entry.id, entry.used, entry.capacity)
        self.succession.check_rooms(job, touched)
        for placement in event.placements:
            seen = event.origin.snapshot_seq
            self._check_count(job, placement.group, before.get(placement.group, 0), seen)

    def _evict(self, job: ReferenceJob, event: plans.PlanCommitted) -> None:
        """Check evictions: victims are less important by ten, wanted until now, and the node gets a placement."""
        lands = {row for placement in event.placements for row in placement.rows}
        for evictions in event.evictions:
            other = self.jobs.get(evictions.job_id)
            for row in evictions.rows:
                alloc = self.allocs[row]
                fair = other is not None and other.priority <= job.priority - 10
                fair = fair and alloc.job_id == evictions.job_id != job.id and alloc.is_wanted
                self.ledger.hold("evicted_by_rule", fair, alloc, "evicted for", job.id)
                # The placement may be in a later part of the plan.
                useful = alloc.node in lands or event.origin.parts > 1
                self.ledger.hold("evicted_by_rule", useful, alloc, "is evicted without a placement")
                alloc.desired = "evict"
                alloc.evicted_seq = self._seq
                self._hold(alloc, -1)
                self._count(alloc)

    def _place(self, job: ReferenceJob, placement: plans.GroupPlacement) -> list[int]:
        where = [
            row for row, n in zip(placement.rows, placement.counts, strict=True) for _ in range(n)
        ]
        runs = placement.names
        names = [runs[i] + n for i in range(0, len(runs), 2) for n in range(runs[i + 1])]
        # While canaries wait, what was lost comes back in the version that it had.
        known = placement.version in job.groups and not placement.deployment
        current = not job.is_stopped and (placement.version == job.version or known)
        self.ledger.hold("count_not_exceeded", current or not where, job.id, "stale", placement)
        for nth, (node, index) in enumerate(zip(where, names, strict=True)):
            entry = self.nodes.get(node)
            ready = entry is not None and entry.status == "ready" and not entry.is_closed
            self.ledger.hold("placed_on_ready_node", ready, node, entry and entry.status, job.id)
            key = self._number << KEY_SHIFT | self._ordinals[1]
            self._ordinals[1] += 1
            alloc = ReferenceAlloc(
                key, self._rows.take(), node, job_id=job.id, group=placement.group
            )
            alloc.index = index
            alloc.version = placement.version
            spec = job.specs[placement.version, placement.group]
            alloc.extras = self._pools.pieces(spec, placement, nth, node)
            ask = job.groups[placement.version][placement.group][1]
            alloc.ask = with_core_mhz(ask, alloc.extras)
            self.allocs[alloc.row] = self.by_key[key] = alloc
            self.rollouts.place(alloc.row, placement)
            self._pace.place(alloc.row)
            self._of_group.setdefault((job.id, placement.group), []).append(alloc)
            self._hold(alloc, 1)
            self._count(alloc)
        return where

    def _check_count(self, job: ReferenceJob, group: str, before: int, seen: int) -> None:
        """Check a group's count and names; allocations away or reconnected since the snapshot may be duplicates."""
        allocs = [self.allocs[row] for row in self._wanted.get((job.id, group), set())]
        allocs = [one for one in allocs if one.client != "unknown" and one.back_seq <= seen]
        limit = job.groups[job.version].get(group, (0, (0, 0, 0)))[0]
        canaries = self.rollouts.canaries_of(job.id, group, {one.row for one in allocs})
        if canaries:
            older = [groups[group][0] for groups in job.groups.values() if group in groups]
            limit = max(limit, *older) + canaries
        if job.job_type == "batch":
            limit = max(0, limit - self.done(job, group))
        if job.job_type in SYSTEM_JOB_TYPES:
            limit *= len(self.nodes)
        self.ledger.hold(
            "count_not_exceeded",
            len(allocs) <= max(limit, before),
            f"{job.id}.{group} wants {limit}, has {len(allocs)}, had {before}",
        )
        names = {(self.alloc_slot(job, one), canaries and one.version) for one in allocs}
        self.ledger.hold("names_unique", len(names) == len(allocs), job.id, group, sorted(names))

    def _move(self, row: int, status: str) -> None:
        alloc = self.allocs.get(row)
        if alloc is None:
            self.ledger.hold("legal_state_path", False, "a free row moves", row, status)
            return
        legal = status == alloc.client or status in _LEGAL[alloc.client]
        self.ledger.hold("legal_state_path", legal, alloc, "to", status)
        if status in TERMINAL and alloc.client not in TERMINAL and alloc.desired != "evict":
            self.succession.ended(alloc, status)
            self._hold(alloc, -1)
        if alloc.client == "unknown" and status not in TERMINAL:
            alloc.back_seq = self._seq
        if status in TERMINAL and alloc.client not in TERMINAL:
            alloc.ended_seq = self._seq
        alloc.client = status
        self._count(alloc)

    def _hold(self, alloc: ReferenceAlloc, sign: int) -> None:
        used = self.nodes[alloc.node].used
        for at, ask in enumerate(alloc.ask):
            used[at] += sign * ask
        over = self._pools.hold(alloc.extras, sign)
        self.ledger.hold("no_node_oversubscribed", not over, alloc, over)

    def _count(self, alloc: ReferenceAlloc) -> None:
        rows = self._wanted.setdefault((alloc.job_id, alloc.group), set())
        if alloc.is_wanted:
            rows.add(alloc.row)
        else:
            rows.discard(alloc.row)

    def _collect(self, event: allocations.AllocationsCollected) -> None:
        runs = zip(event.runs[::2], event.runs[1::2], strict=True)
        behind = [row for start, size in runs for row in range(start, start + size)]
        for row in (*event.rows, *behind):
            alloc = self.allocs.pop(row)
            self.ledger.hold("forgotten_when_over", alloc.client in TERMINAL, alloc)
            self._rows.free(row)
            self.rollouts.collect(row)
            self.succession.collect(row)
