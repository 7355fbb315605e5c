"""Reconcile of service and batch jobs: stops, updates and placement requests from comparing with what runs.

Order, after Nomad's reconciler: everything of a stopped job or a removed group stops; what runs on a node that is down
is lost and replaced; what is unknown (lost_allocs.py) is replaced but not stopped, and when it returns one of the two
stops (duplicate_allocs.py); failed allocations are replaced once their reschedule time has come; another digest
replaces, the same digest of another version is updated in place; then the count decides, highest names stop first.
Source: reference semantics of Nomad 2.5 (scheduler/reconciler).
"""

from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from schemas.base import DeploymentKey
from schemas.evaluations import Waiting
from schemas.jobs import FINITE_JOB_TYPES, GroupSpec, ReschedulePolicy
from schemas.plans import GroupSize, InPlace, Stops
from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.distinct_rules import (
    beyond_rules,
    rows_of_earlier_groups,
)
from shared.core.scheduling.reconcile.drained_allocs import (
    DRAINED,
    STOPPED,
    is_drained,
    is_stop_requested,
    movable_rows,
)
from shared.core.scheduling.reconcile.duplicate_allocs import ScoreOf, duplicates_to_stop
from shared.core.scheduling.reconcile.lost_allocs import is_lost
from shared.core.scheduling.reconcile.predecessors import split_stops
from shared.core.scheduling.reconcile.reschedule_delays import reschedule_delay_ns
from shared.core.scheduling.reconcile.started_again import STARTED_AGAIN, is_before_stop
from shared.core.scheduling.selection.coupling_blocks import has_distinct_rules
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    COMPLETE,
    EVICT,
    FAILED,
    RUN,
    RUNNING,
    STOP,
    TERMINAL,
    UNKNOWN,
    was_failed,
)
from shared.core.state.tables.jobs import Job

_NONE: Rows = np.empty(0, dtype=np.int32)


class PlacementRequest(msgspec.Struct, frozen=True, eq=False):
    """Allocations of one group to place. Shapes: names, previous, reschedules, avoid (count,).

    `previous` is the key that each replaces (0: none) and `avoid` the node row it just failed on (-1: none).
    Replacements come first; where there are none, or none failed, these columns are None.
    """

    group: GroupSpec
    count: int
    names: NDArray[np.int64]
    #: rows of the group that stay on their nodes; anti-affinity counts them.
    staying: Rows
    previous: NDArray[np.int64] | None = None
    reschedules: NDArray[np.int64] | None = None
    avoid: NDArray[np.int64] | None = None
    #: (N,) how many each node must take, for system jobs; names are assigned once the nodes are known.
    per_node: NDArray[np.int64] | None = None
    #: with `per_node`: rows whose names are taken on their nodes, and rows that are replaced.
    taken: Rows = _NONE
    replaced: Rows = _NONE
    #: which of them replace an evicted one.
    evicted: NDArray[np.bool_] | None = None
    #: rows that these replace.
    origins: Rows = _NONE
    #: rows that stop with their replacements, not before: the last of the allocations to place are these. Why.
    tied: Rows = _NONE
    tied_reasons: tuple[str, ...] = ()
    #: deployment that these belong to; 0: none.
    deployment: int = 0
    canaries: bool = False
    #: an older version of the job, where these run that; None: the newest.
    job: Job | None = None


class ReconcileResult(msgspec.Struct, frozen=True, eq=False):
    """The actions that a plan for the job must contain."""

    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    requests: tuple[PlacementRequest, ...]
    #: groups of which the deployment has other numbers.
    sizes: tuple[GroupSize, ...] = ()
    #: groups of which some wait for their turn, and why.
    waits: tuple[tuple[GroupSpec, Waiting], ...] = ()


_NOTHING = ReconcileResult((), (), ())


class GroupRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of one group that are wanted, and what is the matter with each. Shapes: all but `unreplaced` (R,)."""

    rows: Rows
    lost: Mask
    #: neither ended nor lost.
    alive: Mask
    failed: Mask
    #: of the group's present digest, on a node where it may run, and not moved.
    same: Mask
    #: of the newest version.
    current: Mask
    #: an operator, or a drain past its deadline, stops it now.
    moved: Mask
    #: ended for good, for this version.
    done: Mask
    #: evicted or stopped ones, whose replacements are still to come.
    unreplaced: Rows


class Reconciler:
    """One comparison: sorts rows into buckets."""

    def __init__(
        self, state: State, job: Job | None, mask_of: Callable[[GroupSpec], Mask], score_of: ScoreOf
    ) -> None:
        self.state = state
        self.job = job
        self.mask_of = mask_of
        self.score_of = score_of
        self.stops: list[Stops] = []
        self.updates: list[InPlace] = []
        self.requests: list[PlacementRequest] = []
        #: deployment of the group that is compared; 0: none.
        self.deployment = 0
        #: rows whose replacements could not be placed when they were stopped.
        self.late = _NONE

    @property
    def is_live(self) -> bool:
        """Tell whether the job exists and is not stopped."""
        return self.job is not None and not self.job.runs_nothing

    def stop(
        self, rows: Rows, reason: str, client_status: str = "", *, is_final: bool = False
    ) -> None:
        """Put rows into a stop bucket; final ones are not replaced in this version."""
        if len(rows):
            names = tuple(rows.tolist())
            self.stops.append(
                Stops(rows=names, reason=reason, client_status=client_status, final=is_final)
            )

    def stop_running(self, rows: Rows, reason: str) -> None:
        """Stop those of the rows that are desired to run and have not ended."""
        table = self.state.allocations
        self.stop(rows[(table.desired[rows] == RUN) & ~TERMINAL[table.client[rows]]], reason)

    def displace(self, rows: Rows, alive: Mask, job: Job) -> Mask:
        """Stop what an operator stopped, or a drain does not leave longer. Shapes: rows, alive, result (R,)."""
        state = self.state
        if not state.allocations.displaced and not state.fleet.drains:
            return np.zeros(len(rows), dtype=bool)
        marked = alive & is_stop_requested(state, rows)
        drained = alive & ~marked & is_drained(state, rows, job.job_type)
        self.stop(rows[marked], STOPPED)
        # A batch job's allocation is not replaced: it would begin again elsewhere.
        self.stop(rows[drained], DRAINED, is_final=job.job_type in FINITE_JOB_TYPES)
        return marked | drained

    def lose(self, rows: Rows) -> tuple[Rows, Mask]:
        """Put allocations on nodes that are gone into the bucket of lost ones.

        Returns the rows that remain to compare, and which are lost: these are replaced unless they were stopping.
        """
        table = self.state.allocations
        lost = is_lost(self.state, rows) & ~TERMINAL[table.client[rows]]
        self.stop(rows[lost], "node is down", "lost")
        matters = ~lost | (table.desired[rows] != STOP) if self.is_live else ~lost
        if self.is_live and table.predecessors:
            matters |= table.predecessors.holds(table.key[rows])
        if table.final:
            matters |= table.is_final(rows)
        return rows[matters], lost[matters]

    def compare(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Compare the rows of one group of the job. Shapes: rows, lost (R,)."""
        table = self.state.allocations
        stops = np.equal(table.desired[rows], STOP)
        if np.count_nonzero(stops):
            # Stopping allocations do not count, nor do stopped ones, unless their replacements are to come.
            stops &= ~table.is_final(rows) & ~table.predecessors.holds(table.key[rows])
            rows, lost = rows[~stops], lost[~stops]
        if self._is_calm(job, group, rows):
            self._replace(group, rows, lost)
            return
        at = self.sort(job, group, rows, lost)
        client = table.client[at.rows]
        # A failed one of the current digest waits for its reschedule time; of another digest it is replaced at once.
        waits = at.failed & at.same & ~self._is_due(job, group, at.rows, at.failed)
        # An unknown one keeps its place only until its replacement runs.
        away = at.alive & at.same & (client == UNKNOWN) & group.disconnect.replace
        keep = self._one_of_each(group, at.rows, (at.alive & at.same & ~away) | waits, at.done)
        done = len(np.unique(table.index[at.rows[at.done]])) if at.done.any() else 0
        kept = self._cap(at.rows, keep, group.count - done)
        open_ = self._still_open(group, at.rows, away, at.done)
        self.update(job, group, at.rows[(kept | open_) & at.alive & ~at.current])
        self.stop(at.rows[at.alive & ~at.same & ~at.moved], "job changed")
        self.stop(at.rows[at.failed & ~waits], "replaced")
        missing = group.count - int(kept.sum()) - done
        replaced = at.lost | (at.alive & ~at.same) | (at.failed & ~waits) | open_
        again = self._again(at, replaced, away, kept | at.done)
        moves = self._moves(group, at.rows[kept])
        staying = at.rows[kept | at.done]
        if len(moves):
            staying = staying[~np.isin(staying, moves)]
        self.request(group, missing, staying, again, tied=moves, reasons=(DRAINED,) * len(moves))

    def sort(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> GroupRows:
        """Say what is the matter with each row of a group; what an operator stopped goes into its bucket."""
        table = self.state.allocations
        unreplaced = self._unreplaced(rows)
        final = table.is_final(rows)
        wanted = (table.desired[rows] == RUN) | final
        rows, lost, final = rows[wanted], (lost & ~final)[wanted], final[wanted]
        client, nodes = table.client[rows], table.node[rows]
        ended, failed = TERMINAL[client] | final, (client == FAILED) & ~final
        alive = ~ended & ~lost
        same, current = self.versions(job, group, rows)
        before = is_before_stop(self.state, job, rows)
        if before.any():
            # What failed before a stop of the job runs again; what completed continues as of this version.
            self.stop(rows[failed & before], STARTED_AGAIN)
            failed &= ~before
            if job.job_type == "batch":
                completed = (client == COMPLETE) & same & before & ~final
                self.update(job, group, rows[completed])
                current |= completed
        moved = self.displace(rows, alive, job)
        if not current[alive].all():
            # A new version may forbid the node that an allocation runs on.
            same &= current | ~alive | self.mask_of(group)[nodes]
        same &= ~moved
        if has_distinct_rules(group) and not current[alive].all():
            same &= ~self._beyond_rules(job, group, rows, stays=alive & same, current=current)
        done = ((client == COMPLETE) | final) & current
        if job.job_type != "batch":
            done = np.zeros(len(rows), dtype=bool)
        elif moved.any():
            # The drain ends them.
            done |= moved & ~is_stop_requested(self.state, rows)
        if len(unreplaced):
            # What completed in an older version holds no name.
            named = table.index[rows[alive | lost | failed | done]]
            unreplaced = unreplaced[~np.isin(table.index[unreplaced], named)]
        return GroupRows(rows, lost, alive, failed, same, current, moved, done, unreplaced)

    def _beyond_rules(
        self, job: Job, group: GroupSpec, rows: Rows, *, stays: Mask, current: Mask
    ) -> Mask:
        """Which rows that would stay are more than the distinct rules of a new version allow. Shapes: (R,)."""
        leaving = [np.asarray(one.rows, dtype=np.int32) for one in self.stops]
        leaving += [one.tied for one in self.requests]
        others = rows_of_earlier_groups(self.state, job, group, np.concatenate((_NONE, *leaving)))
        return beyond_rules(self.state, group, rows, stays=stays, current=current, others=others)

    def _again(self, at: GroupRows, replaced: Mask, away: Mask, kept: Mask) -> Rows:
        """The rows to replace, of each name the newest."""
        table = self.state.allocations
        again = np.concatenate((at.rows[replaced & ~at.done], at.unreplaced))
        if away.any():
            again = again[~np.isin(table.index[again], table.index[at.rows[kept]])]
        return self._newest(again)

    def _moves(self, group: GroupSpec, standing: Rows, count: int = -1) -> Rows:
        """Which of a group's standing rows leave draining nodes now, before the deadline. `count`: another's."""
        if not self.state.fleet.drains or group.migrate is None:
            return _NONE
        count = group.count if count < 0 else count
        return movable_rows(self.state, standing, count, group.migrate.max_parallel)

    def _replace(self, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Replace the lost rows of an undisturbed group, as far as the count needs them. Shapes: rows, lost (R,)."""
        index = self.state.allocations.index[rows]
        kept, gone = rows[~lost], rows[lost]
        missing = group.count - len(kept)
        if missing < 0 or int(np.bincount(index).max()) > 1:
            # Too many of them, or duplicates of a name.
            keep = self._one_of_each(group, rows, ~lost, np.zeros(len(rows), dtype=bool))
            kept = rows[self._cap(rows, keep, group.count)]
            missing, gone = group.count - len(kept), self._newest(gone)
        self.request(group, missing, kept, gone)

    def _is_calm(self, job: Job, group: GroupSpec, rows: Rows) -> bool:
        """Tell whether all rows of a group run its current version, and at most their nodes changed: the usual case.

        `_replace` is then `compare` without its empty steps; a property test compares both.
        """
        state, table = self.state, self.state.allocations
        if table.displaced or state.fleet.drains or not len(rows):
            return False
        refs, client = table.group[rows], table.client[rows]
        ref = int(refs[0])
        groups = table.groups
        return (
            groups.versions[ref] == job.version
            and groups.digests[ref] == group.digest
            and not np.count_nonzero(refs != ref)
            # All are desired to run, and pending or running: the first codes of each column.
            and not np.count_nonzero(table.desired[rows] != RUN)
            and not np.count_nonzero(client > RUNNING)
        )

    def _one_of_each(self, group: GroupSpec, rows: Rows, keep: Mask, done: Mask) -> Mask:
        """Keep one allocation of each name, none of a name that completed; stop the others."""
        index = self.state.allocations.index[rows]
        over = duplicates_to_stop(self.state, group, rows, keep, score_of=self.score_of)
        if done.any():
            over |= keep & np.isin(index, index[done])
        if over.any():
            self.stop(rows[over], "another one of its name stays")
            keep = keep & ~over
        return keep

    def _still_open(self, group: GroupSpec, rows: Rows, away: Mask, done: Mask) -> Mask:
        """Which unknown rows keep their place; stop the others."""
        if not away.any():
            return away
        index = self.state.allocations.index[rows]
        over = away & ((index >= group.count) | np.isin(index, index[done]))
        self.stop(rows[over], "not needed")
        return away & ~over

    def _newest(self, rows: Rows) -> Rows:
        """The newest row of each name."""
        table = self.state.allocations
        if len(rows) < 2 or len(np.unique(table.index[rows])) == len(rows):
            return rows
        by_age = rows[np.argsort(-table.key[rows], kind="stable")]
        _, firsts = np.unique(table.index[by_age], return_index=True)
        return by_age[np.sort(firsts)]

    def request(
        self,
        group: GroupSpec,
        missing: int,
        staying: Rows,
        replaced: Rows,
        *,
        tied: Rows = _NONE,
        reasons: tuple[str, ...] = (),
    ) -> None:
        """Request allocations: replacements first, under their old names where those are below the count.

        `tied` rows stop once their replacements are placed, for these `reasons`; they come last.
        """
        missing = max(missing, 0)
        total = missing + len(tied)
        if not total:
            return
        if not (len(staying) or len(replaced) or len(tied)):
            names = np.arange(missing, dtype=np.int64)
            request = PlacementRequest(group, missing, names, _NONE, deployment=self.deployment)
            self.requests.append(request)
            return
        table = self.state.allocations
        if len(replaced):
            replaced = replaced[np.lexsort((replaced, table.index[replaced]))][:missing]
        origins = np.full(total, -1, dtype=np.int32)
        origins[: len(replaced)] = replaced
        origins[missing:] = tied
        names = self._names(group, staying, origins)
        request = self.named_request(group, names, staying, origins)
        if len(tied):
            request = replace(request, tied=tied, tied_reasons=reasons)
        self.requests.append(request)

    def named_request(
        self, group: GroupSpec, names: NDArray[np.int64], staying: Rows, origins: Rows
    ) -> PlacementRequest:
        """Request these names; `origins` says which row each replaces, -1: none. Shapes: names, origins (count,)."""
        table, count = self.state.allocations, len(names)
        ended = TERMINAL[table.client[staying]]
        if np.count_nonzero(ended):
            staying = staying[~ended]
        is_new = origins < 0
        if is_new.all():
            return PlacementRequest(group, count, names, staying, deployment=self.deployment)
        rows = np.where(is_new, 0, origins)
        evicted = (table.desired[rows] == EVICT) & ~is_new
        failed = was_failed(table, rows) & ~evicted & ~is_new
        avoid = np.where(failed, table.node[rows], -1).astype(np.int64)
        reschedules = table.reschedules[rows].astype(np.int64) + failed
        return PlacementRequest(
            group,
            count,
            names,
            staying,
            previous=np.where(is_new, 0, table.key[rows]),
            reschedules=np.where(is_new, 0, reschedules),
            avoid=avoid if np.count_nonzero(failed) else None,
            evicted=evicted if np.count_nonzero(evicted) else None,
            origins=origins[~is_new],
            deployment=self.deployment,
        )

    def _unreplaced(self, rows: Rows) -> Rows:
        """Which evicted or stopped rows of a group are to be replaced and are not yet."""
        table = self.state.allocations
        evicted = self._unreplaced_evicted(rows[table.desired[rows] == EVICT])
        late = rows[table.predecessors.holds(table.key[rows])]
        return np.concatenate((evicted, late)) if len(late) else evicted

    def _unreplaced_evicted(self, evicted: Rows) -> Rows:
        if not len(evicted):
            return evicted
        table = self.state.allocations
        job_id = table.groups.job_ids[int(table.group[evicted[0]])]
        followed = {table.previous.get(row, 0) for row in table.rows_of(job_id).tolist()}
        newest: dict[int, int] = {}
        for row in sorted(evicted.tolist(), key=lambda row: int(table.key[row])):
            newest[int(table.index[row])] = row
        open_ = [row for row in newest.values() if int(table.key[row]) not in followed]
        return np.sort(np.asarray(open_, dtype=np.int32))

    def _names(self, group: GroupSpec, staying: Rows, origins: Rows) -> NDArray[np.int64]:
        """Assign names to allocations: those of the rows they replace where these are free. Shape: (count,)."""
        index = self.state.allocations.index
        taken = np.zeros(group.count, dtype=bool)
        held = index[staying]
        taken[held[held < group.count]] = True
        names = np.full(len(origins), -1, dtype=np.int64)
        for position in np.flatnonzero(origins >= 0).tolist():
            name = int(index[origins[position]])
            if name < group.count and not taken[name]:
                names[position] = name
                taken[name] = True
        if -1 in names:
            unnamed = (names < 0).nonzero()[0]
            names[unnamed] = (~taken).nonzero()[0][: len(unnamed)]
        return names

    def versions(self, job: Job, group: GroupSpec, rows: Rows) -> tuple[Mask, Mask]:
        """Which rows run the group's current digest, and which of them under the newest version."""
        groups = self.state.allocations.groups
        refs, inverse = np.unique(self.state.allocations.group[rows], return_inverse=True)
        same = [groups.digests[ref] == group.digest for ref in refs.tolist()]
        current = [groups.versions[ref] == job.version for ref in refs.tolist()]
        return np.array(same, dtype=bool)[inverse], np.array(current, dtype=bool)[inverse]

    def _is_due(self, job: Job, group: GroupSpec, rows: Rows, failed: Mask) -> Mask:
        """Which failed rows may be replaced now: by log time, or by a policy that came after the failure."""
        due = np.zeros(len(rows), dtype=bool)
        at_ns = self.state.allocations.reschedule_at_ns
        for position in np.flatnonzero(failed).tolist():
            row = int(rows[position])
            policy = self._newer_policy(job, group, row)
            if policy is None:
                due[position] = 0 < at_ns.get(row, 0) <= self.state.t_ns
            else:
                chain = self.state.allocations.chains.get(int(self.state.allocations.key[row]), ())
                due[position] = reschedule_delay_ns(policy, chain, self.state.t_ns) is not None
        return due

    def _newer_policy(self, job: Job, group: GroupSpec, row: int) -> ReschedulePolicy | None:
        """The reschedule policy of a group, where a row failed under another one; None: it is the same."""
        groups, ref = self.state.allocations.groups, int(self.state.allocations.group[row])
        if groups.versions[ref] == job.version:
            return None
        older = self.state.jobs.job_at(job.id, groups.versions[ref])
        for one in older.groups if older is not None else ():
            if one.name == group.name and one.reschedule != group.reschedule:
                return group.reschedule
        return None

    def _cap(self, rows: Rows, keep: Mask, count: int) -> Mask:
        """Keep at most `count`, lowest names first; stop the rest."""
        excess = int(keep.sum()) - max(count, 0)
        if excess <= 0:
            return keep
        positions = np.flatnonzero(keep)
        names = self.state.allocations.index[rows[positions]]
        by_name = positions[np.lexsort((rows[positions], names))]
        highest = by_name[len(by_name) - excess :]
        kept = keep.copy()
        kept[highest] = False
        self.stop(rows[np.sort(highest)], "not needed")
        return kept

    def update(self, job: Job, group: GroupSpec, rows: Rows) -> None:
        """Update rows to the newest version in place."""
        if len(rows):
            names = tuple(rows.tolist())
            self.updates.append(
                InPlace(
                    rows=names,
                    group=group.name,
                    version=job.version,
                    deployment=DeploymentKey(self.deployment),
                )
            )

    def result(self) -> ReconcileResult:
        """Return all buckets. A stop says which of its rows are replaced by what is requested."""
        stops = tuple(self.stops)
        if stops or len(self.late):
            stops = split_stops(self.state, stops, self._replaced_rows(), self.late)
        return ReconcileResult(stops, tuple(self.updates), tuple(self.requests))

    def _replaced_rows(self) -> Rows:
        """Rows that what is requested replaces."""
        table, found = self.state.allocations, [_NONE]
        for one in self.requests:
            if one.per_node is not None:
                found.append(one.replaced[one.per_node[table.node[one.replaced]] > 0])
            else:
                found.append(one.origins)
        return np.concatenate(found)


def reconcile(
    state: State,
    job: Job | None,
    rows: Rows,
    *,
    mask_of: Callable[[GroupSpec], Mask],
    score_of: ScoreOf,
) -> ReconcileResult:
    """Compare a service or batch job with its allocation rows; a stopped or removed job may be of any type.

    `mask_of` returns a group's feasible nodes, ready or not; `score_of` the scores of one more allocation on nodes.
    """
    if not len(rows):
        return (
            _NOTHING
            if job is None or job.runs_nothing
            else ReconcileResult((), (), _initial_requests(job))
        )
    out = Reconciler(state, job, mask_of, score_of)
    reconcile_groups(out, rows, out.compare)
    return out.result()


def _initial_requests(job: Job) -> tuple[PlacementRequest, ...]:
    """Request all allocations of a new job: what nearly every evaluation of small jobs does."""
    return tuple(
        [
            PlacementRequest(group, group.count, np.arange(group.count, dtype=np.int64), _NONE)
            for group in job.groups
            if group.count > 0
        ]
    )


def reconcile_groups(
    out: Reconciler, rows: Rows, compare: Callable[[Job, GroupSpec, Rows, Mask], None]
) -> None:
    """Sort out lost rows, stopped jobs and removed groups; `compare` handles the rest, by group."""
    table = out.state.allocations
    if table.predecessors:
        out.late = rows[table.predecessors.holds(table.key[rows])]
    rows, lost = out.lose(rows)
    job = out.job
    if job is None or job.runs_nothing:
        out.stop_running(rows[~lost], "job stopped")
        return
    position = {group.name: index for index, group in enumerate(job.groups)}
    of_row = table.group[rows]
    refs = np.unique(of_row)
    names = [position.get(table.groups.names[ref], -1) for ref in refs.tolist()]
    group_of = np.array(names, dtype=np.int64)[np.searchsorted(refs, of_row)]
    if -1 in names:
        out.stop_running(rows[(group_of < 0) & ~lost], "group removed")
    for index, group in enumerate(job.groups):
        mine = group_of == index
        compare(job, group, rows[mine], lost[mine])
