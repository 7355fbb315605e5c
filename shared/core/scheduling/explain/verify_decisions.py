"""Verify decisions: whether `place` makes the same plans of their snapshots today as the log holds.

Compares allocation by allocation, so that splitting a plan into parts, or cutting it in the applier, does not matter.
recorded_plans.py rebuilds the snapshots.
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
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.recorded_plans import (
    RecordedPart,
    RecordedPlan,
    UnconfirmedPlans,
    read_plans,
)
from shared.core.scheduling.model import Assignment, Proposal, Snapshot
from shared.core.scheduling.place import place
from shared.core.state.ids import alloc_id
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State

#: Reads the log from seq 1, or from behind the start state; may be called repeatedly.
ReadLog = Callable[[], Iterable[Record]]


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that `place` makes differently today. `recorded` and `decided` show the difference."""

    #: seq of its first part.
    seq: int
    job_id: str = ""
    worker: str
    number: int
    #: seq of its snapshot.
    snapshot_seq: int = 0
    recorded: str
    decided: str


class DecisionCheck(msgspec.Struct, kw_only=True):
    """Result over all plans of a log."""

    checked: int = 0
    equal: int = 0
    #: made by another core version: not compared.
    other_version: int = 0
    #: parts are missing, or refused ones list no allocations: not compared.
    untold: int = 0
    differences: list[PlanDifference] = msgspec.field(default_factory=list)


def verify_decisions(
    read: ReadLog, *, start: Replica | None = None, after_seq: int = 0
) -> DecisionCheck:
    """Decide every plan again that the log holds after `after_seq`. Raises LogError where the log cannot be followed.

    `start`: the state from which on `read` reads; it is consumed. Plans made on an earlier snapshot count as untold.
    """
    found = DecisionCheck()
    replica = Replica() if start is None else start
    at_seq: dict[int, list[RecordedPlan]] = {}
    for plan in read_plans(read(), copy(replica.chain)).values():
        if plan.origin.snapshot_seq < replica.state.seq:
            found.untold += plan.last_seq > after_seq
        else:
            at_seq.setdefault(plan.origin.snapshot_seq, []).append(plan)
    under_way: dict[str, list[RecordedPlan]] = {}
    _decide_at(found, replica.state, at_seq, under_way, after_seq=after_seq)
    for record in read():
        replica.apply(record)
        _decide_at(found, replica.state, at_seq, under_way, after_seq=after_seq)
    return found


def _decide_at(
    found: DecisionCheck,
    state: State,
    at_seq: dict[int, list[RecordedPlan]],
    under_way: dict[str, list[RecordedPlan]],
    *,
    after_seq: int,
) -> None:
    """Decide the plans again that were made on this state. `under_way`: unconfirmed plans by worker."""
    by_worker: dict[str, list[RecordedPlan]] = {}
    for plan in at_seq.pop(state.seq, ()):
        by_worker.setdefault(plan.origin.worker, []).append(plan)
    for worker, plans in sorted(by_worker.items()):
        known = UnconfirmedPlans(state, under_way.get(worker, ()))
        for plan in sorted(plans, key=lambda one: one.origin.number):
            plan.remember(state)
            if plan.last_seq > after_seq:
                _check(found, plan, known.snapshot())
            known.add(plan)
        under_way[worker] = known.plans


def _check(found: DecisionCheck, plan: RecordedPlan, snapshot: Snapshot) -> None:
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
        PlanDifference(
            seq=parts[0].seq,
            job_id=plan.job_id,
            worker=origin.worker,
            number=origin.number,
            snapshot_seq=origin.snapshot_seq,
            recorded=_only(recorded, decided),
            decided=_only(decided, recorded),
        )
    )


def _is_equal(parts: list[RecordedPart], proposal: Proposal) -> bool:
    """Tell whether a plan equals the proposal as it stands, without comparing each allocation."""
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
    """Render a plan as one line per allocation, sorted."""
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
    """Name a node, with its row: another node may have had the row before."""
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
    """Join the first few lines that the other plan lacks."""
    known = set(others)
    mine = [line for line in lines if line not in known]
    return "; ".join(mine[:3]) or f"{len(lines)} lines"
