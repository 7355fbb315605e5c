"""A redeploy keeps its own room: it is held for the replacement until that is placed, or cannot be."""

from typing import Any

import pytest

from schemas.base import JobId
from schemas.evaluations import EvaluationsWoken
from schemas.jobs import GroupSpec, ResourceAsk, UpdatePolicy
from schemas.nodes import CapacityFreed, ChangeLiveness, Instance, Pool, PoolDeclared
from schemas.policy import SetEligibility, StopAllocation
from tests.builders import Cluster, group, join, register, stop

WHOLE = 10_000
UPDATES = [None, UpdatePolicy(max_parallel=1), UpdatePolicy(max_parallel=3)]
#: What fills a node, by resource: fields of a group, and what a node offers.
ASKS: dict[str, dict[str, Any]] = {
    "memory": {"memory_mib": 600},
    "cpu": {"cpu_mhz": 600},
    "disk": {"disk_mib": 600},
    "static port": {"static_ports": (8080,)},
    "slots": {"alternatives": ((ResourceAsk(pool="gpu", amount=2 * WHOLE),),)},
    "sum": {"alternatives": ((ResourceAsk(pool="tapes", amount=2 * WHOLE),),)},
    "cores": {"cpu_mhz": 0, "alternatives": ((ResourceAsk(pool="cores", amount=2 * WHOLE),),)},
    "licence": {"alternatives": ((ResourceAsk(pool="licence", amount=WHOLE),),)},
}
POOLS = (
    Pool(name="gpu", instances=(Instance(id="g0"), Instance(id="g1"))),
    Pool(name="tapes", amount=3 * WHOLE),
    Pool(name="cores", instances=tuple(Instance(id=str(n)) for n in range(3))),
)


def cluster(nodes: int = 3) -> Cluster:
    world = Cluster()
    world.do(*(join(f"n{at}", pools=POOLS, core_mhz=100) for at in range(nodes)))
    licences = PoolDeclared(node_id="", pool=Pool(name="licence", amount=nodes * WHOLE))
    world.apply(licences)
    return world


def end(world: Cluster, *rows: int, status: str = "complete") -> list[Any]:
    """Nodes say that these ended, one after the other."""
    table, out = world.state.allocations, []
    for row in rows:
        out += world.report(world.state.fleet.ids[int(table.node[row])], (row, status))
    return out


def settle(world: Cluster) -> None:
    """Schedule what is pending, the oldest evaluation first: a job that waits longer comes before."""
    table = world.state.evaluations
    while ready := [key for key in table.open if table.by_key[key].status == "pending"]:
        job_id = table.by_key[ready[0]].job_id
        world.do(world.plan(job_id, key=ready[0]))


def wake_all(world: Cluster) -> None:
    """The broker tries all that is blocked, the oldest first."""
    table = world.state.evaluations
    keys = tuple(key for key in table.open if table.by_key[key].status == "blocked")
    if keys:
        world.apply(EvaluationsWoken(keys=keys))
    settle(world)


def redeployed(
    spec: dict[str, Any], update: UpdatePolicy | None = None, *, job_type: str = "service"
) -> tuple[Cluster, list[int]]:
    """A job on three nodes, a batch job of the same size that waits, and a new version of the first."""
    world = cluster()
    count = 1 if job_type == "system" else 3
    world.run(register("web", group(count=count, update=update, **spec), job_type=job_type))
    old = world.rows("web")
    assert len(old) == 3
    for row in old:
        world.report(
            world.state.fleet.ids[int(world.state.allocations.node[row])], (row, "running")
        )
    world.run(register("sand", group(count=3, **spec), job_type="batch"))
    assert world.rows("sand") == []
    world.do(
        register(
            "web",
            group(count=count, update=update, digest="d2", **spec),
            job_type=job_type,
            submission_id="2",
            salt=1,
        )
    )
    world.schedule("web")
    return world, old


@pytest.mark.parametrize("asks", ASKS)
def test_the_room_of_what_is_replaced_is_its_own(asks: str) -> None:
    """Three are stopped and end; the batch job that waited for longer gets none of their room, whatever it is of."""
    world, old = redeployed(ASKS[asks])
    assert world.rows("web") == []
    for row in old:
        events = end(world, row)
        assert not [one for one in events if isinstance(one, CapacityFreed)]
        wake_all(world)
    assert (len(world.rows("web")), world.rows("sand")) == (3, [])
    assert not world.state.allocations.predecessors
    end(world, *world.rows("web"))
    world.do(stop("web"))
    wake_all(world)
    assert len(world.rows("sand")) == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("job_type", ["service", "batch", "system"])
def test_whichever_ends_first(job_type: str, order: tuple[int, ...]) -> None:
    """Each end gives room to one replacement, which is named after the one that had it; nothing is cut."""
    world, old = redeployed({"memory_mib": 600}, job_type=job_type)
    table = world.state.allocations
    for nth, at in enumerate(order, 1):
        end(world, old[at])
        wake_all(world)
        new = world.rows("web")
        assert (len(new), world.rows("sand")) == (nth, [])
        pairs = {(table.previous[row], int(table.node[row])) for row in new}
        assert pairs == {(int(table.key[old[n]]), int(table.node[old[n]])) for n in order[:nth]}


