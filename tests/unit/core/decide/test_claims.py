"""Claims on sticky volumes: made with the first placement, kept by every later one, freed by purge or an operator."""

from typing import Any

import msgspec
import pytest

from schemas.base import JobId, NodeId
from schemas.jobs import Constraint, ResourceAsk, UpdatePolicy, VolumeAsk
from schemas.nodes import CapacityFreed, ChangeLiveness, Pool
from schemas.plans import PlanRefused
from schemas.policy import DrainNode, OperatorRefused, StopAllocation
from schemas.volumes import ClaimMade, ClaimReleased, ReleaseClaim
from shared.core.decide.garbage import decide_garbage
from shared.core.state.invariants import check
from shared.core.state.tables.claims import ClaimRow
from shared.query.claims import claim_lines
from tests.builders import Cluster, group, join, register, stop

STICKY = (VolumeAsk(source="data", sticky=True),)
ALONE = (VolumeAsk(source="data", sticky=True, is_exclusive=True),)
RULE = Constraint(left="${attr.volume.data}", operator="=", right="rw")
HAS: dict[str, Any] = {
    "attributes": {"volume.data": "rw"},
    "pools": (Pool(name="volume.data", amount=10_000),),
}
WHOLE = ((ResourceAsk(pool="volume.data", amount=10_000),),)
SHARED = ((ResourceAsk(pool="volume.data", amount=1),),)


def sticky(count: int = 1, volumes: Any = STICKY, **fields: Any) -> Any:
    held = WHOLE if volumes[0].is_exclusive else SHARED
    base = {"constraints": (RULE,), "alternatives": held, "volumes": volumes}
    return group(count=count, **(base | fields))


def cluster(*nodes: str) -> Cluster:
    world = Cluster()
    world.do(*[join(name, **HAS) for name in nodes])
    return world


def where(world: Cluster, job_id: str = "app") -> dict[int, str]:
    table = world.state.allocations
    return {
        int(table.index[row]): str(world.state.fleet.ids[table.node[row]])
        for row in world.rows(job_id)
    }


def end_all(world: Cluster, job_id: str = "app", status: str = "complete") -> None:
    """End what was stopped, on its node."""
    table = world.state.allocations
    for row in table.rows_of(JobId(job_id)).tolist():
        if table.desired[row] == 1 and table.client[row] < 2:
            world.report(str(world.state.fleet.ids[table.node[row]]), (row, status))


def reasons(world: Cluster, job_id: str = "app") -> str:
    key = world.state.evaluations.blocked_of[JobId(job_id)]
    return str(world.state.evaluations.by_key[key].blocked)


def test_the_first_placement_claims_in_its_transaction() -> None:
    """One claim for each index, on the node where it is placed."""
    world = cluster("n1", "n2")
    events = world.run(register("app", sticky(2, ALONE)))
    made = [one for one in events if isinstance(one, ClaimMade)]
    assert {one.index: one.node_id for one in made} == where(world)
    assert sorted(where(world).values()) == ["n1", "n2"]
    assert [(one.index, bool(one.alloc_id)) for one in claim_lines(world.state)] == [
        (0, True),
        (1, True),
    ]


def test_a_replacement_goes_back_to_its_volume() -> None:
    """S74: also where another node has more room, and without a second claim."""
    world = cluster("n1")
    world.run(register("app", sticky()))
    world.do(join("n2", cpu_mhz=9_000, memory_mib=9_000, disk_mib=9_000, **HAS))
    (row,) = world.rows()
    world.report("n1", (row, "running"))
    world.do(StopAllocation(request_id="r", alloc_key=int(world.state.allocations.key[row])))
    events = world.schedule()
    end_all(world)
    assert not [one for one in events if isinstance(one, ClaimMade)]
    assert where(world) == {0: "n1"}


