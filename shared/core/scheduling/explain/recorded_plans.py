"""Recorded plans: each plan of each worker as the log holds it, and the snapshot that it was made on.

A worker also knew its own earlier plans that the state did not show yet; services/scheduler/overlay.py holds the same
ones at run time.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from schemas.base import EvalKey, JobId
from schemas.plans import (
    Evictions,
    GroupPlacement,
    InPlace,
    Origin,
    PlanCommitted,
    PlanRefused,
    Stops,
)
from shared.core.columns import Rows
from shared.core.resources.asks import holdings_of
from shared.core.resources.held import HeldResources
from shared.core.runtime.chain import Chain
from shared.core.runtime.messages import Record
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Snapshot
from shared.core.state.state import State


class RecordedPart(msgspec.Struct, frozen=True):
    """One part of a plan as proposed, and the seq where the log shows its outcome."""

    seq: int
    placements: tuple[GroupPlacement, ...]
    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    #: as proposed, whether carried out or not.
    evictions: tuple[Evictions, ...]
    is_refused: bool
    #: those of `placements` that the applier cut, where it changed no other.
    cut: tuple[GroupPlacement, ...] = ()


class RecordedPlan(msgspec.Struct):
    """One plan of a worker, from all its parts."""

    origin: Origin
    key: EvalKey
    job_id: JobId
    parts: dict[int, RecordedPart]
    #: keys of its victims by row, as of its snapshot.
    victims: dict[int, int] = msgspec.field(default_factory=dict)

    def remember(self, state: State) -> None:
        """Record the keys of its victims: another allocation may reuse a row."""
        for part in self.parts.values():
            for evictions in part.evictions:
                for row in evictions.rows:
                    self.victims[row] = int(state.allocations.key[row])

    def count_on(self, node: int) -> int:
        """How many allocations it proposed for one fleet row."""
        placements = [one for part in self.parts.values() for one in part.placements]
        pairs = (pair for one in placements for pair in zip(one.rows, one.counts, strict=True))
        return sum(count for row, count in pairs if row == node)

    @property
    def last_seq(self) -> int:
        """The seq from which on the log shows all of it."""
        return max(part.seq for part in self.parts.values())


def read_plans(
    records: Iterable[Record], chain: Chain | None = None
) -> dict[tuple[str, int], RecordedPlan]:
    """Collect the plans by worker and number, in the order of their first parts.

    `chain`: the head before the first record; it is consumed. None: the records start at the log's beginning.
    """
    chain = Chain() if chain is None else chain
    plans: dict[tuple[str, int], RecordedPlan] = {}
    for record in records:
        accepted = chain.accept(record.seq, record.subject, record.data)
        for event in accepted.events if accepted is not None else ():
            if not isinstance(event, PlanCommitted | PlanRefused):
                continue
            origin = event.origin
            name = (origin.worker, origin.number)
            plan = plans.get(name)
            if plan is None:
                plan = plans[name] = RecordedPlan(origin, event.key, event.job_id, {})
            # The first outcome of a part decides; duplicates are ignored.
            plan.parts.setdefault(origin.part, _part(record.seq, event))
    return plans


def _part(seq: int, event: PlanCommitted | PlanRefused) -> RecordedPart:
    if isinstance(event, PlanRefused):
        return RecordedPart(seq, event.placements, (), (), event.evictions, is_refused=True)
    asked = event.asked or (*event.placements, *event.cut)
    evicted = (*event.evictions, *event.spared)
    cut = () if event.asked else event.cut
    return RecordedPart(seq, asked, event.stops, event.updates, evicted, is_refused=False, cut=cut)


class UnconfirmedPlans:
    """A worker's own earlier plans that one state does not show yet.

    Plans are added in the order of their numbers; a snapshot is valid until the next one is added.
    """

    def __init__(self, state: State, plans: Iterable[RecordedPlan]) -> None:
        self._state = state
        self._plans: list[RecordedPlan] = []
        self._held: HeldResources | None = None
        self._evicted: Rows = np.zeros(0, dtype=np.int32)
        for plan in plans:
            self.add(plan)

    @property
    def plans(self) -> list[RecordedPlan]:
        """The unconfirmed plans."""
        return self._plans

    def add(self, plan: RecordedPlan) -> None:
        """Add a plan, unless the state shows all of it."""
        if plan.last_seq <= self._state.seq:
            return
        if not plan.victims:
            plan.remember(self._state)
        self._plans.append(plan)
        if self._held is not None and not plan.victims:
            _hold(self._held, self._state, plan)
        else:
            self._held = None

    def snapshot(self) -> Snapshot:
        """The snapshot that the worker's next plan was made on."""
        if self._held is None:
            self._held, self._evicted = _held(self._state, self._plans)
        return Snapshot(self._state, self._held, PlacementCache(), self._evicted)


def rebuild_snapshot(plans: Iterable[RecordedPlan], origin: Origin, state: State) -> Snapshot:
    """Rebuild the snapshot that a plan was made on: `state` is at `origin.snapshot_seq`.

    `plans`: all plans of the log, or at least those of the same worker that the log shows after that seq.
    """
    earlier = [
        plan
        for plan in plans
        if plan.origin.worker == origin.worker and plan.origin.number < origin.number
    ]
    earlier.sort(key=lambda plan: plan.origin.number)
    return UnconfirmedPlans(state, earlier).snapshot()


def _held(state: State, under_way: list[RecordedPlan]) -> tuple[HeldResources, Rows]:
    """The resources held including unconfirmed plans, and the rows these evict."""
    held = state.allocations.held.copy(state.fleet.size)
    for plan in under_way:
        _hold(held, state, plan)
    evicted = _evicted(state, under_way)
    for row in evicted.tolist():
        held.remove(*state.allocations.held_by(row))
    return held, evicted


def _hold(held: HeldResources, state: State, plan: RecordedPlan) -> None:
    """Hold the placements of a plan that the state does not show yet."""
    groups = state.allocations.groups
    for part in plan.parts.values():
        for placement in part.placements if part.seq > state.seq else ():
            ref = groups.ref(plan.job_id, placement.version, placement.group)
            rows = np.array(placement.rows, dtype=np.intp)
            counts = np.array(placement.counts, dtype=np.int64)
            held.add_columns(rows, counts[:, None] * groups.ask[ref])
            extras = groups.extras[ref]
            if extras is not None:
                nodes = np.repeat(rows, counts).tolist()
                for node, holding in zip(nodes, holdings_of(extras, placement), strict=True):
                    held.add(node, None, holding)


def _evicted(state: State, under_way: list[RecordedPlan]) -> Rows:
    """Rows that unconfirmed plans evict and that still hold resources, ascending."""
    table = state.allocations
    rows = {
        row
        for plan in under_way
        for part in plan.parts.values()
        for evictions in (part.evictions if part.seq > state.seq else ())
        for row in evictions.rows
        if plan.victims.get(row) == int(table.key[row])
    }
    found = np.array(sorted(rows), dtype=np.int32)
    still: Rows = found[table.is_holding(found)]
    return still
