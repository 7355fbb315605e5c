"""Plans with victims that no transaction holds in one: where they are cut, and how large one can become."""

import msgspec
import pytest

from schemas.base import JobId
from schemas.envelope import ENCODER
from services.scheduler.plan_parts import split_proposal
from shared.core.scheduling.preemption.search import VICTIMS_MAX
from tests.builders import Cluster, group, join, register
from tests.unit.core.scheduling.test_preemption import ALL, evicted, fill

TRANSACTION_BYTES_MAX = 512 * 1024
NODES = 6


@pytest.fixture
def world() -> Cluster:
    """Six full nodes of two old jobs each, and one job of three groups that wants them all."""
    world = Cluster(policy=ALL)
    for nth in range(NODES):
        world.do(join(f"n{nth}"))
        for half in range(2):
            fill(world, f"old{nth}{half}", priority=20, cpu_mhz=500)
    groups = [group(name, count=2, cpu_mhz=1000, memory_mib=10) for name in ("a", "b", "c")]
    world.do(register("prod", *groups, priority=90))
    return world


@pytest.mark.parametrize("bytes_max", [250, 700, 1_200])
def test_a_victim_travels_beside_the_placement_that_needs_it(
    world: Cluster, bytes_max: int
) -> None:
    """In its part, or in one before; committed part by part, no node ever holds too much."""
    proposal = world.propose("prod")
    parts = split_proposal(proposal, world.state, bytes_max)
    assert len(parts) > 1
    node = world.state.allocations.node
    placed: set[int] = set()
    gone: list[int] = []
    for part in parts:
        gone += [row for one in part.evictions for row in one.rows]
        placed |= {row for one in part.placements for row in one.rows}
        assert {int(node[row]) for row in gone} == placed
    assert sorted(gone) == sorted(row for one in proposal.evictions for row in one.rows)
    plan = world.plan("prod")
    for nth, part in enumerate(parts):
        origin = msgspec.structs.replace(plan.origin, part=nth, parts=len(parts))
        fields = {
            name: getattr(part, name)
            for name in ("placements", "evictions", "end", "follow_ups", "decision")
        }
        (committed, *_) = world.do(msgspec.structs.replace(plan, origin=origin, **fields))
        assert not committed.cut and not committed.spared
    assert len(world.rows("prod")) == NODES
    assert (
        sum(len(evicted(world, f"old{nth}{half}")) for nth in range(NODES) for half in (0, 1)) == 12
    )


def test_the_largest_eviction_fits_a_transaction() -> None:
    """As many victims as a plan may have, each of a job of its own with the longest name: far below the bound."""
    world = Cluster(policy=ALL)
    world.do(join("n1", cpu_mhz=100_000, memory_mib=100_000, disk_mib=0))
    world.do(join("n2", cpu_mhz=100_000, memory_mib=100_000, disk_mib=0))
    names = [f"old-{nth:03d}-".ljust(128, "x") for nth in range(VICTIMS_MAX)]
    for name in names:
        fill(world, name, priority=20, cpu_mhz=100_000 * 2 // VICTIMS_MAX)
    world.do(register("prod", group(count=2, cpu_mhz=99_000, memory_mib=10), priority=90))
    events = world.schedule("prod")
    assert sum(len(evicted(world, JobId(name))) for name in names) > VICTIMS_MAX * 9 // 10
    assert len(ENCODER.encode(events)) < TRANSACTION_BYTES_MAX // 2
