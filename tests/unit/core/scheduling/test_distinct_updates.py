"""A new version with a distinct rule: what its rules allow stays, the rest moves, or waits with the rule's name."""

from typing import Any

import pytest

from schemas.base import JobId
from schemas.jobs import DistinctProperty, EvaluateJob, GroupSpec, UpdatePolicy
from schemas.nodes import AllocReport
from tests.builders import Cluster, group, join, register

RACK = "${meta.rack}"


def racks(*names: str) -> Cluster:
    """Nodes n0, n1 … in these racks."""
    world = Cluster()
    world.do(*(join(f"n{at}", meta={"rack": name}) for at, name in enumerate(names)))
    return world


def run_all(world: Cluster) -> None:
    """All report that they run."""
    for row in world.rows():
        world.report(
            world.state.fleet.ids[int(world.state.allocations.node[row])], (row, "running")
        )


def change(world: Cluster, *groups: GroupSpec, **fields: Any) -> None:
    """Register a new version and schedule it; what it stops ends, and what that frees is placed."""
    world.do(register("app", *groups, submission_id="2", salt=2, **fields))
    settle(world)


def settle(world: Cluster) -> None:
    table = world.state.evaluations
    while any(table.by_key[key].status == "pending" for key in table.open):
        world.schedule()


def say_healthy(world: Cluster) -> None:
    """All that run say that they are healthy."""
    fleet, table = world.state.fleet, world.state.allocations
    for row in world.rows():
        healthy = AllocReport(key=int(table.key[row]), row=row, status="running", health=1)
        world.report(fleet.ids[int(table.node[row])], states=(healthy,))
    settle(world)


def end_stopped(world: Cluster) -> None:
    """Nodes report the end of all stopped allocations."""
    table = world.state.allocations
    for row in table.rows_of(JobId("app")).tolist():
        if table.desired[row] == 1 and table.client[row] < 2:
            world.report(world.state.fleet.ids[int(table.node[row])], (row, "complete"))
    settle(world)


def of_racks(world: Cluster) -> dict[str, int]:
    """How many run in each rack."""
    table, fleet = world.state.allocations, world.state.fleet
    codes, values = fleet.attributes.codes("meta.rack"), fleet.attributes.values("meta.rack")
    found: dict[str, int] = {}
    for row in world.rows():
        assert codes is not None
        rack = values[int(codes[table.node[row]])]
        found[rack] = found.get(rack, 0) + 1
    return found


def waiting(world: Cluster) -> list[tuple[int, tuple[str, ...]]]:
    """How many wait, and why."""
    table = world.state.evaluations
    entries = [table.by_key[key] for key in table.open]
    return [
        (one.count, one.reasons)
        for entry in entries
        if entry.blocked is not None
        for one in entry.blocked.waiting.values()
    ]


def nine(limit: int, racks_: int, **fields: Any) -> tuple[Cluster, list[int], GroupSpec]:
    """Nine on two racks, others empty; and the group with a limit for each rack."""
    world = racks("a", "b")
    plain = group(count=9, cpu_mhz=100, **fields)
    world.run(register("app", plain))
    world.do(*(join(f"m{at}", meta={"rack": chr(ord("c") + at)}) for at in range(racks_ - 2)))
    run_all(world)
    rule = DistinctProperty(attribute=RACK, limit=limit)
    return world, world.rows(), group(count=9, cpu_mhz=100, distinct_properties=(rule,), **fields)


def test_a_rule_that_comes_moves_what_is_beyond_it() -> None:
    """Nine on two racks and three a rack: six stay where they are, three move to the third rack."""
    world, old, limited = nine(3, 3)
    change(world, limited)
    end_stopped(world)
    assert of_racks(world) == {"a": 3, "b": 3, "c": 3}
    assert len(set(old) & set(world.rows())) == 6
    assert waiting(world) == []


