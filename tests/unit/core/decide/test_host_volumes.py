"""Host volumes by request: which node gets one, what is refused, and what words of a node amount to."""

from typing import Any

import msgspec
import pytest

from schemas.base import NodeId
from schemas.host_volumes import (
    RemoveVolume,
    RequestVolume,
    VolumeCapability,
    VolumeDeleted,
    VolumeDeleting,
    VolumeFailed,
    VolumeReady,
    VolumeRequested,
    VolumeSpec,
    VolumeStatus,
)
from schemas.jobs import Constraint, VolumeAsk
from schemas.nodes import ChangeLiveness, Pool, ReportNode
from schemas.plans import PlanRefused
from schemas.policy import OperatorRefused
from schemas.projections import Query
from shared.query.host_volumes import volume_lines, volume_orders
from tests.builders import Cluster, group, join, register, stop

ID = "00000000-0000-0000-0000-00000000000"
WRITER = (VolumeCapability(access_mode="single-node-writer"),)
MKDIR = {"plugins.host_volume.mkdir.version": "1"}
HAS = {**MKDIR, "volume.data": "rw"}
POOLS = (Pool(name="volume.data", amount=10_000),)
RULE = Constraint(left="${attr.volume.data}", operator="=", right="rw")


def spec(number: int = 1, **fields: Any) -> VolumeSpec:
    return VolumeSpec(**{"id": f"{ID}{number}", "name": "data", "capabilities": WRITER, **fields})


def cluster(*nodes: str, **fields: Any) -> Cluster:
    world = Cluster()
    world.do(*[join(name, **{"attributes": MKDIR, **fields}) for name in nodes])
    return world


def create(world: Cluster, *given: VolumeSpec, node_id: str = "") -> list[Any]:
    return [
        event
        for one in given
        for event in world.do(RequestVolume(request_id="r", spec=one, node_id=node_id))
    ]


def delete(world: Cluster, number: int = 1, **fields: Any) -> list[Any]:
    return world.do(RemoveVolume(request_id="d", volume_id=f"{ID}{number}", **fields))


def says(
    world: Cluster, status: str, node: str = "n1", number: int = 1, **fields: Any
) -> list[Any]:
    """A report of a node about a volume."""
    fleet = world.state.fleet
    row = fleet.row_of[NodeId(node)]
    report = ReportNode(
        node_id=NodeId(node),
        host_id=fleet.host_ids[row],
        boot_id=fleet.boot_ids[row],
        number=int(fleet.reports_seen[row]) + 1,
        volumes=(VolumeStatus(id=f"{ID}{number}", status=status, **fields),),
    )
    found = (VolumeReady, VolumeFailed, VolumeDeleted)
    return [one for one in world.do(report) if isinstance(one, found)]


def ready(*nodes: str) -> Cluster:
    """A cluster whose first node has the volume and offers it."""
    world = cluster(*nodes)
    create(world, spec(), node_id=nodes[0])
    says(world, "ready", nodes[0])
    world.do(join(nodes[0], attributes=HAS, pools=POOLS, number=9))
    return world


def uses(**fields: Any) -> Any:
    return group(count=1, **{"constraints": (RULE,), **fields})


def refusal(events: list[Any]) -> str:
    (one,) = events
    assert isinstance(one, OperatorRefused)
    return one.reason


def test_the_node_with_the_fewest_volumes_gets_one() -> None:
    """Ties go to the lowest id; one that has a volume of the name already gets none."""
    world = cluster("n2", "n1")
    nodes = [one.node_id for one in create(world, spec(1), spec(2), spec(3, name="more"))]
    assert nodes == ["n1", "n2", "n1"]
    assert "2 of 2 nodes: it has a volume data already" in refusal(create(world, spec(4)))


@pytest.mark.parametrize(
    ("fields", "node_id", "reason"),
    [
        ({"node_pool": "gpu"}, "", "it is not in node pool gpu"),
        ({"plugin": "zfs"}, "", "it has no plugin zfs"),
        ({"constraints": (Constraint(left="${node.unique.id}", right="n9"),)}, "", "does not hold"),
        ({"plugin": "zfs"}, "n1", "node n1: it has no plugin zfs"),
        ({}, "n7", "there is no node 'n7'"),
    ],
)
def test_a_node_that_cannot_have_it_is_named_with_the_reason(
    fields: dict[str, Any], node_id: str, reason: str
) -> None:
    """Plugin, pool and constraints count for a node that was named, too."""
    assert reason in refusal(create(cluster("n1"), spec(**fields), node_id=node_id))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"id": "x"}, "id"),
        ({"name": "a b"}, "name"),
        ({"capabilities": ()}, "capability"),
        ({"capabilities": (VolumeCapability(access_mode="multi-node"),)}, "access_mode"),
        (
            {"capabilities": (msgspec.structs.replace(WRITER[0], attachment_mode="block-device"),)},
            "block-device is not built",
        ),
        ({"capacity_min_bytes": 2, "capacity_max_bytes": 1}, "capacity_min"),
        ({"constraints": (Constraint(left="a", operator="distinct_hosts"),)}, "operator"),
        ({"constraints": (Constraint(left="a", operator="regexp", right="("),)}, "constraint"),
        ({"plugin": "../x"}, "plugin_id"),
        ({"parameters": {"": "x"}}, "parameters"),
    ],
)
def test_a_specification_that_cannot_be_is_refused_with_its_field(
    fields: dict[str, Any], word: str
) -> None:
    """Nothing of it is in the state."""
    world = cluster("n1")
    assert word in refusal(create(world, spec(**fields)))
    assert not world.state.volumes.by_id


