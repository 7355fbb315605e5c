"""Metrics of a scenario's run, collected record by record: jobs, waits, placements, ends, and samples of the state.

An allocation waits from its job's submission to its first placement.
"""

from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import AllocationsReported
from schemas.base import JobId
from schemas.envelope import LogRecord
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec, JobRegistered, JobStopped, Verdict
from schemas.plans import PlanCommitted, PlanRefused
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, RUN, RUNNING
from shared.sim.virtual_time import SECOND

#: Fragmentation is measured by this many shapes, the most frequent.
_SHAPES_MAX = 16
_REFUSALS_MAX = 5
#: Counted client statuses.
_COUNTED = {RUNNING: "started", COMPLETE: "complete", FAILED: "failed"}
#: Jobs that are not arrivals of the scenario.
OTHER_JOBS = "others"


class JobMetrics(msgspec.Struct, gc=False):
    """One job."""

    name: str
    priority: int
    asked_ns: int
    wanted: int
    placed: int = 0
    first_ns: int = 0
    last_ns: int = 0
    done: int = 0
    ended_ns: int = 0
    is_stopped: bool = False


class ClusterSample(msgspec.Struct, frozen=True, gc=False):
    """The cluster at a moment. Shares are of the capacity of ready nodes."""

    at_ns: int
    nodes: int
    running: int
    waiting: int
    #: by kind of job.
    running_by: dict[str, int]
    #: resource -> share in use.
    used: dict[str, float]
    #: resource -> share of free capacity that arriving shapes cannot use.
    fragmented: dict[str, float]


class AllocShape(msgspec.Struct, frozen=True):
    """The resources of one allocation. `device`: name, slots, and 1/10,000 of each."""

    cpu_mhz: int
    memory_mib: int
    device: str = ""
    slots: int = 0
    share: int = 0


