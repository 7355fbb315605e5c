"""Deciding again: whether a log's plans are what `place` makes of their snapshots.

Compares allocation by allocation, so that where a plan was cut into parts, or cut by the applier, does not matter. What
a plan was made from: `recorded.py`. Must not know how a decision is made, nor where the log lies: `read` gives it from
its first record, as often as it is asked.
"""

from collections.abc import Callable, Iterable

import msgspec

from schemas.envelope import CORE_VERSION
from schemas.plans import (
    Evictions,
    GroupPlacement,
    InPlace,
    Stops,
)
from shared.core.place import Assignment, Snapshot, place
from shared.core.recorded import Plan, plans_of, snapshot_of
from shared.core.replica import Replica
from shared.core.role import Record
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


def redecide(read: Reader) -> Redecided:
    """Decide every plan of a log again. Raises LogError where the log cannot be followed."""
    at_seq: dict[int, list[Plan]] = {}
    for plan in plans_of(read()).values():
        at_seq.setdefault(plan.origin.snapshot_seq, []).append(plan)
    found = Redecided()
    replica = Replica()
    under_way: dict[str, list[Plan]] = {}
    for record in read():
        replica.apply(record)
        state = replica.state
        for plan in sorted(at_seq.pop(state.seq, ()), key=lambda one: one.origin.number):
            mine = [
                one for one in under_way.get(plan.origin.worker, ()) if one.last_seq > state.seq
            ]
            plan.remember(state)
            _check(found, plan, snapshot_of(mine, plan.origin, state))
            under_way[plan.origin.worker] = [*mine, plan]
    return found


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