@pytest.mark.parametrize("update", UPDATES[1:])
def test_a_rolling_update_keeps_its_room(update: UpdatePolicy) -> None:
    """The allocations that stop first because only their own room is left get it."""
    world, old = redeployed({"memory_mib": 600}, update)
    table = world.state.allocations
    stopped = [row for row in old if table.desired[row]]
    assert len(stopped) == update.max_parallel
    end(world, *stopped)
    wake_all(world)
    assert (len(world.rows("web")), world.rows("sand")) == (3, [])


def test_an_operator_who_stops_one_does_not_give_its_room_away() -> None:
    """`alloc stop` where only the own node has room: it comes back there."""
    world = cluster(1)
    world.run(register("web", group(memory_mib=600)))
    (row,) = world.rows("web")
    world.run(register("sand", group(memory_mib=600), job_type="batch"))
    world.do(StopAllocation(request_id="s", alloc_key=int(world.state.allocations.key[row])))
    settle(world)
    end(world, row)
    wake_all(world)
    assert (len(world.rows("web")), world.rows("sand")) == (1, [])


def test_the_end_wakes_the_job_itself() -> None:
    """Others hear of no room, and the blocked evaluation of the job is pending in the same transaction."""
    world, old = redeployed({"memory_mib": 600})
    blocked = world.state.evaluations.blocked_of[JobId("web")]
    events = end(world, old[0])
    (woken,) = [one for one in events if isinstance(one, EvaluationsWoken)]
    assert woken.keys == (blocked,)


def test_an_end_between_snapshot_and_plan_is_not_missed() -> None:
    """The plan blocks its job on a snapshot that did not show the end: the evaluation stays pending instead."""
    world, old = redeployed({"memory_mib": 600})
    end(world, old[0])
    plan = world.plan("web")
    end(world, old[1])
    world.do(plan)
    assert JobId("web") not in world.state.evaluations.blocked_of
    settle(world)
    assert len(world.rows("web")) == 2


def new_version(world: Cluster, spec: GroupSpec) -> None:
    world.do(register("web", spec, submission_id="3", salt=2))
    world.schedule("web")


@pytest.mark.parametrize("reason", ["too large", "closed", "stopped", "fewer"])
def test_a_room_that_cannot_be_used_is_given_up(reason: str) -> None:
    """A replacement that does not fit there, a closed node, a stop and a smaller count free the room for others."""
    world = cluster(1)
    world.run(register("web", group(memory_mib=600)))
    (row,) = world.rows("web")
    world.report("n0", (row, "running"))
    world.run(register("sand", group(memory_mib=600), job_type="batch"))
    size = 1_100 if reason == "too large" else 600
    world.do(register("web", group(memory_mib=size, digest="d2"), submission_id="2", salt=1))
    world.schedule("web")
    if reason == "closed":
        world.do(SetEligibility(request_id="e", node_id="n0", eligible=False))
    elif reason == "stopped":
        world.do(stop("web"))
    elif reason == "fewer":
        new_version(world, group(memory_mib=600, digest="d2", count=0))
    end(world, row)
    settle(world)
    if reason == "closed":
        world.do(SetEligibility(request_id="f", node_id="n0", eligible=True))
        assert not world.state.allocations.predecessors.rooms
        return
    wake_all(world)
    assert not world.state.allocations.predecessors.rooms
    assert len(world.rows("sand")) == 1


def test_what_is_lost_keeps_no_room() -> None:
    """A node that goes down takes the room of its predecessors with it; they are replaced elsewhere."""
    world, old = redeployed({"memory_mib": 600})
    table = world.state.allocations
    node = world.state.fleet.ids[int(table.node[old[0]])]
    down = ChangeLiveness(node_ids=(node,), status="down", reason="", seen_seq=world.state.seq)
    world.do(down)
    settle(world)
    assert not table.predecessors.rooms
    world.do(stop("sand"))
    world.do(join("n9"))
    wake_all(world)
    new = world.rows("web")
    assert [table.previous[row] for row in new] == [int(table.key[old[0]])]


def test_the_wait_for_the_own_room_is_told() -> None:
    """It is a class of its own, reserves no node, and says what it waits for."""
    world, _ = redeployed({"memory_mib": 600})
    table = world.state.evaluations
    blocked = table.by_key[table.blocked_of[JobId("web")]].blocked
    assert blocked is not None and not blocked.candidates
    waiting = blocked.waiting["web"]
    assert (waiting.count, waiting.wait_class) == (3, "predecessor")
    assert waiting.reasons == (
        "3 of its own allocations are to end first; their room is kept for it",
    )


@pytest.mark.parametrize("update", UPDATES)
def test_the_wait_for_ones_own_has_its_class(update: UpdatePolicy | None) -> None:
    """Whether all are stopped at once or one after the other: it waits for its predecessors, not for capacity."""
    world, _ = redeployed(ASKS["memory"], update)
    table = world.state.evaluations
    entry = table.by_key[table.blocked_of[JobId("web")]]
    assert entry.blocked is not None
    (why,) = entry.blocked.waiting.values()
    assert (why.wait_class, why.count) == (
        "predecessor",
        3 if update is None else update.max_parallel,
    )
