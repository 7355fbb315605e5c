"""The number of nodes of a node pool is kept with the fleet: asking for it looks at no node."""

from typing import NoReturn

from schemas.nodes import NodesCollected
from shared.core.decide.jobs.submissions import unknown_pool_warnings
from shared.core.state.snapshots.codecs import ByteReader
from shared.core.state.snapshots.table_codecs import TABLE_CODECS
from shared.core.state.tables.fleet import FleetTable
from tests.builders import Cluster, join


class Unlisted(dict):  # type: ignore[type-arg]
    """A dict that must not be gone through."""

    def values(self) -> NoReturn:
        """Fail."""
        raise AssertionError("it looks at every node")

    items = __iter__ = values  # type: ignore[assignment]


def counted(fleet: FleetTable) -> dict[str, int]:
    """Count the nodes of each pool one by one."""
    pools = [fleet.specs[row].node_pool for row in fleet.row_of.values()]
    return {name: pools.count(name) for name in ("gpu", "cpu", "default", "none")}


def told(fleet: FleetTable) -> dict[str, int]:
    """Ask the fleet."""
    return {name: fleet.count_pool(name) for name in ("gpu", "cpu", "default", "none")}


def test_the_sizes_follow_joins_moves_and_collections() -> None:
    """A node counts in the pool that it names now, until it leaves; a reused row counts once."""
    cluster = Cluster()
    fleet = cluster.state.fleet
    assert told(fleet) == counted(fleet)
    for step in (
        join("n1", node_pool="gpu"),
        join("n2", node_pool="gpu"),
        join("n3", node_pool="cpu"),
        # It moves to another pool, and its agent says the same again.
        join("n2", node_pool="cpu", number=2),
        join("n2", node_pool="cpu", number=3),
    ):
        cluster.do(step)
        assert told(fleet) == counted(fleet)
    cluster.apply(NodesCollected(rows=(fleet.row_of["n1"],)))  # type: ignore[index]
    assert told(fleet) == counted(fleet) == {"gpu": 0, "cpu": 2, "default": 0, "none": 0}
    cluster.do(join("n4", node_pool="none"))
    assert told(fleet) == counted(fleet)


def test_a_warning_looks_at_no_node() -> None:
    """Once counted, deciding a submission does not go through the fleet."""
    cluster = Cluster()
    cluster.do(join("n1", node_pool="gpu"))
    state = cluster.state
    assert unknown_pool_warnings(state, "gpu") == ()
    state.fleet.row_of = Unlisted(state.fleet.row_of)
    assert unknown_pool_warnings(state, "gpu") == ()
    assert len(unknown_pool_warnings(state, "cpu")) == 1


def test_the_sizes_stand_in_no_hash_and_no_snapshot() -> None:
    """They are derived: a table that was asked equals one that was not, and a snapshot restores them."""
    asked, plain = Cluster(), Cluster()
    for cluster in (asked, plain):
        cluster.do(join("n1", node_pool="gpu"))
        asked.state.fleet.count_pool("gpu")
    assert asked.state.hashes() == plain.state.hashes()
    codec = TABLE_CODECS["fleet"]
    data = b"".join(codec.pieces(asked.state.fleet))
    assert codec.read(ByteReader(data)).count_pool("gpu") == 1
