"""Preemption search: which allocations of lower priority to evict, and on which nodes.

A victim belongs to another job whose priority is lower by at least `PRIORITY_GAP_MIN`, is desired to run and has not
ended. place.py checks whether the policy allows preemption; `PreemptionInput.limit` holds all other rules of nodes.

Nodes, and victim sets of one node, are compared by: highest priority among the victims, sum of their priorities, work
lost (how many log positions ago they were placed, summed), row. Nomad takes victims only from the node that it has
chosen by other scores; here all nodes are compared by their cost.

One vector pass over all candidates computes every node's highest priority exactly, and lower bounds of the rest. Nodes
leave a heap by these bounds and return with their exact set (victim_sets.py), so only promising nodes are searched.
Source: Nomad scheduler/preemption.go for the candidates; the comparison is our own.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import JobId
from schemas.plans import Evictions
from shared.core.columns import Int64s, Mask, Rows
from shared.core.resources.asks import CORES, WHOLE
from shared.core.scheduling.preemption.victim_sets import (
    ResourceAmounts,
    VictimCandidate,
    VictimCost,
    cheapest_set,
    cost_of,
)
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

#: Minimum difference to the priority of a victim's job, as in Nomad.
PRIORITY_GAP_MIN: Final = 10
#: Maximum victims of one plan: each may belong to another job, which gets an evaluation in the same transaction.
VICTIMS_MAX: Final = 256
#: Steps of the search of one node, and of one plan.
NODE_STEPS_MAX: Final = 400
STEPS_MAX: Final = 5_000
#: Nodes searched for the first choice, and additional nodes for each later one.
FIRST_NODE_LOOKS_MAX: Final = 64
NEXT_NODE_LOOKS_MAX: Final = 4
#: Minimum steps of one node: the cost to gather its candidates.
_LOOK_STEPS: Final = 15
#: Steps of one check of pools and ports.
_ENOUGH_STEPS: Final = 10
#: Nodes that are compared by their lower bounds.
_NODES_MAX: Final = 4_096
_PRIORITY_BITS: Final = 16
#: From so many candidates on, nodes are preselected before sorting, and how many nodes.
_SHORTLIST_ABOVE: Final = 50_000
_SHORTLIST_NODES: Final = 512


class ChosenNode(msgspec.Struct, frozen=True):
    """`count` allocations on `node` (a fleet row), after evicting these rows."""

    node: int
    count: int
    victims: tuple[int, ...]
    cost: VictimCost


class PreemptionInput(msgspec.Struct, frozen=True, eq=False):
    """The search space of one request. Shapes: free (N, R), may be negative; open (N,).

    `limit`: how many more a node takes by rules other than room. `enough`, if set: whether a node without these rows
    has room for one more in everything that `free` does not show.
    """

    ask: ResourceAmounts
    free: Int64s
    open: Mask
    limit: Callable[[int], int]
    enough: Callable[[int, Sequence[int]], bool] | None = None
    #: what of a row matters to `enough`: rows of one kind are interchangeable.
    kind: Callable[[int], object] | None = None


class EvictableAllocs:
    """All allocations that a job may evict, by row, less those evicted already. Shapes: M allocations."""

    def __init__(self, state: State, job: Job, evicted: Rows) -> None:
        self.state = state
        table = state.allocations
        of_groups = table.groups.priority[: len(table.groups.names)]
        # Usually no group has a lower priority: then no allocation is read.
        size = table.size if (of_groups <= job.priority - PRIORITY_GAP_MIN).any() else 0
        priority = table.groups.priority[table.group[:size]]
        may = (priority <= job.priority - PRIORITY_GAP_MIN) & (table.key[:size] != 0)
        rows = np.flatnonzero(may).astype(np.int32)
        rows = rows[table.is_wanted(rows)]
        own = [table.groups.ref_of[key] for key in table.groups.of_job(job.id)]
        if own:
            rows = rows[~np.isin(table.group[rows], own)]
        self.rows = rows[~np.isin(rows, evicted)] if len(evicted) else rows
        self.node = table.node[self.rows]
        self.priority = priority[self.rows]
        self._taken: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> None:
        """Mark rows as evicted, from the next `settle` on."""
        self._taken += rows

    def settle(self) -> None:
        """Remove the evicted rows."""
        if not self._taken:
            return
        stays = ~np.isin(self.rows, np.asarray(self._taken, dtype=np.int32))
        self._taken = []
        self.rows, self.node, self.priority = (
            self.rows[stays],
            self.node[stays],
            self.priority[stays],
        )

    def release(self, rows: Rows) -> Int64s:
        """Amounts that each of these rows releases, reserved cores included. Shape: (len(rows), 3)."""
        table = self.state.allocations
        found: Int64s = table.groups.ask[table.group[rows]]
        if table.held.has_cores:
            core_mhz = self.state.fleet.offers.core_mhz
            for at, row in enumerate(rows.tolist()):
                holding = table.holdings.get(row)
                if holding is not None:
                    cores = sum(n for pool, _, n in holding.parts if pool == CORES) // WHOLE
                    found[at, 0] += cores * int(core_mhz[table.node[row]])
        return found

    def shortlist(self, room: "PreemptionInput") -> Mask:
        """Preselect among very many nodes: least important victims first, then least lacking. Shape: (N,)."""
        nodes = len(room.open)
        own = room.open[self.node]
        if own.sum() <= _SHORTLIST_ABOVE:
            return room.open
        rows, priority = self.rows[own], self.priority[own]
        free = room.free.copy()
        ask = np.asarray(room.ask)
        found = np.zeros(nodes, dtype=bool)
        for level in np.unique(priority).tolist():
            some = rows[priority == level]
            given, where = self.release(some), self.state.allocations.node[some]
            for dimension in range(given.shape[1]):
                # Sums of whole numbers far below 2**53: exact in floats, and fast.
                sums = np.bincount(where, given[:, dimension], minlength=nodes)
                free[:, dimension] += sums.astype(np.int64)
            found = room.open & (free >= ask).all(axis=1)
            if found.sum() >= _SHORTLIST_NODES:
                break
        at = np.flatnonzero(found)
        lack = np.maximum(ask - room.free[at], 0) * 1_000 // np.maximum(ask, 1)
        chosen = np.zeros(nodes, dtype=bool)
        chosen[at[np.lexsort((at, lack.max(axis=1)))[:_SHORTLIST_NODES]]] = True
        return chosen


class VictimCandidates:
    """Candidates on the nodes of one request, by node, priority, then youngest first. Shapes: C candidates."""

    def __init__(self, movable: EvictableAllocs, room: "PreemptionInput") -> None:
        state = movable.state
        open_ = movable.shortlist(room)
        there = open_[movable.node]
        rows, node, priority = movable.rows[there], movable.node[there], movable.priority[there]
        work = state.seq - state.policy.incarnations.seqs(state.allocations.key[rows])
        order = np.lexsort((rows, work, priority, node))
        self.rows = rows[order]
        self.node = node[order].astype(np.int64)
        self.priority = priority[order].astype(np.int64)
        self.work = work[order]
        self.release = movable.release(self.rows)
        self.gone = np.zeros(len(rows), dtype=bool)

    def of_node(self, node: int) -> NDArray[np.intp]:
        """Positions of a node's remaining candidates, in order."""
        begin, end = np.searchsorted(self.node, (node, node + 1)).tolist()
        there: NDArray[np.intp] = np.flatnonzero(~self.gone[begin:end]) + begin
        return there

    def take(self, positions: Sequence[int]) -> Int64s:
        """Mark candidates as evicted. Returns what they held. Shape: (3,)."""
        at = np.asarray(positions, dtype=np.intp)
        self.gone[at] = True
        held: Int64s = self.release[at].sum(axis=0)
        return held


