"""Deployments as read from the log: counters, promotions and ends, in plain dicts that share no code with the tables.

A part of the reference model. It checks what must hold of every log: one active deployment a job, one a version, an
end that is final, a clock that had really run out, and a revert that takes another text.
"""

from collections import Counter
from collections.abc import Callable

from schemas import allocations, deployments, gates, jobs, plans
from schemas.allocations import HEALTHS
from shared.sim.oracle.invariants import InvariantChecks

_ACTIVE = frozenset({"running", "paused"})
_RULE = "legal_state_path"
_HEALTHY = HEALTHS.index("healthy")


class ReferenceGroup:
    """One group of a deployment."""

    def __init__(
        self,
        *,
        total: int,
        canaries: int = 0,
        max_parallel: int = 1,
        deadline_ns: int = 0,
        auto_promote: bool = False,
    ) -> None:
        self.total = total
        self.canaries = canaries
        self.max_parallel = max_parallel
        self.deadline_ns = deadline_ns
        self.placed = 0
        self.healthy = 0
        self.unhealthy = 0
        self.is_promoted = False
        self.require_by_ns = 0
        self.auto_promote = auto_promote

    def counts(self) -> tuple[int, int, int, int]:
        """Placed, healthy, unhealthy; the clock."""
        return self.placed, self.healthy, self.unhealthy, self.require_by_ns

    def lacks(self) -> bool:
        """Whether this phase of it needs more healthy allocations."""
        waits = self.canaries > 0 and not self.is_promoted
        return self.healthy < (self.canaries if waits else max(self.total, self.canaries))


class ReferenceDeployment:
    """One deployment."""

    def __init__(
        self, event: jobs.JobRegistered | deployments.DeploymentStarted, cause: str
    ) -> None:
        self.job_id = event.job_id
        self.version = event.version
        self.cause = cause
        #: every status that it ever had.
        self.statuses = {"running"}
        self.status = "running"
        self.held_by: set[str] = set()
        self.ignores_gates = False
        #: gates and windows that let nothing through; the windows together have no name.
        self.shut: set[str] = set()
        self.groups: dict[str, ReferenceGroup] = {}

    @property
    def is_moving(self) -> bool:
        """Whether its clocks run."""
        return self.status == "running" and not self.held_by

    def begin(self, status: str) -> None:
        """Take another status."""
        self.status = status
        self.statuses.add(status)

    def due_ns(self) -> int:
        """Log time at which it fails unless something becomes healthy before; 0: no clock runs."""
        groups = self.groups.values()
        lacking = [one.require_by_ns for one in groups if one.lacks()]
        if lacking:
            return min((clock for clock in lacking if clock), default=0)
        if any(one.canaries and not (one.is_promoted or one.auto_promote) for one in groups):
            return 0
        return max((one.require_by_ns for one in groups), default=0)


class ReferenceMember:
    """What is known of an allocation of a deployment."""

    __slots__ = ("deployment", "group", "health", "is_canary")

    def __init__(self, deployment: int, group: str, *, is_canary: bool) -> None:
        self.deployment = deployment
        self.group = group
        self.is_canary = is_canary
        self.health = 0


