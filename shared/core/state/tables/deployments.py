"""Deployments: how far the new version of each job has got, group by group.

Counters grow by facts alone (`plan.committed`, `allocations.health_changed`); what follows from them is decided in
`shared/core/decide/deployments/progress.py`. A deployment that ended never changes again.
"""

from collections.abc import Callable, Iterable
from sys import intern

import msgspec
from msgspec.structs import replace

from schemas.allocations import AllocationsHealthChanged, HealthCount
from schemas.base import DeploymentKey, JobId
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentPaused,
    DeploymentPromoted,
    DeploymentReleased,
    DeploymentResumed,
    DeploymentSized,
    DeploymentStarted,
)
from schemas.gates import DeploymentGated, GateChanged, WindowChanged
from schemas.jobs import GroupSpec, JobRegistered, JobsCollected, UpdatePolicy
from schemas.plans import PlanCommitted
from shared.core.columns import EntryHashes, encode_entries
from shared.core.state.gates import OPEN, PASSED, GateState, WindowState
from shared.core.state.tables.consumer import EventConsumer, EventHandlers

#: Ended deployments that are kept of a job.
ENDED_KEPT = 6
RUNNING, PAUSED = "running", "paused"


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One group of a deployment."""

    name: str
    desired_total: int
    desired_canaries: int = 0
    placed: int = 0
    #: those of `placed` that were placed as canaries.
    placed_canaries: int = 0
    healthy: int = 0
    unhealthy: int = 0
    promoted: bool = False
    #: log time until which it must make progress; 0: the clock has not started.
    require_by_ns: int = 0
    max_parallel: int = 1
    progress_deadline_ns: int = 0
    auto_promote: bool = False
    auto_revert: bool = False

    @property
    def needs_promotion(self) -> bool:
        """Its canaries were not promoted yet."""
        return self.desired_canaries > 0 and not self.promoted

    @property
    def required_healthy(self) -> int:
        """Healthy allocations that this phase of it needs."""
        if self.needs_promotion:
            return self.desired_canaries
        return max(self.desired_total, self.desired_canaries)


class DeploymentHold(msgspec.Struct, frozen=True, gc=False):
    """One cause for which a deployment waits."""

    #: gate or rollout.
    cause: str
    reason: str
    since_ns: int


class Deployment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One version of a job on its way."""

    key: DeploymentKey
    job_id: JobId
    version: int
    #: one of DEPLOYMENT_STATUSES.
    status: str = RUNNING
    #: of a paused or ended one, for people.
    reason: str = ""
    #: what started it: submit or revert.
    cause: str = "submit"
    groups: tuple[GroupProgress, ...] = ()
    create_seq: int
    modify_seq: int
    #: the version that was registered again when it failed; -1: none.
    reverted_to: int = -1
    #: by cause.
    holds: tuple[DeploymentHold, ...] = ()
    gates: tuple[GateState, ...] = ()
    #: None: it may continue at any time.
    window: WindowState | None = None
    #: an operator lets it continue regardless of its gates and windows.
    ignores_gates: bool = False
    #: log time of its pause; 0: it is not paused, or a log of before core 0.5.0 does not say.
    paused_ns: int = 0

    @property
    def is_held(self) -> bool:
        """A cause beside itself keeps it from going on."""
        return bool(self.holds)

    @property
    def is_moving(self) -> bool:
        """It may replace, promote, and its clocks run."""
        return self.status == RUNNING and not self.holds

    @property
    def is_gated(self) -> bool:
        """Gates or windows may hold it."""
        return not self.ignores_gates and bool(self.gates or self.window is not None)

    @property
    def is_active(self) -> bool:
        """It has not ended."""
        return self.status in {RUNNING, PAUSED}

    @property
    def needs_promotion(self) -> bool:
        """Canaries of a group were not promoted yet."""
        return any(group.needs_promotion for group in self.groups)

    @property
    def lacking(self) -> tuple[GroupProgress, ...]:
        """Groups of which too few were healthy so far."""
        return tuple([one for one in self.groups if one.healthy < one.required_healthy])

    @property
    def due_ns(self) -> int:
        """The instant at which it fails unless something becomes healthy before; 0: no clock runs."""
        if not self.is_moving:
            return 0
        if self.lacking:
            return min((one.require_by_ns for one in self.lacking if one.require_by_ns), default=0)
        if any(one.needs_promotion and not one.auto_promote for one in self.groups):
            # It waits for a person.
            return 0
        # Enough were healthy once, and some of them are gone or unhealthy now.
        return max((one.require_by_ns for one in self.groups), default=0)

    def hold_of(self, cause: str) -> DeploymentHold | None:
        """Return what holds it for a cause; None: nothing does."""
        for hold in self.holds:
            if hold.cause == cause:
                return hold
        return None

    def group(self, name: str) -> GroupProgress | None:
        """Return a group by its name."""
        for group in self.groups:
            if group.name == name:
                return group
        return None


