"""Deciding again: whether a log's plans are what `place` makes of their snapshots.

Decides what a plan was made from, as far as the log tells: the state at its `snapshot_seq`, and the plans of the same
worker that the log showed only later (`services/scheduler/overlay.py` holds just those). Compares allocation by
allocation, so that where a plan was cut into parts, or cut by the applier, does not matter. Must not know how a
decision is made, nor where the log lies: `read` gives it from its first record, as often as it is asked.
"""

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from schemas.base import EvalKey, JobId
from schemas.envelope import CORE_VERSION
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
from shared.core.log import Chain
from shared.core.place import Assignment, MaskCache, Snapshot, place
from shared.core.replica import Replica
from shared.core.resources.asks import holdings_of
from shared.core.resources.held import Held
from shared.core.role import Record
from shared.core.state import State
from shared.core.tables.allocations import expand_runs

#: Reads the whole log, from seq 1.
Reader = Callable[[], Iterable[Record]]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that `place` makes otherwise today. `recorded` and `decided` say how, for people."""

    #: of its first part.
    seq: int
    worker: str
    number: int
    recorded: str
    decided: str


class Redecided(msgspec.Struct, kw_only=True):
    """What became of all plans of a log."""

    checked: int = 0
    equal: int = 0
    #: made by another release: not compared.
    other_version: int = 0
    #: not all parts are told, or refused ones name no allocations: nothing to compare.
    untold: int = 0
    differences: list[Difference] = msgspec.field(default_factory=list)


class _Part(msgspec.Struct, frozen=True):
    """What a worker asked for in one part, and where the log tells its fate."""

    seq: int
    placements: tuple[GroupPlacement, ...]
    stops: tuple[Stops, ...]
    updates: tuple[InPlace, ...]
    #: asked for, whether done or not.
    evictions: tuple[Evictions, ...]
    is_refused: bool


class _Plan(msgspec.Struct):
    """One plan of a worker, from all its parts."""

    origin: Origin
    key: EvalKey
    job_id: JobId
    parts: dict[int, _Part]
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


def redecide(read: Reader) -> Redecided:
    """Decide every plan of a log again. Raises LogError where the log cannot be followed."""
    at_seq: dict[int, list[_Plan]] = {}
    for plan in _plans(read()).values():
        at_seq.setdefault(plan.origin.snapshot_seq, []).append(plan)
    found = Redecided()
    replica = Replica()
    under_way: dict[str, list[_Plan]] = {}
    for record in read():
        replica.apply(record)
        state = replica.state
        for plan in sorted(at_seq.pop(state.seq, ()), key=lambda one: one.origin.number):
            mine = [
                one for one in under_way.get(plan.origin.worker, ()) if one.last_seq > state.seq
            ]
            plan.remember(state)
            _check(found, state, plan, mine)
            under_way[plan.origin.worker] = [*mine, plan]
    return found


def _plans(records: Iterable[Record]) -> dict[tuple[str, int], _Plan]:
    """Collect the plans by worker and number, in the order of their first parts."""
    chain = Chain()
    plans: dict[tuple[str, int], _Plan] = {}
    for record in records:
        accepted = chain.accept(record.seq, record.subject, record.data)
        for event in accepted.events if accepted is not None else ():
            if not isinstance(event, PlanCommitted | PlanRefused):
                continue
            origin = event.origin
            name = (origin.worker, origin.number)
            plan = plans.get(name)
            if plan is None:
                plan = plans[name] = _Plan(origin, event.key, event.job_id, {})
            # A part that came twice was settled by the first word of it.
            plan.parts.setdefault(origin.part, _part(record.seq, event))
    return plans


def _part(seq: int, event: PlanCommitted | PlanRefused) -> _Part:
    if isinstance(event, PlanRefused):
        return _Part(seq, event.placements, (), (), event.evictions, is_refused=True)
    asked = event.asked or (*event.placements, *event.cut)
    evicted = (*event.evictions, *event.spared)
    return _Part(seq, asked, event.stops, event.updates, evicted, is_refused=False)


def _check(found: Redecided, state: State, plan: _Plan, under_way: list[_Plan]) -> None:
    origin = plan.origin
    if origin.core != CORE_VERSION:
        found.other_version += 1
        return
    if len(plan.parts) < origin.parts or any(part.is_refused for part in plan.parts.values()):
        found.untold += 1
        return
    held, evicted = _held(state, under_way)
    evaluation = state.evaluations.by_key.get(plan.key)
    cause = evaluation.triggered_by if evaluation is not None else ""
    proposal = place(
        Snapshot(state, held, MaskCache(), evicted),
        Assignment(plan.key, plan.job_id, cause),
        seed=origin.seed,
        lane=origin.lane,
        lanes=origin.lanes,
    )
    parts = [plan.parts[number] for number in sorted(plan.parts)]
    recorded = _lines(
        [one for part in parts for one in part.placements],
        [one for part in parts for one in part.stops],
        [one for part in parts for one in part.updates],
        [one for part in parts for one in part.evictions],
    )
    decided = _lines(proposal.placements, proposal.stops, proposal.updates, proposal.evictions)
    found.checked += 1
    if recorded == decided:
        found.equal += 1
        return
    found.differences.append(
        Difference(
            seq=parts[0].seq,
            worker=origin.worker,
            number=origin.number,
            recorded=_only(recorded, decided),
            decided=_only(decided, recorded),
        )
    )


def _held(state: State, under_way: list[_Plan]) -> tuple[Held, Rows]:
    """What is held with the worker's own earlier plans, as far as the state does not show them; whom they evict."""
    held = state.allocations.held.copy(state.fleet.size)
    groups = state.allocations.groups
    for plan in under_way:
        for part in plan.parts.values():
            for placement in part.placements if part.seq > state.seq else ():
                name = (plan.job_id, placement.version, placement.group)
                ref = groups.ref_of[name]
                rows = np.array(placement.rows, dtype=np.intp)
                counts = np.array(placement.counts, dtype=np.int64)
                held.add_columns(rows, counts[:, None] * groups.ask[ref])
                extras = groups.extras[ref]
                if extras is not None:
                    nodes = np.repeat(rows, counts).tolist()
                    for node, holding in zip(nodes, holdings_of(extras, placement), strict=True):
                        held.add(node, None, holding)
    evicted = _evicted(state, under_way)
    for row in evicted.tolist():
        held.remove(*state.allocations.held_by(row))
    return held, evicted