class RunMetrics:
    """Metrics from the start of the scenario."""

    def __init__(self, names: list[str], begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self._names = sorted(names, key=len, reverse=True)
        self.jobs: dict[JobId, JobMetrics] = {}
        #: jobs that were removed from the state.
        self.waits: dict[str, list[tuple[int, int]]] = {}
        self.counts: Counter[str] = Counter()
        #: the first few refused submissions, with reasons.
        self.refusals: list[str] = []
        self.plans_refused: Counter[str] = Counter()
        self.unplaced: Counter[str] = Counter()
        self.evicted: Counter[tuple[str, str]] = Counter()
        #: second -> allocations, groups and jobs placed.
        self.seconds: dict[int, list[int]] = {}
        self.samples: list[ClusterSample] = []
        self._shapes: Counter[AllocShape] = Counter()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Allocations wanted and not placed yet."""
        return self._waiting

    # ---- records ----

    def follow(self, state: State, record: LogRecord) -> None:
        """Take a record that the state has applied."""
        t_ns = record.t_ns
        for event in record.events:
            match event:
                case PlanCommitted():
                    self._planned(event, t_ns)
                case AllocationsReported():
                    self._reported(state, event, t_ns)
                case JobRegistered():
                    self._registered(event, t_ns)
                case JobStopped():
                    self._stopped(event)
                case PlanRefused():
                    self.plans_refused[event.code] += 1
                case EvaluationsCreated():
                    for one in event.evaluations:
                        for why in one.blocked.waiting.values() if one.blocked else ():
                            self.unplaced[why.wait_class] += why.count
                case _:
                    pass

    def _stopped(self, event: JobStopped) -> None:
        note = self.jobs.get(event.job_id)
        if note is not None and not note.is_stopped:
            note.is_stopped = True
            self._waiting -= max(note.wanted - note.placed, 0)

    def refused(self, verdict: Verdict) -> None:
        """Take a refused submission."""
        if len(self.refusals) < _REFUSALS_MAX and verdict.error is not None:
            error = verdict.error
            where = f"{error.path}: " if error.path else ""
            self.refusals.append(f"{verdict.submission_id}: {where}{error.message}")

    def _name(self, job_id: str) -> str:
        for name in self._names:
            if job_id.startswith(name) and job_id[len(name) : len(name) + 1] == "-":
                return name
        return OTHER_JOBS

    def _registered(self, event: JobRegistered, t_ns: int) -> None:
        wanted = sum(group.count for group in event.groups)
        everywhere = event.job_type in SYSTEM_JOB_TYPES
        for group in event.groups:
            self._shapes[_shape(group)] += group.count
        old = self.jobs.get(event.job_id)
        if old is not None or everywhere:
            return
        self.counts["submitted"] += 1
        name = self._name(event.job_id)
        self.jobs[event.job_id] = JobMetrics(name, event.priority, t_ns, wanted)
        self._waiting += wanted

    def _planned(self, event: PlanCommitted, t_ns: int) -> None:
        self.counts["plans"] += 1
        note = self.jobs.get(event.job_id)
        if event.cut:
            self.counts["cut"] += sum(sum(one.counts) for one in event.cut)
        for evictions in event.evictions:
            names = (self._name(evictions.job_id), self._name(event.job_id))
            self.evicted[names] += len(evictions.rows)
        self.counts["lost"] += sum(
            len(one.rows) for one in event.stops if one.client_status == "lost"
        )
        if not event.placements:
            return
        groups = len(event.placements)
        count = sum(sum(one.counts) for one in event.placements)
        again = sum(sum(map(bool, one.previous)) for one in event.placements)
        self.counts["again"] += again
        self.counts["placed"] += count
        self.counts["groups"] += groups
        jobs = 0
        if note is not None:
            fresh = min(count, note.wanted - note.placed)
            if fresh > 0:
                self.waits.setdefault(note.name, []).append((t_ns - note.asked_ns, fresh))
                note.first_ns = note.first_ns or t_ns
                note.last_ns = t_ns
                note.placed += fresh
                self._waiting -= fresh
                jobs = int(note.placed == note.wanted)
        self.counts["jobs_placed"] += jobs
        second = self.seconds.setdefault((t_ns - self.begin_ns) // SECOND, [0, 0, 0])
        second[0] += count
        second[1] += groups
        second[2] += jobs

    def _reported(self, state: State, event: AllocationsReported, t_ns: int) -> None:
        table = state.allocations
        for row, code in zip(event.rows, event.statuses, strict=True):
            name = _COUNTED.get(code)
            if code == COMPLETE and table.desired[row] != RUN:
                name = "stopped"
            if name is not None:
                self.counts[name] += 1
            note = self.jobs.get(table.groups.job_ids[int(table.group[row])])
            if name == "complete" and note is not None:
                note.done += 1
                note.ended_ns = t_ns

    # ---- samples ----

    def sample(self, state: State, now_ns: int) -> None:
        """Sample the state."""
        fleet, table = state.fleet, state.allocations
        size = fleet.size
        ready = fleet.ready()[:size]
        capacity = fleet.capacity[:size][ready]
        held = table.held.columns(size)[ready]
        used: dict[str, float] = {}
        for at, name in enumerate(("cpu", "memory", "disk")):
            whole = int(capacity[:, at].sum())
            if whole and (at < 2 or held[:, at].any()):
                used[name] = int(held[:, at].sum()) / whole
        free = np.maximum(capacity - held, 0)
        slots: dict[str, NDArray[np.int32]] = {}
        for name, pool in sorted(fleet.offers.slots.items()):
            present = pool.present[:size]
            if not len(present) or not present.any():
                continue
            taken = table.held.slots_of(name, len(present), present.shape[1])
            here = ready[: len(present)]
            slots[name] = np.maximum(present - taken, 0)[here]
            whole = int(present[here].sum())
            used[name] = int(np.minimum(taken, present)[here].sum()) / whole if whole else 0.0
        clients = np.bincount(table.client[: table.size][table.key[: table.size] != 0], minlength=6)
        self.samples.append(
            ClusterSample(
                now_ns - self.begin_ns,
                int(ready.sum()),
                int(clients[RUNNING]),
                self._waiting,
                self._running_by(state),
                used,
                self._fragmented(free, slots),
            )
        )

    def _running_by(self, state: State) -> dict[str, int]:
        table = state.allocations
        rows = np.flatnonzero(table.client[: table.size] == RUNNING)
        rows = rows[table.key[rows] != 0]
        counts = np.bincount(table.group[rows]) if len(rows) else np.zeros(0, dtype=np.int64)
        found: Counter[str] = Counter()
        for ref in np.flatnonzero(counts).tolist():
            job_id = table.groups.job_ids[ref]
            note = self.jobs.get(job_id)
            found[self._name(job_id) if note is None else note.name] += int(counts[ref])
        return dict(sorted(found.items()))

    def _fragmented(
        self, free: NDArray[np.int64], slots: dict[str, NDArray[np.int32]]
    ) -> dict[str, float]:
        """Share of free capacity that arriving shapes cannot use, weighted by the frequency of each shape."""
        shapes = self._shapes.most_common(_SHAPES_MAX)
        weights = sum(weight for _, weight in shapes)
        totals = {"cpu": int(free[:, 0].sum()), "memory": int(free[:, 1].sum())}
        totals |= {name: int(one.sum()) for name, one in slots.items()}
        lost = dict.fromkeys(totals, 0)
        for shape, weight in shapes:
            fits = (free[:, 0] >= shape.cpu_mhz) & (free[:, 1] >= shape.memory_mib)
            own = slots.get(shape.device) if shape.device else None
            if shape.device:
                room = (own >= shape.share).sum(axis=1) if own is not None else np.zeros(len(free))
                enough = np.zeros(len(free), dtype=np.bool_)
                enough[: len(room)] = room >= shape.slots
                fits &= enough
            lost["cpu"] += weight * int(free[~fits, 0].sum())
            lost["memory"] += weight * int(free[~fits, 1].sum())
            if own is not None:
                here = fits[: len(own)]
                unusable = int(own[~here].sum()) + int(
                    (own[here] * (own[here] < shape.share)).sum()
                )
                lost[shape.device] += weight * unusable
        shares = dict.fromkeys(totals, 0.0)
        for name, whole in totals.items():
            of = weights if name in {"cpu", "memory"} else self._weight_of(shapes, name)
            if whole and of:
                shares[name] = lost[name] / (whole * of)
        return shares

    @staticmethod
    def _weight_of(shapes: list[tuple[AllocShape, int]], name: str) -> int:
        return sum(weight for shape, weight in shapes if shape.device == name)


def _shape(group: GroupSpec) -> AllocShape:
    asks = group.alternatives[0] if group.alternatives else ()
    for ask in asks:
        if ask.pool.startswith("device."):
            whole, part = divmod(ask.amount, 10_000)
            slots, share = (whole, 10_000) if not part else (1, part)
            return AllocShape(group.cpu_mhz, group.memory_mib, ask.pool, slots, share)
    return AllocShape(group.cpu_mhz, group.memory_mib)
