"""How long tasks take in a fork: as recorded, else as others of their group or job, else to the end of the fork.

Every source is counted; the counts are the assumptions of the fork. A duration cut off by a stop, an eviction or the
end of the log is a lower bound. Draws are by lineage and seed: an allocation lasts equally long in every fork.
"""

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.core.columns import Int64s, Rows
from shared.core.splitmix import splitmix64_array
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, PENDING, RUNNING
from shared.fleet.distributions import NEVER_NS
from shared.fleet.profile import RUN_FOREVER
from shared.fleet.simulated_allocs import UNKNOWN_HEALTH, SimulatedAllocs
from shared.whatif.timeline import Timeline

A = TypeVar("A", bound=np.generic)
#: Salts of draws.
_START, _RUN = 0x57A7, 0x2B1D
#: Phases of `SimulatedAllocs`.
_, _STARTING, _RUNNING = range(3)
_LONG = NEVER_NS >> 1
#: What separates the id of a job from that of its child.
_CHILD = re.compile(r"/(?:periodic|dispatch)-")


class DurationSources(msgspec.Struct, kw_only=True):
    """Where the durations of a fork come from, by allocation."""

    recorded: int = 0
    #: as finished allocations of its group, else of its job.
    resampled: int = 0
    #: no end of its group or job is recorded.
    for_ever: int = 0
    #: no start is recorded at all: it stays pending.
    never_started: int = 0
    #: it has run longer than all recorded ends of its group, else of its job, and runs on without end.
    outlasted: int = 0
    #: how many ends these were, at least and at most.
    outlasted_least: int = 0
    outlasted_most: int = 0
    #: starts as others do: no start of its group or job is recorded.
    started_as_others: int = 0


class DrawnDurations(msgspec.Struct, frozen=True):
    """Start delay, run time and final status of some allocations. Shapes: (K,)."""

    start_ns: Int64s
    run_ns: Int64s
    code: NDArray[np.int8]


