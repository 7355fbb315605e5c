"""Capacities that change under running tasks: those stay, new ones count against the new, the excess shows."""

from typing import Any

from schemas.jobs import ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.policy import DeclarePool, Policy
from shared.core.resources.asks import WHOLE
from tests.builders import Cluster, group, join, register

GPU = "device.gpu"


def shrinking(**offers: Any) -> Cluster:
    """A cluster of one node that may offer less later."""
    # Nothing is held back for what waits: that is another rule.
    cluster = Cluster(policy=Policy(reservations_max=0))
    cluster.shrinks = True
    cluster.do(join("n1", **offers))
    return cluster


def gpus(*ids: str) -> Pool:
    return Pool(name=GPU, instances=tuple(Instance(id=one) for one in ids))


def run(cluster: Cluster, job: str, count: int = 1, **fields: Any) -> int:
    """Run a job that asks for these; return how many of it were placed."""
    small = {"cpu_mhz": 10, "memory_mib": 0, "count": count}
    cluster.run(register(job, group("web", **small | fields)))
    return len(cluster.rows(job))


def asks(pool: str, amount: int) -> dict[str, Any]:
    return {"alternatives": ((ResourceAsk(pool=pool, amount=amount),),)}


def test_a_sum_that_shrank_takes_no_more_until_it_is_below() -> None:
    """Three of four run on while the node offers two: nothing new, then one more when two of them ended."""
    cluster = shrinking(pools=(Pool(name="disks", amount=4 * WHOLE),))
    assert run(cluster, "old", 3, **asks("disks", WHOLE)) == 3
    cluster.do(join("n1", number=2, pools=(Pool(name="disks", amount=2 * WHOLE),)))
    held, offers = cluster.state.allocations.held, cluster.state.fleet.offers
    assert held.sum_on(0, "disks") - int(offers.sum_of("disks", 1)[0]) == WHOLE
    assert len(cluster.rows("old")) == 3 and run(cluster, "new", 2, **asks("disks", WHOLE)) == 0
    ended = cluster.rows("old")[:2]
    cluster.report("n1", *((row, "failed") for row in ended))
    assert run(cluster, "newer", 2, **asks("disks", WHOLE)) == 1


def test_an_instance_that_vanished_is_not_given_again() -> None:
    """What runs on it stays; when it ends the slot is not offered; the instance's return brings its slot back."""
    cluster = shrinking(pools=(gpus("a", "b"),))
    assert run(cluster, "old", 2, **asks(GPU, WHOLE)) == 2
    cluster.do(join("n1", number=2, pools=(gpus("b"),)))
    table, offers = cluster.state.allocations, cluster.state.fleet.offers
    assert table.held.slots_on(0, GPU, 2) == [WHOLE, WHOLE]
    assert offers.slots[GPU].present[0, :2].tolist() == [0, WHOLE]
    first = next(row for row in cluster.rows("old") if table.holdings[row].parts[0][1] == 0)
    cluster.report("n1", (first, "failed"))
    assert run(cluster, "new", 1, **asks(GPU, WHOLE)) == 0
    cluster.do(join("n1", number=4, pools=(gpus("b", "a"),)))
    cluster.do(register("wake", group("web", cpu_mhz=10, memory_mib=0, **asks(GPU, WHOLE))))
    cluster.schedule("wake")
    (row,) = cluster.rows("wake")
    assert table.holdings[row].parts == ((GPU, 0, WHOLE),)


def test_a_port_range_that_moved_counts_only_what_lies_in_it() -> None:
    """Ports picked from the old range stay held, the new range is as large as it is."""
    cluster = shrinking(port_min=20_000, port_max=20_003)
    assert run(cluster, "old", 4, dynamic_ports=1) == 4
    cluster.do(join("n1", number=2, port_min=20_003, port_max=20_006))
    assert run(cluster, "new", 9, dynamic_ports=1) == 3
    table = cluster.state.allocations
    picked = {port for row in cluster.rows("new") for port in table.holdings[row].ports}
    assert picked == {20_004, 20_005, 20_006}
    old = {port for row in cluster.rows("old") for port in table.holdings[row].ports}
    assert old == {20_000, 20_001, 20_002, 20_003}


