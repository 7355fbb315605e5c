"""The scenarios of examples/scenarios, each with its bound: what they are about holds, in virtual time."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.core.state.invariants import check
from shared.errors import ConfigInvalid
from shared.sim.scenario.parser import ScenarioPlan, policy_of, read_scenario
from shared.sim.scenario.report import ScenarioReport, WaitStats, jain_index, percentile
from shared.sim.scenario.run import ScenarioRun, run_scenario
from tests import not_tested

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"
TRACES = Path(__file__).parents[3] / "shared" / "data"
SECOND = 1_000_000_000
#: One evaluation in a quiet cluster: some hops and two appends.
PROMPT_S = 0.02


def plan_of(name: str, data: Path | None = None) -> ScenarioPlan:
    """Read an example."""
    path = SCENARIOS / f"{name}.yaml"
    return read_scenario(path.read_bytes(), path.name, SCENARIOS, data)


@cache
def played(name: str, **policy: Any) -> ScenarioRun:
    """Play an example, by its own policy but for some fields."""
    plan = plan_of(name)
    changed = policy_of(policy, plan.policy, "policy")
    return run_scenario(msgspec.structs.replace(plan, policy=changed), opens=lambda _: iter(()))


def waiting(report: ScenarioReport, name: str) -> WaitStats:
    """What a report says of a kind of job."""
    return next(one for one in report.waiting if one.name == name)


def test_two_pools() -> None:
    """Hundreds that wait for a full pool do not keep another pool's job a moment."""
    report = played("two-pools").report
    assert waiting(report, "crowd").waiting > 480
    other = waiting(report, "other")
    assert other.placed == other.jobs == 10
    assert other.max_s <= PROMPT_S


def test_unsatisfiable_head() -> None:
    """A job that fits nowhere is tried once and blocked; later jobs wait no longer than without it."""
    plan = plan_of("unsatisfiable-head")
    report = played("unsatisfiable-head").report
    assert report.unplaced == {"never_fits": 100}
    assert waiting(report, "never").waiting == 100
    without = tuple(one for one in plan.scenario.arrivals if one.name != "never")
    alone = run_scenario(
        msgspec.structs.replace(
            plan, scenario=msgspec.structs.replace(plan.scenario, arrivals=without)
        ),
        opens=lambda _: iter(()),
    ).report
    ours, theirs = waiting(report, "small"), waiting(alone, "small")
    assert ours.placed == theirs.placed == 300
    assert ours.max_s <= theirs.max_s + 0.002
    assert report.plans["committed"] == alone.plans["committed"] + 100


@pytest.mark.full("a long story")
def test_couch_and_sand() -> None:
    """A job of a whole node starts within two lives of a grain, at little cost; without holding nodes back, never."""
    report = played("couch-and-sand").report
    couch = waiting(report, "couch")
    assert couch.placed == 1
    assert couch.max_s <= 400
    without = played("couch-and-sand", reservations_max=0).report
    assert waiting(without, "couch").waiting == 1
    held, free = (one.used["device.gpu"].mean for one in (report, without))
    assert free - held <= 0.05


@pytest.mark.full("a long story")
def test_spot_reclaim_storm() -> None:
    """Services move in time from what is reclaimed, less important work gives way, and all of it runs in the end."""
    one = played("spot-storm")
    series, report = one.report.series, one.report
    assert min(series.nodes) == 20
    assert max(series.nodes) == series.nodes[-1] == 45
    # Drained before it goes: a replacement starts as the old one stops.
    assert min(series.running_by["web"]) >= 95
    assert min(series.running_by["cache"]) >= 45
    assert report.allocations["waiting"] == 0
    assert sum(report.evicted.values()) > 0
    assert {name.partition(" ")[0] for name in report.evicted} == {"batch"}
    assert check(one.engine.state) == []


def test_a_buffer_gives_way() -> None:
    """Urgent work starts at once where a buffer ran, and the buffer fills what is left, and all of it again."""
    report = played("buffer").report
    urgent = waiting(report, "urgent")
    assert urgent.placed == 800
    assert urgent.max_s <= 0.1
    assert report.evicted == {"buffer < urgent": 800}
    running = report.series.running_by["buffer"]
    assert min(running) == 440
    assert running[-1] == 640
    # No other job could use the capacity of the urgent work before the buffer was back.
    assert report.used["cpu"].mean > 0.98


