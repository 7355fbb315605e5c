"""Lives of allocations on many nodes, in columns: who starts, runs, ends, and when.

Decides every step of a life by the laws of its manner, drawn by (seed, key): a pure function of the calls made. An
allocation lives in the row that the cluster gave it; a row that comes again under another key is another life. Must
not know the bus, a clock or the log. Next: `profile.py` (manners), `due.py`.

Steps: an order to start (`start`), after a while it runs or has failed; after its run time it is complete or failed;
an order to end (`stop`) makes it complete after a while, whatever it was. What ended stays, and says so once.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.allocations import CLIENT_STATUSES
from shared.core.columns import grown
from shared.fleet import laws
from shared.fleet.due import DueQueue
from shared.fleet.laws import NEVER_NS, Int64s
from shared.fleet.profile import RUN, RUN_FAILS, START, START_FAILS, STOP, Manner

Rows = NDArray[np.int32]
Codes = NDArray[np.int8]

PENDING, RUNNING, COMPLETE, FAILED, *_ = range(len(CLIENT_STATUSES))
#: Phases of a row.
_EMPTY, _STARTING, _RUNNING, _STOPPING, _ENDED = range(5)


class Changes(msgspec.Struct, frozen=True):
    """What became of some allocations: one line each, their newest status. Shapes: (K,), in order of time, then row."""

    rows: Rows
    keys: Int64s
    #: node numbers as given with the start.
    nodes: Rows
    #: indexes into CLIENT_STATUSES.
    statuses: Codes
    #: when it happened.
    at_ns: Int64s

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)


class Lives:
    """All lives of a fleet. Rows are the cluster's rows of allocations, node numbers anything below 2**31."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._manners: list[Manner] = []
        self._number_of: dict[int, int] = {}
        self.key = np.zeros(0, dtype=np.int64)
        self.node = np.zeros(0, dtype=np.int32)
        #: client status as last told by `due`.
        self.status = np.zeros(0, dtype=np.int8)
        self._draw = np.zeros(0, dtype=np.int64)
        self._manner = np.zeros(0, dtype=np.int32)
        self._phase = np.zeros(0, dtype=np.int8)
        self._due = np.zeros(0, dtype=np.int64)
        self._next = np.zeros(0, dtype=np.int8)
        self._queue = DueQueue()

    def manner(self, manner: Manner) -> int:
        """Make a manner known; returns its number, the same for the same object."""
        number = self._number_of.setdefault(id(manner), len(self._manners))
        if number == len(self._manners):
            # Kept, so that no other object ever has its identity.
            self._manners.append(manner)
        return number

    # ---- orders ----

    def start(
        self,
        rows: Rows,
        keys: Int64s,
        nodes: Rows,
        manners: Rows,
        *,
        now_ns: int,
        draws: Int64s | None = None,
    ) -> int:
        """Order allocations to start; those that are there already under their key are left alone.

        Returns how many start. Rows are distinct. `draws`: what lives are drawn by, instead of keys, so that the same
        life befalls an allocation that another policy placed. Shapes: (K,).
        """
        if not len(rows):
            return 0
        self._grow(int(rows.max()) + 1)
        fresh = (self.key[rows] != keys) | (self._phase[rows] == _EMPTY)
        if not fresh.all():
            rows, keys, nodes, manners = rows[fresh], keys[fresh], nodes[fresh], manners[fresh]
            draws = None if draws is None else draws[fresh]
            if not len(rows):
                return 0
        self.key[rows] = keys
        self.node[rows] = nodes
        self.status[rows] = PENDING
        self._draw[rows] = keys if draws is None else draws
        self._manner[rows] = manners
        self._phase[rows] = _STARTING
        due, follows = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int8)
        for manner, chosen in self._by_manner(rows):
            drawn = self._draw[rows[chosen]]
            due[chosen] = manner.starts.draw(laws.hashes(self._seed, START, drawn))
            fails = laws.happens(laws.hashes(self._seed, START_FAILS, drawn), manner.start_fails)
            follows[chosen] = np.where(fails, FAILED, RUNNING)
        self._plan(rows, np.minimum(due, NEVER_NS - now_ns) + now_ns, follows)
        return len(rows)

    def stop(self, rows: Rows, keys: Int64s, now_ns: int) -> None:
        """Order allocations to end; those that are not there, ended, or are ending already are left alone.

        Rows are distinct. Shapes: (K,).
        """
        rows = self._known(rows, keys)
        phase = self._phase[rows]
        rows = rows[(phase == _STARTING) | (phase == _RUNNING)]
        if not len(rows):
            return
        self._phase[rows] = _STOPPING
        due = np.empty(len(rows), dtype=np.int64)
        for manner, chosen in self._by_manner(rows):
            due[chosen] = manner.stops.draw(laws.hashes(self._seed, STOP, self._draw[rows[chosen]]))
        due = np.minimum(due, NEVER_NS - now_ns) + now_ns
        self._plan(rows, due, np.full(len(rows), COMPLETE, dtype=np.int8))

    def settle(self, rows: Rows, keys: Int64s, nodes: Rows) -> None:
        """Note allocations that were ordered to end before they were ever heard of: they are complete.

        Those that are there already are left alone; rows are distinct. Shapes: (K,).
        """
        if len(rows):
            self._grow(int(rows.max()) + 1)
            fresh = ~self.is_known(rows, keys)
            rows = rows[fresh]
            self.key[rows], self.node[rows] = keys[fresh], nodes[fresh]
            self.status[rows], self._phase[rows], self._due[rows] = COMPLETE, _ENDED, 0

    def lose(self, nodes: Rows) -> Rows:
        """Forget all that is on these nodes, as after a loss of power; returns the rows of what had not ended."""
        rows = self.on(nodes)
        alive: Rows = rows[self._phase[rows] != _ENDED]
        self._clear(rows)
        return alive

    def forget(self, rows: Rows, keys: Int64s) -> None:
        """Free rows of what has ended and is known to have; others are left alone. Shapes: (K,)."""
        rows = self._known(rows, keys)
        self._clear(rows[self._phase[rows] == _ENDED])

    # ---- time ----

    def next_due_ns(self) -> int:
        """When something happens next, or, after orders to stop, a little earlier than that; 0: nothing will."""
        return self._queue.next_ns()

    def due(self, now_ns: int) -> Changes:
        """Let happen what happens by now; each allocation is told once, as it is at the end."""
        told: list[tuple[Rows, Int64s]] = []
        while len(self._queue) and self._queue.next_ns() <= now_ns:
            at, rows = self._queue.pop(now_ns)
            meant = (self._due[rows] == at) & (self._phase[rows] != _ENDED)
            # Ordered to stop at the very moment that something else was due: two entries, one meaning.
            meant[1:] &= (rows[1:] != rows[:-1]) | (at[1:] != at[:-1])
            at, rows = at[meant], rows[meant]
            if not len(rows):
                continue
            self._due[rows] = 0
            follows = self._next[rows]
            self.status[rows] = follows
            runs = follows == RUNNING
            self._phase[rows] = np.where(runs, _RUNNING, _ENDED)
            told.append((rows, at))
            self._run(rows[runs], at[runs])
        if not told:
            return self._changes(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
        if len(told) == 1:
            return self._changes(*told[0])
        rows = np.concatenate([one for one, _ in told])
        at = np.concatenate([one for _, one in told])
        # The last word about each.
        _, last = np.unique(rows[::-1], return_index=True)
        kept = len(rows) - 1 - last
        kept = kept[np.lexsort((rows[kept], at[kept]))]
        return self._changes(rows[kept], at[kept])

    # ---- looking ----

    def on(self, nodes: Rows) -> Rows:
        """Rows of all lives on these nodes, ended ones included, ascending."""
        return np.flatnonzero((self._phase != _EMPTY) & np.isin(self.node, nodes)).astype(np.int32)

    def alive(self) -> int:
        """Count what has not ended."""
        return int(np.count_nonzero((self._phase != _EMPTY) & (self._phase != _ENDED)))

    def is_alive(self, rows: Rows, keys: Int64s) -> NDArray[np.bool_]:
        """Say of each whether it lives here and has not ended. Shapes: (K,)."""
        known = self.is_known(rows, keys)
        known[known] &= self._phase[rows[known]] != _ENDED
        return known

    def is_known(self, rows: Rows, keys: Int64s) -> NDArray[np.bool_]:
        """Say of each whether it lives or lived here. Shapes: (K,)."""
        inside = rows < len(self.key)
        at = np.where(inside, rows, 0)
        if not len(self.key):
            return inside
        known: NDArray[np.bool_] = inside & (self.key[at] == keys) & (self._phase[at] != _EMPTY)
        return known

    # ---- inside ----

    def _known(self, rows: Rows, keys: Int64s) -> Rows:
        return rows[self.is_known(rows, keys)]

    def _by_manner(self, rows: Rows) -> list[tuple[Manner, NDArray[np.intp]]]:
        """Manners of rows, and where each has its rows."""
        codes = self._manner[rows]
        if len(codes) and (codes == codes[0]).all():
            return [(self._manners[codes[0]], np.arange(len(rows)))]
        return [(self._manners[one], np.flatnonzero(codes == one)) for one in np.unique(codes)]

    def _run(self, rows: Rows, at_ns: Int64s) -> None:
        """Draw how long those that run now do, and how they end."""
        if not len(rows):
            return
        lasts, follows = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int8)
        for manner, chosen in self._by_manner(rows):
            if manner.runs.is_never:
                lasts[chosen], follows[chosen] = NEVER_NS, COMPLETE
                continue
            drawn = self._draw[rows[chosen]]
            lasts[chosen] = manner.runs.draw(laws.hashes(self._seed, RUN, drawn))
            fails = laws.happens(laws.hashes(self._seed, RUN_FAILS, drawn), manner.run_fails)
            ends = FAILED if manner.exit_code else COMPLETE
            follows[chosen] = np.where(fails, FAILED, ends)
            failing = chosen[follows[chosen] == FAILED]
            lasts[failing] = manner.until_failed(lasts[failing])
        ends_ever = lasts < NEVER_NS
        self._plan(rows[ends_ever], at_ns[ends_ever] + lasts[ends_ever], follows[ends_ever])

    def _plan(self, rows: Rows, due_ns: Int64s, follows: Codes) -> None:
        self._due[rows] = due_ns
        self._next[rows] = follows
        self._queue.push(due_ns, rows)

    def _clear(self, rows: Rows) -> None:
        self._phase[rows] = _EMPTY
        self.key[rows] = 0
        self._due[rows] = 0

    def _changes(self, rows: Rows, at_ns: Int64s) -> Changes:
        return Changes(rows, self.key[rows], self.node[rows], self.status[rows], at_ns)

    def _grow(self, size: int) -> None:
        for name in ("key", "node", "status", "_draw", "_manner", "_phase", "_due", "_next"):
            setattr(self, name, grown(getattr(self, name), size))