def test_an_id_makes_one_volume() -> None:
    """S75: asked twice it is there once; with another specification it is refused."""
    world = cluster("n1", "n2")
    (made,) = create(world, spec())
    assert create(world, spec()) == []
    assert "cannot be changed" in refusal(create(world, spec(name="other")))
    other = "n2" if made.node_id == "n1" else "n1"
    assert "its node cannot be changed" in refusal(create(world, spec(), node_id=other))


def test_a_name_is_once_on_a_node() -> None:
    """S75: also where the node's operator names it in the agent's settings."""
    world = ready("n1")
    assert "has a volume data already" in refusal(create(world, spec(2)))
    static = cluster("n1", attributes=HAS, pools=POOLS)
    assert "has a volume data already" in refusal(create(static, spec()))


def test_words_of_a_node_become_facts_once() -> None:
    """Those of another node, of another attempt, and those that say nothing new are none."""
    world = cluster("n1", "n2")
    create(world, spec(), node_id="n1")
    assert says(world, "ready", "n2") == []
    assert says(world, "failed", reason="full") == [VolumeFailed(volume_id=f"{ID}1", reason="full")]
    assert says(world, "failed", reason="full") == []
    (again,) = create(world, spec())
    assert isinstance(again, VolumeRequested)
    assert again.attempt == 2
    assert says(world, "ready") == []
    (made,) = says(world, "ready", attempt=2, path="/v", capacity_bytes=5)
    assert made == VolumeReady(volume_id=f"{ID}1", capacity_bytes=5, path="/v")
    assert says(world, "ready", attempt=2) == []
    (line,) = volume_lines(world.state, Query())
    assert (line.status, line.path, line.reason) == ("ready", "/v", "")


def test_a_volume_in_use_is_not_deleted() -> None:
    """S75: while an allocation that has not ended uses it; afterwards its node is ordered to."""
    world = ready("n1", "n2")
    world.run(register("app", uses()))
    (row,) = world.rows()
    assert "is used by app.web[0]" in refusal(delete(world))
    (line,) = volume_lines(world.state, Query())
    assert len(line.alloc_ids) == 1
    world.run(stop("app"))
    assert "is used by" in refusal(delete(world))
    world.report("n1", (row, "complete"))
    assert delete(world) == [VolumeDeleting(request_id="d", volume_id=f"{ID}1")]
    assert delete(world) == []
    (order,) = volume_orders(world.state, NodeId("n1"))
    assert order.delete
    assert says(world, "deleted") == [VolumeDeleted(volume_id=f"{ID}1")]
    assert volume_orders(world.state, NodeId("n1")) == ()
    assert delete(world) == []


def test_a_claimed_volume_is_not_deleted() -> None:
    """S74, S75: the index finds it again when it comes back."""
    world = ready("n1")
    world.run(register("app", uses(volumes=(VolumeAsk(source="data", sticky=True),))))
    (row,) = world.rows()
    world.run(stop("app"))
    world.report("n1", (row, "complete"))
    assert "is claimed by app.web[0]" in refusal(delete(world))


def test_nothing_is_placed_on_a_volume_that_is_being_deleted() -> None:
    """A plan of before is refused; its node offers the volume no more when the plan is made anew."""
    world = ready("n1")
    delete(world)
    events = world.run(register("app", uses()))
    (refused,) = [one for one in events if isinstance(one, PlanRefused)]
    assert (refused.code, "is being deleted" in refused.reason) == ("stale", True)
    assert world.rows() == []


def test_a_deletion_that_fails_shows_its_reason_and_continues() -> None:
    """The reason is shown until the node has deleted it."""
    world = ready("n1")
    delete(world)
    says(world, "failed", reason="busy")
    (line,) = volume_lines(world.state, Query())
    assert (line.status, line.reason) == ("deleting", "busy")
    assert says(world, "deleted") == [VolumeDeleted(volume_id=f"{ID}1")]


def test_a_volume_is_forgotten_only_where_its_node_is_away() -> None:
    """By force; of a node that is down it is unavailable until then."""
    world = ready("n1")
    assert "is ready" in refusal(delete(world, force=True))
    seq = world.state.seq
    world.do(ChangeLiveness(node_ids=(NodeId("n1"),), status="down", seen_seq=seq))
    (line,) = volume_lines(world.state, Query())
    assert line.status == "unavailable"
    assert delete(world, force=True) == [VolumeDeleted(volume_id=f"{ID}1", request_id="d")]
