"""Explains placements: why an allocation got its node, and why no node takes another one.

Stores nothing for it: the decision is repeated on the state that it was made on, so any placement in the log can be
explained at any time.
"""

from collections.abc import Mapping, Sequence
from copy import copy

import msgspec
import numpy as np

from schemas.envelope import RECORD_DECODER
from schemas.evaluation_answers import (
    Decision,
    Exhausted,
    FilterCount,
    Nearest,
    QueuedWait,
    Scored,
    WhyAnswer,
)
from schemas.evaluations import Waiting
from schemas.jobs import SYSTEM_JOB_TYPES, GroupSpec
from schemas.plans import GroupPlacement, Origin, PlanCommitted
from shared.core.resources.asks import CORES
from shared.core.resources.lacks import CPU_OF_CORES
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.placement_probe import PlacementProbe
from shared.core.scheduling.explain.recorded_plans import RecordedPlan, read_plans, rebuild_snapshot
from shared.core.scheduling.explain.shortages import (
    NodeAvailability,
    RankedNode,
    Shortage,
    exhausted,
    fitting,
    nearest,
    reserved_ports,
    reserved_rows,
    shortages,
    shortfall,
    untaken_rows,
)
from shared.core.scheduling.feasibility.filters import NodeFilter, PlacementCache
from shared.core.scheduling.model import Proposal, Snapshot
from shared.core.scheduling.place import decide_group
from shared.core.scheduling.placement_columns import merge_placements, subset_placement
from shared.core.scheduling.reservations.own_rooms import with_own_rooms
from shared.core.scheduling.scoring.pow10 import SCALE
from shared.core.state.ids import Incarnations, alloc_id
from shared.core.state.name_runs import expand_runs
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, EVICT, FAILED, LOST, RUN
from shared.core.state.tables.jobs import Job
from shared.errors import CommandInvalid
from shared.query.blocked_shapes import BlockedShapes
from shared.query.eviction_choices import EvictionFields, eviction_fields
from shared.query.job_wait import job_wait

#: How an allocation ended, by its status.
_ENDS = {COMPLETE: "it has completed", FAILED: "it has failed", LOST: "it was lost"}
NEAREST_SHOWN = 3
TOP_SHOWN = 5
#: Filter of nodes that have room.
RESERVED = "reservation for a job ahead of it in the queue"


class _RecordedPlacement(msgspec.Struct, frozen=True):
    """The records of an allocation in the log: its plan, its placement, and the earlier placements of the plan."""

    seq: int
    node: int
    plan: RecordedPlan
    placement: GroupPlacement
    earlier: tuple[GroupPlacement, ...]


def explain_candidate(
    state: State,
    masks: PlacementCache,
    job: Job,
    group_name: str,
    *,
    row: int | None = None,
    shapes: BlockedShapes | None = None,
) -> WhyAnswer:
    """Explain the placement of one more allocation of a group now. `row`: the named node; None: all.

    All is of the state but `queue`, which is what the queue decided last about the group, with the seq of that.
    An empty `group_name` is the first group that waits, else the first. Raises CommandInvalid.
    """
    waits = job_wait(state, job, shapes).groups
    group = _group(job, group_name, waits)
    snapshot = Snapshot(state, state.allocations.held, masks)
    proposal, turn = decide_group(snapshot, job, group.name)
    looking = PlacementProbe(with_own_rooms(snapshot, job), job, group, turn=turn)
    found = _Explanation(state, looking, row)
    decision = Decision(snapshot_seq=state.seq, policy=state.policy.policy_hash)
    answer = found.answer(job, group, decision)
    waiting = _wait_of(proposal, group.name)
    if not found.ranked:
        answer = _without_room(
            snapshot, job, found, answer, proposal=None if turn is None else proposal
        )
    elif waiting is None:
        answer = msgspec.structs.replace(answer, text=found.best_text(job, group))
    else:
        # Such as for the data of its predecessors, which no other node has.
        said = waiting.wait_class.replace("_", " ")
        room = f"though {state.fleet.ids[found.ranked[0].row]} has room for one more"
        answer = msgspec.structs.replace(
            answer,
            wait_class=waiting.wait_class,
            reasons=waiting.reasons,
            text=f"{job.id}.{group.name} cannot be placed ({said}), {room}",
        )
    if (queued := waits.get(group.name)) is None:
        return answer
    text = answer.text + _queue_text(queued, answer)
    if turn is None:
        text += "; the group requests none now"
    return msgspec.structs.replace(answer, queue=queued, text=text)