def paced_groups(groups: Iterable[GroupSpec]) -> list[tuple[GroupSpec, UpdatePolicy]]:
    """Return the groups that a deployment brings up, each with its pace."""
    return [
        (group, group.update)
        for group in groups
        if group.update is not None and group.update.max_parallel > 0 and group.count > 0
    ]


class DeploymentTable(EventConsumer):
    """Deployments of all jobs, active and ended."""

    def __init__(self) -> None:
        self.by_key: dict[DeploymentKey, Deployment] = {}
        #: of a job, oldest first.
        self.keys_of: dict[JobId, tuple[DeploymentKey, ...]] = {}
        #: the one that has not ended, by job.
        self.active: dict[JobId, DeploymentKey] = {}
        #: log time of the transaction being applied: clocks count from it.
        self.log_ns = 0
        self._hashes = EntryHashes[DeploymentKey]()

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {
            JobRegistered: self._register,
            DeploymentStarted: self._start,
            DeploymentSized: self._size,
            DeploymentPromoted: self._promote,
            DeploymentPaused: self._pause,
            DeploymentResumed: self._resume,
            DeploymentHeld: self._hold,
            DeploymentReleased: self._release,
            DeploymentGated: self._gate,
            GateChanged: self._turn_gate,
            WindowChanged: self._turn_window,
            DeploymentEnded: self._end,
            PlanCommitted: self._place,
            AllocationsHealthChanged: self._count,
            JobsCollected: self._collect,
        }

    def active_of(self, job_id: JobId) -> Deployment | None:
        """The deployment of a job that has not ended."""
        key = self.active.get(job_id)
        return None if key is None else self.by_key[key]

    def latest_of(self, job_id: JobId) -> Deployment | None:
        """The newest deployment of a job, ended or not."""
        keys = self.keys_of.get(job_id)
        return self.by_key[keys[-1]] if keys else None

    def of_job(self, job_id: JobId) -> tuple[Deployment, ...]:
        """Deployments of a job, oldest first."""
        return tuple([self.by_key[key] for key in self.keys_of.get(job_id, ())])

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        return self._hashes.digest(
            lambda keys: encode_entries([self.by_key.get(key) for key in keys])
        )

    def _register(self, event: JobRegistered, seq: int) -> None:
        if not event.deploys:
            return
        groups = [
            GroupProgress(
                name=one.name,
                desired_total=one.count,
                max_parallel=update.max_parallel,
                progress_deadline_ns=update.progress_deadline_ns,
                auto_promote=update.auto_promote,
                auto_revert=update.auto_revert,
            )
            for one, update in paced_groups(event.groups)
        ]
        self._begin(
            Deployment(
                key=DeploymentKey(event.evaluation),
                job_id=event.job_id,
                version=event.version,
                cause="revert" if event.reverted_from >= 0 else "submit",
                groups=tuple(groups),
                create_seq=seq,
                modify_seq=seq,
            )
        )

    def _start(self, event: DeploymentStarted, seq: int) -> None:
        groups = tuple(
            GroupProgress(
                name=one.name,
                desired_total=one.desired_total,
                desired_canaries=one.desired_canaries,
                require_by_ns=one.require_by_ns,
                max_parallel=one.max_parallel,
                progress_deadline_ns=one.progress_deadline_ns,
                auto_promote=one.auto_promote,
                auto_revert=one.auto_revert,
            )
            for one in event.groups
        )
        self._begin(
            Deployment(
                key=event.key,
                job_id=event.job_id,
                version=event.version,
                cause=event.cause,
                groups=groups,
                create_seq=seq,
                modify_seq=seq,
            )
        )

    def _begin(self, deployment: Deployment) -> None:
        job_id, key = deployment.job_id, deployment.key
        self._set(deployment)
        older = self.keys_of.get(job_id, ())
        if len(older) > ENDED_KEPT:
            for gone in older[:-ENDED_KEPT]:
                self._forget(gone)
            older = older[-ENDED_KEPT:]
        self.keys_of[job_id] = (*older, key)
        self.active[job_id] = key

    def _size(self, event: DeploymentSized, seq: int) -> None:
        size = {"desired_total": event.desired_total, "desired_canaries": event.desired_canaries}
        self._change(event.key, (event.group,), seq, lambda group, _: replace(group, **size))

    def _promote(self, event: DeploymentPromoted, seq: int) -> None:
        clocks = event.require_by_ns

        def promoted(group: GroupProgress, at: int) -> GroupProgress:
            clock = clocks[at] if clocks else 0
            return replace(group, promoted=True, require_by_ns=clock or group.require_by_ns)

        self._change(event.key, event.groups, seq, promoted)

    def _pause(self, event: DeploymentPaused, seq: int) -> None:
        old = self.by_key[event.key]
        paused = replace(old, status=PAUSED, reason=event.reason, paused_ns=event.since_ns)
        self._set(replace(paused, modify_seq=seq))

    def _resume(self, event: DeploymentResumed, seq: int) -> None:
        old, clocks = self.by_key[event.key], event.require_by_ns
        self._set(replace(old, status=RUNNING, reason="", paused_ns=0))
        self._change(
            event.key, event.groups, seq, lambda group, at: replace(group, require_by_ns=clocks[at])
        )

    def _hold(self, event: DeploymentHeld, seq: int) -> None:
        old = self.by_key[event.key]
        others = [hold for hold in old.holds if hold.cause != event.cause]
        holds = [*others, DeploymentHold(event.cause, event.reason, event.since_ns)]
        holds.sort(key=lambda hold: hold.cause)
        self._set(replace(old, holds=tuple(holds), modify_seq=seq))

    def _release(self, event: DeploymentReleased, seq: int) -> None:
        old, clocks = self.by_key[event.key], event.require_by_ns
        holds = tuple([hold for hold in old.holds if hold.cause != event.cause])
        self._set(replace(old, holds=holds, ignores_gates=old.ignores_gates or event.for_good))
        self._change(
            event.key, event.groups, seq, lambda group, at: replace(group, require_by_ns=clocks[at])
        )

    def _gate(self, event: DeploymentGated, seq: int) -> None:
        since_ns = event.since_ns
        gates = [GateState(gate=one, since_ns=since_ns, shut_ns=since_ns) for one in event.gates]
        window = WindowState(windows=event.windows, since_ns=since_ns) if event.windows else None
        old = self.by_key[event.key]
        self._set(replace(old, gates=tuple(gates), window=window, modify_seq=seq))

    def _turn_gate(self, event: GateChanged, seq: int) -> None:
        old = self.by_key[event.key]
        gates = [_turned(one, event) if one.gate.name == event.gate else one for one in old.gates]
        self._set(replace(old, gates=tuple(gates), modify_seq=seq))

    def _turn_window(self, event: WindowChanged, seq: int) -> None:
        old = self.by_key[event.key]
        if old.window is not None:
            window = replace(
                old.window, is_open=event.is_open, until_ns=event.until_ns, since_ns=event.since_ns
            )
            self._set(replace(old, window=window, modify_seq=seq))

    def _end(self, event: DeploymentEnded, seq: int) -> None:
        old = self.by_key[event.key]
        self._set(
            replace(
                old,
                status=event.status,
                reason=event.reason,
                holds=(),
                paused_ns=0,
                reverted_to=event.reverted_to,
                modify_seq=seq,
            )
        )
        if self.active.get(old.job_id) == event.key:
            del self.active[old.job_id]

    def _place(self, event: PlanCommitted, seq: int) -> None:
        for placement in event.placements:
            if placement.deployment:
                count = sum(placement.counts)
                canaries = count if placement.canaries else 0
                self._join(
                    placement.deployment, placement.group, seq, placed=count, canaries=canaries
                )
        for update in event.updates:
            if update.deployment:
                self._join(update.deployment, update.group, seq, placed=len(update.rows))

    def _join(
        self, key: DeploymentKey, name: str, seq: int, *, placed: int, canaries: int = 0
    ) -> None:
        """Count allocations that were placed; the first ones start the clock, unless it is paused or held."""
        old = self.by_key.get(key)
        if old is None:
            return
        groups = []
        for group in old.groups:
            if group.name == name:
                clock_ns, deadline_ns = group.require_by_ns, group.progress_deadline_ns
                if not clock_ns and deadline_ns and old.is_moving:
                    clock_ns = self.log_ns + deadline_ns
                group = replace(  # noqa: PLW2901
                    group,
                    placed=group.placed + placed,
                    placed_canaries=group.placed_canaries + canaries,
                    require_by_ns=clock_ns,
                )
            groups.append(group)
        self.by_key[key] = replace(old, groups=tuple(groups), modify_seq=seq)
        self._hashes.touched.append(key)

    def _count(self, event: AllocationsHealthChanged, seq: int) -> None:
        for one in event.counts:

            def counted(group: GroupProgress, _: int, one: HealthCount = one) -> GroupProgress:
                return replace(
                    group,
                    healthy=group.healthy + one.healthy,
                    unhealthy=group.unhealthy + one.unhealthy,
                    require_by_ns=one.require_by_ns or group.require_by_ns,
                )

            self._change(one.deployment, (one.group,), seq, counted)

    def _collect(self, event: JobsCollected, seq: int) -> None:
        del seq
        for job_id in event.job_ids:
            self.active.pop(job_id, None)
            for key in self.keys_of.pop(job_id, ()):
                self._forget(key)

    def _change(
        self,
        key: DeploymentKey,
        names: tuple[str, ...],
        seq: int,
        change: Callable[[GroupProgress, int], GroupProgress],
    ) -> None:
        """Change the groups of these names, each with its place among them."""
        old = self.by_key.get(key)
        if old is None:
            return
        groups = [
            change(group, names.index(group.name)) if group.name in names else group
            for group in old.groups
        ]
        self._set(replace(old, groups=tuple(groups), modify_seq=seq))

    def _set(self, deployment: Deployment) -> None:
        self.by_key[deployment.key] = deployment
        self._hashes.touched.append(deployment.key)

    def _forget(self, key: DeploymentKey) -> None:
        del self.by_key[key]
        self._hashes.touched.append(key)


def _turned(one: GateState, event: GateChanged) -> GateState:
    """Return a gate as a crossing leaves it."""
    shuts = one.lets_through and event.status not in {OPEN, PASSED}
    return replace(
        one,
        # A default is left out of hashes where it is the very object.
        status=intern(event.status),
        value=event.value,
        since_ns=event.since_ns,
        shut_ns=event.since_ns if shuts else one.shut_ns,
        was_open=one.was_open or event.status == OPEN,
        every_ns=event.every_ns,
    )