class ReferenceRollouts:
    """All deployments of the log. `is_wanted`: whether the allocation in a row is to run and has not ended."""

    def __init__(self, ledger: InvariantChecks, is_wanted: Callable[[int], bool]) -> None:
        self._ledger = ledger
        self._is_wanted = is_wanted
        self.by_key: dict[int, ReferenceDeployment] = {}
        self.members: dict[int, ReferenceMember] = {}
        #: text of each version, for reverts.
        self._texts: dict[tuple[str, int], bytes] = {}
        self._newest: dict[str, int] = {}
        self._stopped: set[str] = set()
        #: jobs whose newest version was registered again because a deployment failed.
        self.reverted: set[str] = set()
        #: log time of the record that is taken.
        self.t_ns = 0

    def active(self, job_id: str) -> list[int]:
        """Keys of the deployments of a job that did not end."""
        found = self.by_key.items()
        return [key for key, one in found if one.job_id == job_id and one.status in _ACTIVE]

    def latest(self, job_id: str) -> ReferenceDeployment | None:
        """The newest deployment of a job, if it is of its newest version."""
        found = [one for one in self.by_key.values() if one.job_id == job_id]
        newest = self._newest.get(job_id)
        return found[-1] if found and found[-1].version == newest else None

    def canaries_of(self, job_id: str, group: str, rows: set[int]) -> int:
        """How many canaries a job's active deployment, and those of these allocations, have in a group."""
        keys = {self.members[row].deployment for row in rows if row in self.members}
        # All canaries may be gone, and the old ones have their own count still.
        keys |= set(self.active(job_id))
        groups = [self.by_key[key].groups.get(group) for key in keys if key in self.by_key]
        return sum(one.canaries for one in groups if one is not None)

    def place(self, row: int, placement: plans.GroupPlacement) -> None:
        """Take an allocation that was placed."""
        self.members.pop(row, None)
        if placement.deployment:
            key, group = placement.deployment, placement.group
            self._join(key, group, placement.version)
            self.members[row] = ReferenceMember(key, group, is_canary=placement.canaries)

    def update(self, update: plans.InPlace) -> None:
        """Take allocations that continue in another version."""
        for row in update.rows:
            self.members.pop(row, None)
            if update.deployment:
                self._join(update.deployment, update.group, update.version)
                member = ReferenceMember(update.deployment, update.group, is_canary=False)
                self.members[row] = member

    def collect(self, row: int) -> None:
        """Forget an allocation."""
        self.members.pop(row, None)

    def apply(self, event: object) -> None:
        """Take an event about deployments, and check it."""
        match event:
            case jobs.JobRegistered():
                self._register(event)
            case jobs.JobStopped():
                self._stopped.add(event.job_id)
            case deployments.DeploymentStarted():
                self._start(event)
            case deployments.DeploymentSized():
                group = self._running(event.key).groups[event.group]
                group.total, group.canaries = event.desired_total, event.desired_canaries
            case deployments.DeploymentResumed():
                was = self._running(event.key)
                self._ledger.hold(_RULE, was.status == "paused", event)
                was.begin("running")
                self._clocks(event.key, event.groups, event.require_by_ns)
            case deployments.DeploymentPaused():
                was = self._running(event.key)
                self._ledger.hold(_RULE, was.status == "running", event)
                was.begin("paused")
            case deployments.DeploymentHeld():
                self._running(event.key).held_by.add(event.cause)
            case deployments.DeploymentReleased():
                was = self._running(event.key)
                is_held = event.cause in was.held_by or event.for_good
                self._ledger.hold(_RULE, is_held, "was not held", event)
                was.ignores_gates |= event.for_good
                was.held_by.discard(event.cause)
                self._clocks(event.key, event.groups, event.require_by_ns)
            case gates.DeploymentGated() | gates.GateChanged() | gates.WindowChanged():
                self._gate(event)
            case deployments.DeploymentPromoted():
                self._promote(event)
            case deployments.DeploymentEnded():
                self._end(event)
            case allocations.AllocationsHealthChanged():
                self._health(event)
            case jobs.JobsCollected():
                gone = set(event.job_ids)
                self.by_key = {
                    key: one for key, one in self.by_key.items() if one.job_id not in gone
                }
            case _:
                pass

    def _register(self, event: jobs.JobRegistered) -> None:
        if event.reverted_from >= 0:
            now = self._texts.get((event.job_id, event.reverted_from))
            # With the text that it has, a job that was stopped may start again, and one that was started stop.
            was_stopped = event.job_id in self._stopped
            other = event.stopped != was_stopped or now != bytes(event.spec)
            self._ledger.hold(_RULE, other, "reverts to its own text", event)
        before = self._texts.get((event.job_id, self._newest.get(event.job_id, -1)))
        self._texts[event.job_id, event.version] = bytes(event.spec)
        if event.stopped:
            self._stopped.add(event.job_id)
        else:
            self._stopped.discard(event.job_id)
        # What is started again after it was reverted has the text of the revert.
        if self._newest.get(event.job_id) != event.version and before != bytes(event.spec):
            self.reverted.discard(event.job_id)
        if event.reverted_from >= 0:
            self.reverted.add(event.job_id)
        self._newest[event.job_id] = event.version
        if event.deploys:
            begun = ReferenceDeployment(event, "submit" if event.reverted_from < 0 else "revert")
            for one in event.groups:
                if one.count and one.update is not None and one.update.max_parallel:
                    begun.groups[one.name] = ReferenceGroup(
                        total=one.count,
                        max_parallel=one.update.max_parallel,
                        deadline_ns=one.update.progress_deadline_ns,
                        auto_promote=one.update.auto_promote,
                    )
            # The one before ends behind it, in the same transaction.
            self._begin(event.evaluation, begun)

    def _start(self, event: deployments.DeploymentStarted) -> None:
        self._ledger.hold(_RULE, not self.active(event.job_id), "two active", event)
        begun = ReferenceDeployment(event, event.cause)
        for one in event.groups:
            begun.groups[one.name] = ReferenceGroup(
                total=one.desired_total,
                canaries=one.desired_canaries,
                max_parallel=one.max_parallel,
                deadline_ns=one.progress_deadline_ns,
                auto_promote=one.auto_promote,
            )
        self._begin(event.key, begun)

    def _begin(self, key: int, begun: ReferenceDeployment) -> None:
        before = [one for one in self.by_key.values() if one.job_id == begun.job_id]
        once = all(one.version < begun.version for one in before)
        self._ledger.hold(_RULE, once, "a second deployment of a version", key)
        is_newest = self._newest.get(begun.job_id) == begun.version
        self._ledger.hold(_RULE, is_newest, "of an older version", key)
        self._ledger.hold(_RULE, key > 0 and key not in self.by_key, "a key twice", key)
        self.by_key[key] = begun

    def _running(self, key: int) -> ReferenceDeployment:
        """The deployment of a key, which must be active."""
        found = self.by_key[key]
        self._ledger.hold(_RULE, found.status in _ACTIVE, "changes a deployment that ended", key)
        return found

    def _clocks(self, key: int, names: tuple[str, ...], clocks: tuple[int, ...]) -> None:
        for name, clock in zip(names, clocks, strict=True):
            self._running(key).groups[name].require_by_ns = clock

    def _gate(self, event: gates.DeploymentGated | gates.GateChanged | gates.WindowChanged) -> None:
        shut = self._running(event.key).shut
        match event:
            case gates.DeploymentGated():
                shut |= {one.name for one in event.gates} | ({""} if event.windows else set())
            case gates.GateChanged():
                name, is_open = event.gate, event.status in {"open", "passed"}
                (shut.discard if is_open else shut.add)(name)
            case gates.WindowChanged():
                (shut.discard if event.is_open else shut.add)("")

    def check_gates(self) -> None:
        """Check, behind a transaction, that what is shut holds its deployment, and nothing else does."""
        for key, one in self.by_key.items():
            if one.status in _ACTIVE:
                wanted = bool(one.shut) and not one.ignores_gates
                self._ledger.hold("pace_kept", wanted == ("gate" in one.held_by), key, one.shut)

    def _promote(self, event: deployments.DeploymentPromoted) -> None:
        one = self._running(event.key)
        self._ledger.hold(_RULE, not one.held_by, "promoted while it is held", event)
        for at, name in enumerate(event.groups):
            group = one.groups[name]
            self._ledger.hold(_RULE, not group.is_promoted, "promoted twice", event)
            good = [
                row
                for row in event.rows
                if self.members[row].group == name and self.members[row].health == _HEALTHY
            ]
            self._ledger.hold(_RULE, len(good) >= group.canaries, "promoted too early", event)
            group.is_promoted = True
            if event.require_by_ns and event.require_by_ns[at]:
                group.require_by_ns = event.require_by_ns[at]
        for row in event.rows:
            member = self.members[row]
            mine = member.is_canary and member.deployment == event.key
            self._ledger.hold(_RULE, mine, "promotes what is not a canary of it", event)
            member.is_canary = False

    def _end(self, event: deployments.DeploymentEnded) -> None:
        one = self._running(event.key)
        lacks = [group for group in one.groups.values() if group.lacks()]
        if event.status == "successful":
            self._ledger.hold(_RULE, not lacks, "successful without health", event)
        if event.cause == "deadline":
            is_late = 0 < one.due_ns() <= self.t_ns and one.is_moving
            self._ledger.hold(_RULE, is_late, "failed too early", event)
            waits = any(group.canaries and not group.is_promoted for group in one.groups.values())
            lacks_any = bool(lacks or waits) or not self._is_whole(event.key)
            self._ledger.hold(_RULE, lacks_any, "failed with all that it needs", event)
        one.begin(event.status)

    def _is_whole(self, key: int) -> bool:
        """Whether as many as it needs are healthy now: the counters have those that died since, too."""
        healthy = Counter(
            member.group
            for row, member in self.members.items()
            if member.deployment == key and member.health == _HEALTHY and self._is_wanted(row)
        )
        return all(healthy[name] >= group.total for name, group in self.by_key[key].groups.items())

    def _health(self, event: allocations.AllocationsHealthChanged) -> None:
        grown: dict[tuple[int, str], list[int]] = {}
        for row, code in zip(event.rows, event.healths, strict=True):
            member = self.members.get(row)
            if member is None:
                continue
            by_rule = not member.health or event.source == "operator"
            self._ledger.hold(_RULE, by_rule, "health changes twice", row, event)
            counts = grown.setdefault((member.deployment, member.group), [0, 0])
            counts[code - 1] += 1
            if member.health:
                counts[member.health - 1] -= 1
            member.health = code
        said = {(one.deployment, one.group): [one.healthy, one.unhealthy] for one in event.counts}
        active = {
            place: counts
            for place, counts in grown.items()
            if place[0] in self.by_key and self.by_key[place[0]].status in _ACTIVE
        }
        self._ledger.hold(_RULE, said == active, "counts", said, active)
        for one in event.counts:
            group = self._running(one.deployment).groups[one.group]
            group.healthy += one.healthy
            group.unhealthy += one.unhealthy
            group.require_by_ns = one.require_by_ns or group.require_by_ns

    def _join(self, key: int, group: str, version: int) -> None:
        one = self._running(key)
        self._ledger.hold(_RULE, one.version == version, "a plan of another version", key, version)
        joined = one.groups[group]
        joined.placed += 1
        if joined.deadline_ns and not joined.require_by_ns and one.is_moving:
            joined.require_by_ns = self.t_ns + joined.deadline_ns
