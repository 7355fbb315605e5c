"""An independent book-keeper: what the log says, kept in plain dicts that share no code with the tables.

Decides after every transaction whether the invariants of the log hold. Must not know processes, tasks or time. Where
it and shared/core disagree about a row, a key or what a node holds, one of them is wrong, and `oracle.py` says so.
"""

import heapq

from schemas import allocations, evaluations, jobs, nodes, plans
from schemas.allocations import CLIENT_STATUSES
from schemas.envelope import Record
from shared.sim.findings import Ledger
from shared.sim.pools import Piece, PoolBook

KEY_SHIFT = 20
TERMINAL = frozenset({"complete", "failed", "lost"})
#: Types of jobs whose names belong to a node.
EVERYWHERE = frozenset({"system", "sysbatch"})
#: From which client status an allocation may come to which; the same again is always allowed.
_LEGAL = {
    "pending": frozenset({"running", "complete", "failed", "lost", "unknown"}),
    # A task that ended is pending until it is started again in place.
    "running": frozenset({"pending", "complete", "failed", "lost", "unknown"}),
    "unknown": frozenset({"pending", "running", "complete", "failed", "lost"}),
    "complete": frozenset[str](),
    "failed": frozenset[str](),
    "lost": frozenset[str](),
}
Ask = tuple[int, int, int]


