"""What nodes and the cluster offer: sums, slots that stay an instance's, kinds, ports."""

from typing import Any

from schemas.base import NodeId
from schemas.jobs import Constraint, ResourceAsk
from schemas.nodes import Instance, NodeRefused, NodeSpec, Pool, PoolDeclared
from schemas.policy import DeclarePool, OperatorRefused
from shared.core.resources.asks import WHOLE
from tests.builders import Cluster, join

GPU = "device.gpu"


def gpus(*ids: str, **fields: Any) -> Pool:
    return Pool(name=GPU, instances=tuple(Instance(id=one) for one in ids), **fields)


def declare(cluster: Cluster, node_id: str, pool: Pool) -> list[Any]:
    return cluster.do(DeclarePool(request_id="r", node_id=node_id, pool=pool))


def test_an_instance_keeps_its_slot_while_its_node_lives() -> None:
    """An id that vanishes leaves an absent slot, a new id gets a new one, an old one its own again."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus("a", "b"),)))
    pool = cluster.state.fleet.offers.slots[GPU]
    cluster.do(join("n1", number=2, pools=(gpus("b", "c"),)))
    assert pool.present[0, :3].tolist() == [0, WHOLE, WHOLE]
    cluster.do(join("n1", number=3, pools=(gpus("a", "c"),)))
    assert pool.present[0, :3].tolist() == [WHOLE, 0, WHOLE]
    names = [cluster.state.fleet.offers.instance_id(0, GPU, slot) for slot in range(4)]
    assert names == ["a", "b", "c", ""]


def test_the_hash_tells_which_slot_is_whose() -> None:
    """Two fleets with the same specs, but another history of slots, have other hashes."""
    digests = []
    for first in (("a", "b"), ("b", "a")):
        cluster = Cluster()
        cluster.do(join("n1", pools=(gpus(*first),)))
        cluster.do(join("n1", number=2, pools=(gpus("a", "b"),)))
        digests.append(cluster.state.fleet.digest())
    assert digests[0] != digests[1]


def test_a_pool_is_of_one_kind_on_every_node() -> None:
    """The first one decides; a node that says otherwise is refused, and is accepted when no other node has it."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(Pool(name="fpga", amount=3 * WHOLE),)))
    fpga = Pool(name="fpga", instances=(Instance(id="x"),))
    (refused,) = cluster.do(join("n2", pools=(fpga,)))
    assert isinstance(refused, NodeRefused) and refused.code == "conflict"
    assert "fpga is sum on other nodes" in refused.reason
    cluster.do(join("n1", number=2, pools=(fpga,)))
    assert cluster.state.fleet.offers.kind("fpga") == "indexed"
    cluster.do(join("n2", pools=(fpga,)))
    assert NodeId("n2") in cluster.state.fleet.row_of


def test_an_instance_stands_once() -> None:
    """A node that names an instance twice, or a pool without a name, is refused as invalid."""
    cluster = Cluster()
    for pool in (gpus("a", "a"), Pool(name="", amount=1), Pool(name="x", amount=-1)):
        (refused,) = cluster.do(join("n1", pools=(pool,)))
        assert isinstance(refused, NodeRefused) and refused.code == "invalid"


def test_a_declaration_is_merged_with_what_the_node_says() -> None:
    """Amounts add up, instances are joined by id, nothing in it takes the declaration back."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(Pool(name="slot", amount=WHOLE), gpus("a"))))
    offers = cluster.state.fleet.offers
    declare(cluster, "n1", Pool(name="slot", amount=2 * WHOLE))
    declare(cluster, "n1", gpus("a", "b"))
    assert offers.sum_of("slot", 1).tolist() == [3 * WHOLE]
    assert offers.slots[GPU].count.tolist()[:1] == [2]
    cluster.do(join("n1", number=2, pools=()))
    assert offers.sum_of("slot", 1).tolist() == [2 * WHOLE]
    declare(cluster, "n1", Pool(name="slot"))
    assert offers.sum_of("slot", 1).tolist() == [0] and not offers.is_offered("slot")
    assert not declare(cluster, "n1", Pool(name="slot"))


def test_a_declaration_of_another_kind_is_refused() -> None:
    """On a node, and of the cluster where nodes have it; the cluster cannot have instances."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus("a"),)), join("n2"))
    for node, pool, code in (
        ("n2", Pool(name=GPU, amount=WHOLE), "conflict"),
        ("", Pool(name=GPU, amount=WHOLE), "conflict"),
        ("", Pool(name="seat", instances=(Instance(id="s"),)), "invalid"),
        ("n2", gpus("a", "a"), "invalid"),
    ):
        (refused,) = declare(cluster, node, pool)
        assert isinstance(refused, OperatorRefused) and refused.code == code, refused
    (declared, _) = declare(cluster, "", Pool(name="licence", amount=5 * WHOLE))
    assert isinstance(declared, PoolDeclared)
    (refused,) = declare(cluster, "n1", Pool(name="licence", amount=WHOLE))
    assert isinstance(refused, OperatorRefused) and "cluster-wide" in refused.reason


def test_constraints_on_devices_compare_with_units() -> None:
    """Vendor, model and attributes are matched once for each model; 16 GiB are more than 10000 MiB."""
    cluster = Cluster()
    small = {"memory": "8 GiB", "cuda": "12.2"}
    cluster.do(
        join(
            "n1",
            pools=(
                gpus("a", vendor="nvidia", model="t4", attributes=small),
                gpus("b", vendor="nvidia", model="a100", attributes={"memory": "16 GiB"}),
            ),
        )
    )
    offers = cluster.state.fleet.offers

    def found(left: str, operator: str, right: str, **fields: Any) -> list[bool]:
        one = Constraint(left=left, operator=operator, right=right)
        return offers.matches(ResourceAsk(pool=GPU, constraints=(one,), **fields)).tolist()

    assert found("${device.attr.memory}", ">=", "10000 MiB") == [False, True]
    assert found("${device.attr.cuda}", "is_set", "") == [True, False]
    assert found("${device.model}", "set_contains_any", "t4,v100") == [True, False]
    assert found("${device.vendor}", "=", "nvidia", model="a100") == [False, True]
    assert found("${node.class}", "=", "x") == [False, False]
    assert offers.matches(ResourceAsk(pool=GPU, vendor="amd")).tolist() == [False, False]


def test_a_row_that_gets_another_node_starts_anew() -> None:
    """Slots, sums, reserved ports and declarations of a collected node are gone."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus("a"),), reserved_ports=(22, 20_000)))
    offers = cluster.state.fleet.offers
    assert offers.reserved[22] == {0} and offers.ports_open(1).tolist() == [12_000]
    declare(cluster, "n1", Pool(name="slot", amount=WHOLE))
    offers.clear_row(0)
    assert not offers.reserved and not offers.names_of(0) and not offers.is_offered("slot")
    offers.set_row(0, NodeSpec(node_id=NodeId("n2"), pools=(gpus("z"),)), ())
    assert offers.instance_id(0, GPU, 0) == "z"
