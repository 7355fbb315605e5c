"""Forks of updates that gates and windows hold back: they open in the fork as they did in the record."""

from typing import Any

import msgspec
import pytest

from schemas.base import JobId
from schemas.gates import GateDue, GateReading, WindowReading
from shared.core.runtime.messages import Record
from shared.cron.windows import read_windows
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif.changes import RequestedChanges
from tests.sim.recorded import PROFILE, job, spec
from tests.sim.test_whatif_updates import SHOP, asked, forked, outcomes

#: When the second version is submitted, and when its gauge comes below the bound.
UPDATE_S, OPEN_S = 60, 100
GATE = {"Name": "load", "Gauge": "queue_depth", "Below": 100}
#: Open for half of each minute.
WINDOW = {"Cron": "* * * * *", "Duration": 30 * SECOND}


def record(until_s: int = 200, **held: Any) -> list[Record]:
    """The log of a first version, and of an update that is held; its gauge is 120, and 40 from OPEN_S on."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=PROFILE))
    for number in range(1, 4):
        engine.at(START_NS, NodeJoins(spec=spec(number)))
    for version, at_s in enumerate((2, UPDATE_S)):
        update = {"MaxParallel": 1, "MinHealthyTime": 5 * SECOND, **(held if version else {})}
        one = job("shop", 6, "service", 500, Update=update, Meta={"release": str(version)})
        one = msgspec.structs.replace(one, submission_id=f"s-shop-{version}")
        engine.at(START_NS + at_s * SECOND, one)
    for at_s in range(UPDATE_S + 1, until_s):
        engine.run(START_NS + at_s * SECOND)
        look(engine, 120_000 if at_s < OPEN_S else 40_000)
    engine.run(START_NS + until_s * SECOND)
    return list(engine.records)


def look(engine: SimulationEngine, value: int) -> None:
    """Say what the timekeeper would."""
    one = engine.state.deployments.active_of(SHOP)
    if one is None or not one.is_gated:
        return
    readings = [
        GateReading(gate=gate.gate.name, since_ns=gate.since_ns, value=value, every_ns=SECOND)
        for gate in one.gates
    ]
    window: WindowReading | None = None
    if one.window is not None:
        window = read_windows(one.window.windows, engine.now_ns)
    due = GateDue(key=one.key, readings=tuple(readings), window=window)
    engine.at(engine.now_ns, due)


@pytest.mark.parametrize("held", [{"Gates": [GATE]}, {"Windows": [WINDOW]}])
def test_an_update_that_was_held_is_held_as_long(held: dict[str, Any]) -> None:
    """The unchanged fork ends when the record did, and a wider pace begins no sooner than the gate opens."""
    recorded = forked(record(**held), 50)
    ended = list(recorded.timeline.deployments.runs.values())[-1]
    recorded_s = (ended.ended_ns - ended.began_ns) / SECOND
    assert ended.status == "successful" and recorded_s > 30
    report = asked(recorded, updates={SHOP: {"max_parallel": 6}})
    before, after = outcomes(report)
    assert before is not None and after is not None
    assert (before.status, after.status) == ("successful", "successful")
    assert abs(before.seconds - recorded_s) < 3
    opened_s = OPEN_S - UPDATE_S if "Gates" in held else 0
    assert opened_s < after.seconds < before.seconds - 10
    assert any("a gauge has the value" in text for text in report.assumptions.texts)


def test_a_gauge_that_never_opens_holds_the_fork() -> None:
    """What the record does not show is not assumed: the deployment is still held when the fork has settled."""
    before, _ = outcomes(asked(forked(record(OPEN_S, Gates=[GATE]), 50)))
    assert before is not None and before.status == "running"


def test_a_gate_that_times_out_does_so_in_the_fork() -> None:
    """The clock of a timeout continues behind the end of the record."""
    gate = {**GATE, "Timeout": 300 * SECOND, "OnTimeout": "fail"}
    before, _ = outcomes(asked(forked(record(OPEN_S, Gates=[gate]), 50)))
    assert before is not None and before.status == "failed"
    assert 300 <= before.seconds <= 315


def test_a_changed_priority_leaves_the_gates() -> None:
    """A job that is registered again at the fork keeps what it had beside its groups."""
    recorded = forked(record(Gates=[GATE]), UPDATE_S + 10)
    changes = RequestedChanges(priorities={JobId("shop"): 80})
    report = asked(recorded, priorities=changes.priorities)
    found = [one.after for one in report.deployments if one.after is not None]
    assert found[-1].status == "successful" and found[-1].seconds > OPEN_S - UPDATE_S - 11
