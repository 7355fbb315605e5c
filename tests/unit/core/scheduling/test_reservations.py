"""Nodes held back: for whom, which, for how long; and what they offer to others meanwhile."""

from schemas.base import JobId
from schemas.evaluations import EvaluationsWoken, ReservationsChanged
from schemas.jobs import ResourceAsk
from schemas.nodes import CapacityFreed, ChangeLiveness, Pool, PoolDeclared
from schemas.policy import Policy, SetEligibility, SetPolicy
from shared.core.scheduling.reservations.gap import gap_limit
from tests.builders import Cluster, group, join, register, stop

WHOLE = 10_000


def filled(
    nodes: int = 2, policy: Policy | None = None, cpu_mhz: int = 300, sand: str = "batch"
) -> Cluster:
    """Nodes of 1,000 MHz, three jobs of `cpu_mhz` on each."""
    world = Cluster(policy=policy)
    world.do(*(join(f"n{at}", cpu_mhz=1000) for at in range(nodes)))
    world.run(register("sand", group(count=3 * nodes, cpu_mhz=cpu_mhz), job_type=sand))
    assert len(world.rows("sand")) == 3 * nodes
    return world


def held(world: Cluster) -> dict[str, tuple[int, ...]]:
    """Rows held back, by job."""
    found = world.state.reservations.by_job
    return {one.job_id: tuple(r for h in one.holds for r in h.rows) for one in found.values()}


def wait_class(world: Cluster, job_id: str) -> str:
    table = world.state.evaluations
    blocked = table.by_key[table.blocked_of[JobId(job_id)]].blocked
    assert blocked is not None
    return blocked.waiting["web"].wait_class


def end_one(world: Cluster, node: int) -> list:
    """One allocation of the sand on a node completes."""
    table = world.state.allocations
    row = next(row for row in world.rows("sand") if table.node[row] == node)
    return world.report(f"n{node}", (row, "complete"))


def test_what_fits_only_an_empty_node_holds_one_back() -> None:
    """A blocked job that a node could hold, empty, holds that node; who stands behind gets the gap at most."""
    world = filled()
    world.run(register("couch", group(cpu_mhz=900)))
    (row,) = held(world)["couch"]
    end_one(world, row)
    world.run(register("crumb", group(cpu_mhz=100)))
    assert world.nodes_of("crumb") == [f"n{1 - row}"]
    world.run(register("grain", group(cpu_mhz=300)))
    assert world.nodes_of("grain") == []
    assert wait_class(world, "grain") == "reservation"


def test_more_important_jobs_use_what_is_held() -> None:
    """A reservation binds only jobs behind its holder in the queue."""
    world = filled()
    world.run(register("couch", group(cpu_mhz=900)))
    (row,) = held(world)["couch"]
    end_one(world, row)
    world.run(register("urgent", group(cpu_mhz=400), priority=80))
    assert world.nodes_of("urgent") == [f"n{row}"]


def test_what_is_placed_lets_go() -> None:
    """A reservation ends with the plan that places its job; no job waits for less, and the freed room is announced."""
    world = filled()
    world.run(register("couch", group(cpu_mhz=900)))
    (row,) = held(world)["couch"]
    for _ in range(3):
        end_one(world, row)
    wake(world, "couch")
    events = world.schedule("couch")
    assert world.nodes_of("couch") == [f"n{row}"]
    assert held(world) == {}
    assert [type(event) for event in events[-2:]] == [ReservationsChanged, CapacityFreed]


def wake(world: Cluster, job_id: str) -> None:
    key = world.state.evaluations.blocked_of[JobId(job_id)]
    world.apply(EvaluationsWoken(keys=(key,)))


def test_what_is_stopped_lets_go() -> None:
    """A stopped job holds nothing once its stop was planned."""
    world = filled()
    world.run(register("couch", group(cpu_mhz=900)))
    world.do(stop("couch"))
    world.schedule("couch")
    assert held(world) == {}


def test_the_first_of_the_queue_hold_nodes() -> None:
    """Only so many hold nodes; one of higher priority takes the place of the last, who gets it back afterwards."""
    world = filled(policy=Policy(reservations_max=1))
    world.run(register("old", group(cpu_mhz=900)))
    world.run(register("young", group(cpu_mhz=900)))
    assert set(held(world)) == {"old"}
    world.run(register("urgent", group(cpu_mhz=900), priority=80))
    assert set(held(world)) == {"urgent"}
    world.do(stop("urgent"))
    world.schedule("urgent")
    assert set(held(world)) == {"old"}


def test_no_node_is_held_twice() -> None:
    """Jobs behind it in the queue reserve other nodes."""
    world = filled(nodes=3)
    for name in ("a", "b", "c", "d"):
        world.run(register(name, group(cpu_mhz=900)))
    rows = [row for some in held(world).values() for row in some]
    assert sorted(rows) == [0, 1, 2]