def _wait_of(proposal: Proposal | None, group_name: str) -> Waiting | None:
    """Why all that a job requests of a group waits by a decision about it; None: some of it, or none, would."""
    if proposal is None or _nodes_of(proposal, group_name):
        return None
    found = (one.blocked.waiting for one in proposal.follow_ups if one.blocked is not None)
    return next((one[group_name] for one in found if group_name in one), None)


def _without_room(
    snapshot: Snapshot,
    job: Job,
    found: "_Explanation",
    answer: WhyAnswer,
    *,
    proposal: Proposal | None,
) -> WhyAnswer:
    """Say what a decision of this moment would do, where one more finds no room: evict, or wait, and why."""
    state, looking, group = found.state, found.looking, found.looking.group
    if proposal is None and job.job_type in SYSTEM_JOB_TYPES and found.covers_all_nodes():
        # One a node: none waits, and none would be evicted for one more.
        text = f"{job.id}.{group.name} runs or has ended on every allowed node"
        if answer.node:
            text = found.against(job, group, "")
        return msgspec.structs.replace(answer, text=text)
    waiting = _wait_of(proposal, group.name) or looking.explain()
    # Where it requests no more: what if it did?
    placed = _nodes_of(proposal, group.name) if proposal is not None else ()
    may_evict = proposal is None or (proposal.evictions and placed)
    evicting = looking.evict() if may_evict else None
    if evicting is not None:
        node, victims = evicting
        turn = None if proposal is None else decide_group(snapshot, job, group.name)[1]
        again = PlacementProbe(with_own_rooms(snapshot, job), job, group, turn=turn)
        return msgspec.structs.replace(
            answer,
            **eviction_fields(state, again, node, victims),
            victims=tuple(_named(state, victims)),
            text=found.eviction_text(job, group, node, len(victims)),
        )
    if placed:
        name = state.fleet.ids[placed[0]]
        text = (
            f"{job.id}.{group.name}: what it requests would go to {name}; one beyond it has no room"
        )
        return msgspec.structs.replace(answer, text=text)
    return msgspec.structs.replace(
        answer,
        wait_class=waiting.wait_class,
        reasons=waiting.reasons,
        text=found.against(job, group, waiting.wait_class),
    )


def _nodes_of(proposal: Proposal, group_name: str) -> tuple[int, ...]:
    """Rows of the nodes that a plan places allocations of a group on."""
    return tuple(row for one in proposal.placements if one.group == group_name for row in one.rows)


def _queue_text(queued: QueuedWait, answer: WhyAnswer) -> str:
    """Say what the queue decided at another moment, where that differs from the account of this one."""
    if (queued.wait_class, queued.reasons) == (answer.wait_class, answer.reasons):
        return ""
    if not queued.decided_seq:
        return f"; the queue has not decided it yet: {'; '.join(queued.reasons)}"
    said = ", ".join((queued.wait_class.replace("_", " "), *queued.reasons[:1]))
    return f"; the queue decided at seq {queued.decided_seq}: {said}"


