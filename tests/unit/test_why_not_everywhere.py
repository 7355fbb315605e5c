"""Why-not of what runs on every node: it is not asked which node is best, but which one misses it."""

import pytest

from schemas.base import JobId
from schemas.jobs import Constraint
from shared.core.place import MaskCache
from shared.query.why import why_not
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
    answer = why_not(world.state, MaskCache(), job, "")
    assert (answer.feasible, answer.fitting, answer.wait_class) == (2, 0, "")
    assert "misses no node" in answer.text
    there = why_not(world.state, MaskCache(), job, "", row=0)
    assert "what runs, or ended, there refuses it" in there.text
    barred = why_not(world.state, MaskCache(), job, "", row=2)
    assert "${meta.rack} != n3 refuses it" in barred.text and "would go to n" not in barred.text


def test_a_node_without_room_is_told(world: Cluster) -> None:
    """Of a new node that is full the answer names what it lacks."""
    world.do(join("n4", cpu_mhz=500, meta={"rack": "n4"}))
    job = world.state.jobs.by_id[JobId("agent")]
    answer = why_not(world.state, MaskCache(), job, "", row=3)
    assert "it lacks 100 of cpu" in answer.text and answer.wait_class