class DurationModel:
    """Durations known from the recorded timeline, and draws for the rest."""

    def __init__(
        self, timeline: Timeline, fork_ns: int, *, resample: bool = False, seed: int = 1
    ) -> None:
        self._timeline = timeline
        self._resample = resample
        self._seed = np.uint64(seed)
        self.assumed = DurationSources()
        placed, running = timeline.placed.column("placed_ns"), timeline.placed.column("running_ns")
        ended, code = timeline.placed.column("ended_ns"), timeline.placed.column("code")
        # A failed allocation is stopped once its replacement is placed.
        told = (timeline.placed.column("told") != 0) & (timeline.placed.column("told_ns") < ended)
        by_itself = (ended > 0) & np.isin(code, (COMPLETE, FAILED)) & ~told
        self._has_run = by_itself
        self._has_start = (running > 0) | by_itself
        began = np.where(running > 0, running, ended)
        self._start = np.where(self._has_start, began - placed, 0)
        self._run = np.where(
            by_itself, ended - began, np.where(running > 0, timeline.t_ns - began, 0)
        )
        #: lower bound of the duration.
        elapsed = np.where((running > 0) & (running <= fork_ns), fork_ns - running, 0)
        self._least = elapsed if resample else self._run
        self._code = np.where(by_itself, code, COMPLETE).astype(np.int8)
        # One extra element at the end: position -1 means unknown.
        self._has_run, self._has_start = _and(self._has_run, False), _and(self._has_start, False)
        self._start, self._run, self._least = (
            _and(one, 0) for one in (self._start, self._run, self._least)
        )
        self._code = _and(self._code, COMPLETE)
        lineages = timeline.placed.lineages()
        self._order = np.argsort(lineages, kind="stable")
        self._sorted = lineages[self._order]
        whole = np.ones(timeline.placed.count, dtype=bool)
        # The start of what ran before the first record is unknown.
        whole[: len(timeline.unknown)] &= ~timeline.unknown
        self._starts = _Pool(timeline, self._has_start[:-1] & whole)
        self._runs = _Pool(timeline, self._has_run[:-1] & whole)

    def durations_of(self, lineages: Int64s, groups: Int64s) -> DrawnDurations:
        """Return the durations of allocations, and count their sources. Shapes: (K,)."""
        known = self._known(lineages)
        hashed = splitmix64_array(lineages.astype(np.uint64) ^ (self._seed << np.uint64(48)))
        start_ns = self._start_of(known, groups, hashed)
        run_ns = np.full(len(groups), NEVER_NS, dtype=np.int64)
        code = np.full(len(groups), COMPLETE, dtype=np.int8)
        exact = (known >= 0) & self._has_run[known] & (not self._resample)
        run_ns[exact], code[exact] = self._run[known[exact]], self._code[known[exact]]
        least = np.where(known >= 0, self._least[known], 0)
        rest = np.flatnonzero(~exact)
        if len(rest):
            run_ns[rest], code[rest] = self._drawn(groups[rest], hashed[rest], least[rest])
        self.assumed.recorded += int(np.count_nonzero(exact))
        self.assumed.never_started += int(np.count_nonzero(start_ns >= NEVER_NS))
        return DrawnDurations(start_ns, run_ns, code)

    def _drawn(
        self, groups: Int64s, hashed: NDArray[np.uint64], least: Int64s
    ) -> tuple[Int64s, NDArray[np.int8]]:
        """Draw run times and final statuses of unrecorded allocations."""
        hashed = hashed ^ np.uint64(_RUN)
        drawn = self._runs.draw(groups, hashed, self._longer(least))
        found = drawn >= 0
        ends = self._runs.sizes(groups[~found])
        self.assumed.resampled += int(np.count_nonzero(found))
        self.assumed.for_ever += int(np.count_nonzero(ends == 0))
        self._count_outlasted(ends[ends > 0])
        run_ns = np.where(found, self._run[drawn], NEVER_NS)
        return run_ns, np.where(found, self._code[drawn], COMPLETE).astype(np.int8)

    def _count_outlasted(self, ends: Int64s) -> None:
        """Count tasks that ran longer than all of so many recorded ends."""
        if not len(ends):
            return
        assumed = self.assumed
        least = min(assumed.outlasted_least or int(ends.min()), int(ends.min()))
        assumed.outlasted += len(ends)
        assumed.outlasted_least = least
        assumed.outlasted_most = max(assumed.outlasted_most, int(ends.max()))

    def _known(self, lineages: Int64s) -> Int64s:
        """Position in the recorded timeline; -1: none."""
        if not len(self._sorted):
            return np.full(len(lineages), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted, lineages), len(self._sorted) - 1)
        found: Int64s = np.where(self._sorted[at] == lineages, self._order[at], -1)
        return found

    def _start_of(self, known: Int64s, groups: Int64s, hashed: NDArray[np.uint64]) -> Int64s:
        exact = (known >= 0) & self._has_start[known] & (not self._resample)
        start_ns = np.where(exact, self._start[known], 0)
        rest = np.flatnonzero(~exact)
        if len(rest):
            drawn = self._starts.draw(groups[rest], hashed[rest] ^ np.uint64(_START), anywhere=True)
            foreign = (self._starts.sizes(groups[rest]) == 0) & (drawn >= 0)
            self.assumed.started_as_others += int(np.count_nonzero(foreign))
            start_ns[rest] = np.where(drawn >= 0, self._start[drawn], NEVER_NS)
        return start_ns.astype(np.int64)

    def _longer(self, least: Int64s) -> Callable[[int, Int64s], Int64s]:
        """Keep the candidates that last longer than the known lower bound."""

        def kept(nth: int, candidates: Int64s) -> Int64s:
            longer: Int64s = candidates[self._run[candidates] > least[nth]]
            return longer

        return kept


def _and(column: NDArray[A], value: object) -> NDArray[A]:
    """A column and one value more."""
    return np.append(column, np.asarray([value], dtype=column.dtype))


def family_of(job_id: str) -> str:
    """Name what the children of a job share: launches and dispatches of one job are of one kind."""
    return _CHILD.split(job_id, maxsplit=1)[0]