class Alloc:
    """One allocation as the log tells it."""

    __slots__ = (
        "ask",
        "back_seq",
        "client",
        "desired",
        "evicted_seq",
        "extras",
        "group",
        "index",
        "is_displaced",
        "job_id",
        "key",
        "node",
        "row",
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
        self.ask: Ask = (0, 0, 0)
        #: what it holds of pools and ports.
        self.extras: list[Piece] = []
        self.desired = "run"
        self.client = "pending"
        #: seq at which it had to make room; 0: it had not.
        self.evicted_seq = 0
        #: an operator stopped it.
        self.is_displaced = False
        #: seq at which it was heard of again after its node was away; 0: it never was.
        self.back_seq = 0

    @property
    def is_wanted(self) -> bool:
        """Say whether it shall run and has not ended."""
        return self.desired == "run" and self.client not in TERMINAL

    def __repr__(self) -> str:
        return (
            f"{self.job_id}.{self.group}[{self.index}] v{self.version} key {self.key} row {self.row} "
            f"node {self.node} {self.desired}/{self.client}"
        )


class JobBook:
    """One job as the log tells it. `groups[version][name]` is (count, ask)."""

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.version = -1
        self.job_type = ""
        self.priority = 0
        self.is_stopped = False
        self.groups: dict[int, dict[str, tuple[int, Ask]]] = {}
        self.specs: dict[tuple[int, str], jobs.GroupSpec] = {}


class NodeBook:
    """One node as the log tells it."""

    def __init__(self, node_id: str, capacity: Ask) -> None:
        self.id = node_id
        self.capacity = capacity
        self.status = "ready"
        #: log time at which what runs there is stopped, 0: never; None: it is not drained.
        self.drain_ns: int | None = None
        self.used: list[int] = [0, 0, 0]


class Rows:
    """Rows as the design says: the lowest free one first."""

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
        """Give a row back."""
        heapq.heappush(self._free, row)


class Books:
    """The cluster as the log tells it; `apply` checks while it books."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.jobs: dict[str, JobBook] = {}
        self.nodes: dict[int, NodeBook] = {}
        self.allocs: dict[int, Alloc] = {}
        #: every allocation ever made, by key.
        self.by_key: dict[int, Alloc] = {}
        self.evals: dict[int, str] = {}
        #: what an operator says of nodes, by id.
        self.meta: dict[str, dict[str, str | None]] = {}
        #: submission -> (accepted or refused, seq).
        self.submissions: dict[str, tuple[str, int]] = {}
        self.jobs_seq = 0
        self.transactions = 0
        self._pools = PoolBook()
        self._rows = Rows()
        self._node_rows = Rows()
        self._row_of: dict[str, int] = {}
        self._wanted: dict[tuple[str, str], set[int]] = {}
        self._of_group: dict[tuple[str, str], list[Alloc]] = {}
        self._ordinals = [0, 0]
        self._seq = 0

    def apply(self, record: Record, seq: int) -> None:
        """Book one transaction. Raises Broken."""
        self._seq = seq
        self._ordinals = [0, 0]
        self.transactions += 1
        for event in record.events:
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
                case nodes.NodeDrainChanged() | nodes.NodeMetaChanged():
                    self._operated(event)
                case nodes.NodeRegistered() | nodes.NodesStatusChanged() | nodes.NodesCollected():
                    self._nodes(event)
                case _:
                    self._evaluations(event)
                    self._job(event)

    def wanted(self, job_id: str, group: str) -> set[int]:
        """Rows of the allocations of a group that shall run and have not ended."""
        return self._wanted.get((job_id, group), set())

    def spot(self, job: JobBook, alloc: Alloc) -> tuple[int, int]:
        """Name of an allocation, with its node where names belong to nodes."""
        return (alloc.node if job.job_type in EVERYWHERE else -1), alloc.index

    def node_id(self, alloc: Alloc) -> str:
        """Name of the node that an allocation has."""
        node = self.nodes.get(alloc.node)
        return "" if node is None else node.id

    def is_drained(self, node_id: str) -> bool:
        """Say whether an operator drains a node; one that is not there is not."""
        node = self.nodes.get(self._row_of.get(node_id, -1))
        return node is not None and node.drain_ns is not None

    def of_group(self, job: JobBook, group: str) -> list[Alloc]:
        """Every allocation that a group ever had, oldest first."""
        return self._of_group.get((job.id, group), [])

    def done(self, job: JobBook, group: str) -> int:
        """Count the completed allocations of a batch job's present version; who was stopped did not do its work."""
        return sum(
            alloc.client == "complete" and alloc.version == job.version and alloc.desired == "run"
            for alloc in self.of_group(job, group)
        )

    # ---- jobs ----

    def _job(self, event: object) -> None:
        match event:
            case jobs.JobRegistered():
                self._submission(event.submission_id, "accepted")
                self._register(event)
            case jobs.JobStopped():
                self._submission(event.submission_id, "accepted")
                self.jobs[event.job_id].is_stopped = True
            case jobs.JobEvaluated():
                self._submission(event.submission_id, "accepted")
            case jobs.SubmissionRefused():
                self._submission(event.submission_id, "refused")
            case jobs.IntakeAdvanced():
                self.ledger.hold("submission_once", event.jobs_seq > self.jobs_seq, event)
                self.jobs_seq = event.jobs_seq
            case jobs.JobsCollected():
                for job_id in event.job_ids:
                    self._forget(job_id)
            case _:
                pass

    def _submission(self, submission_id: str, status: str) -> None:
        known = self.submissions.get(submission_id)
        self.ledger.hold("submission_once", known is None, submission_id, known, status)
        self.submissions[submission_id] = (status, self._seq)

    def _register(self, event: jobs.JobRegistered) -> None:
        job = self.jobs.setdefault(event.job_id, JobBook(event.job_id))
        if event.version == job.version:
            return
        self.ledger.hold(
            "legal_state_path", event.version > job.version, event.job_id, event.version
        )
        job.version = event.version
        job.job_type = event.job_type
        job.priority = event.priority
        job.is_stopped = False
        job.specs |= {(event.version, group.name): group for group in event.groups}
        job.groups[event.version] = {
            group.name: (group.count, (group.cpu_mhz, group.memory_mib, group.disk_mib))
            for group in event.groups
        }

    def _forget(self, job_id: str) -> None:
        """Let a job go; nothing of it may be left."""
        job = self.jobs.pop(job_id)
        left = [alloc for alloc in self.allocs.values() if alloc.job_id == job_id]
        self.ledger.hold("forgotten_when_over", not left, job_id, "is forgotten before", left)
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
                self.nodes[fresh] = NodeBook(spec.node_id, capacity)
            row = self._row_of[spec.node_id]
            self.nodes[row].capacity = capacity
            self._pools.offered(row, spec)
            self.nodes[row].status = "ready"

    def _operated(self, event: nodes.NodeDrainChanged | nodes.NodeMetaChanged) -> None:
        if isinstance(event, nodes.NodeMetaChanged):
            self.ledger.hold("legal_state_path", event.node_id in self._row_of, event)
            self.meta[event.node_id] = event.meta
            return
        node = self.nodes[event.row]
        changes = event.draining or node.drain_ns is not None
        self.ledger.hold("legal_state_path", changes, event)
        node.drain_ns = event.deadline_ns if event.draining else None

    # ---- evaluations ----

    def _evaluations(self, event: object) -> None:
        match event:
            case evaluations.EvaluationsCreated():
                for _ in event.evaluations:
                    self.evals[self._seq << KEY_SHIFT | self._ordinals[0]] = "open"
                    self._ordinals[0] += 1
            case evaluations.EvaluationsWoken():
                for key in event.keys:
                    self.ledger.hold("one_terminal_fact", self.evals[key] == "open", "woken", key)
            case evaluations.EvaluationEnded():
                was = self.evals.get(event.key)
                self.ledger.hold("one_terminal_fact", was == "open", event.key, "was", was)
                self.evals[event.key] = "ended"
                # A worker outlives what it cannot decide; here that is a finding.
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
        for stop in event.stops:
            for row in stop.rows:
                alloc = self.allocs[row]
                self.ledger.hold("legal_state_path", alloc.job_id == job.id, "stop of", alloc)
                if alloc.desired != "evict":
                    alloc.desired = "stop"
                self._count(alloc)
                if stop.client_status:
                    self._move(row, stop.client_status)
        for update in event.updates:
            for row in update.rows:
                alloc = self.allocs[row]
                self.ledger.hold("legal_state_path", alloc.job_id == job.id, "update of", alloc)
                self._hold(alloc, -1)
                alloc.version = update.version
                alloc.ask = job.groups[update.version][update.group][1]
                self._hold(alloc, 1)
        touched = {row for placement in event.placements for row in self._place(job, placement)}
        for node in sorted(touched):
            book = self.nodes[node]
            fits = all(used <= room for used, room in zip(book.used, book.capacity, strict=True))
            self.ledger.hold("no_node_oversubscribed", fits, book.id, book.used, book.capacity)
        for placement in event.placements:
            seen = event.origin.snapshot_seq
            self._check_count(job, placement.group, before.get(placement.group, 0), seen)

    def _evict(self, job: JobBook, event: plans.PlanCommitted) -> None:
        """Book who makes room: less important by ten, to run until now, and somebody lands on the node."""
        lands = {row for placement in event.placements for row in placement.rows}
        for evictions in event.evictions:
            other = self.jobs.get(evictions.job_id)
            for row in evictions.rows:
                alloc = self.allocs[row]
                fair = other is not None and other.priority <= job.priority - 10
                fair = fair and alloc.job_id == evictions.job_id != job.id and alloc.is_wanted
                self.ledger.hold("evicted_by_rule", fair, alloc, "evicted for", job.id)
                # Of a plan in parts the placement may come in a later one.
                useful = alloc.node in lands or event.origin.parts > 1
                self.ledger.hold("evicted_by_rule", useful, alloc, "makes room for nobody")
                alloc.desired = "evict"
                alloc.evicted_seq = self._seq
                self._hold(alloc, -1)
                self._count(alloc)

    def _place(self, job: JobBook, placement: plans.GroupPlacement) -> list[int]:
        where = [
            row for row, n in zip(placement.rows, placement.counts, strict=True) for _ in range(n)
        ]
        runs = placement.names
        names = [runs[i] + n for i in range(0, len(runs), 2) for n in range(runs[i + 1])]
        current = not job.is_stopped and placement.version == job.version
        self.ledger.hold("count_not_exceeded", current or not where, job.id, "stale", placement)
        for nth, (node, index) in enumerate(zip(where, names, strict=True)):
            book = self.nodes.get(node)
            ready = book is not None and book.status == "ready" and book.drain_ns is None
            self.ledger.hold("placed_on_ready_node", ready, node, book and book.status, job.id)
            key = self._seq << KEY_SHIFT | self._ordinals[1]
            self._ordinals[1] += 1
            alloc = Alloc(key, self._rows.take(), node, job_id=job.id, group=placement.group)
            alloc.index = index
            alloc.version = placement.version
            alloc.ask = job.groups[placement.version][placement.group][1]
            spec = job.specs[placement.version, placement.group]
            alloc.extras = self._pools.pieces(spec, placement, nth, node)
            self.allocs[alloc.row] = self.by_key[key] = alloc
            self._of_group.setdefault((job.id, placement.group), []).append(alloc)
            self._hold(alloc, 1)
            self._count(alloc)
        return where

    def _check_count(self, job: JobBook, group: str, before: int, seen: int) -> None:
        """Hold a group's count and names; who is away, or came back behind the plan's back, may be there twice."""
        allocs = [self.allocs[row] for row in self._wanted.get((job.id, group), set())]
        allocs = [one for one in allocs if one.client != "unknown" and one.back_seq <= seen]
        limit = job.groups[job.version].get(group, (0, (0, 0, 0)))[0]
        if job.job_type == "batch":
            limit = max(0, limit - self.done(job, group))
        if job.job_type in EVERYWHERE:
            limit *= len(self.nodes)
        self.ledger.hold(
            "count_not_exceeded",
            len(allocs) <= max(limit, before),
            f"{job.id}.{group} wants {limit}, has {len(allocs)}, had {before}",
        )
        names = {self.spot(job, one) for one in allocs}
        self.ledger.hold("names_unique", len(names) == len(allocs), job.id, group, sorted(names))

    def _move(self, row: int, status: str) -> None:
        alloc = self.allocs.get(row)
        if alloc is None:
            self.ledger.hold("legal_state_path", False, "a free row moves", row, status)
            return
        legal = status == alloc.client or status in _LEGAL[alloc.client]
        self.ledger.hold("legal_state_path", legal, alloc, "to", status)
        if status in TERMINAL and alloc.client not in TERMINAL and alloc.desired != "evict":
            self._hold(alloc, -1)
        if alloc.client == "unknown" and status not in TERMINAL:
            alloc.back_seq = self._seq
        alloc.client = status
        self._count(alloc)

    def _hold(self, alloc: Alloc, sign: int) -> None:
        used = self.nodes[alloc.node].used
        for at, ask in enumerate(alloc.ask):
            used[at] += sign * ask
        over = self._pools.hold(alloc.extras, sign)
        self.ledger.hold("no_node_oversubscribed", not over, alloc, over)

    def _count(self, alloc: Alloc) -> None:
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
