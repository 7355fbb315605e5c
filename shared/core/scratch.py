"""Scratch: what placing changes while one plan is made, so that all groups of a job see each other.

Decides what of a want finds room where, and says why the rest did not. Must not know how a plan is written down
(place.py) nor which allocations are wanted (reconcile.py).
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.evaluations import Hold, Waiting
from schemas.jobs import GroupSpec, ResourceAsk
from schemas.plans import GroupPlacement
from shared.core.columns import Rows
from shared.core.coupled import STEPS_MAX
from shared.core.coupling import CLOSED_BELOW, Coupling
from shared.core.cut import How, own_rows, place_on
from shared.core.evicting import Ask, Evictor, Ground, Rules, robbed
from shared.core.filters import Filter, FilterReport, Mask, MaskCache, filters_of, report_of
from shared.core.heads import Demand, Nodes, Placement
from shared.core.learned import learned_of
from shared.core.liking import Liking, has_likes
from shared.core.one_by_one import Way
from shared.core.packing import NAME as PACKED
from shared.core.packing import Ground as Packed
from shared.core.packing import Packing, gpu_ask, is_packed
from shared.core.preempt import held_above
from shared.core.reconcile import Want
from shared.core.reservations import ahead_of, limit_beside, propose
from shared.core.resources.asks import Extras, Holding, extras_of, holdings_of
from shared.core.resources.assign import Assigner, steps_of
from shared.core.resources.held import Held
from shared.core.resources.rooms import Need, countables, room_of
from shared.core.rules import coupling_of, distinct_mask, is_job_wide
from shared.core.sampled import Candidates, Sampling, scan_width
from shared.core.scores import Algorithm, Int64s, node_scores
from shared.core.standing import Standing
from shared.core.state import State
from shared.core.tables.jobs import Job
from shared.core.trail import Trail
from shared.core.trial import Trial
from shared.core.waiting import Beside, ask_of, explain

_NO_ROWS: Rows = np.empty(0, dtype=np.int32)
#: As many as one likes.
_NO_LIMIT = 1 << 31
#: Job types that are placed on every node, and for which none is held back.
EVERYWHERE = frozenset({"system", "sysbatch"})
_CANDIDATES: dict[str, Candidates] = {"two_choices": "two_choices", "log2": "log2"}


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """What a decision sees. `held`: what allocations hold, the worker's own unconfirmed plans included."""

    state: State
    held: Held
    masks: MaskCache
    #: allocation rows that the worker's own unconfirmed plans evict; they are not in `held` any more.
    evicted: Rows = _NO_ROWS
    #: where the three columns of `held` changed since it was made; None: nobody took note.
    trail: Trail | None = None


class Draw(msgspec.Struct, frozen=True):
    """Which nodes go first, and by which seed nodes are drawn where the policy draws them."""

    seed: int = 0
    lane: int = 0
    lanes: int = 1


class Placed(msgspec.Struct, frozen=True, eq=False):
    """A piece of a want: where it went, and which positions of the want it fills (None: from the first on)."""

    placement: Placement
    part: NDArray[np.intp] | None = None
    #: which of the group's alternatives it takes, and what each allocation holds by it; empty: nothing.
    variant: int = 0
    holdings: tuple[Holding, ...] = ()


class _Rules(msgspec.Struct, frozen=True, eq=False):
    """What closes nodes to a count. Shapes: (N,) each.

    `on_rows` (the group's allocations) and `per_node` follow what is placed.
    """

    usable: Mask
    #: None: it has none, and what is placed is not counted here.
    on_rows: Int64s | None
    penalised: Mask | None = None
    per_node: Int64s | None = None