def explain_placement(
    now: State,
    records: Sequence[Record],
    row: int,
    before: Replica | None = None,
    *,
    later: State | None = None,
) -> WhyAnswer:
    """Explain why the allocation in a row of `now` is where it is. `records`: the log up to there, from its beginning.

    `before`: they begin behind this replica, which is moved on and must not be behind the snapshot of the decision.
    `later`: a state in which its end is looked up, if it has the allocation still.

    Raises CommandInvalid where the log does not begin early enough, LogError.
    """
    key = int(now.allocations.key[row])
    before = Replica() if before is None else before
    plans = read_plans(records, copy(before.chain))
    made = _find_placement(records, plans, key, now.policy.incarnations)
    origin = made.plan.origin
    for record in records:
        if record.seq > origin.snapshot_seq:
            break
        before.apply(record)
    state = before.state
    job = state.jobs.by_id.get(made.plan.job_id)
    groups = () if job is None else job.groups
    group = next((one for one in groups if one.name == made.placement.group), None)
    if job is None or group is None:
        raise CommandInvalid("not_found", f"job {made.plan.job_id!r} is not in the log at its plan")
    snapshot = with_own_rooms(rebuild_snapshot(plans.values(), origin, state), job)
    stops = [stop for part in made.plan.parts.values() for stop in part.stops]
    looking = PlacementProbe(snapshot, job, group, stops=stops, origin=origin)
    request = (made.placement.version, made.placement.canaries)
    for one in made.earlier:
        # Beside canaries, the others are requested apart, in the version before.
        looking.take(one, is_same_request=(one.version, one.canaries) == request)
    looking.avoid(made.placement.previous)
    node = made.node
    found = _Explanation(state, looking, node)
    answer = found.answer(job, group, _decision(origin, made.seq))
    evictions = [one for part in made.plan.parts.values() for one in part.evictions]
    victims = [row for one in evictions for row in one.rows]
    own = [row for row in victims if state.allocations.node[row] == node]
    evicted = _named(state, own)
    if own:
        answer = msgspec.structs.replace(answer, **_eviction(state, looking, made, victims))
    if group.sticky and _node_of(state, now.allocations.previous.get(row, 0)) == node:
        text = f"{job.id}.{group.name} is on {state.fleet.ids[node]}: its predecessor's data is there (sticky)"
    else:
        text = found.for_node(job, group, node, evicted=bool(evicted))
    if fate := _fate_of(now, records, row) or _end_in(later, key):
        text = f"{text.replace(' is on ', ' was placed on ', 1)}; {fate}"
    return msgspec.structs.replace(
        answer, seq=now.seq, allocation=alloc_id(key), victims=tuple(evicted), text=text
    )


def _decision(origin: Origin, seq: int) -> Decision:
    return Decision(
        snapshot_seq=origin.snapshot_seq,
        policy=origin.policy,
        seed=origin.seed,
        lane=origin.lane,
        lanes=origin.lanes,
        worker=origin.worker,
        number=origin.number,
        seq=seq,
    )


def _eviction(
    state: State, looking: PlacementProbe, made: _RecordedPlacement, victims: Sequence[int]
) -> EvictionFields:
    """Compare what a placement evicted with its alternatives; other `victims` of the plan went before."""
    nodes = {row: int(state.allocations.node[row]) for row in victims}
    earlier = {row for one in made.earlier for row in one.rows} - {made.node}
    return eviction_fields(
        state,
        looking,
        made.node,
        [row for row, node in nodes.items() if node == made.node],
        gone=[row for row, node in nodes.items() if node in earlier],
        placed=made.plan.count_on(made.node),
    )


