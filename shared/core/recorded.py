"""Recorded plans: what the log tells of each plan of each worker, and the snapshot that it was made on.

Decides which records belong to one plan, and what a worker knew that the state did not show yet: its own earlier plans
(`services/scheduler/overlay.py` holds just those). Must not know how a decision is made, nor where the log lies.
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
from shared.core.filters import MaskCache
from shared.core.log import Chain
from shared.core.resources.asks import holdings_of
from shared.core.resources.held import Held
from shared.core.role import Record
from shared.core.scratch import Snapshot
from shared.core.state import State


class Part(msgspec.Struct, frozen=True):
    """What a worker asked for in one part, and where the log tells its fate."""

    seq: int
    placements: tuple[GroupPlacement, ...]
    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    #: asked for, whether done or not.
    evictions: tuple[Evictions, ...]
    is_refused: bool


class Plan(msgspec.Struct):
    """One plan of a worker, from all its parts."""

    origin: Origin
    key: EvalKey
    job_id: JobId
    parts: dict[int, Part]
    #: keys of its victims by row, from its snapshot on.
    victims: dict[int, int] = msgspec.field(default_factory=dict)

    def remember(self, state: State) -> None:
        """Take note of who its victims are: a row may be another's later."""
        for part in self.parts.values():
            for evictions in part.evictions:
                for row in evictions.rows:
                    self.victims[row] = int(state.allocations.key[row])

    @property
    def last_seq(self) -> int:
        """Where the log has told everything of it."""
        return max(part.seq for part in self.parts.values())


def plans_of(records: Iterable[Record], chain: Chain | None = None) -> dict[tuple[str, int], Plan]:
    """Collect the plans by worker and number, in the order of their first parts.

    `chain`: the head from which on the records follow; it is used up. None: they are a log from its beginning.
    """
    chain = Chain() if chain is None else chain
    plans: dict[tuple[str, int], Plan] = {}
    for record in records:
        accepted = chain.accept(record.seq, record.subject, record.data)
        for event in accepted.events if accepted is not None else ():
            if not isinstance(event, PlanCommitted | PlanRefused):
                continue
            origin = event.origin
            name = (origin.worker, origin.number)
            plan = plans.get(name)
            if plan is None:
                plan = plans[name] = Plan(origin, event.key, event.job_id, {})
            # A part that came twice was settled by the first word of it.
            plan.parts.setdefault(origin.part, _part(record.seq, event))
    return plans


def _part(seq: int, event: PlanCommitted | PlanRefused) -> Part:
    if isinstance(event, PlanRefused):
        return Part(seq, event.placements, (), (), event.evictions, is_refused=True)
    asked = event.asked or (*event.placements, *event.cut)
    evicted = (*event.evictions, *event.spared)
    return Part(seq, asked, event.stops, event.updates, evicted, is_refused=False)


class UnderWay:
    """What a worker knew at one state beside it: its own earlier plans that the state does not show yet.

    Plans are added in the order of their numbers; a snapshot is good until the next one is added.
    """

    def __init__(self, state: State, plans: Iterable[Plan]) -> None:
        self._state = state
        self._plans: list[Plan] = []
        self._held: Held | None = None
        self._evicted: Rows = np.zeros(0, dtype=np.int32)
        for plan in plans:
            self.add(plan)

    @property
    def plans(self) -> list[Plan]:
        """The plans that are under way."""
        return self._plans

    def add(self, plan: Plan) -> None:
        """From now on this plan is under way, too, unless the state shows all of it."""
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
        return Snapshot(self._state, self._held, MaskCache(), self._evicted)


def snapshot_of(plans: Iterable[Plan], origin: Origin, state: State) -> Snapshot:
    """Make the snapshot again that a plan was made on: `state` stands at `origin.snapshot_seq`.

    `plans`: all of the log, at least those of its worker that the log tells later than that.
    """
    earlier = [
        plan
        for plan in plans
        if plan.origin.worker == origin.worker and plan.origin.number < origin.number
    ]
    earlier.sort(key=lambda plan: plan.origin.number)
    return UnderWay(state, earlier).snapshot()


def _held(state: State, under_way: list[Plan]) -> tuple[Held, Rows]:
    """What is held with the worker's own earlier plans, as far as the state does not show them; whom they evict."""
    held = state.allocations.held.copy(state.fleet.size)
    for plan in under_way:
        _hold(held, state, plan)
    evicted = _evicted(state, under_way)
    for row in evicted.tolist():
        held.remove(*state.allocations.held_by(row))
    return held, evicted


def _hold(held: Held, state: State, plan: Plan) -> None:
    """Hold what a plan places, as far as the state does not show it."""
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


def _evicted(state: State, under_way: list[Plan]) -> Rows:
    """Rows of those whom plans under way evict, as far as they still hold anything, ascending."""
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
