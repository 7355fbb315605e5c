"""Simulated allocations of many nodes, in columns: which start, run and end, and when.

Every step is drawn from the allocation's task profile by (seed, key): a pure function of the calls made. An allocation
occupies its row of the cluster; a reused row under another key is another allocation.

An allocation that is ordered to start (`start`) runs or has failed after a while; after its run time it is complete or
failed; a stop order (`stop`) completes it after a while. An ended allocation stays in its row and is reported once.
One with a min_healthy_time is healthy when it has run for that long, and unhealthy when it failed before.
"""

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES
from shared.core.columns import Int64s, Rows, StatusCodes, grown
from shared.fleet.distributions import NEVER_NS
from shared.fleet.due_queue import DueQueue
from shared.fleet.profile import TaskProfile

PENDING, RUNNING, COMPLETE, FAILED, *_ = range(len(CLIENT_STATUSES))
#: Healths, as reports have them.
UNKNOWN_HEALTH, HEALTHY, UNHEALTHY = range(3)
#: A min_healthy_time: the allocation has no health.
NO_HEALTH_NS = -1
#: Phases of a row.
_EMPTY, _STARTING, _RUNNING, _STOPPING, _ENDED = range(5)


class StatusChanges(msgspec.Struct, frozen=True):
    """New statuses and healths of allocations, one entry each. Shapes: (K,), in order of time, then row."""

    rows: Rows
    keys: Int64s
    #: node numbers as given with the start.
    nodes: Rows
    #: indexes into CLIENT_STATUSES.
    statuses: StatusCodes
    #: 0 unknown, 1 healthy, 2 unhealthy.
    healths: StatusCodes
    #: times of the changes.
    at_ns: Int64s

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.rows)


class HealthRules(msgspec.Struct, frozen=True):
    """What decides the health of allocations that start. Shapes: (K,)."""

    #: of their job: another one is another deployment, and health begins anew.
    versions: Rows
    #: NO_HEALTH_NS: it has none.
    min_healthy_ns: Int64s

    @classmethod
    def none(cls, count: int) -> "HealthRules":
        """Return rules of so many allocations without health."""
        none = np.full(count, NO_HEALTH_NS, dtype=np.int64)
        return cls(np.zeros(count, dtype=np.int32), none)

    def part(self, chosen: NDArray[np.bool_]) -> "HealthRules":
        """Return the rules of these alone."""
        return HealthRules(self.versions[chosen], self.min_healthy_ns[chosen])


