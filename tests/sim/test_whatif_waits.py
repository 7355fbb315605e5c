"""Waits of a timeline by class: as the queue says behind every record, with a look at the jobs of the record alone."""

import pytest

from schemas.base import JobId
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.state import State
from shared.query.wait_queue import waiting_lines
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif import undecided_waits
from shared.whatif.effects import measure_effects, still_waiting
from shared.whatif.placement_table import NameTable
from shared.whatif.timeline import Timeline
from tests.property.test_one_answer import crowd
from tests.sim import recorded


def by_class(state: State) -> dict[str, int]:
    """Allocations in the queue."""
    found: dict[str, int] = {}
    for line in waiting_lines(state, lambda _: 0):
        found[line.wait_class] = found.get(line.wait_class, 0) + line.n
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_time_in_each_class_is_that_of_the_queue(seed: int) -> None:
    """Summed record by record, what is blocked and what is parked waited as long as the timeline says."""
    timeline = Timeline(Replica(), NameTable())
    sums: dict[str, int] = {}
    most: dict[str, int] = {}
    before: dict[str, int] = {}
    for record in crowd(seed):
        begin_ns = timeline.t_ns
        timeline.follow(record)
        if timeline.t_ns > begin_ns:
            for name, n in before.items():
                sums[name] = sums.get(name, 0) + n * (timeline.t_ns - begin_ns)
                most[name] = max(most.get(name, 0), n)
        before = by_class(timeline.state)
    timeline.close(timeline.t_ns)
    told = measure_effects(timeline).waiting
    assert "priority" in sums and "capacity" in sums
    told.pop("queued")
    assert {name: one.allocation_s for name, one in told.items() if one.allocation_s} == {
        name: round(ns / SECOND, 3) for name, ns in sums.items()
    }
    assert {name: one.allocations_max for name, one in told.items() if one.allocation_s} == most
    ends: dict[str, int] = {}
    for classes in still_waiting(timeline).values():
        for name, n in classes.items():
            ends[name] = ends.get(name, 0) + n
    ends.pop("queued", None)
    assert ends == before


@pytest.fixture(scope="module")
def line() -> list[Record]:
    """Sixty equal jobs on a node that holds four of them at once."""
    engine = SimulationEngine(EngineSetup(seed=1, profile=recorded.PROFILE))
    engine.at(START_NS, NodeJoins(spec=recorded.spec(1)))
    for number in range(60):
        engine.at(START_NS + 2 * SECOND, recorded.job(f"j{number:02}"))
    engine.run(START_NS + 400 * SECOND)
    return list(engine.records)


def test_a_record_costs_no_look_at_all_that_are_parked(
    line: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the first of the line is woken, all others change class: they are counted, not looked at."""
    looks: list[object] = []
    look = undecided_waits.undecided_place
    monkeypatch.setattr(
        undecided_waits,
        "undecided_place",
        lambda state, job_id: (looks.append(job_id), look(state, job_id))[1],
    )
    timeline = Timeline(Replica(), NameTable())
    for record in line:
        timeline.follow(record)
    timeline.close(timeline.t_ns)
    told = measure_effects(timeline).waiting
    parked = told["priority"]
    assert min(parked.jobs, parked.allocations_max) > 40
    # A job is created, decided, blocked, woken and decided again: a few records each.
    assert len(looks) <= 8 * 60
    assert len(timeline.waits.undecided.spans) <= 2 * len(line)
    assert JobId("j59") in timeline.waits.undecided.jobs["priority"]
