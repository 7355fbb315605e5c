"""Preemption for what is no column: ports, devices and reserved cores."""

from typing import Any

import pytest

from schemas.jobs import ResourceAsk
from schemas.nodes import Instance, Pool, PoolDeclared
from schemas.plans import PlanCommitted
from tests.builders import Cluster, group, join, register
from tests.unit.core.scheduling.test_preemption import ALL, evicted

GPU = "device.gpu"
UNIT = 10_000


def gpus(count: int) -> Pool:
    return Pool(name=GPU, instances=tuple(Instance(id=f"g{n}") for n in range(count)))


def cores(count: int) -> Pool:
    return Pool(name="cores", instances=tuple(Instance(id=f"c{n}") for n in range(count)))


def ask(pool: str, amount: int = UNIT) -> tuple[tuple[ResourceAsk, ...], ...]:
    return ((ResourceAsk(pool=pool, amount=amount),),)


def run(world: Cluster, job_id: str, priority: int, **fields: Any) -> PlanCommitted:
    base = {"cpu_mhz": 10, "memory_mib": 10}
    world.do(register(job_id, group(**(base | fields)), priority=priority))
    committed = world.do(world.plan(job_id))[0]
    assert isinstance(committed, PlanCommitted) and not committed.cut and not committed.spared
    return committed


@pytest.fixture
def world() -> Cluster:
    """Two nodes with two devices, four cores of 100 MHz and 1,000 MHz each."""
    world = Cluster(policy=ALL)
    for name in ("n1", "n2"):
        world.do(join(name, pools=(gpus(2), cores(4)), core_mhz=100))
    return world


def test_whoever_holds_a_static_port_goes(world: Cluster) -> None:
    """The holder of the port that is asked for is evicted; its neighbours, however unimportant, stay."""
    run(world, "web1", 30, static_ports=(80,))
    run(world, "web2", 20, static_ports=(80,))
    run(world, "idle", 1)
    run(world, "prod", 60, static_ports=(80,))
    assert evicted(world, "web2") and not evicted(world, "web1") and not evicted(world, "idle")


def test_a_free_port_elsewhere_goes_first(world: Cluster) -> None:
    """No allocation is evicted while another node has the port."""
    run(world, "web1", 20, static_ports=(80,))
    run(world, "prod", 60, static_ports=(80,))
    assert not evicted(world, "web1")


def test_the_least_important_holder_of_a_device_goes(world: Cluster) -> None:
    """Of four devices in use the one whose holder counts least is freed, whatever else runs there."""
    for nth, priority in enumerate((40, 30, 20, 50)):
        run(world, f"j{nth}", priority, alternatives=ask(GPU))
    run(world, "plain", 1)
    run(world, "prod", 70, alternatives=ask(GPU))
    assert [len(evicted(world, f"j{nth}")) for nth in range(4)] == [0, 0, 1, 0]
    assert not evicted(world, "plain")


def test_a_whole_device_needs_all_who_share_it(world: Cluster) -> None:
    """Halves of one device make room for a whole one only together."""
    for nth in range(8):
        run(world, f"half{nth}", 20, alternatives=ask(GPU, UNIT // 2))
    before = {
        nth: world.state.allocations.holdings[world.rows(f"half{nth}")[0]] for nth in range(8)
    }
    run(world, "prod", 60, alternatives=ask(GPU))
    gone = [nth for nth in range(8) if evicted(world, f"half{nth}")]
    assert len(gone) == 2
    assert len({before[nth].parts for nth in gone}) == 1


def test_a_device_that_no_node_has_evicts_nobody(world: Cluster) -> None:
    """A group that never fits evicts no allocation."""
    run(world, "old", 20, alternatives=ask(GPU, 2 * UNIT))
    run(world, "old2", 20, alternatives=ask(GPU, 2 * UNIT))
    committed = run(world, "prod", 90, alternatives=ask(GPU, 3 * UNIT))
    assert not committed.placements and not committed.evictions


def test_reserved_cores_are_evicted_too(world: Cluster) -> None:
    """A holder of cores is a victim for requests of cores and for requests of their MHz."""
    run(world, "a", 20, alternatives=ask("cores", 4 * UNIT))
    run(world, "b", 30, alternatives=ask("cores", 4 * UNIT))
    run(world, "prod", 50, alternatives=ask("cores", 2 * UNIT))
    assert evicted(world, "a") and not evicted(world, "b")
    run(world, "wide", 60, cpu_mhz=790)
    assert not evicted(world, "b") and len(world.rows("wide")) == 1
    run(world, "wider", 60, cpu_mhz=890)
    assert evicted(world, "b") and not evicted(world, "prod")


def test_alternatives_are_tried_in_turn(world: Cluster) -> None:
    """The second alternative is made room for where the first is out of reach."""
    for nth in range(2):
        run(world, f"old{nth}", 20, alternatives=ask(GPU, 2 * UNIT))
    both = (*ask(GPU, 3 * UNIT), *ask(GPU, 2 * UNIT))
    committed = run(world, "prod", 60, alternatives=both)
    assert [one.variant for one in committed.placements] == [1] and len(committed.evictions) == 1


def test_several_share_what_one_victim_leaves(world: Cluster) -> None:
    """Two allocations of one device each follow one that held both."""
    for nth in range(2):
        run(world, f"old{nth}", 20, alternatives=ask(GPU, 2 * UNIT))
    committed = run(world, "prod", 60, count=2, alternatives=ask(GPU))
    assert len(committed.evictions) == 1 and len(world.rows("prod")) == 2


def test_a_holder_that_is_not_in_the_way_any_more_is_spared(world: Cluster) -> None:
    """A device that became free meanwhile is taken instead of a victim's."""
    for nth in range(4):
        run(world, f"j{nth}", 20 + nth, alternatives=ask(GPU))
    world.do(register("prod", group(cpu_mhz=10, memory_mib=10, alternatives=ask(GPU)), priority=60))
    plan = world.plan("prod")
    row = plan.evictions[0].rows[0]
    victim = plan.evictions[0].job_id
    node = int(world.state.allocations.node[row])
    other = next(
        at
        for nth in range(4)
        for at in world.rows(f"j{nth}")
        if at != row and int(world.state.allocations.node[at]) == node
    )
    world.report(world.state.fleet.ids[node], (other, "complete"))
    committed = world.do(plan)[0]
    assert isinstance(committed, PlanCommitted)
    assert len(world.rows("prod")) == 1 and not committed.evictions
    assert [one.job_id for one in committed.spared] == [victim]


def test_what_the_cluster_has_once_is_not_promised_twice(world: Cluster) -> None:
    """Two nodes could make room, but there is one licence: one is placed, and nothing is evicted for the other."""
    world.apply(PoolDeclared(node_id="", pool=Pool(name="licence", amount=UNIT)))
    for nth in range(2):
        # The newest allocation is the least loss and too small: both nodes are compared before one is chosen.
        run(world, f"big{nth}", 20, cpu_mhz=800)
    for nth in range(2):
        run(world, f"small{nth}", 20, cpu_mhz=200)
    committed = run(world, "high", 50, cpu_mhz=700, count=2, alternatives=ask("licence"))
    assert sum(len(one.rows) for one in committed.placements) == 1
    assert len(evicted(world, "big0")) + len(evicted(world, "big1")) == 1