class Scratch:
    """A copy of the held resources, and what the plan under way puts on them."""

    def __init__(self, snapshot: Snapshot, job: Job, stopping: Sequence[Rows], draw: Draw) -> None:
        state, fleet = snapshot.state, snapshot.state.fleet
        self._state = state
        self._policy = state.policy.policy
        self._masks = snapshot.masks
        self._job = job
        self._size = fleet.size
        self._capacity = snapshot.masks.capacity(fleet)
        self._offers = fleet.offers
        self._trial = Trial(snapshot.held, snapshot.trail, fleet.size)
        #: allocations that this plan gave slots or ports.
        self._assigned = 0
        self._ready = fleet.ready()
        self._stopping = stopping
        self._draw = draw
        #: allocations of the job on each row: those that stay, and those of this plan; None: not asked for yet.
        self._of_job: Int64s | None = None
        self._placed: list[Placement] = []
        #: by group: placements that were not made here.
        self._told: dict[str, list[Placement]] = {}
        self._steps = STEPS_MAX
        self._evicted = snapshot.evicted
        self._evictor: Evictor | None = None

    def place(self, want: Want, mask: Mask) -> list[Placed]:
        """Place a want as far as there is room: first what avoids a node, then the rest."""
        usable = mask & self._ready
        on_rows = self._staying(want)
        if want.avoid is None:
            per_node = None if want.per_node is None else want.per_node.copy()
            return self._fill(want.group, want.count, _Rules(usable, on_rows, per_node=per_node))
        on_rows = self._counted(on_rows)
        out: list[Placed] = []
        # Those that avoid a node are placed as one count that avoids all their nodes, then the rest.
        for part in (np.flatnonzero(want.avoid >= 0), np.flatnonzero(want.avoid < 0)):
            if not len(part):
                continue
            avoided, penalised = want.avoid[part], None
            if avoided[0] >= 0:
                penalised = np.zeros(self._size, dtype=bool)
                penalised[avoided] = True
            rules = _Rules(usable, on_rows, penalised=penalised)
            done = self._fill(want.group, len(part), rules, part)
            out += done
            if any(one.placement.stopped for one in done):
                break
        return out

    def _fill(
        self,
        group: GroupSpec,
        count: int,
        rules: "_Rules",
        part: NDArray[np.intp] | None = None,
    ) -> list[Placed]:
        """Place a count by the first alternative as far as it goes, what is left by the next."""
        extras = extras_of(group)
        if extras is None:
            placed = self._cut(group, count, rules, way=self._way(group, None, 0))
            if not placed.placed:
                return []
            if part is None:
                return [Placed(placed)]
            assert rules.on_rows is not None
            np.add.at(rules.on_rows, placed.rows, placed.counts)
            return [Placed(placed, part[: placed.placed])]
        on_rows = self._counted(rules.on_rows)
        rules = msgspec.structs.replace(rules, on_rows=on_rows)
        out: list[Placed] = []
        at = 0
        for variant in range(len(extras.alternatives)):
            need = self._need(group, extras, variant, mask=rules.usable, count=count - at)
            left = countables(self._offers, self._held, need.asks)
            most = min([count - at, *(one.room for one in left)])
            if most <= 0:
                continue
            able = max(self._steps // steps_of(extras, variant), 1)
            room = room_of(self._offers, self._held, need)
            way = self._way(group, extras, variant)
            placed = self._cut(group, min(most, able), rules, room=room, asks=need.asks, way=way)
            if placed.placed == able < most:
                placed = msgspec.structs.replace(placed, stopped=True)
            if placed.placed:
                np.add.at(on_rows, placed.rows, placed.counts)
                if rules.per_node is not None:
                    np.subtract.at(rules.per_node, placed.rows, placed.counts)
                positions = np.arange(at, at + placed.placed)
                at += placed.placed
                positions = positions if part is None else part[positions]
                if way is None:
                    holdings = self._assign(placed, extras, variant)
                else:
                    holdings = tuple(way.holdings)
                    self._assigned += len(holdings)
                out.append(Placed(placed, positions, variant, holdings))
            if placed.stopped or at == count:
                break
        return out

    def _way(
        self, group: GroupSpec, extras: Extras | None, variant: int
    ) -> Packing | Liking | None:
        """How a variant is placed that is not cut at once; None: it is."""
        asks = () if extras is None else extras.alternatives[variant]
        if extras is not None and has_likes(asks):
            assigner = Assigner(self._offers, self._held, self._draw.seed)
            return Liking(self._offers, assigner, extras, variant, nth=self._assigned)
        if self._word(group) != PACKED or not is_packed(self._offers, group, asks):
            return None
        shape = learned_of(group, asks)
        assert shape is not None
        prices = self._masks.packing.prices(self._state.allocations.workload, self._offers)
        assigner = Assigner(self._offers, self._held, self._draw.seed)
        ask = gpu_ask(self._offers, shape)
        return Packing(Packed(self._offers, assigner, ask, prices, extras, variant, self._assigned))

    def _need(
        self, group: GroupSpec, extras: Extras, variant: int, *, mask: Mask, count: int
    ) -> Need:
        free = self._capacity[:, 0] - self._used()[:, 0]
        return Need(extras, variant, mask, free, group.cpu_mhz, count)

    def _assign(self, placed: Placement, extras: Extras, variant: int) -> tuple[Holding, ...]:
        """Give each allocation of a placement its slots and ports, and hold them."""
        assigner = Assigner(self._offers, self._held, self._draw.seed)
        holdings = []
        for row, count in zip(placed.rows.tolist(), placed.counts.tolist(), strict=True):
            for _ in range(count):
                holding = assigner.assign(row, extras, variant, nth=self._assigned)
                assert holding is not None, f"row {row} has less room than was counted"
                self._assigned += 1
                self._held.add(row, None, holding)
                holdings.append(holding)
        self._steps -= len(holdings) * steps_of(extras, variant)
        return tuple(holdings)

    @property
    def _held(self) -> Held:
        return self._trial.held

    def _used(self) -> Int64s:
        """The three columns held, what reserved cores take included. Shape: (N, 3). Do not write to it."""
        held = self._trial.seen()
        used = held.columns(self._size)
        if not held.has_cores:
            return used
        # Which cores are whose is on no trail.
        self._trial.trail = None
        return used + self._state.fleet.core_correction(held)

    def preempt(self, want: Want, mask: Mask, placed: Sequence[Placed]) -> list[Placed]:
        """Place what normal placing left of a want where allocations of less important jobs can make room.

        `placed` is what `place` found. What replaces an evicted allocation evicts nobody: no cascades.
        """
        if sum(one.placement.placed for one in placed) >= want.count:
            return []
        rest = _unfilled(want, placed)
        if not len(rest):
            return []
        # Also where the evictor is there already: what was placed since then is written down by this.
        held = self._held
        if self._evictor is None:
            ground = Ground(self._state, self._capacity, held)
            # Where it makes room is on no trail.
            self._trial.trail = None
            self._evictor = Evictor(ground, self._job, self._evicted)
        staying = self._counted(self._staying(want))
        on_rows = staying.copy()
        for one in placed:
            np.add.at(on_rows, one.placement.rows, one.placement.counts)

        usable = mask & self._ready
        if want.per_node is not None:
            usable &= ~robbed(self._state, self._job, want.group)

        open_ = self._open_to(want, on_rows)
        if open_ is not None:
            usable &= open_

        def note(node: int, count: int) -> None:
            nonlocal open_
            on_rows[node] += count
            if self._of_job is not None:
                self._of_job[node] += count
            open_ = self._open_to(want, on_rows)

        out: list[Placed] = []
        for variant, asks in enumerate(want.group.alternatives or ((),)):
            beside = self._beside(want.group, asks)

            def limit(node: int, beside: Int64s | None = beside) -> int:
                if beside is not None and beside[node] < _NO_LIMIT:
                    # Whoever goes from a node that is held back goes for whom it is held.
                    return 0
                if want.per_node is not None:
                    return int(want.per_node[node] - on_rows[node] + staying[node])
                return _NO_LIMIT if open_ is None else int(open_[node])

            ask = Ask(ask_of(want.group), extras_of(want.group), variant)
            made = self._evictor.place(ask, len(rest), Rules(usable, limit, note, self._assign))
            if made is not None:
                self._placed.append(made.placement)
                part = rest[: made.placement.placed]
                out.append(Placed(made.placement, part, variant, made.holdings))
                rest = rest[made.placement.placed :]
        return out

    def _open_to(self, want: Want, on_rows: Int64s) -> Mask | None:
        """Say which nodes take one more of a group by other rules than room. Shape: (N,); None: no rule closes any."""
        group = want.group
        if want.per_node is not None or not (group.distinct_hosts or group.distinct_properties):
            return None
        open_ = np.ones(self._size, dtype=bool)
        if group.distinct_hosts:
            open_ &= np.equal(self._on_job() if group.distinct_hosts == "job" else on_rows, 0)
        for rule in group.distinct_properties:
            held = self._on_job() if rule.job_wide else on_rows
            open_ &= distinct_mask(self._state.fleet.attributes, rule, held)
        return open_

    def lacking(self, want: Want, placed: Sequence[Placed]) -> Int64s:
        """How many more each node was to take and has no room for, where every node is meant. Shape: (N,).

        A node that a rule closes is not meant.
        """
        assert want.per_node is not None
        left = want.per_node.copy()
        for one in placed:
            np.subtract.at(left, one.placement.rows, one.placement.counts)
        for rule in self._distinct(want, placed):
            left[~rule.mask] = 0
        return left

    def has_more(self, placed: Sequence[Placed], rest: int) -> bool:
        """Tell whether a want of which `rest` is left is to go on in another plan: this one took its time."""
        if any(one.placement.stopped for one in placed):
            return True
        return rest > 0 and bool(self.victims) and self.is_tired

    @property
    def victims(self) -> Sequence[int]:
        """Allocation rows that this plan evicts."""
        return self._evictor.victims if self._evictor is not None else ()

    @property
    def is_tired(self) -> bool:
        """Tell whether this plan took its time and has something to show for it."""
        worn = self._evictor is not None and self._evictor.is_tired
        return (worn or self._steps < 0) and any(one.placed for one in self._placed)

    def _algorithm(self, group: GroupSpec) -> Algorithm:
        """Say how nodes are ranked: by the job's word, else the node pool's, else the cluster's."""
        return "spread" if self._word(group) == "spread" else "binpack"

    def _word(self, group: GroupSpec) -> str:
        pools = self._policy.pool_algorithms
        pool = pools.get(self._job.node_pool, "") if pools else ""
        return group.algorithm or pool or self._policy.algorithm

    def _cut(
        self,
        group: GroupSpec,
        count: int,
        rules: "_Rules",
        *,
        room: Int64s | None = None,
        asks: Sequence[ResourceAsk] = (),
        way: Way | None = None,
    ) -> Placement:
        rules, beside = _closed(rules, self._beside(group, asks), count)
        limit, coupling = self._bounds(group, rules, (room, beside))
        affinity = self._masks.affinity(self._state.fleet, group.affinities)
        used, draw = self._used(), self._draw
        nodes = Nodes(
            self._capacity, used, rules.usable, rules.on_rows, rules.penalised, affinity, limit
        )
        ask = (group.cpu_mhz, group.memory_mib, group.disk_mib)
        demand = Demand(ask, group.count, self._algorithm(group), self._policy.anti_affinity)
        steps = max(self._steps, 0)
        if way is not None:
            own = own_rows(self._size, draw.lane, draw.lanes) if draw.lanes > 1 else None
            placed = way.place(demand, nodes, coupling, count=count, steps=steps, own=own)
        else:
            sampling = None if rules.per_node is not None else self._sampling(group, rules.usable)
            known = (self._masks.ranked, self._trial.trail)
            how = How(coupling, sampling, steps, draw.lane, draw.lanes, *known)
            placed = place_on(demand, nodes, count, how)
        self._placed.append(placed)
        self._steps -= placed.steps
        if placed.placed:
            self._trial.put(group, placed)
            if self._of_job is not None:
                np.add.at(self._of_job, placed.rows, placed.counts)
        return placed

    def _bounds(
        self, group: GroupSpec, rules: "_Rules", others: Sequence[Int64s | None]
    ) -> tuple[Int64s | None, Coupling | None]:
        """How many more each row takes by other rules than room, (N,), and which rows depend on each other."""
        limit, coupling = rules.per_node, None
        if group.distinct_hosts or group.distinct_properties or group.spreads:
            on_rows = self._counted(rules.on_rows)
            of_job = self._on_job() if is_job_wide(group) else on_rows
            if group.distinct_hosts and limit is None:
                held = of_job if group.distinct_hosts == "job" else on_rows
                limit = np.equal(held, 0).astype(np.int64)
            columns = self._state.fleet.attributes
            coupling = coupling_of(columns, group, of_group=on_rows, of_job=of_job)
        for other in others:
            if other is not None:
                limit = other if limit is None else np.minimum(limit, other)
        return limit, coupling

    def _beside(self, group: GroupSpec, asks: Sequence[ResourceAsk] = ()) -> Int64s | None:
        """How many more of a group nodes take beside those for whom they are held back. What runs everywhere may."""
        if not self._state.reservations.by_job or self._job.job_type in EVERYWHERE:
            return None
        return limit_beside(self._state, self._held, self._job, group, asks=asks)

    def _sampling(self, group: GroupSpec, usable: Mask) -> Sampling | None:
        candidates = _CANDIDATES.get(self._policy.candidates)
        if candidates is None:
            return None
        width = scan_width(
            int(usable.sum()),
            is_batch=self._job.job_type == "batch",
            is_wide=bool(group.affinities or group.spreads),
            count=group.count,
        )
        # Each cut of a plan draws anew.
        return Sampling(candidates, self._draw.seed + (len(self._placed) << 32), width)

    def _counted(self, on_rows: Int64s | None) -> Int64s:
        """The same, where it must be an array. Shape: (N,)."""
        return np.zeros(self._size, np.int64) if on_rows is None else on_rows

    def _staying(self, want: Want) -> Int64s | None:
        """Count the group's allocations that stay, by row, and those it was told of. Shape: (N,); None: none."""
        told = self._told.get(want.group.name) if self._told else None
        if not len(want.staying) and not told:
            return None
        nodes = self._state.allocations.node[want.staying]
        found = np.bincount(nodes, minlength=self._size).astype(np.int64)
        for placed in told or ():
            np.add.at(found, placed.rows, placed.counts)
        return found

    def _on_job(self) -> Int64s:
        """Count all allocations of the job that stay or are placed by this plan, by row. Shape: (N,)."""
        if self._of_job is None:
            table = self._state.allocations
            rows = table.rows_of(self._job.id)
            rows = rows[table.is_wanted(rows)]
            if self._stopping:
                rows = rows[~np.isin(rows, np.concatenate(self._stopping))]
            found = np.bincount(table.node[rows], minlength=self._size).astype(np.int64)
            for placed in self._placed:
                np.add.at(found, placed.rows, placed.counts)
            self._of_job = found
        return self._of_job

    # ---- why, and why not ----

    def take(self, group: GroupSpec, recorded: GroupPlacement) -> None:
        """Hold what a recorded placement of this plan took, as if it had been placed here."""
        rows, counts = np.array(recorded.rows, np.int32), np.array(recorded.counts, np.int32)
        made = Placement(rows, counts, int(counts.sum()))
        self._trial.put(group, made)
        extras = extras_of(group)
        if extras is not None:
            nodes = np.repeat(rows, counts).tolist()
            for node, holding in zip(nodes, holdings_of(extras, recorded), strict=True):
                self._held.add(node, None, holding)
        self._told.setdefault(group.name, []).append(made)
        self._placed.append(made)

    def standing(self, want: Want, mask: Mask) -> Standing:
        """Show what the next allocation of a want would find. It is of this moment: read it before going on."""
        group = want.group
        beside = self._beside(group, group.alternatives[0] if group.alternatives else ())
        held_back = (
            () if beside is None else (Filter("held back for who is before it", beside > 0),)
        )
        return self._standing(want, mask, (*self._distinct(want, ()), *held_back))

    def _standing(self, want: Want, mask: Mask, rules: tuple[Filter, ...]) -> Standing:
        return Standing(
            group=want.group,
            capacity=self._capacity,
            used=self._used(),
            held=self._held,
            offers=self._offers,
            feasible=mask,
            ready=self._ready,
            rules=rules,
        )

    def scores(
        self, want: Want, rows: Sequence[int], *, avoided: Sequence[int] = (), variant: int = 0
    ) -> tuple[list[dict[str, int]], list[int]]:
        """Name every scorer that applies to one more allocation of a group on each of these rows, with its value.

        `mean_score` of the values is what ranks the row; made of the scalar twins of scores.py. Second: what goes first
        among equals, the least. `avoided`: rows of nodes that it failed on.
        """
        group, fleet = want.group, self._state.fleet
        on_rows = self._counted(self._staying(want))
        of_job = self._on_job() if is_job_wide(group) else on_rows
        coupling = coupling_of(fleet.attributes, group, of_group=on_rows, of_job=of_job)
        boosts = np.zeros(len(rows), np.int64)
        if coupling is not None:
            boosts = coupling.begin().look_at(np.asarray(rows, np.intp)).boosts()
        affinity = self._masks.affinity(fleet, group.affinities)
        ask, used = ask_of(group), self._used()
        at = np.asarray(rows, np.intp)
        extras = extras_of(group)
        way = self._way(group, extras, variant)
        if isinstance(way, Packing):
            spoilt = way.scores(self._capacity, used, at).tolist()
            order = way.order(self._capacity, used, at).tolist()
            return [{PACKED: value} for value in spoilt], order
        liked = [0] * len(rows) if way is None else way.worth(at).tolist()
        found = [
            node_scores(
                capacity=self._capacity[row].tolist(),
                used_after=(used[row] + ask).tolist(),
                collisions=int(on_rows[row]),
                desired_count=group.count,
                algorithm=self._algorithm(group),
                anti_affinity=self._policy.anti_affinity,
                penalised=row in avoided,
                affinity=0 if affinity is None else int(affinity[row]),
                spread=max(boost, CLOSED_BELOW),
                devices=like,
            )
            for row, boost, like in zip(rows, boosts.tolist(), liked, strict=True)
        ]
        return found, list(rows)

    def report(self, want: Want, placed: Sequence[Placed] = ()) -> FilterReport:
        """Say which filter refuses which nodes, the job's other allocations considered."""
        fleet = self._state.fleet
        own = filters_of(fleet, self._job, want.group)
        return report_of(fleet, (*own, *self._distinct(want, placed)))

    def _distinct(self, want: Want, placed: Sequence[Placed]) -> Iterator[Filter]:
        group = want.group
        if not (group.distinct_hosts or group.distinct_properties):
            return
        on_rows = self._counted(self._staying(want))
        for one in placed:
            np.add.at(on_rows, one.placement.rows, one.placement.counts)
        if group.distinct_hosts and want.per_node is None:
            held = self._on_job() if group.distinct_hosts == "job" else on_rows
            yield Filter("distinct_hosts", np.equal(held, 0))
        for rule in group.distinct_properties:
            held = self._on_job() if rule.job_wide else on_rows
            mask = distinct_mask(self._state.fleet.attributes, rule, held)
            yield Filter(f"distinct_property {rule.attribute} {rule.limit}", mask)

    def explain(self, want: Want, mask: Mask, count: int, placed: Sequence[Placed]) -> Waiting:
        """Say why `count` of a want found no room; `placed` is what did."""
        above = held_above(self._state, self._job, self._size) if want.evicted is not None else None
        names = tuple(one.job_id for one in ahead_of(self._state, self._job))
        return explain(
            self._standing(want, mask, tuple(self._distinct(want, placed))),
            count,
            nodes=int(self._state.fleet.live.sum()),
            report=lambda: self.report(want),
            beside=Beside(names, self._beside, above),
        )

    def hold(self, want: Want, mask: Mask, count: int, placed: Sequence[Placed]) -> Hold | None:
        """Propose nodes to be held back for `count` of a want that found no room; None: there are none."""
        if self._job.job_type in EVERYWHERE:
            return None
        usable = mask & self._ready
        for rule in self._distinct(want, placed):
            usable = usable & rule.mask
        return propose(self._state, self._held, self._job, want.group, usable=usable, count=count)


def _unfilled(want: Want, placed: Sequence[Placed]) -> NDArray[np.intp]:
    """Positions of a want that nothing was found for and that may evict. Shape: (R,)."""
    may = np.ones(want.count, dtype=bool)
    for one in placed:
        may[slice(one.placement.placed) if one.part is None else one.part] = False
    if want.evicted is not None:
        may &= ~want.evicted[: want.count]
    return np.flatnonzero(may)


def _closed(rules: "_Rules", beside: Int64s | None, count: int) -> tuple["_Rules", Int64s | None]:
    """Close nodes that are held back whole; what is left of a limit, None where no other has fewer than `count`."""
    if beside is None:
        return rules, None
    usable = rules.usable & (beside > 0)
    left = beside if int(beside[usable].min(initial=count)) < count else None
    return msgspec.structs.replace(rules, usable=usable), left
