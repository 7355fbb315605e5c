"""Reconcile of jobs with stateful groups: in order, one at a time, and never two instances of an index.

An index starts once the one before it is healthy. Surplus indexes stop from the highest down, each once the one before
has ended; so do all of a stopped job or a removed group. An update, or a drain before its deadline, replaces one
instance at a time: it stops, its node says that it ended, its replacement becomes healthy, then the next; first those
that are not healthy, then from the highest down. What an operator stops, and what a drain stops at its deadline, stops
at once. Nothing takes the place of an instance that has not surely ended (stateful_allocs.py).
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import GroupSpec
from shared.core.columns import Mask, Rows
from shared.core.scheduling.reconcile.drained_allocs import (
    DRAINED,
    STOPPED,
    is_drained,
    is_draining,
    is_stop_requested,
)
from shared.core.scheduling.reconcile.duplicate_allocs import ScoreOf
from shared.core.scheduling.reconcile.paced_jobs import (
    JOB_CHANGED,
    Pace,
    PacedReconciler,
    pace_of,
)
from shared.core.scheduling.reconcile.predecessors import split_stops
from shared.core.scheduling.reconcile.service_jobs import (
    Reconciler,
    ReconcileResult,
    reconcile_groups,
)
from shared.core.scheduling.reconcile.started_again import is_before_stop
from shared.core.state.state import State
from shared.core.state.tables.allocations import (
    EVICT,
    FAILED,
    HEALTHY,
    RUN,
    RUNNING,
    TERMINAL,
    UNKNOWN,
)
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.fleet import READY
from shared.core.state.tables.jobs import Job

#: Classes of a wait for another index of the group, and for a node that may still run the instance.
WAITS_FOR_ORDER = "order"
WAITS_FOR_NODE = "out_of_reach"
_NONE: Rows = np.empty(0, dtype=np.int32)
#: Reasons that a wait lists.
_REASONS_MAX = 5


class Instances(msgspec.Struct, frozen=True, eq=False):
    """The rows of one stateful group that are not lost. Shapes: (R,), rows by index, of each index the newest last."""

    rows: Rows
    index: Rows
    #: has not ended: it may run, wanted or not.
    live: Mask
    #: live, and not to stop.
    wanted: Mask
    healthy: Mask
    #: of the group's present digest, on a node where it may run.
    same: Mask
    #: of the newest version.
    current: Mask

    @property
    def stopping(self) -> Mask:
        """Live ones that are to end."""
        return self.live & ~self.wanted


def reconcile_stateful(
    state: State,
    job: Job | None,
    rows: Rows,
    *,
    deployment: Deployment | None,
    mask_of: Callable[[GroupSpec], Mask],
    score_of: ScoreOf,
) -> ReconcileResult:
    """Compare a job that has stateful groups, or allocations of one, with its allocation rows."""
    out = StatefulReconciler(state, job, mask_of, score_of)
    out.paced_by = deployment
    if deployment is not None:
        out.deployment_of_job = deployment
    reconcile_groups(out, rows, out.compare)
    return out.result()


class StatefulReconciler(PacedReconciler):
    """A comparison in which some groups are stateful; the others are compared as ever."""

    paced_by: Deployment | None = None

    def __init__(
        self, state: State, job: Job | None, mask_of: Callable[[GroupSpec], Mask], score_of: ScoreOf
    ) -> None:
        super().__init__(state, job, mask_of, score_of)
        self.waits: list[tuple[GroupSpec, Waiting]] = []
        #: rows whose replacements come later, by order.
        self.awaited: list[int] = []

    def compare(self, job: Job, group: GroupSpec, rows: Rows, lost: Mask) -> None:
        """Compare the rows of one group of the job. Shapes: rows, lost (R,)."""
        if group.stateful:
            pace = None if self.paced_by is None else pace_of(self.paced_by, group)
            self.deployment = pace.key if pace is not None and pace.is_active else 0
            _StatefulGroup(self, job, group, rows, lost=lost, pace=pace).compare()
        elif self.paced_by is not None:
            super().compare(job, group, rows, lost)
        else:
            self.deployment = 0
            Reconciler.compare(self, job, group, rows, lost)

    def stop_running(self, rows: Rows, reason: str) -> None:
        """Stop what is desired to run and has not ended: of each stateful group the highest, once none is ending."""
        table = self.state.allocations
        stateful = table.groups.stateful
        names = [table.groups.names[ref] for ref in table.group[rows].tolist()]
        ordered = {
            name
            for name, ref in zip(names, table.group[rows].tolist(), strict=True)
            if ref in stateful
        }
        of_ordered = np.array([name in ordered for name in names], dtype=bool)
        super().stop_running(rows[~of_ordered], reason)
        for name in sorted(ordered):
            mine = rows[np.array([one == name for one in names], dtype=bool)]
            live = mine[~TERMINAL[table.client[mine]]]
            wanted = live[table.desired[live] == RUN]
            if len(wanted) and len(wanted) == len(live):
                self.stop(_highest(table.index, wanted), reason)

    def is_due(self, job: Job, group: GroupSpec, row: Rows) -> bool:
        """Tell whether one failed row may be replaced now. Shape: row (1,)."""
        return bool(self._is_due(job, group, row, np.ones(1, dtype=bool))[0])

    def result(self) -> ReconcileResult:
        """Return all buckets, and what waits for its turn."""
        awaited = np.array(sorted(self.awaited), dtype=np.int32)
        replaced = np.concatenate((self._replaced_rows(), awaited))
        stops = split_stops(self.state, tuple(self.stops), replaced, self.late)
        return ReconcileResult(
            stops, tuple(self.updates), tuple(self.requests), waits=tuple(self.waits)
        )


class _StatefulGroup:
    """One comparison of one stateful group."""

    def __init__(
        self,
        out: StatefulReconciler,
        job: Job,
        group: GroupSpec,
        rows: Rows,
        *,
        lost: Mask,
        pace: Pace | None,
    ) -> None:
        self.out = out
        self.job = job
        self.group = group
        self.pace = pace
        self.table = out.state.allocations
        self.at = self._instances(rows, lost)
        #: of each index the newest row that is not live.
        self.last = self._newest_ended(rows, lost)
        self.lost = frozenset(rows[lost].tolist())
        self.reasons: list[str] = []
        self.wait_class = WAITS_FOR_ORDER
        self.waiting = 0

    @property
    def is_running(self) -> bool:
        """Whether no deployment holds changes back."""
        return self.pace is None or self.pace.is_running

    def compare(self) -> None:
        """Put stops, updates, one request and one wait into the buckets."""
        at, out = self.at, self.out
        out.update(self.job, self.group, at.rows[at.wanted & at.same & ~at.current])
        # An index that comes back begins anew.
        spare = [row for index, row in self.last.items() if index >= self.group.count]
        failed = [row for row in spare if self._is_failed(row)]
        out.stop(np.array(failed, dtype=np.int32), "not needed")
        ordered = self._stop_ordered()
        starting = self._start_missing(ordered)
        self._keep_predecessors(starting)
        if not (len(ordered) or at.stopping.any()):
            beyond = at.rows[at.wanted & (at.index >= self.group.count)]
            if len(beyond):
                out.stop(_highest(self.table.index, beyond), "not needed")
            elif not len(starting) and self._is_settled():
                self._replace_next()
        if self.waiting:
            reasons = tuple(self.reasons[:_REASONS_MAX])
            waiting = Waiting(count=self.waiting, wait_class=self.wait_class, reasons=reasons)
            out.waits.append((self.group, waiting))

    # ---- what there is ----

    def _instances(self, rows: Rows, lost: Mask) -> Instances:
        table = self.table
        kept = rows[~lost]
        kept = kept[np.lexsort((table.key[kept], table.index[kept]))]
        live = ~TERMINAL[table.client[kept]]
        wanted = live & (table.desired[kept] == RUN)
        healthy = wanted & (table.health[kept] == HEALTHY) & (table.client[kept] == RUNNING)
        same, current = self.out.versions(self.job, self.group, kept)
        if not current[live].all():
            # A new version may forbid the node that an instance runs on.
            same &= current | ~live | self.out.mask_of(self.group)[table.node[kept]]
        return Instances(kept, table.index[kept], live, wanted, healthy, same, current)

    def _newest_ended(self, rows: Rows, lost: Mask) -> dict[int, int]:
        table = self.table
        ended = rows[lost | TERMINAL[table.client[rows]]]
        ended = ended[np.argsort(table.key[ended], kind="stable")]
        return dict(zip(table.index[ended].tolist(), ended.tolist(), strict=True))

    # ---- stops ----

    def _stop_ordered(self) -> Rows:
        """Stop what an operator stopped, and what a drain does not leave longer; returns these rows."""
        at, state = self.at, self.out.state
        marked = at.wanted & is_stop_requested(state, at.rows)
        drained = at.wanted & ~marked & is_drained(state, at.rows, self.job.job_type)
        for mask, reason in ((marked, STOPPED), (drained, DRAINED)):
            self._stop_to_replace(at.rows[mask], reason)
        return at.rows[marked | drained]

    def _stop_to_replace(self, rows: Rows, reason: str) -> None:
        self.out.stop(rows, reason)
        below = rows[self.table.index[rows] < self.group.count]
        self.out.awaited += below.tolist()

    def _keep_predecessors(self, starting: Sequence[int]) -> None:
        """Keep what was stopped to be replaced as such, until its replacement has its turn."""
        table = self.table
        for row in self.out.late.tolist():
            index = int(table.index[row])
            mine = table.groups.names[table.group[row]] == self.group.name
            if mine and index < self.group.count and index not in starting:
                self.out.awaited.append(row)

    def _is_settled(self) -> bool:
        """Tell whether the next instance may be replaced: none of the newest text is on its way, none out of reach."""
        at, table = self.at, self.table
        if (at.wanted & at.same & (~at.healthy | ~at.current)).any():
            return False
        if (at.wanted & (table.client[at.rows] == UNKNOWN)).any():
            return False
        held = set(at.index[at.live].tolist())
        count = self.group.count
        waits = [row for index, row in self.last.items() if index not in held and index < count]
        return not any(self._is_held_back(row) for row in waits)

    def _replace_next(self) -> None:
        """Stop the next instance of an older text, else the next on a draining node."""
        at, state = self.at, self.out.state
        old = at.wanted & ~at.same
        if old.any():
            if self.is_running:
                sick = old & ~at.healthy
                first = sick if sick.any() else old
                self._stop_to_replace(_highest(self.table.index, at.rows[first]), JOB_CHANGED)
            return
        policy = self.group.migrate
        if state.fleet.drains and policy is not None and policy.max_parallel:
            leaving = at.rows[at.wanted]
            leaving = leaving[is_draining(state, leaving)]
            if len(leaving):
                self._stop_to_replace(_highest(self.table.index, leaving), DRAINED)

    # ---- starts ----

    def _start_missing(self, ordered: Rows) -> tuple[int, ...]:
        """Request each missing index whose turn has come; returns these indexes."""
        at = self.at
        stopped = np.isin(at.rows, ordered)
        healthy = frozenset(at.index[at.healthy & ~stopped].tolist())
        live = dict(zip(at.index[at.live].tolist(), at.rows[at.live].tolist(), strict=True))
        starting: list[int] = []
        origins: list[int] = []
        for index in range(self.group.count):
            if index in live:
                self._explain_live(index, live[index])
                continue
            last = self.last.get(index, -1)
            if last >= 0 and self._is_held_back(last):
                continue
            if index and index - 1 not in healthy:
                self._wait(f"index {index} starts once index {index - 1} is healthy")
            elif self.is_running or self._origin(last) >= 0:
                starting.append(index)
                origins.append(self._origin(last))
        retried = [row for row in origins if row >= 0 and self._is_failed(row)]
        self.out.stop(np.array(retried, dtype=np.int32), "replaced")
        if starting:
            staying = at.rows[at.wanted & ~stopped]
            request = self.out.named_request(
                self.group,
                np.array(starting, dtype=np.int64),
                staying,
                np.array(origins, dtype=np.int32),
            )
            self.out.requests.append(request)
        return tuple(starting)

    def _origin(self, row: int) -> int:
        """The row that a new instance replaces; -1: it begins anew."""
        if row < 0:
            return -1
        table = self.table
        follows = row in self.lost or table.desired[row] in {RUN, EVICT}
        keys = table.key[np.array([row], dtype=np.int32)]
        return row if follows or bool(table.predecessors.holds(keys)[0]) else -1

    def _is_failed(self, row: int) -> bool:
        table = self.table
        return bool(
            row not in self.lost and table.client[row] == FAILED and table.desired[row] == RUN
        )

    def _is_held_back(self, row: int) -> bool:
        """Tell whether an instance failed, and its time to be replaced has not come."""
        if not self._is_failed(row):
            return False
        one = np.array([row], dtype=np.int32)
        same, _ = self.out.versions(self.job, self.group, one)
        if not same[0] or is_before_stop(self.out.state, self.job, one)[0]:
            return False
        return not self.out.is_due(self.job, self.group, one)

    # ---- waits ----

    def _explain_live(self, index: int, row: int) -> None:
        """Say why an index that has an instance is not served by it."""
        table, fleet = self.table, self.out.state.fleet
        node = int(table.node[row])
        is_away = fleet.status[node] != READY
        if is_away:
            self.wait_class = WAITS_FOR_NODE
            self._wait(
                f"index {index} may still run on node {fleet.ids[node]}, which is out of reach: it is replaced once "
                "the node is back, or is confirmed dead (caravan node confirm-dead)"
            )
        elif table.desired[row] != RUN:
            self._wait(f"index {index} starts once its earlier instance has ended")

    def _wait(self, reason: str) -> None:
        self.waiting += 1
        self.reasons.append(reason)


def _highest(index: Rows, rows: Rows) -> Rows:
    """The row of the highest index, alone."""
    top: Rows = rows[np.lexsort((rows, index[rows]))][-1:]
    return top