class _Explanation:
    """The result of an evaluation of all nodes."""

    def __init__(self, state: State, looking: PlacementProbe, row: int | None) -> None:
        self.state = state
        self.looking = looking
        self._row = row
        self._standing: NodeAvailability = looking.standing()
        self._short, self._fits, self._variant = self._best_variant()
        self.ranked: list[RankedNode] = looking.ranking(self._fits, self._variant)

    def _best_variant(self) -> tuple[tuple[Shortage, ...], list[int], int]:
        """The first alternative that a node has room for; else the first that most nodes are reserved for."""
        best: tuple[tuple[Shortage, ...], list[int], int] | None = None
        most = -1
        for variant in range(max(len(self.looking.group.alternatives), 1)):
            short = shortages(self._standing, variant)
            fits = np.flatnonzero(fitting(self._standing, short, variant)).tolist()
            if fits:
                return short, fits, variant
            reserved = int(reserved_rows(self._standing, short, variant).sum())
            if reserved > most:
                best, most = (short, [], variant), reserved
        assert best is not None
        return best

    def answer(self, job: Job, group: GroupSpec, decision: Decision) -> WhyAnswer:
        """Fill in everything but the text."""
        state, ids = self.state, self.state.fleet.ids
        reserved = NodeFilter(RESERVED, ~reserved_rows(self._standing, self._short, self._variant))
        report = self.looking.report(reserved)
        near = nearest(self._standing, self._short, NEAREST_SHOWN, self._variant)
        if self._row is not None and shortfall(self._short, self._row) and self._row not in near:
            near = [self._row, *near]
        return WhyAnswer(
            seq=state.seq,
            cluster_id=state.policy.cluster_id,
            job_id=job.id,
            group=group.name,
            node="" if self._row is None else ids[self._row],
            decision=decision,
            nodes_considered=report.nodes,
            feasible=int(self._standing.feasible.sum()),
            fitting=len(self._fits),
            lacking=report.feasible - len(self._fits),
            filters=tuple(
                FilterCount(name=one.name, refused=one.refused, by_class=one.by_class)
                for one in report.filters
            ),
            exhausted=tuple(
                Exhausted(dimension=name, nodes=nodes)
                for name, nodes in exhausted(self._standing, self._short)
            ),
            nearest=tuple(
                Nearest(node=ids[row], shortfall=shortfall(self._short, row)) for row in near
            ),
            top=tuple(self._scored(one) for one in self._shown()),
        )

    def covers_all_nodes(self) -> bool:
        """Return whether every node that may take the group is closed to one more, regardless of its free capacity."""
        return bool(self._standing.feasible.any()) and not untaken_rows(self._standing).any()

    def _shown(self) -> list[RankedNode]:
        """The best, and the one that matters."""
        shown = self.ranked[:TOP_SHOWN]
        return shown + [one for one in self.ranked[TOP_SHOWN:] if one.row == self._row]

    def _scored(self, one: RankedNode) -> Scored:
        return Scored(
            node=self.state.fleet.ids[one.row],
            score=_float(one.score),
            scores={name: _float(value) for name, value in one.scores.items()},
        )

    def for_node(self, job: Job, group: GroupSpec, row: int, *, evicted: bool) -> str:
        """Explain why a node was chosen."""
        node, name = self.state.fleet.ids[row], f"{job.id}.{group.name}"
        own = next((one for one in self.ranked if one.row == row), None)
        if evicted:
            return f"{name} is on {node}: no node had capacity; preemption was cheapest there"
        if job.job_type in SYSTEM_JOB_TYPES:
            return f"{name} is on {node}: it runs on every node that its constraints allow"
        if own is None:
            return f"{name} is on {node}, which had no capacity in the snapshot of its plan"
        score = _float(own.score)
        better = self.ranked[: self.ranked.index(own)]
        if not better:
            rest = (
                f"the best of {len(self.ranked)} nodes with capacity"
                if self.ranked[1:]
                else "the only node with capacity"
            )
            return f"{name} is on {node}: score {score}, {rest}"
        best = self.state.fleet.ids[better[0].row]
        rest = f"{len(better)} nodes rank higher, {best} first ({_float(better[0].score)})"
        return (
            f"{name} is on {node}: score {score}; {rest}, but {self.looking.passed_over_reason()}"
        )

    def best_text(self, job: Job, group: GroupSpec) -> str:
        """Say where one more would go, or why not to the named node."""
        best = self.ranked[0]
        if self._row not in (None, best.row):
            return self.of_node(job, group, self._row)
        node = self.state.fleet.ids[best.row]
        return f"{job.id}.{group.name}: one more would go to {node}, score {_float(best.score)}"

    def of_node(self, job: Job, group: GroupSpec, row: int) -> str:
        """Explain why a node would not be chosen, though others would."""
        node, name = self.state.fleet.ids[row], f"{job.id}.{group.name}"
        best = self.ranked[0]
        other = f"{self.state.fleet.ids[best.row]} ({_float(best.score)})"
        own = next((one for one in self.ranked if one.row == row), None)
        if own is not None and job.job_type in SYSTEM_JOB_TYPES:
            return f"{name} would go to {node}, as to every node without it"
        if own is not None:
            less = "less than" if own.score < best.score else "equal to, but ranked after"
            return f"{name} would not go to {node}: score {_float(own.score)}, {less} {other}"
        refusal = f"{name} would not go to {node}: {self._refusal(row)}"
        return refusal if job.job_type in SYSTEM_JOB_TYPES else f"{refusal}; it would go to {other}"

    def against(self, job: Job, group: GroupSpec, wait_class: str) -> str:
        """Explain why no node is possible, or why the named node is not."""
        name = f"{job.id}.{group.name}"
        if self._row is not None:
            node = self.state.fleet.ids[self._row]
            return f"{name} would not go to {node}: {self._refusal(self._row)}"
        return f"{name} cannot be placed ({wait_class.replace('_', ' ')})"

    def eviction_text(self, job: Job, group: GroupSpec, row: int, victims: int) -> str:
        """Describe where preemption would place one more, and why not on the named node."""
        node, name = self.state.fleet.ids[row], f"{job.id}.{group.name}"
        counted = "1 allocation" if victims == 1 else f"{victims} allocations"
        price = f"{counted} of lower-priority jobs evicted"
        if self._row is None or self._row == row:
            return f"{name}: no node has capacity; one more would go to {node}, {price}"
        asked = f"{name} would not go to {self.state.fleet.ids[self._row]}"
        return f"{asked}: {self._refusal(self._row)}; it would go to {node}, {price}"

    def _refusal(self, row: int) -> str:
        """Describe the first rule that excludes a node."""
        if refusal := self.looking.refusal(self._standing, row):
            return refusal
        lacks = shortfall(self._short, row)
        if port := reserved_ports(self._standing).get(row):
            return f"port {port} is reserved on the node"
        if lacks:
            return "the node lacks " + ", ".join(map(shown_lack, lacks, lacks.values()))
        if reserved_rows(self._standing, self._short, self._variant)[row]:
            return f"{RESERVED} excludes the node"
        return "no rule excludes the node"