class PreemptionSearch:
    """The victims of one plan under way."""

    def __init__(self, state: State, job: Job, evicted: Rows) -> None:
        self._movable = EvictableAllocs(state, job, evicted)
        self._steps = STEPS_MAX
        #: rows, in the order of choice.
        self.victims: list[int] = []

    @property
    def is_over_budget(self) -> bool:
        """Tell whether this plan reached its maximum of victims or steps."""
        return self._steps <= 0 or len(self.victims) >= VICTIMS_MAX

    def place(self, room: PreemptionInput, count: int) -> Iterator[ChosenNode]:
        """Choose node after node for up to `count`.

        Before the next one the caller applies each choice: removes the victims, adds the placements, and updates
        `room.free` of the node.
        """
        self._movable.settle()
        if not len(self._movable):
            return
        if room.enough is None:
            # Where one fits without evictions, other rules kept it from being placed; skip those nodes.
            open_ = room.open & (room.free < np.asarray(room.ask)).any(axis=1)
            room = msgspec.structs.replace(room, open=open_)
        own = self._candidates = VictimCandidates(self._movable, room)
        heap = _bounds(own, room)
        ready: dict[int, tuple[VictimCost, list[int]]] = {}
        looks = FIRST_NODE_LOOKS_MAX
        while count > 0 and len(self.victims) < VICTIMS_MAX:
            node = self._next(room, heap, ready, may_look=looks > 0 and self._steps > 0)
            if node is None:
                return
            if node not in ready:
                looks -= 1
                self._offer(room, node, heap, ready)
                continue
            looks = NEXT_NODE_LOOKS_MAX
            cost, positions = ready.pop(node)
            if room.enough is not None and not room.enough(node, own.rows[positions].tolist()):
                # A cluster-wide pool may have been used up elsewhere; another victim set may still work.
                if self._steps > 0:
                    self._offer(room, node, heap, ready)
                continue
            if len(self.victims) + len(positions) > VICTIMS_MAX:
                # Another plan continues; a set that exceeds the maximum of any plan is skipped.
                if self.victims:
                    self._steps = 0
                    return
                continue
            rows = tuple(own.rows[positions].tolist())
            self.victims += rows
            self._movable.take(rows)
            self._steps -= _LOOK_STEPS
            freed = own.take(positions)
            fits = 1 if room.enough is not None else self._fits(room, node, count, freed)
            while fits > 0:
                count -= fits
                yield ChosenNode(node, fits, rows, cost)
                # Fill the remaining room before evicting more.
                rows, fits = (), self._fits(room, node, count)
            if count > 0 and room.limit(node) > 0:
                # Offer its next set, exact at once; the sets of other nodes are unchanged.
                self._offer(room, node, heap, ready)

    def _next(
        self,
        room: PreemptionInput,
        heap: list[tuple[int, int, int, int]],
        ready: dict[int, tuple[VictimCost, list[int]]],
        *,
        may_look: bool,
    ) -> int | None:
        """Return the next node to search or, if it is in `ready`, to choose."""
        while may_look and heap:
            *cost, node = heappop(heap)
            known = ready.get(node)
            is_stale = known is not None and known[0] != tuple(cost)
            if not is_stale and room.limit(node) > 0:
                return node
        # Out of budget: take the best of those searched.
        for _, node in sorted((cost, node) for node, (cost, _) in ready.items()):
            if room.limit(node) > 0:
                return node
        return None

    def _offer(
        self,
        room: PreemptionInput,
        node: int,
        heap: list[tuple[int, int, int, int]],
        ready: dict[int, tuple[VictimCost, list[int]]],
    ) -> None:
        found = self._cheapest(room, node)
        if found is not None:
            ready[node] = found
            heappush(heap, (*found[0], node))

    def _fits(
        self, room: PreemptionInput, node: int, most: int, freed: Int64s | None = None
    ) -> int:
        """How many of `most` fit on a node without more victims; `freed`: amounts that `room` does not show yet."""
        most = min(most, room.limit(node))
        left = room.free[node] if freed is None else room.free[node] + freed
        if most <= 0 or (left < 0).any():
            return 0
        if room.enough is not None:
            most = min(most, int(room.enough(node, ())))
        pairs = zip(left.tolist(), room.ask, strict=True)
        return int(min([most, *(have // ask for have, ask in pairs if ask)]))

    def _cheapest(self, room: PreemptionInput, node: int) -> tuple[VictimCost, list[int]] | None:
        """Find the cheapest set of victims on one node, as positions of candidates; None: there is none."""
        own = self._candidates
        at = own.of_node(node)
        need = [
            max(ask - have, 0) for ask, have in zip(room.ask, room.free[node].tolist(), strict=True)
        ]
        kind = room.kind
        items = [
            VictimCandidate(row, priority, work, tuple(release), kind(row) if kind else None)
            for row, priority, work, release in zip(
                own.rows[at].tolist(),
                own.priority[at].tolist(),
                own.work[at].tolist(),
                own.release[at].tolist(),
                strict=True,
            )
        ]
        ask_node = room.enough

        def enough(picked: Sequence[int]) -> bool:
            assert ask_node is not None
            self._steps -= _ENOUGH_STEPS
            return ask_node(node, [items[i].row for i in picked])

        # Victims that release nothing short only lengthen the search.
        useful = [i for i, item in enumerate(items) if item.kind is not None or _helps(item, need)]
        items = [items[i] for i in useful]
        found, steps = cheapest_set(
            need, items, enough if ask_node else None, min(NODE_STEPS_MAX, self._steps)
        )
        self._steps -= max(steps, _LOOK_STEPS)
        if found is None:
            return None
        return cost_of(items, found), at[[useful[i] for i in found]].tolist()


def _bounds(own: VictimCandidates, room: PreemptionInput) -> list[tuple[int, int, int, int]]:
    """Lower bounds of the cost of every node where all candidates together suffice, as a heap."""
    if not len(own.rows):
        return []
    node, priority, release = own.node, own.priority, own.release
    begins = np.flatnonzero(np.diff(node, prepend=-1))
    lengths = np.diff(begins, append=len(node))
    # Free amounts of each node once a candidate and all before it on the node are evicted.
    running = np.cumsum(release, axis=0)
    before = np.repeat((running - release)[begins], lengths, axis=0)
    short = np.asarray(room.ask) - room.free[node]
    enough = np.flatnonzero((running - before >= short).all(axis=1))
    nodes, firsts = np.unique(node[enough], return_index=True)
    if not len(nodes):
        return []
    firsts = enough[firsts]
    highest = priority[firsts]
    tags = node << _PRIORITY_BITS | priority
    ends = np.searchsorted(tags, nodes << _PRIORITY_BITS | highest, side="right")
    begin = np.searchsorted(node, nodes)
    edges = np.column_stack((begin, ends)).ravel()
    # A last element outside every segment lets `reduceat` end at the array's end.
    most = np.maximum.reduceat(np.vstack((release, release[-1:])), edges)[::2]
    least_work = np.minimum.reduceat(np.append(own.work, 0), edges)[::2]
    need = np.maximum(short[firsts], 0)
    times = np.max(-(-need // np.maximum(most, 1)), axis=1)
    times = np.maximum(times, 1)
    sums = highest + (times - 1) * priority[begin]
    works = times * least_work
    order = np.lexsort((nodes, works, sums, highest))[:_NODES_MAX]
    columns = (highest[order], sums[order], works[order], nodes[order])
    heap = list(zip(*(column.tolist() for column in columns), strict=True))
    heapify(heap)
    return heap


def _helps(item: VictimCandidate, need: Sequence[int]) -> bool:
    return any(give and want for give, want in zip(item.release, need, strict=True))


def cost_of_rows(state: State, rows: Sequence[int]) -> VictimCost:
    """The cost of evicting these allocations, as nodes are compared by it."""
    table, at = state.allocations, np.asarray(rows, dtype=np.int32)
    priority = table.groups.priority[table.group[at]]
    work = state.seq - state.policy.incarnations.seqs(table.key[at])
    return int(priority.max()), int(priority.sum()), int(work.sum())


def evictions_of(state: State, victims: Sequence[int]) -> tuple[Evictions, ...]:
    """Group victims by job."""
    table = state.allocations
    by_job: dict[JobId, list[int]] = {}
    for row in sorted(victims):
        job_id = table.groups.job_ids[int(table.group[row])]
        by_job.setdefault(job_id, []).append(row)
    return tuple(
        Evictions(job_id=job_id, rows=tuple(rows)) for job_id, rows in sorted(by_job.items())
    )