def test_a_drained_node_keeps_the_claim() -> None:
    """S74: the replacement waits with the reason, and goes back after the drain."""
    world = cluster("n1", "n2")
    world.run(register("app", sticky(2, ALONE)))
    for row in world.rows():
        world.report(
            str(world.state.fleet.ids[world.state.allocations.node[row]]), (row, "running")
        )
    (index,) = [number for number, node in where(world).items() if node == "n1"]
    world.do(join("n3", **HAS))
    world.do(DrainNode(request_id="r", node_id="n1", draining=True, deadline_ns=world.now_ns))
    (row,) = [one for one in world.rows() if world.state.allocations.index[one] == index]
    world.report("n1", (row, "failed"))
    world.later(3_600)
    world.run(register("app", sticky(2, ALONE), submission_id="2", salt=1))
    assert index not in where(world)
    assert f"web[{index}] has its volume data on node n1" in reasons(world)
    world.do(DrainNode(request_id="q", node_id="n1", draining=False))
    world.run(register("app", sticky(2, ALONE), submission_id="3", salt=2))
    assert where(world)[index] == "n1"


def test_scaling_up_claims_anew_and_scaling_down_keeps() -> None:
    """S74: an index that comes back finds its volume."""
    world = cluster("n1", "n2")
    world.run(register("app", sticky(1, ALONE)))
    world.run(register("app", sticky(2, ALONE), submission_id="2", salt=1))
    before = where(world)
    assert sorted(before.values()) == ["n1", "n2"]
    world.run(register("app", sticky(1, ALONE), submission_id="3", salt=2))
    end_all(world)
    assert len(world.state.claims.by_index) == 2
    world.run(register("app", sticky(2, ALONE), submission_id="4", salt=3))
    assert where(world) == before


def test_an_exclusive_claim_keeps_others_away_while_nothing_runs() -> None:
    """Neither another job that claims alone nor one that would share gets the volume."""
    world = cluster("n1")
    world.run(register("app", sticky(1, ALONE)))
    world.do(stop("app"))
    world.schedule()
    end_all(world)
    for name, volumes in (("other", ALONE), ("more", STICKY)):
        world.run(register(name, sticky(1, volumes)))
        assert where(world, name) == {}
    world.do(ReleaseClaim(request_id="r", job_id=JobId("app"), group="web", index=0))
    world.run(register("last", sticky(1, ALONE)))
    assert where(world, "last") == {0: "n1"}


def test_shared_claims_lie_on_one_volume() -> None:
    """Where nothing asks to be alone, several indexes claim the volume of one node."""
    world = cluster("n1")
    world.run(register("app", sticky(2)))
    assert where(world) == {0: "n1", 1: "n1"}


def test_a_plan_claims_no_volume_twice_where_one_is_to_be_alone() -> None:
    """Two groups of one job, placed with one plan: the reader waits, as it does beside a claim made before."""
    world = cluster("n1")
    reads = (VolumeAsk(source="data", sticky=True, read_only=True),)
    reader = group(name="read", constraints=(RULE,), volumes=reads)
    world.run(register("app", sticky(1, ALONE), reader))
    assert [
        (key[1], one["data"].is_exclusive) for key, one in world.state.claims.by_index.items()
    ] == [("web", True)]
    assert "read" in reasons(world)


def test_a_plan_that_claims_beside_its_own_exclusive_claim_is_refused() -> None:
    """By the plan applier, whatever its scheduler believed."""
    world = cluster("n1", "n2")
    reads = (VolumeAsk(source="data", sticky=True, read_only=True),)
    reader = group(name="read", constraints=(RULE,), volumes=reads)
    world.do(register("app", sticky(1, ALONE), reader))
    plan = world.plan()
    one, other = plan.placements
    moved = msgspec.structs.replace(other, rows=one.rows)
    events = world.do(msgspec.structs.replace(plan, placements=(one, moved)))
    assert isinstance(events[0], PlanRefused)
    assert "is claimed by app.web[0]" in events[0].reason


def test_what_runs_an_older_version_keeps_to_its_claim() -> None:
    """Also where the newest version has no volumes: while its canary waits, what is lost comes back to its volume."""
    world = cluster("n1", "n2")
    policy = UpdatePolicy(max_parallel=1, canary=1)
    world.run(register("app", sticky(1, update=UpdatePolicy(max_parallel=1))))
    home = where(world)[0]
    bare = msgspec.structs.replace(sticky(1, digest="d2", update=policy), volumes=())
    world.run(register("app", bare, submission_id="2", salt=1))
    world.do(ChangeLiveness(node_ids=(NodeId(home),), status="down", seen_seq=world.state.seq))
    events = world.schedule()
    assert [one for one in events if isinstance(one, PlanRefused)] == []
    assert f"web[0] has its volume data on node {home}" in reasons(world)