def test_a_port_that_is_reserved_later_stays_with_whoever_has_it() -> None:
    """A node that reserves a held port offers one less, once; no other allocation gets the port afterwards."""
    cluster = shrinking(port_min=20_000, port_max=20_002)
    assert run(cluster, "old", 1, static_ports=(20_001,)) == 1
    cluster.do(join("n1", number=2, port_min=20_000, port_max=20_002, reserved_ports=(20_001,)))
    assert run(cluster, "new", 5, dynamic_ports=1) == 2
    cluster.report("n1", (cluster.rows("old")[0], "failed"))
    assert run(cluster, "newer", 1, static_ports=(20_001,)) == 0


def test_fewer_licences_than_are_held() -> None:
    """A declaration below what is held stops nothing, and lets nothing new in."""
    cluster = shrinking()
    seats = DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=3 * WHOLE))
    cluster.do(seats)
    assert run(cluster, "old", 3, **asks("seat", WHOLE)) == 3
    cluster.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=WHOLE)))
    assert len(cluster.rows("old")) == 3 and run(cluster, "new", 1, **asks("seat", WHOLE)) == 0


def test_reserved_cores_take_their_mhz_from_everybody() -> None:
    """Two cores of 300 MHz leave 400 of 1,000; a node whose cores grow faster may hold more than it has."""
    cores = Pool(name="cores", instances=tuple(Instance(id=str(n)) for n in range(4)))
    cluster = shrinking(pools=(cores,), core_mhz=300)
    pinned = asks("cores", 2 * WHOLE) | {"cpu_mhz": 0}
    assert run(cluster, "pinned", 1, **pinned) == 1
    assert run(cluster, "shares", 9, cpu_mhz=100) == 4
    assert run(cluster, "more", 1, **pinned) == 0
    cluster.do(join("n1", number=2, pools=(cores,), core_mhz=400))
    assert len(cluster.rows("pinned")) == 1 and len(cluster.rows("shares")) == 4
    assert run(cluster, "late", 1, cpu_mhz=1) == 0


def test_an_unhealthy_instance_is_not_given_again() -> None:
    """What holds it runs on; nothing new gets it, even after it is free; healthy again, it is given."""
    cluster = shrinking(pools=(gpus("a", "b"),))
    assert run(cluster, "old", 1, **asks(GPU, WHOLE)) == 1
    sick = Pool(name=GPU, instances=(Instance(id="a", unhealthy="XID 79"), Instance(id="b")))
    cluster.do(join("n1", number=2, pools=(sick,)))
    assert len(cluster.rows("old")) == 1
    assert run(cluster, "new", 2, **asks(GPU, WHOLE)) == 1
    cluster.report("n1", *((row, "failed") for row in cluster.rows("old")))
    assert len(cluster.rows("new")) == 1
    cluster.do(join("n1", number=5, pools=(gpus("a", "b"),)))
    assert run(cluster, "newer", 1, **asks(GPU, WHOLE)) == 1


def test_a_device_that_is_unhealthy_from_its_first_report_keeps_its_model() -> None:
    """It has a slot and its own model, and none of it can be had."""
    other = Pool(name=GPU, model="big", instances=(Instance(id="x"),))
    sick = Pool(name=GPU, model="small", instances=(Instance(id="a", unhealthy="ECC"),))
    cluster = shrinking(pools=(other, sick))
    offers = cluster.state.fleet.offers
    assert offers.slots[GPU].count.tolist()[:1] == [1]
    assert offers.models[int(offers.slots[GPU].model[0, 1])].model == "small"
    assert run(cluster, "job", 2, **asks(GPU, WHOLE)) == 1