class SimulatedAllocs:
    """All allocations of a fleet. Rows are the cluster's allocation rows; node numbers are below 2**31."""

    #: whether `start` reads task profiles and draws.
    takes_task_profiles: ClassVar[bool] = True
    #: attributes that have an element per row.
    COLUMNS: ClassVar[tuple[str, ...]] = (
        "key",
        "node",
        "status",
        "_draw",
        "_task_profile",
        "_phase",
        "_due",
        "_next",
        "health",
        "_version",
        "_min_healthy",
        "_healthy_at",
    )

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._task_profiles: list[TaskProfile] = []
        self._number_of: dict[int, int] = {}
        self.key = np.zeros(0, dtype=np.int64)
        self.node = np.zeros(0, dtype=np.int32)
        #: client status as last returned by `due`.
        self.status = np.zeros(0, dtype=np.int8)
        self._draw = np.zeros(0, dtype=np.int64)
        self._task_profile = np.zeros(0, dtype=np.int32)
        self._phase = np.zeros(0, dtype=np.int8)
        self._due = np.zeros(0, dtype=np.int64)
        self._next = np.zeros(0, dtype=np.int8)
        #: as last returned by `due`, or set by `settle`.
        self.health = np.zeros(0, dtype=np.int8)
        #: version of its job, whose health it is.
        self._version = np.zeros(0, dtype=np.int32)
        self._min_healthy = np.zeros(0, dtype=np.int64)
        #: when it is healthy if it still runs; 0: never, or it is.
        self._healthy_at = np.zeros(0, dtype=np.int64)
        self._health_queue = DueQueue()
        self._queue = DueQueue()

    def profile_number(self, task_profile: TaskProfile) -> int:
        """Register a task profile; returns its number, the same for the same object."""
        number = self._number_of.setdefault(id(task_profile), len(self._task_profiles))
        if number == len(self._task_profiles):
            # Kept alive, so that its id is not reused.
            self._task_profiles.append(task_profile)
        return number

    # ---- orders ----

    def start(
        self,
        rows: Rows,
        keys: Int64s,
        nodes: Rows,
        task_profiles: Rows,
        *,
        now_ns: int,
        draws: Int64s | None = None,
        rules: HealthRules | None = None,
    ) -> int:
        """Order allocations to start; those already present under their key run on, under the version in `rules`.

        Returns the number that start. Rows are distinct. `draws`: hashed instead of keys, so that an allocation fares
        the same wherever a policy places it. Shapes: (K,).
        """
        if not len(rows):
            return 0
        self._grow(int(rows.max()) + 1)
        rules = HealthRules.none(len(rows)) if rules is None else rules
        fresh = ~self.is_known(rows, keys)
        if not fresh.all():
            self._follow_version(rows[~fresh], rules.part(~fresh), now_ns)
            rows, keys, nodes, task_profiles = (
                rows[fresh],
                keys[fresh],
                nodes[fresh],
                task_profiles[fresh],
            )
            draws = None if draws is None else draws[fresh]
            rules = rules.part(fresh)
        if len(rows):
            self.key[rows] = keys
            self.node[rows] = nodes
            self._task_profile[rows] = task_profiles
            self._draw[rows] = keys if draws is None else draws
            self._version[rows], self._min_healthy[rows] = rules.versions, rules.min_healthy_ns
            self.health[rows], self._healthy_at[rows] = UNKNOWN_HEALTH, 0
            self._begin(rows, now_ns)
        return len(rows)

    def _follow_version(self, rows: Rows, rules: "HealthRules", now_ns: int) -> None:
        """Begin the health of allocations anew that another version of their job took over in place."""
        other = (self._version[rows] != rules.versions) & (self._phase[rows] != _ENDED)
        rows, rules = rows[other], rules.part(other)
        if len(rows):
            self._version[rows], self._min_healthy[rows] = rules.versions, rules.min_healthy_ns
            self.health[rows], self._healthy_at[rows] = UNKNOWN_HEALTH, 0
            runs = rows[self._phase[rows] == _RUNNING]
            self._await_health(runs, np.full(len(runs), now_ns, dtype=np.int64))

    def _begin(self, rows: Rows, now_ns: int) -> None:
        """Draw when allocations have started, or failed to."""
        self.status[rows] = PENDING
        self._phase[rows] = _STARTING
        due, follows = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int8)
        for task_profile, chosen in self._by_task_profile(rows):
            drawn = self._draw[rows[chosen]]
            due[chosen], fails = task_profile.draw_starts(self._seed, drawn)
            follows[chosen] = np.where(fails, FAILED, RUNNING)
        self._plan(rows, np.minimum(due, NEVER_NS - now_ns) + now_ns, follows)

    def stop(self, rows: Rows, keys: Int64s, now_ns: int) -> None:
        """Order allocations to stop; those absent, ended or already stopping are ignored.

        Rows are distinct. Shapes: (K,).
        """
        rows = self._known(rows, keys)
        phase = self._phase[rows]
        rows = rows[(phase == _STARTING) | (phase == _RUNNING)]
        if not len(rows):
            return
        self._phase[rows] = _STOPPING
        due = np.empty(len(rows), dtype=np.int64)
        for task_profile, chosen in self._by_task_profile(rows):
            due[chosen] = task_profile.draw_stops(self._seed, self._draw[rows[chosen]])
        due = np.minimum(due, NEVER_NS - now_ns) + now_ns
        self._plan(rows, due, np.full(len(rows), COMPLETE, dtype=np.int8))

    def settle(self, rows: Rows, keys: Int64s, nodes: Rows) -> None:
        """Add allocations that were ordered to stop before they were ordered to start: they are complete.

        Those already present are ignored; rows are distinct. Shapes: (K,).
        """
        if len(rows):
            self._grow(int(rows.max()) + 1)
            fresh = ~self.is_known(rows, keys)
            rows = rows[fresh]
            self.key[rows], self.node[rows] = keys[fresh], nodes[fresh]
            self.status[rows], self._phase[rows], self._due[rows] = COMPLETE, _ENDED, 0
            self.health[rows], self._healthy_at[rows] = UNKNOWN_HEALTH, 0

    def lose(self, nodes: Rows) -> Rows:
        """Remove all allocations on these nodes, as after a power loss; returns the rows that had not ended."""
        rows = self.on(nodes)
        alive: Rows = rows[self._phase[rows] != _ENDED]
        self._clear(rows)
        return alive

    # ---- time ----

    def next_due_ns(self) -> int:
        """When the next change may be due (a lower bound after stop orders); 0: never."""
        ahead = [one.next_ns() for one in (self._queue, self._health_queue) if len(one)]
        return min(ahead, default=0)

    def due(self, now_ns: int) -> StatusChanges:
        """Apply all changes due by now; each allocation is returned once, with its final status."""
        changed: list[tuple[Rows, Int64s]] = []
        while len(self._queue) and self._queue.next_ns() <= now_ns:
            at, rows = self._queue.pop(now_ns)
            meant = (self._due[rows] == at) & (self._phase[rows] != _ENDED)
            # A stop at the instant of another change leaves two entries for one change.
            meant[1:] &= (rows[1:] != rows[:-1]) | (at[1:] != at[:-1])
            at, rows = at[meant], rows[meant]
            if not len(rows):
                continue
            self._due[rows] = 0
            follows = self._next[rows]
            self.status[rows] = follows
            runs = follows == RUNNING
            self._phase[rows] = np.where(runs, _RUNNING, _ENDED)
            changed.append((rows, at))
            self._await_health(rows[runs], at[runs])
            self._end_health(rows[~runs], at[~runs], follows[~runs])
            self._run(rows[runs], at[runs])
        changed += self._healed(now_ns)
        if not changed:
            return self._changes(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
        if len(changed) == 1:
            return self._changes(*changed[0])
        rows = np.concatenate([one for one, _ in changed])
        at = np.concatenate([one for _, one in changed])
        # The last change of each.
        _, last = np.unique(rows[::-1], return_index=True)
        kept = len(rows) - 1 - last
        kept = kept[np.lexsort((rows[kept], at[kept]))]
        return self._changes(rows[kept], at[kept])

    # ---- looking ----

    def on(self, nodes: Rows) -> Rows:
        """Rows of all allocations on these nodes, ended ones included, ascending."""
        return np.flatnonzero((self._phase != _EMPTY) & np.isin(self.node, nodes)).astype(np.int32)

    def alive(self) -> int:
        """Count allocations that have not ended."""
        return int(np.count_nonzero((self._phase != _EMPTY) & (self._phase != _ENDED)))

    def is_alive(self, rows: Rows, keys: Int64s) -> NDArray[np.bool_]:
        """Return for each whether it is present and has not ended. Shapes: (K,)."""
        known = self.is_known(rows, keys)
        known[known] &= self._phase[rows[known]] != _ENDED
        return known

    def is_known(self, rows: Rows, keys: Int64s) -> NDArray[np.bool_]:
        """Return for each whether it is present, ended or not. Shapes: (K,)."""
        inside = rows < len(self.key)
        at = np.where(inside, rows, 0)
        if not len(self.key):
            return inside
        known: NDArray[np.bool_] = inside & (self.key[at] == keys) & (self._phase[at] != _EMPTY)
        return known

    # ---- inside ----

    def _known(self, rows: Rows, keys: Int64s) -> Rows:
        return rows[self.is_known(rows, keys)]

    def _by_task_profile(self, rows: Rows) -> list[tuple[TaskProfile, NDArray[np.intp]]]:
        """Task profiles of rows, with the positions of their rows."""
        codes = self._task_profile[rows]
        if len(codes) and (codes == codes[0]).all():
            return [(self._task_profiles[codes[0]], np.arange(len(rows)))]
        return [
            (self._task_profiles[one], np.flatnonzero(codes == one)) for one in np.unique(codes)
        ]

    def _run(self, rows: Rows, at_ns: Int64s) -> None:
        """Draw run times and final statuses of allocations that run now."""
        if not len(rows):
            return
        lasts, follows = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int8)
        for task_profile, chosen in self._by_task_profile(rows):
            if task_profile.runs.is_never:
                lasts[chosen], follows[chosen] = NEVER_NS, COMPLETE
                continue
            drawn = self._draw[rows[chosen]]
            lasts[chosen], fails = task_profile.draw_runs(self._seed, drawn)
            follows[chosen] = np.where(fails, FAILED, COMPLETE)
            failing = chosen[follows[chosen] == FAILED]
            lasts[failing] = task_profile.time_to_final_failure(lasts[failing])
        ends_ever = lasts < NEVER_NS
        self._plan(rows[ends_ever], at_ns[ends_ever] + lasts[ends_ever], follows[ends_ever])

    def _await_health(self, rows: Rows, since_ns: Int64s) -> None:
        """Plan when allocations that run since then are healthy."""
        waits = (self._min_healthy[rows] >= 0) & (self.health[rows] == UNKNOWN_HEALTH)
        if waits.any():
            rows = rows[waits]
            at_ns = since_ns[waits] + self._min_healthy[rows]
            self._healthy_at[rows] = at_ns
            self._health_queue.push(at_ns, rows)

    def _end_health(self, rows: Rows, at_ns: Int64s, follows: StatusCodes) -> None:
        """Decide the health of allocations that end, where it is not known."""
        open_ends = (self._min_healthy[rows] >= 0) & (self.health[rows] == UNKNOWN_HEALTH)
        healthy_at = self._healthy_at[rows]
        healed = open_ends & (healthy_at > 0) & (healthy_at <= at_ns)
        self.health[rows[healed]] = HEALTHY
        self.health[rows[open_ends & ~healed & (follows == FAILED)]] = UNHEALTHY
        self._healthy_at[rows] = 0

    def _healed(self, now_ns: int) -> list[tuple[Rows, Int64s]]:
        """Make allocations healthy that have run long enough; one portion of changes, or none."""
        if not len(self._health_queue) or self._health_queue.next_ns() > now_ns:
            return []
        at, rows = self._health_queue.pop(now_ns)
        meant = (self._healthy_at[rows] == at) & (self._phase[rows] == _RUNNING)
        at, rows = at[meant], rows[meant]
        self.health[rows], self._healthy_at[rows] = HEALTHY, 0
        return [(rows, at)] if len(rows) else []

    def _plan(self, rows: Rows, due_ns: Int64s, follows: StatusCodes) -> None:
        self._due[rows] = due_ns
        self._next[rows] = follows
        self._queue.push(due_ns, rows)

    def _clear(self, rows: Rows) -> None:
        self._phase[rows] = _EMPTY
        self.key[rows] = 0
        self._due[rows] = 0
        self._healthy_at[rows] = 0

    def _changes(self, rows: Rows, at_ns: Int64s) -> StatusChanges:
        return StatusChanges(
            rows,
            self.key[rows],
            self.node[rows],
            self.status[rows],
            self.health[rows],
            at_ns,
        )

    def _grow(self, size: int) -> None:
        for name in self.COLUMNS:
            setattr(self, name, grown(getattr(self, name), size))
