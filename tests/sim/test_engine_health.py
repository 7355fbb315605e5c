"""Health of simulated nodes in the engine: deployments end by it, in virtual time."""

from typing import Any

import pytest

from shared.fleet.profile import FleetProfile, NodeClass, RunProfile, node_specs
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from tests.sim.test_engine import job

UPDATE = {"MinHealthyTime": 10 * SECOND, "HealthyDeadline": 60 * SECOND, "MaxParallel": 2}
HEALTHY, UNHEALTHY = 1, 2


def played(lasts: str = "forever", **second: Any) -> SimulationEngine:
    """A service of four, and half a minute later another version of it."""
    profile = FleetProfile(
        nodes=(NodeClass(count=4),), runs=(RunProfile(job_type="service", lasts=lasts),)
    )
    engine = SimulationEngine(EngineSetup(seed=3, schedulers=1, profile=profile))
    script: list[Any] = [(START_NS, NodeJoins(spec=spec)) for spec in node_specs(profile)]
    script.append((START_NS + SECOND, job("web", 4, "service", Update=UPDATE)))
    if second:
        script.append((START_NS + 31 * SECOND, job("web", 4, "service", Update=UPDATE, **second)))
    engine.feed(script)
    return engine


def healths(engine: SimulationEngine) -> list[int]:
    """Health of the allocations that should run."""
    table = engine.state.allocations
    rows = table.live_rows()
    found: list[int] = table.health[rows[table.desired[rows] == 0]].tolist()
    return found


def statuses(engine: SimulationEngine) -> list[str]:
    return [one.status for one in engine.state.deployments.of_job("web")]  # type: ignore[arg-type]


def test_running_allocations_become_healthy() -> None:
    """Healthy comes min_healthy_time after the start, and ends the deployment."""
    engine = played()
    engine.run(START_NS + 9 * SECOND)
    assert set(healths(engine)) == {0}
    engine.run(START_NS + 20 * SECOND)
    assert healths(engine) == [HEALTHY] * 4
    assert statuses(engine) == ["successful"]


@pytest.mark.parametrize(
    "change",
    [{"Priority": 60}, {"Meta": {"version": "2"}}],
    ids=["in place", "replaced"],
)
def test_another_version_has_a_health_of_its_own(change: dict[str, Any]) -> None:
    """The deployment of a second version ends with the health of its allocations, in place or new."""
    engine = played(**change)
    engine.run(START_NS + 35 * SECOND)
    assert 0 in healths(engine)
    engine.run(START_NS + 100 * SECOND)
    assert healths(engine) == [HEALTHY] * 4
    assert sorted(statuses(engine)) == ["successful", "successful"]


def test_allocations_that_fail_are_unhealthy() -> None:
    """A failure before min_healthy_time is reported as such."""
    engine = played(lasts="4s")
    engine.run(START_NS + 20 * SECOND)
    table = engine.state.allocations
    assert UNHEALTHY in table.health[: table.size].tolist()
    assert HEALTHY not in table.health[: table.size].tolist()
