"""Successors, followed again from the log: an allocation that comes late names the one that it replaces.

A part of the reference model; it shares no code with the scheduler. Followed are allocations of services and batch jobs
without canaries that a plan stopped for a reason after which another one is due, until a version, a stop of the job or
another allocation of the name comes between.
"""

from typing import Any

from schemas import jobs, plans
from shared.sim.oracle.invariants import InvariantChecks

#: Reasons of stops after which a replacement of the same name is due.
_DUE = frozenset(
    {
        "replaced",
        "node is down",
        "stopped by an operator",
        "its node is drained",
        "job changed",
        "job changed, and its node is out of reach",
    }
)
_SYSTEM = frozenset({"system", "sysbatch"})
#: Job, group, index of the name.
_Name = tuple[str, str, int]


class SuccessionChecks:
    """What was stopped to be replaced, by name."""

    def __init__(self, ledger: InvariantChecks, model: Any) -> None:
        self._ledger = ledger
        # The reference model, which makes this: its type would be an import cycle.
        self._model = model
        #: key of the last of each name, of those to be replaced.
        self._due: dict[_Name, int] = {}
        #: keys that a placement has named as what it replaces.
        self._followed: set[int] = set()
        #: keys of which the plan that stopped them said that others replace them.
        self._said: set[int] = set()
        #: by row: job, node and the three columns of what ended of such a stop, until its job's next plan.
        self._rooms: dict[int, tuple[str, int, tuple[int, ...]]] = {}

    def apply(self, event: object) -> None:
        """Forget what another version, or a stop of the job, makes uncertain."""
        if isinstance(event, jobs.JobRegistered | jobs.JobStopped):
            for name in [name for name in self._due if name[0] == event.job_id]:
                del self._due[name]
            self._rooms = {row: one for row, one in self._rooms.items() if one[0] != event.job_id}

    def check(self, job: Any, event: plans.PlanCommitted) -> None:
        """Check the placements of a plan, before it is applied, and take its stops. Raises InvariantBroken."""
        if job.job_type in _SYSTEM:
            return
        for placement in event.placements:
            runs = placement.names
            names = [runs[at] + n for at in range(0, len(runs), 2) for n in range(runs[at + 1])]
            previous = placement.previous or (0,) * len(names)
            # Beside canaries, which have names of the old ones, the others get names that are free.
            rows = self._model.wanted(job.id, placement.group)
            has_canaries = self._model.rollouts.canaries_of(job.id, placement.group, rows) > 0
            for index, before in zip(names, previous, strict=True):
                due = self._due.pop((job.id, placement.group, index), 0)
                if due and not has_canaries:
                    named = before == due or self._is_beyond_count(job, before)
                    text = f"{job.id}.{placement.group}[{index}] replaces {before}, not {due}"
                    self._ledger.hold("late_knows_predecessor", named, text)
        # A name beyond a smaller count is replaced under another.
        followed = {key for placement in event.placements for key in placement.previous}
        self._due = {name: key for name, key in self._due.items() if key not in followed}
        self._followed |= followed
        for stop in event.stops:
            for row in stop.rows:
                alloc = self._model.allocs[row]
                # More than are wanted without those that go for good: which of them are replaced is not said.
                if not self._has_surplus(job, event, alloc.group):
                    self._take(event, stop, alloc)

    def _is_beyond_count(self, job: Any, key: int) -> bool:
        """Tell whether a predecessor has a name that the version does not: it is replaced under any that is free."""
        alloc = self._model.by_key.get(key)
        return alloc is not None and alloc.index >= _count_of(job, alloc.group)

    def _has_surplus(self, job: Any, event: plans.PlanCommitted, group: str) -> bool:
        leaving = {row for stop in event.stops if stop.reason not in _DUE for row in stop.rows}
        due = {row for stop in event.stops if stop.reason in _DUE for row in stop.rows}
        # A failed one is to be replaced, though it is not counted any more.
        ours = {row for row in due if self._model.allocs[row].group == group}
        staying = (self._model.wanted(job.id, group) - leaving) | ours
        # What the plan places for others counts, too.
        keys = {self._model.allocs[row].key for row in ours}
        coming = sum(
            sum(key not in keys for key in one.previous) if one.previous else sum(one.counts)
            for one in event.placements
            if one.group == group and not one.canaries
        )
        return len(staying) + coming > _count_of(job, group)

    def ended(self, alloc: Any, status: str) -> None:
        """Keep the room of what ends of its stop: until its job's next plan no other job may have it."""
        due = self._due.get((alloc.job_id, alloc.group, alloc.index))
        is_said = due == alloc.key and alloc.key in self._said
        if is_said and status != "lost" and alloc.desired == "stop":
            self._rooms[alloc.row] = (alloc.job_id, alloc.node, tuple(alloc.ask))

    @property
    def rooms(self) -> set[int]:
        """Rows whose rooms must be kept."""
        return set(self._rooms)

    def collect(self, row: int) -> None:
        """Forget the room of what left the state."""
        self._rooms.pop(row, None)

    def check_rooms(self, job: Any, touched: set[int]) -> None:
        """Check what a plan placed on these nodes against the rooms of other jobs. Raises InvariantBroken."""
        self._rooms = {row: one for row, one in self._rooms.items() if one[0] != job.id}
        for node in sorted(touched):
            asks = [ask for _, at, ask in self._rooms.values() if at == node]
            entry = self._model.nodes[node]
            sums = [used + sum(ask[n] for ask in asks) for n, used in enumerate(entry.used)]
            fits = all(amount <= room for amount, room in zip(sums, entry.capacity, strict=True))
            text = f"{job.id} takes room of what others replace"
            self._ledger.hold("own_room_kept", not asks or fits, text, node, sums, entry.capacity)

    def _take(self, event: plans.PlanCommitted, stop: plans.Stops, alloc: Any) -> None:
        name = (alloc.job_id, alloc.group, alloc.index)
        followed = {key for one in event.placements for key in one.previous}
        known = self._due.get(name)
        if stop.reason not in _DUE or stop.final or stop.tied or alloc.key in followed:
            if known == alloc.key:
                del self._due[name]
            return
        twins = self._model.wanted(alloc.job_id, alloc.group) - set(stop.rows)
        has_twin = any(self._model.allocs[row].index == alloc.index for row in twins)
        # A newer one of the name that was evicted is replaced first.
        group = self._model.of_group(self._model.jobs[alloc.job_id], alloc.group)
        has_twin |= any(
            one.index == alloc.index and one.key > alloc.key and one.desired == "evict"
            for one in group
        )
        member = self._model.rollouts.members.get(alloc.row)
        is_canary = member is not None and member.is_canary
        # What replaces one that was away may have failed before that one is lost: its own replacement names it.
        has_twin |= alloc.key in self._followed
        if alloc.desired == "run" and not (has_twin or is_canary):
            self._due[name] = alloc.key
            if stop.to_replace:
                self._said.add(alloc.key)


def _count_of(job: Any, group: str) -> int:
    """Return how many allocations of a group the newest version of a job has."""
    count: int = job.groups[job.version].get(group, (0,))[0]
    return count