def test_a_claim_in_use_is_not_released() -> None:
    """S75: refused with a code; one that does not exist is as the command wants it."""
    world = cluster("n1")
    world.run(register("app", sticky()))
    key: dict[str, Any] = {"request_id": "r", "job_id": JobId("app"), "group": "web"}
    (refused,) = world.do(ReleaseClaim(index=0, **key))
    assert isinstance(refused, OperatorRefused)
    assert refused.code == "conflict"
    assert world.do(ReleaseClaim(index=7, **key)) == []


def test_a_release_has_its_job_look_again() -> None:
    """What waits for a node that is away is placed anew, and claims there."""
    world = cluster("n1", "n2")
    world.run(register("app", sticky(1)))
    (home,) = where(world).values()
    world.do(stop("app"))
    world.schedule()
    end_all(world)
    world.do(DrainNode(request_id="d", node_id=home, draining=True, deadline_ns=world.now_ns))
    world.run(register("app", sticky(1), submission_id="2", salt=1))
    assert where(world) == {}
    events = world.do(ReleaseClaim(request_id="r", job_id=JobId("app"), group="web", index=0))
    assert isinstance(events[0], ClaimReleased)
    world.schedule()
    (now,) = where(world).values()
    assert now != home


def test_a_purge_frees_the_claims() -> None:
    """S74: with the job, once all of it has ended."""
    world = cluster("n1")
    world.run(register("app", sticky(1, ALONE)))
    world.do(stop("app", purge=True))
    world.schedule()
    end_all(world)
    assert world.state.claims.by_index == {}


@pytest.mark.parametrize("how", ["release", "purge", "collection"])
def test_the_end_of_a_claim_has_others_look_again(how: str) -> None:
    """What waits for the volume is of another job, and nothing else on the node becomes free then."""
    world = cluster("n1")
    world.run(register("app", sticky(1, ALONE)))
    world.do(stop("app"))
    world.schedule()
    end_all(world)
    world.run(register("other", sticky(1, ALONE)))
    assert where(world, "other") == {}
    if how == "release":
        release = ReleaseClaim(request_id="r", job_id=JobId("app"), group="web", index=0)
        events = world.do(release)
    elif how == "purge":
        events = world.do(stop("app", purge=True, submission_id="purge"))
    else:
        events = []
        for _ in ("allocations", "jobs"):
            some = decide_garbage(world.state, world.horizon, world.now_ns, everything=True)
            world.apply(*some)
            events += some
    assert world.state.claims.by_index == {}
    of_node = int(world.state.fleet.class_of[0])
    assert [one.classes for one in events if isinstance(one, CapacityFreed)] == [(of_node,)]


def test_a_plan_that_moves_a_claimed_index_is_refused() -> None:
    """By the plan applier, whatever its scheduler believed."""
    world = cluster("n1")
    world.run(register("app", sticky(1, ALONE)))
    world.do(stop("app"))
    world.schedule()
    end_all(world)
    world.do(join("n2", **HAS))
    world.do(register("app", sticky(1, ALONE), submission_id="2", salt=1))
    plan = world.plan()
    (one,) = plan.placements
    moved = msgspec.structs.replace(one, rows=(world.state.fleet.row_of["n2"],))
    events = world.do(msgspec.structs.replace(plan, placements=(moved,)))
    assert isinstance(events[0], PlanRefused)
    assert (events[0].code, "on node n1" in events[0].reason) == ("stale", True)


@pytest.mark.parametrize("node_id", ["n2", ""])
def test_the_invariant_sees_a_planted_bug(node_id: str) -> None:
    """An allocation beside its claim, or without one."""
    world = cluster("n1", "n2")
    world.run(register("app", sticky()))
    (key,) = world.state.claims.by_index
    (real,) = world.state.claims.by_index[key].values()
    other = "n1" if real.node_id == "n2" else "n2"
    planted = {"data": ClaimRow(other, 1)} if node_id else {}
    world.state.claims.by_index[key] = planted
    assert [one.invariant for one in check(world.state)] == ["claims"]