def test_nothing_is_held_where_nothing_ends() -> None:
    """Where services are in the way a node is not held back: it would stand half empty for nothing."""
    world = filled(sand="service")
    world.run(register("couch", group(cpu_mhz=900)))
    assert held(world) == {}
    assert wait_class(world, "couch") == "capacity"
    world.run(register("crumb", group(cpu_mhz=100)))
    assert len(world.nodes_of("crumb")) == 1


def test_what_never_fits_holds_nothing() -> None:
    """A job that no node could hold, even empty, delays no other job."""
    world = filled()
    world.run(register("whale", group(cpu_mhz=5000), priority=100))
    assert held(world) == {}
    assert wait_class(world, "whale") == "never_fits"


def test_a_node_that_goes_is_let_go_and_its_job_looks_for_another() -> None:
    """Nothing is held on a node that is down or closed; who waited for it is woken in the same transaction."""
    world = filled(nodes=3)
    world.run(register("couch", group(cpu_mhz=900)))
    (row,) = held(world)["couch"]
    key = world.state.evaluations.blocked_of[JobId("couch")]
    closed = SetEligibility(request_id="r", node_id=f"n{row}", eligible=False)
    assert world.do(closed)[-1].keys == (key,)
    world.schedule("couch")
    (other,) = held(world)["couch"]
    assert other != row
    seen = world.state.seq
    down = ChangeLiveness(node_ids=(f"n{other}",), status="down", reason="", seen_seq=seen)
    world.do(down)
    assert held(world) == {}


def test_a_policy_without_reservations_has_none() -> None:
    """reservations_max 0 lets go of everything, and everybody may try again."""
    world = filled()
    world.run(register("couch", group(cpu_mhz=900)))
    events = world.do(SetPolicy(request_id="r", policy=Policy(reservations_max=0)))
    assert held(world) == {}
    assert isinstance(events[-1], CapacityFreed)
    world.run(register("sofa", group(cpu_mhz=900)))
    assert held(world) == {}


def test_the_gap_is_what_is_left_beside_as_many_as_fit() -> None:
    """The gap: total - min(floor(total / H), waiting) * H - others, in every dimension, pools included."""
    world = Cluster()
    gpus = Pool(name="gpu", amount=8 * WHOLE)
    world.do(join("n0", cpu_mhz=10_000, memory_mib=10_000, pools=(gpus,)))
    three = ((ResourceAsk(pool="gpu", amount=3 * WHOLE),),)
    one = ((ResourceAsk(pool="gpu", amount=WHOLE),),)
    world.run(register("sand", group(count=8, cpu_mhz=100, alternatives=one), job_type="batch"))
    world.run(register("couch", group(count=2, cpu_mhz=1000, alternatives=three)))
    assert held(world) == {"couch": (0,)}
    grain = group(cpu_mhz=100, memory_mib=0, alternatives=one)
    world.do(register("grain", grain))
    job = world.state.jobs.by_id[JobId("grain")]
    room = gap_limit(world.state, world.state.allocations.held, job, grain, asks=one[0])
    assert room is not None
    # 8 GPUs hold two couches; of the two left others have eight.
    assert room.tolist() == [0]
    for row in world.rows("sand")[:7]:
        world.report("n0", (row, "complete"))
    room = gap_limit(world.state, world.state.allocations.held, job, grain, asks=one[0])
    assert room is not None and room.tolist() == [1]
    plain = group(cpu_mhz=1000, memory_mib=0)
    room = gap_limit(world.state, world.state.allocations.held, job, plain)
    # Who needs no GPU has the MHz beside two couches, minus what others run there.
    assert room is not None and room.tolist() == [(10_000 - 2 * 1000 - 100) // 1000]


def test_no_node_is_held_for_a_licence_or_a_port_that_a_service_keeps() -> None:
    """What lacks is not the node's, or does not end by itself: reserving nodes would help no job."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    world.apply(PoolDeclared(node_id="", pool=Pool(name="licence", amount=WHOLE)))
    licence = ((ResourceAsk(pool="licence"),),)
    world.run(register("first", group(alternatives=licence), job_type="batch"))
    world.run(register("second", group(alternatives=licence)))
    world.run(register("web", group(count=2, static_ports=(80,))))
    world.run(register("other", group(static_ports=(80,))))
    assert [wait_class(world, name) for name in ("second", "other")] == ["capacity"] * 2
    assert held(world) == {}


def test_a_node_is_held_for_a_port_that_a_batch_job_keeps() -> None:
    """Its holder ends by itself, and no job behind it takes the port then."""
    world = Cluster()
    world.do(join("n1"))
    world.run(register("first", group(static_ports=(80,)), job_type="batch"))
    world.run(register("second", group(static_ports=(80,))))
    assert held(world) == {"second": (0,)}