class _Pool:
    """Allocations with known durations, by group and by job. Positions in a timeline."""

    def __init__(self, timeline: Timeline, mask: NDArray[np.bool_]) -> None:
        self._at = np.flatnonzero(mask)
        self._names = timeline.names
        group = timeline.placed.column("group")[self._at]
        order = np.argsort(group, kind="stable")
        self._at = self._at[order]
        self._group = group[order]
        self._of_group: dict[int, Int64s] = {}
        self._of_job: dict[str, Int64s] = {}

    def draw(
        self,
        groups: Int64s,
        hashed: NDArray[np.uint64],
        keep: Callable[[int, Int64s], Int64s] | None = None,
        *,
        anywhere: bool = False,
    ) -> Int64s:
        """Draw one position for each: of its group, else of its job, else (`anywhere`) of all; -1: none."""
        found = np.full(len(groups), -1, dtype=np.int64)
        if not len(self._at):
            return found
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            pool = self._pool(group)
            if not len(pool) and anywhere:
                pool = self._at
            if not len(pool):
                continue
            if keep is None:
                found[mine] = pool[(hashed[mine] % np.uint64(len(pool))).astype(np.int64)]
                continue
            for nth in mine.tolist():
                kept = keep(nth, pool)
                if len(kept):
                    found[nth] = kept[int(hashed[nth] % np.uint64(len(kept)))]
        return found

    def sizes(self, groups: Int64s) -> Int64s:
        """How many there are of the group, else of the job, for each of these groups."""
        return np.array([len(self._pool(group)) for group in groups.tolist()], dtype=np.int64)

    def _pool(self, group: int) -> Int64s:
        if group not in self._of_group:
            begin, end = np.searchsorted(self._group, (group, group + 1))
            self._of_group[group] = self._at[begin:end]
        found = self._of_group[group]
        return found if len(found) else self._job_pool(self._names.groups[group][0])

    def _job_pool(self, job_id: str) -> Int64s:
        family = family_of(job_id)
        if family not in self._of_job:
            mine = [
                at for at, (name, _) in enumerate(self._names.groups) if family_of(name) == family
            ]
            self._of_job[family] = self._at[np.isin(self._group, mine)]
        return self._of_job[family]


class RecordedAllocs(SimulatedAllocs):
    """Simulated allocations that last as recorded. `timeline`: the fork's own timeline, which maps rows to lineages."""

    COLUMNS: ClassVar[tuple[str, ...]] = (*SimulatedAllocs.COLUMNS, "_run_ns", "_ends")
    takes_task_profiles = False

    def __init__(
        self, seed: int, state: Callable[[], State], timeline: Timeline, lasting: DurationModel
    ) -> None:
        super().__init__(seed)
        self._state = state
        self._timeline = timeline
        self._lasting = lasting
        # A stop takes effect at once.
        self.profile_number(RUN_FOREVER)
        self._run_ns = np.zeros(0, dtype=np.int64)
        self._ends = np.zeros(0, dtype=np.int8)

    def _begin(self, rows: Rows, now_ns: int) -> None:
        """Read from the log when allocations started and how long they run; profiles and draws are ignored."""
        placed = self._timeline.placed
        at = placed.positions_of_rows(rows)
        drawn = self._lasting.durations_of(placed.lineages(at), placed.column("group")[at])
        self._run_ns[rows], self._ends[rows] = drawn.run_ns, drawn.code
        # Allocations that ran at the fork run on, without a report.
        runs = self._state().allocations.client[rows] == RUNNING
        self.status[rows] = np.where(runs, RUNNING, PENDING)
        self._phase[rows] = np.where(runs, _RUNNING, _STARTING)
        self.health[rows] = np.where(runs, self._state().allocations.health[rows], UNKNOWN_HEALTH)
        since = np.where(runs, placed.column("running_ns")[at], placed.column("placed_ns")[at])
        self._await_health(rows[runs], since[runs] - self._timeline.begin_ns)
        lasts = np.where(runs, drawn.run_ns, drawn.start_ns)
        due = np.maximum(since - self._timeline.begin_ns + np.minimum(lasts, _LONG), now_ns)
        comes = lasts < NEVER_NS
        self._next[rows] = np.where(runs, drawn.code, RUNNING)
        self._due[rows] = np.where(comes, due, 0)
        self._queue.push(due[comes], rows[comes])

    def _run(self, rows: Rows, at_ns: Int64s) -> None:
        ends = self._run_ns[rows] < NEVER_NS
        rows, at_ns = rows[ends], at_ns[ends]
        if len(rows):
            self._plan(rows, at_ns + self._run_ns[rows], self._ends[rows])
