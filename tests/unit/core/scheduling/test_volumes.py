"""Host volumes in the scheduler: single writers, readers beside them, and volumes of single indexes."""

from typing import Any

import pytest

from schemas.jobs import Constraint, ResourceAsk, VolumeAsk
from schemas.nodes import Pool
from tests.builders import Cluster, group, join, register, stop

RULE = Constraint(left="${attr.volume.data}", operator="=", right="rw")
SINGLE = ((ResourceAsk(pool="volume.data", amount=10_000),),)
SHARED = ((ResourceAsk(pool="volume.data", amount=1),),)
BY_INDEX = (VolumeAsk(source="data", per_alloc=True),)


def with_volumes(*names: str) -> dict[str, Any]:
    return {
        "attributes": {f"volume.{name}": "rw" for name in names},
        "pools": tuple(Pool(name=f"volume.{name}", amount=10_000) for name in names),
    }


@pytest.mark.parametrize(
    ("first", "second"), [(SINGLE, SINGLE), (SINGLE, SHARED), (SHARED, SINGLE)]
)
def test_a_single_writer_is_alone(first: Any, second: Any) -> None:
    """S73: another writer waits, with the reason, until the volume is free."""
    world = Cluster()
    world.do(join("n1", **with_volumes("data")))
    world.run(register("one", group(constraints=(RULE,), alternatives=first)))
    world.run(register("two", group(constraints=(RULE,), alternatives=second)))
    assert (world.nodes_of("one"), world.nodes_of("two")) == (["n1"], [])
    table = world.state.evaluations
    (waiting,) = [one for one in table.by_key.values() if one.status == "blocked"]
    assert "volume.data" in str(waiting.blocked)
    world.do(stop("one"))
    world.schedule("one")
    table_rows = world.rows("one", alive=False)
    world.report("n1", *((row, "complete") for row in table_rows))
    world.run(register("three", group(constraints=(RULE,), alternatives=second)))
    assert world.nodes_of("three") == ["n1"]


def test_writers_share_and_readers_are_not_in_the_way() -> None:
    """S73: two writers that share a volume run beside a reader of it."""
    world = Cluster()
    world.do(join("n1", **with_volumes("data")))
    world.run(register("one", group(constraints=(RULE,), alternatives=SHARED)))
    world.run(register("two", group(constraints=(RULE,), alternatives=SHARED)))
    reader = Constraint(left="${attr.volume.data}", operator="is_set")
    world.run(register("three", group(constraints=(reader,))))
    assert [world.nodes_of(name) for name in ("one", "two", "three")] == [["n1"]] * 3


def test_each_index_runs_where_its_volume_is() -> None:
    """S71: one whose volume no node has waits, with the volume's name, and runs when a node has it."""
    world = Cluster()
    world.do(join("n1", **with_volumes("data[1]")), join("n2", **with_volumes("data[0]")))
    world.run(register("app", group(count=3, volumes=BY_INDEX)))
    table = world.state.allocations
    where = {int(table.index[row]): world.state.fleet.ids[table.node[row]] for row in world.rows()}
    assert where == {0: "n2", 1: "n1"}
    (waiting,) = [one for one in world.state.evaluations.by_key.values() if one.status == "blocked"]
    assert "data[2]" in str(waiting.blocked)
    world.do(join("n3", **with_volumes("data[2]")))
    world.run(register("app", group(count=3, volumes=BY_INDEX), submission_id="2", salt=1))
    assert world.nodes_of() == ["n1", "n2", "n3"]


def test_indexes_on_one_node_keep_away_from_each_other_by_distinct_hosts() -> None:
    """They are placed one by one, and count one another."""
    world = Cluster()
    world.do(join("n1", **with_volumes("data[0]", "data[1]")))
    world.run(register("app", group(count=2, volumes=BY_INDEX, distinct_hosts="group")))
    assert world.nodes_of() == ["n1"]


def test_a_replacement_of_an_index_goes_to_its_volume() -> None:
    """Wherever there is more room."""
    world = Cluster()
    world.do(join("n1", **with_volumes("data[0]")), join("n2", **with_volumes("data[1]")))
    world.run(register("app", group(count=2, volumes=BY_INDEX)))
    (row,) = [one for one in world.rows() if world.state.allocations.index[one] == 1]
    world.report("n2", (row, "failed"))
    world.later(60)
    world.do(join("n3"))
    world.schedule()
    table = world.state.allocations
    found = {int(table.index[at]): world.state.fleet.ids[table.node[at]] for at in world.rows()}
    assert found.get(1, "n2") == "n2"
    assert found[0] == "n1"
