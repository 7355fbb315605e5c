"""Deciding again: whether a log's plans are what `place` makes of their snapshots.

Compares allocation by allocation, so that where a plan was cut into parts, or cut by the applier, does not matter. What
a plan was made from: `recorded.py`. Must not know how a decision is made, nor where the log lies: `read` gives it from
its first record, as often as it is asked.
"""

from collections.abc import Callable, Iterable
from copy import copy

import msgspec

from schemas.envelope import CORE_VERSION
from schemas.plans import (
    Evictions,
    GroupPlacement,
    InPlace,
    Stops,
)
from shared.core.ids import alloc_id
from shared.core.place import Assignment, Proposal, Snapshot, place
from shared.core.recorded import Part, Plan, UnderWay, plans_of
from shared.core.replica import Replica
from shared.core.role import Record
from shared.core.state import State
from shared.core.tables.allocations import expand_runs

#: Reads the log, from seq 1 or from behind the state that it is read with.
Reader = Callable[[], Iterable[Record]]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that `place` makes otherwise today. `recorded` and `decided` say how, for people."""

    #: of its first part.
    seq: int
    job_id: str = ""
    worker: str
    number: int
    #: what it was decided on.
    snapshot_seq: int = 0
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


def redecide(read: Reader, *, start: Replica | None = None, after_seq: int = 0) -> Redecided:
    """Decide every plan again that the log tells behind `after_seq`. Raises LogError where it cannot be followed.

    `start`: the state from which on `read` reads; it is used up. Plans that were made on one before it are untold.
    """
    found = Redecided()
    replica = Replica() if start is None else start
    at_seq: dict[int, list[Plan]] = {}
    for plan in plans_of(read(), copy(replica.chain)).values():
        if plan.origin.snapshot_seq < replica.state.seq:
            found.untold += plan.last_seq > after_seq
        else:
            at_seq.setdefault(plan.origin.snapshot_seq, []).append(plan)
    under_way: dict[str, list[Plan]] = {}
    _decide_at(found, replica.state, at_seq, under_way, after_seq=after_seq)
    for record in read():
        replica.apply(record)
        _decide_at(found, replica.state, at_seq, under_way, after_seq=after_seq)
    return found


def _decide_at(
    found: Redecided,
    state: State,
    at_seq: dict[int, list[Plan]],
    under_way: dict[str, list[Plan]],
    *,
    after_seq: int,
) -> None:
    """Decide the plans again that were made on this state. `under_way`: those by worker that it does not show yet."""
    by_worker: dict[str, list[Plan]] = {}
    for plan in at_seq.pop(state.seq, ()):
        by_worker.setdefault(plan.origin.worker, []).append(plan)
    for worker, plans in sorted(by_worker.items()):
        known = UnderWay(state, under_way.get(worker, ()))
        for plan in sorted(plans, key=lambda one: one.origin.number):
            plan.remember(state)
            if plan.last_seq > after_seq:
                _check(found, plan, known.snapshot())
            known.add(plan)
        under_way[worker] = known.plans


def _check(found: Redecided, plan: Plan, snapshot: Snapshot) -> None:
    origin = plan.origin
    if origin.core != CORE_VERSION:
        found.other_version += 1
        return
    if len(plan.parts) < origin.parts or any(part.is_refused for part in plan.parts.values()):
        found.untold += 1
        return
    evaluation = snapshot.state.evaluations.by_key.get(plan.key)
    cause = evaluation.triggered_by if evaluation is not None else ""
    proposal = place(
        snapshot,
        Assignment(plan.key, plan.job_id, cause),
        seed=origin.seed,
        lane=origin.lane,
        lanes=origin.lanes,
    )
    parts = [plan.parts[number] for number in sorted(plan.parts)]
    found.checked += 1
    if _is_equal(parts, proposal):
        found.equal += 1
        return
    recorded = _lines(
        snapshot.state,
        [one for part in parts for one in part.placements],
        stops=[one for part in parts for one in part.stops],
        updates=[one for part in parts for one in part.updates],
        evictions=[one for part in parts for one in part.evictions],
    )
    decided = _lines(
        snapshot.state,
        proposal.placements,
        stops=proposal.stops,
        updates=proposal.updates,
        evictions=proposal.evictions,
    )
    if recorded == decided:
        found.equal += 1
        return
    found.differences.append(
        Difference(
            seq=parts[0].seq,
            job_id=plan.job_id,
            worker=origin.worker,
            number=origin.number,
            snapshot_seq=origin.snapshot_seq,
            recorded=_only(recorded, decided),
            decided=_only(decided, recorded),
        )
    )


def _is_equal(parts: list[Part], proposal: Proposal) -> bool:
    """Tell whether a plan is the proposal as it stands, so that nobody need look at each allocation of it."""
    if len(parts) != 1:
        return False
    one = parts[0]
    return (one.placements, one.stops, one.updates, one.evictions) == (
        proposal.placements,
        proposal.stops,
        proposal.updates,
        proposal.evictions,
    )


def _lines(
    state: State,
    placements: Iterable[GroupPlacement],
    *,
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
            line = f"place {one.group}[{name}] v{one.version} on {_node(state, row)}"
            if one.previous and one.previous[at]:
                times = one.reschedules[at] if one.reschedules else 0
                line += f" for {alloc_id(one.previous[at])[:8]}, rescheduled {times} times"
            if one.variant or ports or slots:
                held = one.ports[at * ports : (at + 1) * ports]
                held += one.instances[at * slots : (at + 1) * slots]
                line += f" by {one.variant}: {' '.join(map(str, held))}"
            lines.append(line)
    for stop in stops:
        how = f" {stop.client_status}".rstrip()
        lines += [f"stop {_alloc(state, row)}{how}: {stop.reason}" for row in stop.rows]
    lines += [
        f"update {_alloc(state, row)} to v{one.version}" for one in updates for row in one.rows
    ]
    lines += [f"evict {_alloc(state, row)}" for one in evictions for row in one.rows]
    return sorted(lines)


def _node(state: State, row: int) -> str:
    """Name a node. The row stands beside it: another node may have had it under the same name."""
    known = row < len(state.fleet.ids)
    return f"{state.fleet.ids[row]} (row {row})" if known else f"row {row}"


def _alloc(state: State, row: int) -> str:
    """Name an allocation."""
    table = state.allocations
    if row >= table.size or not table.key[row]:
        return f"row {row}"
    ref = int(table.group[row])
    name = f"{table.groups.job_ids[ref]}.{table.groups.names[ref]}[{int(table.index[row])}]"
    return f"{name} {alloc_id(int(table.key[row]))[:8]}"


def _only(lines: list[str], others: list[str]) -> str:
    """Say which lines the other plan does not have, the first few of them."""
    known = set(others)
    mine = [line for line in lines if line not in known]
    return "; ".join(mine[:3]) or f"{len(lines)} lines"
