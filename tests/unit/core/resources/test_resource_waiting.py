"""Why something waits for pools, ports or cores, in words that name what is short."""

from typing import Any

from schemas.evaluations import Waiting
from schemas.jobs import Constraint, ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.policy import DeclarePool
from tests.builders import Cluster, group, join, register

UNIT = 10_000


def gpus(count: int, **fields: Any) -> Pool:
    instances = tuple(Instance(id=str(n)) for n in range(count))
    return Pool(name="device.gpu", instances=instances, **fields)


def waits(cluster: Cluster, job: str = "app", **fields: Any) -> Waiting:
    """What a job with one group of these fields waits for."""
    cluster.do(register(job, group("web", **{"count": 1, "cpu_mhz": 0, "memory_mib": 0} | fields)))
    (follow_up,) = cluster.propose(job).follow_ups
    assert follow_up.blocked is not None
    return follow_up.blocked.waiting["web"]


def of(*asks: ResourceAsk) -> tuple[tuple[ResourceAsk, ...], ...]:
    return (asks,)


def test_what_no_node_offers_never_fits() -> None:
    """The class says so, the reason names it; a model that no node has is a filter."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus(2, model="t4"),)), join("n2"))
    found = waits(cluster, alternatives=of(ResourceAsk(pool="fpga")))
    assert found.wait_class == "never_fits" and found.reasons[0] == "no node offers fpga"
    big = (Constraint(left="${device.attr.memory}", operator=">=", right="40 GiB"),)
    ask = ResourceAsk(pool="device.gpu", model="t4", constraints=big)
    found = waits(cluster, "b", alternatives=of(ask))
    assert found.wait_class == "never_fits"
    assert "device.gpu refuses 1 of 2 nodes" in found.reasons
    assert "device.gpu: ${device.attr.memory} >= 40 GiB refuses 1 of 2 nodes" in found.reasons


def test_more_than_any_node_has_never_fits() -> None:
    """Three of two devices, a port that all reserve, more ports than the range has, more than the cluster has."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus(2),), reserved_ports=(22,), port_max=20_001))
    cluster.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=UNIT)))
    three = ResourceAsk(pool="device.gpu", amount=3 * UNIT)
    for nth, (fields, reason) in enumerate(
        (
            ({"alternatives": of(three)}, "no feasible node has enough of device.gpu, even empty"),
            ({"static_ports": (22,)}, "port 22 is reserved on all 1 feasible nodes"),
            ({"dynamic_ports": 3}, "no feasible node has enough of the range of ports, even empty"),
            (
                {"alternatives": of(ResourceAsk(pool="seat", amount=25_000))},
                "the cluster has 1 seat, one takes 2.5",
            ),
        )
    ):
        found = waits(cluster, f"j{nth}", **fields)
        assert (found.wait_class, found.reasons[0]) == ("never_fits", reason)


def test_what_is_short_now_is_named() -> None:
    """A taken port, held devices, the cluster's seats, cores without MHz: each with the number of nodes."""
    cluster = Cluster()
    for name in ("n1", "n2", "n3"):
        cores = Pool(name="cores", instances=(Instance(id="0"), Instance(id="1")))
        cluster.do(join(name, pools=(gpus(1), cores), core_mhz=500))
    cluster.do(DeclarePool(request_id="r", node_id="", pool=Pool(name="seat", amount=3 * UNIT)))
    every = (ResourceAsk(pool="device.gpu", amount=6_000), ResourceAsk(pool="seat"))
    cluster.run(register("old", group("web", count=3, static_ports=(8080,), alternatives=(every,))))
    half = ResourceAsk(pool="device.gpu", amount=5_000)
    for nth, (fields, reasons) in enumerate(
        (
            ({"static_ports": (8080,)}, ("port 8080 taken on 3 of 3 nodes",)),
            ({"alternatives": of(half)}, ("device.gpu exhausted on 3 of 3 nodes",)),
            (
                {"alternatives": ((half,), (ResourceAsk(pool="seat"),))},
                (
                    "alternative 1: device.gpu exhausted on 3 of 3 nodes",
                    "alternative 2: seat exhausted: 0 of 3 left in the cluster",
                ),
            ),
            (
                {"alternatives": of(ResourceAsk(pool="cores", amount=2 * UNIT))},
                ("cpu of cores exhausted on 3 of 3 nodes",),
            ),
        )
    ):
        found = waits(cluster, f"j{nth}", **fields)
        assert (found.wait_class, found.reasons) == ("capacity", reasons)