@pytest.mark.full("a long story")
def test_mixed_day() -> None:
    """The first three hours of a mixed day, its burst of two thousand included: all is placed, at once for most."""
    plan = msgspec.structs.replace(plan_of("mixed-day"), duration_ns=3 * 3600 * SECOND)
    one = run_scenario(plan, opens=lambda _: iter(()))
    report = one.report
    assert report.jobs["placed"] == report.jobs["submitted"] > 2_400
    assert waiting(report, "night").placed == 2_000
    assert all(each.p99_s <= PROMPT_S for each in report.waiting)
    # What was lost or failed came again.
    lost = report.allocations["lost"] + report.allocations["failed"]
    assert 0 < lost <= report.allocations["again"] + 2
    assert check(one.engine.state) == []


def test_the_same_scenario_twice_is_the_same_report() -> None:
    """A report is a function of the scenario: equal to the byte; another seed is another run."""
    plan = plan_of("couch-and-sand")
    short = msgspec.structs.replace(plan, duration_ns=900 * SECOND)
    one, two = (run_scenario(short, opens=lambda _: iter(())).report for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
    other = msgspec.structs.replace(plan.scenario, seed=2)
    third = run_scenario(
        msgspec.structs.replace(short, scenario=other), opens=lambda _: iter(())
    ).report
    assert third.digest != one.digest


def test_a_large_cluster_begins_its_day() -> None:
    """Ten thousand nodes, all of its services, and the first array of the large day: all runs, and nothing fails."""
    plan = plan_of("large-day")
    arrays = tuple(one for one in plan.scenario.arrivals if one.name == "array")
    plan = msgspec.structs.replace(
        plan,
        duration_ns=120 * SECOND,
        scenario=msgspec.structs.replace(plan.scenario, arrivals=arrays),
    )
    report = run_scenario(plan, opens=lambda _: iter(())).report
    assert report.nodes == 10_000
    assert report.series.running_by["web"][-1] == 2_000
    assert waiting(report, "array").placed == 250
    assert report.jobs["waiting"] == report.allocations["failed"] == 0


def test_every_example_is_a_test() -> None:
    """A scenario that is shown here has its bound above."""
    names = {path.stem for path in SCENARIOS.glob("*.yaml")}
    text = Path(__file__).read_text(encoding="utf-8")
    assert len(names) >= 6
    assert {name for name in names if f'("{name}"' not in text} == set()


def test_openb_is_read() -> None:
    """The trace's fleet and pods become nodes and jobs, where the files are."""
    if not (TRACES / "openb").is_dir():
        not_tested.missing_feature(f"no trace in {TRACES}: the files are no part of this tree")
    plan = plan_of("openb", TRACES)
    plan = msgspec.structs.replace(plan, duration_ns=3600 * SECOND)
    assert len(plan.nodes) == 72
    report = run_scenario(plan, opens=lambda _: iter(())).report
    assert report.refused == {}
    assert report.jobs["placed"] == report.jobs["submitted"] > 100
    assert report.used["device.gpu"].max > 0


def test_a_policy_that_is_none_is_refused() -> None:
    """Unknown fields and words of a policy are named."""
    plan = plan_of("buffer")
    for change, where in (
        ({"algorith": "spread"}, "policy.algorith: unknown key"),
        ({"algorithm": "best"}, "policy.algorithm: must be binpack, spread or fragmentation"),
        ({"preemption": {"batches": True}}, "policy.preemption.batches: unknown key"),
        ({"reservations_max": "many"}, "policy.reservations_max: Expected `int`"),
    ):
        with pytest.raises(ConfigInvalid) as found:
            policy_of(change, plan.policy, "policy")
        assert where in str(found.value)


def test_figures_of_a_report() -> None:
    """Percentiles take the nearest rank, each allocation counted; Jain's index goes from 1/n to 1."""
    waits = [(1, 98), (5, 1), (9, 1)]
    assert [percentile(waits, at) for at in (500, 980, 990, 1000)] == [1, 1, 5, 9]
    assert percentile([], 500) == 0
    assert jain_index([3.0, 3.0, 3.0]) == 1.0
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25
