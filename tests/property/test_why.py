"""Why: the explanation of a decision agrees with the decision, for every allocation of a simulated storm."""

import pytest

from schemas.base import EvalKey
from schemas.evaluation_answers import WhyAnswer
from shared.core.runtime.messages import Record
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.model import Assignment, Snapshot
from shared.core.scheduling.place import place
from shared.core.splitmix import splitmix64
from shared.core.state.tables.allocations import EVICT, RUN, TERMINAL
from shared.query.explain import explain_candidate, explain_placement
from shared.query.historical_state import HistoricalState
from shared.sim.world.world import SimulatedWorld
from tests.not_tested import is_full

pytestmark = pytest.mark.property

SEEDS = range(1, 9 if is_full() else 5)


def storm(seed: int) -> tuple[HistoricalState, list[Record]]:
    """Run a world; return its last state and its log."""
    world = SimulatedWorld(seed)
    assert not world.run().invariant
    written = world.context.bus.log.records
    records = [Record(at, subject, data) for at, (subject, data) in enumerate(written, 1)]
    past = HistoricalState()
    for record in records:
        past.apply(record)
    return past, records


def first_of(past: HistoricalState, answer: WhyAnswer) -> list[str]:
    """Nodes with room that the worker of a decision takes first."""
    lane, lanes = answer.decision.lane, answer.decision.lanes
    rows = {one.node: past.state.fleet.row_of[one.node] for one in answer.top}  # type: ignore[index]
    return [node for node, row in rows.items() if splitmix64(row) % lanes == lane]


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_chosen_was_the_best_of_its_lane(seed: int) -> None:
    """Asked on its own snapshot, behind what its plan had placed before, each node is the best that its worker had."""
    past, records = storm(seed)
    table, checked = past.state.allocations, 0
    for row in table.live_rows().tolist():
        answer = explain_placement(past.state, records, row)
        job = past.state.jobs.by_id.get(answer.job_id)  # type: ignore[call-overload]
        assert answer.node == past.state.fleet.ids[int(table.node[row])]
        # A restore adds its incarnation to keys: the log is asked for the seq.
        assert answer.decision.seq == past.state.policy.incarnations.seq(int(table.key[row]))
        if answer.victims or job is None or job.job_type in {"system", "sysbatch"}:
            continue
        assert answer.node in {one.node for one in answer.top}, answer.text
        best = first_of(past, answer)
        if best and answer.node in best and past.state.policy.policy.candidates == "all":
            assert answer.node == best[0], answer.text
            checked += 1
    assert checked >= 3


def test_why_of_what_is_gone_says_what_became_of_it() -> None:
    """Evicted by which job, or stopped for which reason, and how it ended: only what is to run "is" on its node."""
    words: set[str] = set()
    for seed in (1, 39):
        past, records = storm(seed)
        table = past.state.allocations
        for row in table.live_rows().tolist():
            text = explain_placement(past.state, records, row).text
            is_gone = table.desired[row] != RUN or TERMINAL[table.client[row]]
            assert (" is on " in text) != is_gone, text
            assert (" was placed on " in text) == is_gone, text
            fate = text.rsplit("; ", 2)[1:] if is_gone else []
            words.update(
                word for one in fate for word in ("evicted at", "stopped at") if word in one
            )
            if table.desired[row] == EVICT:
                assert " for job '" in text, text
    assert words == {"evicted at", "stopped at"}


def test_a_part_of_the_log_explains_as_the_whole() -> None:
    """From a state before its snapshot on, each decision is made again as from the first record on."""
    past, records = storm(1)
    rows = past.state.allocations.live_rows().tolist()
    assert len(rows) >= 3
    for row in rows:
        whole = explain_placement(past.state, records, row)
        first = whole.decision.snapshot_seq
        for begin in {first, first // 2}:
            before = HistoricalState()
            for record in records[:begin]:
                before.apply(record)
            part = explain_placement(past.state, records[begin:], row, before.replica)
            assert part == whole, f"row {row} from seq {begin}"


@pytest.mark.parametrize("seed", SEEDS)
def test_why_not_agrees_with_placing(seed: int) -> None:
    """A job that has everything it wants: one more goes where placing one more job of its kind would put it."""
    past, _ = storm(seed)
    state, asked = past.state, 0
    for job in state.jobs.by_id.values():
        answer = explain_candidate(state, PlacementCache(), job, "")
        assert answer.fitting + answer.lacking <= answer.feasible <= answer.nodes_considered
        refused = sum(one.refused for one in answer.filters)
        assert answer.nodes_considered == refused + answer.lacking + answer.fitting
        snapshot = Snapshot(state, state.allocations.held, PlacementCache())
        again = place(snapshot, Assignment(EvalKey(0), job.id), seed=0, lane=0, lanes=1)
        if answer.fitting:
            assert answer.top[0].node in answer.text
        elif job.job_type in {"system", "sysbatch"} and not answer.wait_class:
            assert answer.victims or not (again.placements or again.follow_ups), answer
        else:
            # No room, or room only where something of lower priority makes way.
            assert answer.wait_class or answer.victims, answer
        asked += 1
        blocked = [one.blocked for one in again.follow_ups if one.blocked is not None]
        for one in blocked:
            assert not explain_candidate(
                state, PlacementCache(), job, next(iter(one.waiting))
            ).fitting
    assert asked


def test_why_of_an_eviction_shows_what_it_could_have_taken() -> None:
    """In every storm: a choice has its cost, at most three others, cheapest first, and says why each was not taken."""
    choices = others = 0
    for seed in SEEDS:
        past, records = storm(seed)
        table = past.state.allocations
        for row in table.live_rows().tolist():
            answer = explain_placement(past.state, records, row)
            assert (answer.eviction is not None) == bool(answer.victims), answer.text
            if answer.eviction is None:
                assert not answer.alternatives
                continue
            chosen = answer.eviction
            assert (chosen.node, chosen.victims) == (answer.node, len(answer.victims))
            costs = [
                (one.highest_priority, one.priority_sum, one.work_lost)
                for one in (chosen, *answer.alternatives)
            ]
            assert len(answer.alternatives) <= 3 and costs[1:] == sorted(costs[1:])
            for cost, one in zip(costs[1:], answer.alternatives, strict=True):
                assert one.worse_by
                assert cost >= costs[0] or "the plan placed" in one.worse_by, (seed, row, answer)
            choices, others = choices + 1, others + len(answer.alternatives)
    assert choices >= 3 and others >= 3