def test_what_the_rule_leaves_no_place_waits_with_its_name() -> None:
    """Two a rack of three: four stay, two move, three wait for the rule, not for the end of the old ones."""
    world, old, limited = nine(2, 3)
    change(world, limited)
    ((_, reasons),) = waiting(world)
    assert f"distinct_property {RACK} 2" in " ".join(reasons)
    end_stopped(world)
    assert of_racks(world) == {"a": 2, "b": 2, "c": 2}
    assert len(set(old) & set(world.rows())) == 4
    ((count, reasons),) = waiting(world)
    assert count == 3
    assert f"distinct_property {RACK} 2" in " ".join(reasons)


def test_the_same_ones_stay_every_time() -> None:
    """What stays are the lowest names of each rack, and a second look changes nothing."""
    world, old, limited = nine(3, 3)
    table = world.state.allocations
    by_rack: dict[int, list[int]] = {}
    for row in sorted(old, key=lambda row: int(table.index[row])):
        by_rack.setdefault(int(table.node[row]), []).append(row)
    lowest = {row for rows in by_rack.values() for row in rows[:3]}
    change(world, limited)
    assert set(old) & set(world.rows()) == lowest
    end_stopped(world)
    before = world.rows()
    world.do(EvaluateJob(submission_id="again", digest="z", job_id=JobId("app")))
    settle(world)
    assert world.rows() == before


@pytest.mark.parametrize("job_type", ["service", "batch"])
def test_a_host_of_its_own_for_each(job_type: str) -> None:
    """Three on one node, now with distinct hosts: one stays, two move, for a service and a batch job."""
    world = racks("a")
    world.run(register("app", group(count=3), job_type=job_type))
    world.do(join("m0"), join("m1"))
    run_all(world)
    old = world.rows()
    change(world, group(count=3, distinct_hosts="group"), job_type=job_type)
    end_stopped(world)
    assert world.nodes_of() == ["m0", "m1", "n0"]
    assert len(set(old) & set(world.rows())) == 1


def test_a_rule_of_the_job_takes_from_later_groups() -> None:
    """Two groups of two in one rack, two a rack over the job: the first group stays, the second moves."""
    world = racks("a")
    plain = [group(name, count=2) for name in ("first", "second")]
    world.run(register("app", *plain))
    world.do(join("m0", meta={"rack": "b"}))
    run_all(world)
    old = set(world.rows())
    rule = DistinctProperty(attribute=RACK, limit=2, job_wide=True)
    change(world, *(group(one.name, count=2, distinct_properties=(rule,)) for one in plain))
    end_stopped(world)
    assert of_racks(world) == {"a": 2, "b": 2}
    table = world.state.allocations
    stayed = {table.groups.names[table.group[row]] for row in old & set(world.rows())}
    assert stayed == {"first"}


def test_a_rolling_update_moves_what_is_beyond_a_rule_one_by_one() -> None:
    """With `max_parallel` one at a time moves; what finds no place by the rule stays where it is."""
    world, old, limited = nine(2, 3, update=UpdatePolicy(max_parallel=1))
    change(world, limited)
    assert len(set(old) & set(world.rows())) == 8
    for _ in range(9):
        say_healthy(world)
        end_stopped(world)
    # Two moved; three more are beyond the rule, run where they are, and the next one says what it waits for.
    assert of_racks(world) == {"a": 3, "b": 4, "c": 2}
    assert waiting(world) == [(1, (f"distinct_property {RACK} 2 closes 3 of 3 nodes",))]


def test_a_system_job_leaves_what_is_beyond_a_rule() -> None:
    """On every node, then one a rack: the first of each rack stays, and no node waits."""
    world = racks("a", "a", "b")
    world.run(register("app", group(), job_type="system"))
    run_all(world)
    old = world.rows()
    rule = DistinctProperty(attribute=RACK, limit=1)
    change(world, group(distinct_properties=(rule,)), job_type="system")
    end_stopped(world)
    assert of_racks(world) == {"a": 1, "b": 1}
    assert set(world.rows()) < set(old)
    assert waiting(world) == []
