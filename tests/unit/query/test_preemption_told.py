"""How evictions are shown: before by a plan that changes nothing, and after by the allocation itself."""

import msgspec
import pytest

from schemas.base import JobId
from schemas.jobs import RegisterJob
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.state.ids import alloc_id
from shared.jobspec.submission import read_submission, to_command
from shared.query.explain import explain_candidate
from shared.query.job_plan import plan_job
from shared.query.projections import status_reason
from tests.builders import Cluster, group, join, register
from tests.unit.core.scheduling.test_preemption import ALL, evicted, fill


def job(priority: int, cpu: int = 1000) -> dict[str, object]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "true"},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        "Resources": {"CPU": cpu, "MemoryMB": 10},
    }
    return {
        "ID": "prod",
        "Datacenters": ["*"],
        "Priority": priority,
        "TaskGroups": [{"Name": "web", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}],
    }


@pytest.fixture
def world() -> Cluster:
    """One full node."""
    world = Cluster(policy=ALL)
    world.do(join("n1", attributes={"driver.raw_exec": "1"}))
    fill(world, "old", priority=20, cpu_mhz=600)
    fill(world, "dear", priority=60, cpu_mhz=400)
    return world


def test_a_plan_names_its_victims_and_changes_nothing(world: Cluster) -> None:
    """Allocation, job, group, priority and node of everybody who would have to go."""
    before = world.state.hashes()
    row = world.rows("old")[0]
    body = msgspec.json.encode({"Job": job(50, cpu=600)})
    answer = plan_job(world.state, PlacementCache(), read_submission(body, "submit"))
    (victim,) = answer.victims
    assert victim.alloc == alloc_id(int(world.state.allocations.key[row]))
    assert (victim.job, victim.group, victim.priority, victim.node) == ("old", "web", 20, "n1")
    assert answer.groups["web"].place == 1 and not answer.unplaced
    assert world.state.hashes() == before


def test_without_need_or_right_a_plan_names_nobody(world: Cluster) -> None:
    """An allocation that cannot be placed evicts none."""
    body = msgspec.json.encode({"Job": job(50, cpu=1000)})
    answer = plan_job(world.state, PlacementCache(), read_submission(body, "submit"))
    assert answer.victims == () and answer.unplaced["web"].n == 1


def test_an_evicted_allocation_says_for_whom(world: Cluster) -> None:
    """Its `why` names the job, and how far its end is."""
    world.run(register("prod", group(cpu_mhz=600, memory_mib=10), priority=50))
    (row,) = evicted(world, "old")
    text = status_reason(world.state, row, "")
    assert text == "evicted by job prod; its node is stopping its tasks"
    world.report("n1", (row, "complete"))
    assert status_reason(world.state, row, "") == "evicted by job prod; its tasks ended"


def test_why_not_names_who_would_have_to_go(world: Cluster) -> None:
    """One more has no room and would be placed all the same: the answer names the node and the victims."""
    world.run(register("prod", group(cpu_mhz=600, memory_mib=10), priority=50))
    world.run(register("cheap", group(cpu_mhz=100, memory_mib=10), priority=10))
    (row,) = world.rows("prod")
    assert world.state.fleet.ids[int(world.state.allocations.node[row])] == "n1"
    world.do(join("n2", attributes={"driver.raw_exec": "1"}))
    fill(world, "low", priority=20, cpu_mhz=1000)
    before = world.state.hashes()
    answer = explain_candidate(
        world.state, PlacementCache(), world.state.jobs.by_id[JobId("prod")], ""
    )
    (low,) = world.rows("low")
    assert answer.victims == (f"{alloc_id(int(world.state.allocations.key[low]))[:8]} of low",)
    assert answer.text.endswith(" n2, 1 allocation of lower-priority jobs evicted")
    assert not answer.wait_class and not answer.fitting
    assert world.state.hashes() == before
    meek = explain_candidate(
        world.state, PlacementCache(), world.state.jobs.by_id[JobId("cheap")], ""
    )
    assert meek.wait_class == "capacity" and not meek.victims


def test_why_not_shows_the_choices_of_victims(world: Cluster) -> None:
    """The chosen set is the cheapest; each alternative names its node, its cost, and what was worse about it."""
    for name, priority in (("n2", 30), ("n3", 40), ("n4", 40), ("n5", 40)):
        world.do(join(name, attributes={"driver.raw_exec": "1"}))
        fill(world, f"of-{name}", priority=priority, cpu_mhz=1000)
    for name in ("low-a", "low-b"):
        world.run(register(name, group(cpu_mhz=10, memory_mib=10), priority=10))
    world.do(register("prod", group(cpu_mhz=600, memory_mib=10), priority=50))
    before = world.state.hashes()
    job_now = world.state.jobs.by_id[JobId("prod")]
    answer = explain_candidate(world.state, PlacementCache(), job_now, "")
    assert answer.eviction is not None
    chosen = answer.eviction
    assert (chosen.node, chosen.victims, chosen.jobs) == ("n1", 1, ("old",))
    assert (chosen.highest_priority, chosen.priority_sum, chosen.worse_by) == (20, 20, "")
    assert [one.node for one in answer.alternatives] == ["n2", "n5", "n4"]
    assert [one.worse_by for one in answer.alternatives] == [
        f"highest priority of a victim {priority}, not 20" for priority in (30, 40, 40)
    ]
    works = [one.work_lost for one in answer.alternatives]
    assert works[1] < works[2], "of equal priorities the youngest is the cheapest"
    assert world.state.hashes() == before


def test_why_not_shows_other_victims_on_the_same_node() -> None:
    """One node: the alternative spares the chosen victim and costs more."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    fill(world, "older", priority=20, cpu_mhz=500)
    fill(world, "younger", priority=20, cpu_mhz=500)
    world.do(register("prod", group(cpu_mhz=500, memory_mib=10), priority=50))
    job_now = world.state.jobs.by_id[JobId("prod")]
    answer = explain_candidate(world.state, PlacementCache(), job_now, "")
    (other,) = answer.alternatives
    assert answer.eviction is not None and answer.eviction.jobs == ("younger",)
    assert (other.node, other.jobs) == ("n1", ("older",))
    assert other.worse_by == f"work lost {other.work_lost}, not {answer.eviction.work_lost}"


def test_the_score_of_a_plan_is_that_of_all_scorers() -> None:
    """What a plan shows of a node is what why-not says of it: the fit is one scorer of several."""
    world = Cluster(policy=ALL)
    for name in ("n1", "n2"):
        world.do(join(name, attributes={"driver.raw_exec": "1"}, meta={"rack": name}))
    fill(world, "old", priority=50, cpu_mhz=300)
    wanted = job(50, cpu=300)
    wish = {"LTarget": "${meta.rack}", "RTarget": "n2", "Operand": "=", "Weight": 50}
    wanted["Affinities"] = [wish]
    body = read_submission(msgspec.json.encode({"Job": wanted}), "submit")
    (node,) = plan_job(world.state, PlacementCache(), body).nodes
    command = to_command(body, "plan")
    assert isinstance(command, RegisterJob)
    world.do(command)
    answer = explain_candidate(
        world.state, PlacementCache(), world.state.jobs.by_id[JobId("prod")], ""
    )
    best = answer.top[0]
    assert (node.node, node.score) == (best.node, best.score) == ("n2", best.score)
    assert set(best.scores) == {"binpack", "node-affinity"}
