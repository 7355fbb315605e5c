"""Reconcile of a service job under a deployment: rolling updates at the pace of `max_parallel`, and canaries.

What is missing is placed at once and takes its share of the limit first; old allocations are then replaced, first those
that are not healthy, then by name, each stopped with the placement of its replacement. While canaries wait for
promotion, the others are left alone: what of them is lost, moved or rescheduled comes back in the version that it ran.
A deployment that is paused, held, or failed, replaces only what is lost, moved or rescheduled.
Source: Nomad 2.0.5, scheduler/reconciler/reconcile_cluster.go.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace

from schemas.jobs import GroupSpec
from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.drained_allocs import DRAINED, is_draining
from shared.core.scheduling.reconcile.duplicate_allocs import ScoreOf
from shared.core.scheduling.reconcile.service_jobs import (
    GroupRows,
    PlacementRequest,
    Reconciler,
    ReconcileResult,
    reconcile_groups,
)
from shared.core.scheduling.reconcile.update_limits import (
    Progress,
    canary_names,
    changeable_count,
    missing_canaries,
    replaceable_count,
)
from shared.core.state.state import State
from shared.core.state.tables.allocations import HEALTHY, STOP, UNHEALTHY, UNKNOWN
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.jobs import Job

JOB_CHANGED = "job changed"
HAS_CANARY = "its canary was promoted"
OUT_OF_REACH = "job changed, and its node is out of reach"
NOT_PROMOTED = "canary that was not promoted"
#: A failed deployment still decides what happens to its version.
FAILED = "failed"
_NONE: Rows = np.empty(0, dtype=np.int32)


def deployment_of(state: State, job: Job | None) -> Deployment | None:
    """The deployment that brings up a job's newest version, or failed to; None: nothing is paced."""
    if job is None or job.runs_nothing:
        return None
    found = state.deployments.latest_of(job.id)
    if found is None or found.version != job.version:
        return None
    return found if found.is_active or found.status == FAILED else None


class Pace(msgspec.Struct, frozen=True):
    """How a deployment brings up one group."""

    key: int
    #: not ended: new allocations belong to it.
    is_active: bool
    #: neither paused nor held: it replaces what is old.
    is_running: bool
    max_parallel: int
    #: canaries to bring up before promotion; 0: promoted, or none are needed.
    canaries: int = 0


def pace_of(deployment: Deployment, group: GroupSpec) -> Pace | None:
    """How a deployment brings up a group; None: the group is not in it."""
    if group.update is None:
        return None
    progress = deployment.group(group.name)
    if progress is None:
        return None
    return Pace(
        key=deployment.key,
        is_active=deployment.is_active,
        is_running=deployment.is_moving,
        max_parallel=progress.max_parallel,
        canaries=progress.desired_canaries if progress.needs_promotion else 0,
    )


def reconcile_paced(
    state: State,
    job: Job,
    rows: Rows,
    *,
    deployment: Deployment,
    mask_of: Callable[[GroupSpec], Mask],
    score_of: ScoreOf,
) -> ReconcileResult:
    """Compare a service job that a deployment brings up with its allocation rows."""
    if not len(rows):
        return ReconcileResult((), (), _initial_requests(job, deployment))
    out = PacedReconciler(state, job, mask_of, score_of)
    out.deployment_of_job = deployment
    reconcile_groups(out, rows, out.compare)
    return out.result()


def _initial_requests(job: Job, deployment: Deployment) -> tuple[PlacementRequest, ...]:
    """Request all allocations of a job that has none: the first version of nearly every service."""
    requests = []
    is_running = deployment.is_moving
    for group in job.groups:
        is_paced = group.update is not None and deployment.group(group.name) is not None
        if group.count > 0 and (is_running or not is_paced):
            names = np.arange(group.count, dtype=np.int64)
            key = deployment.key if is_paced else 0
            requests.append(PlacementRequest(group, group.count, names, _NONE, deployment=key))
    return tuple(requests)