def shown_lack(name: str, amount: float) -> str:
    """Describe how much of a dimension a node lacks, with its unit."""
    if name.startswith("port "):
        return name
    if name == CORES:
        return f"{amount:g} cores"
    if name == CPU_OF_CORES:
        return f"{amount:g} MHz of {name}"
    for suffix, unit in (("_mhz", "MHz"), ("_mib", "MiB")):
        if name.endswith(suffix):
            return f"{amount:g} {unit} of {name.removesuffix(suffix)}"
    return f"{amount:g} of {name}"


def _named(state: State, victims: Sequence[int]) -> list[str]:
    """Name allocations by row: the beginning of their id, and their job."""
    table = state.allocations
    return [
        f"{alloc_id(int(table.key[row]))[:8]} of {table.groups.job_ids[int(table.group[row])]}"
        for row in victims
    ]


def _node_of(state: State, key: int) -> int:
    """Fleet row of an allocation by its key; -1: the state does not have it."""
    table = state.allocations
    rows = np.flatnonzero(table.key[: table.size] == key)
    return int(table.node[rows[0]]) if key and len(rows) else -1


def _fate_of(now: State, records: Sequence[Record], row: int) -> str:
    """Describe what became of the allocation in a row of `now`; empty: it is to run. `records`: the log up to there."""
    table = now.allocations
    end = _ENDS.get(int(table.client[row]), "")
    if table.desired[row] == RUN:
        return end
    is_evicted = table.desired[row] == EVICT
    placed_seq = now.policy.incarnations.seq(int(table.key[row]))
    for record in reversed(records):
        if record.seq < placed_seq:
            break
        for event in RECORD_DECODER.decode(record.data).events if is_framed(record.data) else ():
            if not isinstance(event, PlanCommitted):
                continue
            if is_evicted:
                if any(row in one.rows for one in event.evictions):
                    return f"evicted at seq {record.seq} for job {event.job_id!r}"
                # Stops behind it say how it was lost.
                continue
            for stop in event.stops:
                if row in stop.rows:
                    said = f"stopped at seq {record.seq}: {stop.reason or 'its job wants fewer'}"
                    return f"{said}; {end}" if end else said
    return end or "it is to stop"