def _evicted(state: State, under_way: list[_Plan]) -> Rows:
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


def snapshot_of(records: Iterable[Record], origin: Origin, state: State) -> Snapshot:
    """Make the snapshot again that a plan was made on: `state` stands at `origin.snapshot_seq`.

    `records`: the log from its beginning to where it tells the plan's fate, or further. Raises LogError.
    """
    under_way = [
        plan
        for (worker, number), plan in sorted(_plans(records).items())
        if worker == origin.worker and number < origin.number and plan.last_seq > state.seq
    ]
    for plan in under_way:
        plan.remember(state)
    held, evicted = _held(state, under_way)
    return Snapshot(state, held, MaskCache(), evicted)


def _lines(
    placements: Iterable[GroupPlacement],
    stops: Iterable[Stops],
    updates: Iterable[InPlace],
    evictions: Iterable[Evictions],
) -> list[str]:
    """Write a plan as one line an allocation, in order of the lines."""
    lines: list[str] = []
    for one in placements:
        nodes = [row for row, n in zip(one.rows, one.counts, strict=True) for _ in range(n)]
        ports, slots = (len(column) // len(nodes) for column in (one.ports, one.instances))
        for at, (row, name) in enumerate(zip(nodes, expand_runs(one.names), strict=True)):
            previous = one.previous[at] if one.previous else 0
            times = one.reschedules[at] if one.reschedules else 0
            line = (
                f"place {one.group}[{name}] v{one.version} row {row} for {previous}, {times} times"
            )
            if one.variant or ports or slots:
                held = one.ports[at * ports : (at + 1) * ports]
                held += one.instances[at * slots : (at + 1) * slots]
                line += f" by {one.variant}: {' '.join(map(str, held))}"
            lines.append(line)
    lines += [
        f"stop {row} {stop.client_status} {stop.reason}" for stop in stops for row in stop.rows
    ]
    lines += [f"update {row} {one.group} v{one.version}" for one in updates for row in one.rows]
    lines += [f"evict {row} of {one.job_id}" for one in evictions for row in one.rows]
    return sorted(lines)


def _only(lines: list[str], others: list[str]) -> str:
    """Say which lines the other plan does not have, the first few of them."""
    known = set(others)
    mine = [line for line in lines if line not in known]
    return "; ".join(mine[:3]) or f"{len(lines)} lines"
