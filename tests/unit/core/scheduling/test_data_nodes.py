"""A sticky disk: its replacement goes to the node of the data, and elsewhere only for a hard reason."""

from typing import Any

import pytest

from schemas.base import JobId
from schemas.jobs import Constraint, ReschedulePolicy, UpdatePolicy
from schemas.policy import Policy, Preemption, SetEligibility
from tests.builders import SECOND, Cluster, group, join, register

SOON = ReschedulePolicy(attempts=5, unlimited=False, interval_ns=3_600 * SECOND, delay_ns=0)
UPDATES = [None, UpdatePolicy(max_parallel=1)]


def on_three(*, count: int = 1, **fields: Any) -> tuple[Cluster, list[str]]:
    """A sticky job on one of three nodes; the others are fuller, so that binpack prefers them."""
    world = Cluster()
    world.do(join("data"))
    world.run(register("app", group(count=count, sticky=True, **fields)))
    world.do(join("full-1"), join("full-2"))
    closed = SetEligibility(request_id="r1", node_id="data", eligible=False)
    world.do(closed)
    world.run(register("sand", group("sand", count=2, memory_mib=700, distinct_hosts="group")))
    world.do(SetEligibility(request_id="r2", node_id="data", eligible=True))
    run_all(world)
    assert world.nodes_of("sand") == ["full-1", "full-2"]
    return world, world.nodes_of()


def node_of(world: Cluster, row: int) -> str:
    return str(world.state.fleet.ids[int(world.state.allocations.node[row])])


def run_all(world: Cluster) -> None:
    for row in world.rows():
        world.report(node_of(world, row), (row, "running"))


def settle(world: Cluster) -> None:
    table = world.state.evaluations
    while any(table.by_key[k].status == "pending" for k in table.open_of.get(JobId("app"), ())):
        world.schedule()


def change(world: Cluster, **fields: Any) -> None:
    """A new version; what it stops ends."""
    world.do(register("app", group(sticky=True, digest="d2", **fields), submission_id="2", salt=1))
    settle(world)
    end_stopped(world)


def end_stopped(world: Cluster) -> None:
    table = world.state.allocations
    for row in table.rows_of(JobId("app")).tolist():
        if table.desired[row] == 1 and table.client[row] < 2:
            world.report(node_of(world, row), (row, "complete"))
    settle(world)


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_stays_with_its_data(update: UpdatePolicy | None) -> None:
    """The other nodes rank higher by binpack, and the node of the data is kept."""
    world, _ = on_three(update=update)
    change(world, update=update)
    assert world.nodes_of() == ["data"]
    (row,) = world.rows()
    assert world.state.allocations.previous[row]


@pytest.mark.parametrize("update", UPDATES)
def test_it_waits_for_its_predecessor_rather_than_move(update: UpdatePolicy | None) -> None:
    """No room for both beside each other on the node of the data: it waits for the end of the old one."""
    world, _ = on_three(memory_mib=600, update=update)
    world.do(join("empty"))
    world.do(
        register(
            "app",
            group(sticky=True, digest="d2", memory_mib=600, update=update),
            submission_id="2",
            salt=1,
        )
    )
    settle(world)
    assert world.rows() == []
    (entry,) = [
        one
        for one in world.state.evaluations.by_key.values()
        if one.job_id == "app" and one.blocked is not None
    ]
    assert entry.blocked is not None
    assert [one.wait_class for one in entry.blocked.waiting.values()] == ["predecessor"]
    end_stopped(world)
    assert world.nodes_of() == ["data"]


def test_without_sticky_it_moves() -> None:
    """The same update of a group that is not sticky goes where it ranks best."""
    world, _ = on_three()
    world.do(register("app", group(digest="d2"), submission_id="2", salt=1))
    settle(world)
    end_stopped(world)
    assert world.nodes_of() != ["data"]


def test_what_failed_comes_back_to_its_data() -> None:
    """A failed one is rescheduled onto the node of its data, as by Nomad, though it failed there."""
    world, _ = on_three(reschedule=SOON)
    (row,) = world.rows()
    world.report("data", (row, "failed"))
    settle(world)
    assert world.nodes_of() == ["data"]
    (new,) = world.rows()
    assert int(world.state.allocations.reschedules[new]) == 1


@pytest.mark.parametrize("reason", ["ineligible", "constraint", "no room"])
def test_a_hard_reason_moves_it(reason: str) -> None:
    """The node takes nothing new, may not run it, or has no room for it: it moves at once."""
    world, _ = on_three()
    fields: dict[str, Any] = {}
    if reason == "ineligible":
        world.do(SetEligibility(request_id="r3", node_id="data", eligible=False))
    elif reason == "constraint":
        fields["constraints"] = (Constraint(left="${node.unique.id}", operator="!=", right="data"),)
    else:
        world.do(join("large", memory_mib=4_000))
        fields["memory_mib"] = 1_500
    change(world, **fields)
    assert len(world.nodes_of()) == 1
    assert world.nodes_of() != ["data"]


def test_each_goes_to_its_own_data() -> None:
    """Three with data on three nodes: after an update every name is where its predecessor was."""
    world = Cluster()
    world.do(join("a"), join("b"), join("c"))
    world.run(register("app", group(count=3, sticky=True, distinct_hosts="group")))
    run_all(world)
    table = world.state.allocations
    before = {int(table.index[row]): node_of(world, row) for row in world.rows()}
    change(world, count=3, distinct_hosts="group")
    after = {int(table.index[row]): node_of(world, row) for row in world.rows()}
    assert after == before
    assert len(set(before.values())) == 3


@pytest.mark.parametrize("cheap", ["a", "b"])
def test_evictions_bring_each_to_its_own_data(cheap: str) -> None:
    """Others have taken the rooms of two that failed; whichever node is cheaper to free, each has its data again."""
    world = Cluster(policy=Policy(preemption=Preemption(service=True)))
    world.do(join("a"), join("b"))
    app = group(
        count=2, sticky=True, distinct_hosts="group", memory_mib=800, disk_mib=1, reschedule=SOON
    )
    world.run(register("app", app, priority=80))
    run_all(world)
    index = world.state.allocations.index
    before = {int(index[row]): node_of(world, row) for row in world.rows()}
    assert sorted(before.values()) == ["a", "b"]
    for row in world.rows():
        world.report(node_of(world, row), (row, "failed"))
    for name in ("a", "b"):
        here = (Constraint(left="${node.unique.id}", operator="=", right=name),)
        sand = group("sand", memory_mib=800, disk_mib=1, constraints=here)
        world.run(register(f"sand-{name}", sand, priority=20 if name == cheap else 40))
    settle(world)
    after = {int(index[row]): node_of(world, row) for row in world.rows()}
    assert after == before
