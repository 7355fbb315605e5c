"""Why-not of what runs on every node: it is not asked which node is best, but which one misses it."""

import pytest

from schemas.base import JobId
from schemas.jobs import Constraint
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.query.explain import explain_candidate
from tests.builders import Cluster, group, join, register


@pytest.fixture
def world() -> Cluster:
    """Three nodes, on one of which the job may not run; it runs on the others."""
    world = Cluster()
    for name in ("n1", "n2", "n3"):
        world.do(join(name, meta={"rack": name}))
    rule = Constraint(left="${meta.rack}", operator="!=", right="n3")
    everywhere = group(cpu_mhz=600, constraints=(rule,))
    world.run(register("agent", everywhere, job_type="system"))
    return world


def test_nothing_is_missing(world: Cluster) -> None:
    """It runs wherever it may: no node would take one more, and nothing waits."""
    job = world.state.jobs.by_id[JobId("agent")]
    answer = explain_candidate(world.state, PlacementCache(), job, "")
    assert (answer.feasible, answer.fitting, answer.wait_class) == (2, 0, "")
    assert "on every allowed node" in answer.text
    there = explain_candidate(world.state, PlacementCache(), job, "", row=0)
    assert "existing allocation of the job excludes the node" in there.text
    barred = explain_candidate(world.state, PlacementCache(), job, "", row=2)
    assert (
        "${meta.rack} != n3 excludes the node" in barred.text and "would go to n" not in barred.text
    )


def test_a_node_without_room_is_told(world: Cluster) -> None:
    """Of a new node that is full the answer names what it lacks."""
    world.do(join("n4", cpu_mhz=500, meta={"rack": "n4"}))
    job = world.state.jobs.by_id[JobId("agent")]
    answer = explain_candidate(world.state, PlacementCache(), job, "", row=3)
    assert "lacks 100 MHz of cpu" in answer.text and answer.wait_class