class PacedReconciler(Reconciler):
    """A comparison in which a deployment limits what is replaced."""

    deployment_of_job: Deployment

    def compare(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Compare the rows of one group of the job. Shapes: rows, lost (R,)."""
        pace = pace_of(self.deployment_of_job, group)
        self.deployment = 0
        if pace is None:
            super().compare(job, group, rows, lost)
            return
        self.deployment = pace.key if pace.is_active else 0
        table = self.state.allocations
        matters = (table.desired[rows] != STOP) | table.predecessors.holds(table.key[rows])
        canary = table.canary[rows] & matters
        if canary.any():
            stray = canary & ~((table.deployment[rows] == pace.key) & pace.is_active)
            self.stop_running(rows[stray & ~lost], NOT_PROMOTED)
            matters &= ~stray
        rows, lost = rows[matters], lost[matters]
        if pace.canaries:
            self._hold(job, group, rows, lost, pace=pace)
        elif pace.is_running and self._is_calm(job, group, rows):
            self._replace(group, rows, lost)
        else:
            self._roll(group, self.sort(job, group, rows, lost), pace, job)

    # ---- rolling update ----

    def _roll(self, group: GroupSpec, at: GroupRows, pace: Pace, job: Job) -> None:
        """Place what is missing, and replace old allocations as far as the limit allows."""
        table, rows = self.state.allocations, at.rows
        retry = self._retries(job, group, at, pace)
        waits = at.failed & ~retry
        unknown = at.alive & (table.client[rows] == UNKNOWN) & group.disconnect.replace
        away = unknown & at.same
        old = at.alive & ~at.same & ~at.moved
        # What is old and out of reach is missing.
        gone = old & unknown
        old = self._one_of_each(group, rows, old & ~gone, at.done)
        kept = self._one_of_each(group, rows, (at.alive & at.same & ~away) | waits, at.done)
        standing = self._fewer(group, rows, kept, old)
        open_ = self._still_open(group, rows, away, at.done)
        self.update(job, group, rows[(standing | open_) & at.alive & at.same & ~at.current])
        if pace.is_running:
            self.stop(rows[gone], OUT_OF_REACH)
        self.stop(rows[retry], "replaced")
        again = self._again(at, at.lost | at.moved | retry | gone | open_, away, standing)
        missing = max(group.count - int(standing.sum()), 0)
        if not pace.is_running:
            missing = min(missing, len(again))
        # An operator's moves do not use up the limit.
        share = missing - min(missing, int(at.moved.sum()))
        limit = changeable_count(
            pace.max_parallel,
            self._progress(rows[standing | away], pace),
            is_running=pace.is_running,
        )
        old &= standing
        some = replaceable_count(limit, old=int(old.sum()), missing=share)
        changed = self._healthy_last(rows[old])[:some]
        rest = rows[standing & ~np.isin(rows, changed)]
        moves = self._moves(group, rest)
        tied = np.concatenate((changed, moves))
        reasons = (JOB_CHANGED,) * len(changed) + (DRAINED,) * len(moves)
        staying = rest[~np.isin(rest, moves)]
        self.request(group, missing, staying, again, tied=tied, reasons=reasons)

    def _retries(self, job: Job, group: GroupSpec, at: GroupRows, pace: Pace) -> Mask:
        """Which failed rows are replaced now: in an active deployment only those whose health is known."""
        table = self.state.allocations
        due = self._is_due(job, group, at.rows, at.failed)
        mine = table.deployment[at.rows] == pace.key
        if not pace.is_active:
            old: Mask = at.failed & due & ~mine
            return old
        retry: Mask = at.failed & due & (~mine | (table.health[at.rows] != 0))
        if pace.is_running and not pace.canaries:
            # The new version may be what mends it.
            retry |= at.failed & ~at.same & ~mine
        return retry

    def _fewer(self, group: GroupSpec, rows: Rows, kept: Mask, old: Mask) -> Mask:
        """Keep at most the count: old ones stop first whose names new ones have, then the highest names."""
        standing = kept | old
        excess = int(standing.sum()) - group.count
        if excess <= 0:
            return standing
        index = self.state.allocations.index[rows]
        twins = self._by_name(rows[old & np.isin(index, index[kept])])[:excess]
        self.stop(twins, HAS_CANARY)
        return self._cap(rows, standing & ~np.isin(rows, twins), group.count)

    def _progress(self, standing: Rows, pace: Pace) -> Progress:
        table = self.state.allocations
        health = table.health[standing[table.deployment[standing] == pace.key]]
        return Progress(
            unready=int(np.count_nonzero(health == 0)),
            unhealthy=int(np.count_nonzero(health == UNHEALTHY)),
        )

    def _healthy_last(self, rows: Rows) -> Rows:
        """Order old rows as they are replaced: what is not healthy goes first, since nothing is lost with it."""
        by_name = self._by_name(rows)
        is_healthy = self.state.allocations.health[by_name] == HEALTHY
        ordered: Rows = by_name[np.argsort(is_healthy, kind="stable")]
        return ordered

    def _by_name(self, rows: Rows) -> Rows:
        by_name: Rows = rows[np.lexsort((rows, self.state.allocations.index[rows]))]
        return by_name

    # ---- canaries ----

    def _hold(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask, *, pace: Pace) -> None:
        """Bring up canaries, and leave the others alone until promotion."""
        at = self.sort(job, group, rows, lost)
        table = self.state.allocations
        canary = table.canary[at.rows]
        retry = self._retries(job, group, at, pace)
        unknown = at.alive & (table.client[at.rows] == UNKNOWN) & group.disconnect.replace
        stands = (at.alive & ~at.moved & ~unknown) | (at.failed & ~retry)
        again = at.lost | at.moved | retry | unknown
        self.stop(at.rows[retry], "replaced")
        self.update(job, group, at.rows[~canary & at.alive & at.same & ~at.current])
        old = self._by_name(at.rows[~canary & stands & ~at.same])
        others = at.rows[~canary]
        unreplaced = self._unreplaced(rows[~table.canary[rows]])
        # A canary takes no name of theirs.
        unreplaced = unreplaced[~np.isin(table.index[unreplaced], table.index[others])]
        late = self._unreplaced(rows[table.canary[rows] & (table.desired[rows] == STOP)])
        # First the others: canaries keep away from those that stay.
        others_at, at = replace(at, unreplaced=unreplaced), replace(at, unreplaced=late)
        self._keep_others(
            job,
            group,
            others_at,
            stands=stands & ~canary,
            again=again & ~canary,
            canaries=np.concatenate((at.rows[canary & (stands | again)], late)),
        )
        self._bring_up_canaries(group, at, pace, canary & stands, again=canary & again, old=old)

    def _bring_up_canaries(
        self, group: GroupSpec, at: GroupRows, pace: Pace, stands: Mask, *, again: Mask, old: Rows
    ) -> None:
        """Request missing canaries; those on draining nodes stop with their replacements."""
        index = self.state.allocations.index
        standing = self._one_of_each(group, at.rows, stands, at.done)
        leaving = at.rows[standing & at.alive & self._leaves(at.rows)]
        staying = at.rows[standing & ~np.isin(at.rows, leaving)]
        replaced = self._newest(np.concatenate((at.rows[again], at.unreplaced)))
        replaced = self._by_name(replaced[~np.isin(index[replaced], index[at.rows[standing]])])
        wanted = missing_canaries(
            pace.canaries, standing=len(staying) + len(leaving), most=group.count
        )
        if not pace.is_running:
            wanted = min(wanted, len(replaced)) if pace.is_active else 0
        replaced = replaced[:wanted]
        # What continues in place in the new version has its names already.
        kept = at.alive & at.same & ~self.state.allocations.canary[at.rows]
        taken = [*index[at.rows[standing | kept]].tolist(), *index[replaced].tolist()]
        # So has what is placed with them of the same text.
        taken += [
            name
            for one in self.requests
            if one.job is None and one.group.name == group.name
            for name in one.names.tolist()
        ]
        new = canary_names(
            wanted - len(replaced), old=index[old].tolist(), taken=taken, count=group.count
        )
        origins = np.concatenate((replaced, np.full(len(new), -1, dtype=np.int32), leaving))
        if not len(origins):
            return
        names = np.concatenate((index[replaced], np.asarray(new, dtype=np.int64), index[leaving]))
        request = self.named_request(
            group, names.astype(np.int64), self._stay(at, leaving), origins
        )
        reasons = (DRAINED,) * len(leaving)
        self.requests.append(replace(request, canaries=True, tied=leaving, tied_reasons=reasons))

    def _stay(self, at: GroupRows, leaving: Rows) -> Rows:
        """Return the rows of the group, of any version, that continue where they are."""
        tied = [one.tied for one in self.requests]
        stopped = [np.asarray(one.rows, dtype=np.int32) for one in self.stops]
        going: Rows = np.concatenate((leaving, *tied, *stopped))
        rows: Rows = at.rows[at.alive & ~at.moved & ~np.isin(at.rows, going)]
        return rows

    def _leaves(self, rows: Rows) -> Mask:
        if not self.state.fleet.drains:
            return np.zeros(len(rows), dtype=bool)
        return is_draining(self.state, rows)

    def _keep_others(
        self,
        job: Job,
        group: GroupSpec,
        at: GroupRows,
        *,
        stands: Mask,
        again: Mask,
        canaries: Rows,
    ) -> None:
        """Replace what was lost of the others, in the version that it ran; their count is left alone.

        `canaries`: those that stand, and those that are replaced.
        """
        table = self.state.allocations
        others = np.concatenate((at.rows[stands | again], at.unreplaced))
        # Those of the same text continue in the newest version.
        running = self._older(job, group, others[~self.versions(job, group, others)[0]])
        if running is None:
            return
        older, spec = running
        standing = self._one_of_each(spec, at.rows, stands, at.done)
        replaced = self._newest(np.concatenate((at.rows[again], at.unreplaced)))
        kept = at.rows[standing]
        if older is job:
            # Of the same text: a canary is one of them, and no name is given twice.
            own = canaries[~np.isin(table.index[canaries], table.index[kept])]
            kept = np.concatenate((kept, self._newest(own)))
        replaced = replaced[~np.isin(table.index[replaced], table.index[kept])]
        moves = self._moves(spec, at.rows[standing], spec.count)
        missing = spec.count - len(kept)
        if missing < 0 and len(moves):
            # An older version had more: what a drain takes of them has no name to go to.
            self.stop(moves[:-missing], DRAINED)
            kept, moves = kept[~np.isin(kept, moves[:-missing])], moves[-missing:]
        staying = kept[~np.isin(kept, moves)]
        first = len(self.requests)
        mine, self.deployment = self.deployment, self.deployment if older is job else 0
        reasons = (DRAINED,) * len(moves)
        self.request(spec, missing, staying, replaced, tied=moves, reasons=reasons)
        self.deployment = mine
        if older is not job:
            self.requests[first:] = [replace(one, job=older) for one in self.requests[first:]]

    def _older(self, job: Job, group: GroupSpec, rows: Rows) -> tuple[Job, GroupSpec] | None:
        """The newest version that these rows run, and its group; None: its text is gone."""
        groups = self.state.allocations.groups
        refs = np.unique(self.state.allocations.group[rows]).tolist()
        version = max((groups.versions[ref] for ref in refs), default=-1)
        if version < 0:
            # All of them are gone: an operator stopped them, and their replacements found no room.
            version = self._version_before(job, group.name)
            if version < 0:
                return job, group
        older = self.state.jobs.job_at(job.id, version)
        for one in older.groups if older is not None else ():
            if older is not None and one.name == group.name:
                return (job, group) if one.digest == group.digest else (older, one)
        return None

    def _version_before(self, job: Job, name: str) -> int:
        """The newest version before this one that did not wait for promotion of a group; -1: none is known."""
        known = self.state.deployments.of_job(job.id)
        waiting = {
            one.version
            for one in known
            if (progress := one.group(name)) is not None and progress.needs_promotion
        }
        versions = self.state.jobs.versions.get(job.id, ())
        placed = self.state.allocations.groups.ref_of
        before = [one.version for one in versions if (job.id, one.version, name) in placed]
        return max((one for one in before if one < job.version and one not in waiting), default=-1)
