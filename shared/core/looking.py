"""Looking: what one more allocation of a group would find, on a snapshot or in the middle of a recorded plan.

Decides nothing anew: it sets up what placing stands on (scratch.py) and asks it. place.py asks for scores, whoever
explains asks for everything.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from schemas.evaluations import Waiting
from schemas.jobs import GroupSpec
from schemas.plans import GroupPlacement, Origin, Stops
from shared.core.columns import Rows
from shared.core.filters import Filter, FilterReport, filters_of
from shared.core.reconcile import Want
from shared.core.reconcile_system import TYPES, reconcile_system
from shared.core.scratch import Draw, Scratch, Snapshot
from shared.core.splitmix import splitmix64
from shared.core.standing import Ranked, Scores, Standing, ranking
from shared.core.tables.allocations import FAILED
from shared.core.tables.jobs import Job


class Looking:
    """One group of a job. `origin` is of the plan that is looked into; None: a plan of now."""

    def __init__(
        self,
        snapshot: Snapshot,
        job: Job,
        group: GroupSpec,
        *,
        stops: Sequence[Stops] = (),
        origin: Origin | None = None,
    ) -> None:
        self.group = group
        self._job = job
        self._origin = origin
        self._policy = snapshot.state.policy.policy
        self._state = snapshot.state
        self._fleet = snapshot.state.fleet
        self._mask = snapshot.masks.mask(self._fleet, job, group)
        stopping = [np.asarray(stop.rows, dtype=np.int32) for stop in stops]
        draw = Draw() if origin is None else Draw(origin.seed, origin.lane, origin.lanes)
        self._scratch = Scratch(snapshot, job, stopping, draw)
        self._want = one_more(snapshot, job, group, stopping)
        self._table = snapshot.state.allocations
        self._avoided: tuple[int, ...] = ()

    def take(self, recorded: GroupPlacement) -> None:
        """Go on behind a recorded placement of the same plan."""
        group = next((one for one in self._job.groups if one.name == recorded.group), None)
        if group is not None:
            self._scratch.take(group, recorded)

    def avoid(self, previous: Sequence[int]) -> None:
        """Count nodes as avoided that allocations (keys) failed on; those that were lost say nothing about theirs."""
        keys = np.asarray([key for key in previous if key], dtype=np.int64)
        rows = np.flatnonzero(np.isin(self._table.key[: self._table.size], keys))
        rows = rows[self._table.client[rows] == FAILED]
        self._avoided = tuple(self._table.node[rows].tolist())

    def standing(self) -> Standing:
        """What is there now; read it before going on."""
        found = self._scratch.standing(self._want, self._mask)
        if self._origin is not None or self._job.job_type not in TYPES:
            return found
        return msgspec.structs.replace(found, rules=(*found.rules, self._missing(found)))

    def _missing(self, found: Standing) -> Filter:
        """What runs everywhere goes only where some of it is missing."""
        state, job, usable = self._state, self._job, found.feasible & found.ready
        rows = state.allocations.rows_of(job.id)
        wanted = reconcile_system(state, job, rows, lambda _: self._mask)
        missing = np.zeros(len(usable), dtype=bool)
        for want in wanted.wants:
            if want.group.name == self.group.name and want.per_node is not None:
                missing |= want.per_node > 0
        return Filter("what runs, or ended, there", missing | ~usable)

    def scores(self, rows: Sequence[int], variant: int = 0) -> list[Scores]:
        """Name the scorers of one more allocation on each of these rows, and their values (2**-20)."""
        scores, _ = self._scratch.scores(self._want, rows, avoided=self._avoided, variant=variant)
        return scores

    def ranking(self, rows: Sequence[int], variant: int = 0) -> list[Ranked]:
        """Rank these rows as placing does."""
        found = self._scratch.scores(self._want, rows, avoided=self._avoided, variant=variant)
        return ranking(rows, *found)

    def report(self) -> FilterReport:
        """Say which filters refuse which nodes."""
        return self._scratch.report(self._want)

    def filters(self) -> list[Filter]:
        """Every condition that one node alone can meet, in the order in which they are told, then the job's own."""
        own = filters_of(self._fleet, self._job, self.group)
        return [*own, *self.standing().rules]

    def explain(self) -> Waiting:
        """Say why one more would find no room."""
        return self._scratch.explain(self._want, self._mask, 1, ())

    def evict(self) -> tuple[int, Sequence[int]] | None:
        """Say on which row one more would make room, and who would go; None: it may not, or nobody's end helps.

        Ask it last: what it finds is taken.
        """
        if not getattr(self._policy.preemption, self._job.job_type):
            return None
        made = self._scratch.preempt(self._want, self._mask, ())
        return (int(made[0].placement.rows[0]), self._scratch.victims) if made else None

    def is_first(self, row: int) -> bool:
        """Tell whether a row is among those that the plan's worker takes first: its lane."""
        origin = self._origin
        return origin is None or origin.lanes <= 1 or splitmix64(row) % origin.lanes == origin.lane

    def why_others(self) -> str:
        """Say why a node with a better score was passed over, in words."""
        if self._policy.candidates != "all":
            return f"only nodes drawn by {self._policy.candidates} were looked at"
        if self._origin is not None and self._origin.lanes > 1:
            return f"nodes of lane {self._origin.lane} of {self._origin.lanes} go first"
        return "its count was placed at once, and they came later"


def one_more(snapshot: Snapshot, job: Job, group: GroupSpec, stopping: Sequence[Rows] = ()) -> Want:
    """Want one allocation of a group beside those that it has now and that do not stop."""
    table = snapshot.state.allocations
    rows = table.rows_of(job.id)
    refs = [ref for ref, name in enumerate(table.groups.names) if name == group.name]
    rows = rows[np.isin(table.group[rows], refs) & table.is_wanted(rows)]
    if stopping:
        rows = rows[~np.isin(rows, np.concatenate(stopping))]
    return Want(group, 1, np.zeros(1, dtype=np.int64), rows)


def scores_of(snapshot: Snapshot, job: Job, group: GroupSpec, rows: Sequence[int]) -> list[Scores]:
    """Name the scorers of one more allocation of a group on each of these rows, and their values (2**-20)."""
    return Looking(snapshot, job, group).scores(rows)