def _end_in(later: State | None, key: int) -> str:
    """Describe how an allocation had ended in a later state; empty: it is to run there, or is not known."""
    rows = [] if later is None else np.flatnonzero(later.allocations.key == key).tolist()
    return _fate_of(later, (), rows[0]) if later is not None and rows else ""


def _group(job: Job, name: str, waits: Mapping[str, QueuedWait]) -> GroupSpec:
    names = [one.name for one in job.groups]
    if name and name not in names:
        raise CommandInvalid(
            "not_found", f"job {job.id!r} has no group {name!r}, only {', '.join(names)}"
        )
    wanted = name or next((one for one in names if one in waits), names[0])
    return next(one for one in job.groups if one.name == wanted)


def _find_placement(
    records: Sequence[Record],
    plans: Mapping[tuple[str, int], RecordedPlan],
    key: int,
    incarnations: Incarnations,
) -> _RecordedPlacement:
    """Find the placement that made an allocation, as its worker requested it."""
    seq = incarnations.seq(key)
    at = seq - records[0].seq if records else -1
    if not 0 <= at < len(records) or records[at].seq != seq:
        raise CommandInvalid(
            "not_found", f"the log read does not contain seq {seq}, which placed it"
        )
    ordinal = 0
    for event in RECORD_DECODER.decode(records[at].data).events:
        for placement in event.placements if isinstance(event, PlanCommitted) else ():
            assert isinstance(event, PlanCommitted)
            position = key - incarnations.key(seq, ordinal)
            ordinal += sum(placement.counts)
            if position < sum(placement.counts):
                name = (placement.group, int(expand_runs(placement.names)[position]))
                node = int(np.repeat(placement.rows, placement.counts)[position])
                return _find_in_plan(
                    plans[event.origin.worker, event.origin.number], seq, node, name
                )
    raise CommandInvalid("not_found", f"seq {seq} has no placement with that key")


def _find_in_plan(
    plan: RecordedPlan, seq: int, node: int, name: tuple[str, int]
) -> _RecordedPlacement:
    earlier: list[GroupPlacement] = []
    for number in sorted(plan.parts):
        for placement in _merge_cut_parts(plan.parts[number].placements):
            names = expand_runs(placement.names).tolist() if placement.group == name[0] else []
            if name[1] in names:
                apart = _cut_apart(plan.parts[number].cut, placement)
                before = (*earlier, *apart, *_first(placement, names.index(name[1])))
                return _RecordedPlacement(seq, node, plan, placement, before)
            earlier.append(placement)
    raise CommandInvalid(
        "not_found", f"plan {plan.origin.number} of {plan.origin.worker} does not propose it"
    )


def _merge_cut_parts(placements: Sequence[GroupPlacement]) -> list[GroupPlacement]:
    """Put together again what the applier cut out of a placement: new names are given in the order of placing."""
    whole: dict[tuple[str, int], GroupPlacement] = {}
    out: list[GroupPlacement] = []
    for one in placements:
        if one.previous:
            out.append(one)
            continue
        at = (one.group, one.variant)
        whole[at] = merge_placements(whole[at], one) if at in whole else one
    return [*out, *whole.values()]


def _cut_apart(cut: Sequence[GroupPlacement], placement: GroupPlacement) -> list[GroupPlacement]:
    """What the applier cut out of a placement that follows others: which of both was placed first is not known."""
    if not placement.previous:
        return []
    same = (placement.group, placement.version, placement.variant, placement.canaries)
    return [
        one
        for one in cut
        if one.previous and (one.group, one.version, one.variant, one.canaries) == same
    ]


def _first(placement: GroupPlacement, count: int) -> tuple[GroupPlacement, ...]:
    """Return the first `count` allocations of a placement, if there are any."""
    if not count:
        return ()
    mask = np.zeros(sum(placement.counts), dtype=bool)
    mask[:count] = True
    return (subset_placement(placement, mask),)


def _float(value: int) -> float:
    return round(value / SCALE, 4)
