"""The waiting list: who waits, in which place, why, and what would let it go."""

from schemas.base import JobId
from schemas.evaluation_answers import QueueLine
from schemas.nodes import NodeSpec, ReportNode
from shared.query.job_wait import PARKED, PENDING, evaluation_wait, job_wait
from shared.query.wait_queue import job_waits, waiting_lines
from tests.builders import Cluster, group, join, register


def crowd() -> Cluster:
    """One full node of 1,000 MHz; two alike that wait, one that never fits, one of another pool."""
    world = Cluster()
    world.do(join("n0", cpu_mhz=1000))
    world.run(register("sand", group(count=3, cpu_mhz=300), job_type="batch"))
    world.run(register("first", group(cpu_mhz=900)))
    world.do(register("second", group(cpu_mhz=900)))
    world.run(register("whale", group(cpu_mhz=9000), priority=90))
    world.run(register("other", group(cpu_mhz=10), node_pool="gpu"))
    return world


def lines(world: Cluster) -> dict[str, QueueLine]:
    return {one.job: one for one in waiting_lines(world.state, lambda _: 7)}


def test_every_waiting_group_has_class_place_and_reason() -> None:
    """Blocked and parked ones stand in one list; what fits nowhere has no place in it."""
    found = lines(crowd())
    shown = {job: (one.position, one.wait_class, one.n) for job, one in found.items()}
    assert shown == {
        "first": (1, "capacity", 1),
        "second": (2, "priority", 1),
        "whale": (0, "never_fits", 1),
        "other": (0, "misconfigured", 1),
    }
    assert found["second"].reasons == (
        "job 'first' is ahead of it in the queue for the same resources",
    )
    assert found["first"].nodes == ("n0",)
    assert {one.since_ns for one in found.values()} == {7}


def test_it_says_what_would_help() -> None:
    """Room on the nodes it may use, the job before it, or another node."""
    found = lines(crowd())
    assert found["first"].wakes == (
        "released capacity on any of 1 nodes",
        "a node of another class",
    )
    assert found["second"].wakes == ("capacity for job 'first'",)
    assert found["whale"].wakes == ("a larger node", "a node of another class")


def test_places_are_by_pool() -> None:
    """Each node pool has a line of its own."""
    world = crowd()
    spec = NodeSpec(node_id="g0", node_pool="gpu", cpu_mhz=1000, memory_mib=1000)
    world.do(ReportNode(node_id="g0", host_id="hg", boot_id="b", number=1, spec=spec))
    world.run(register("busy", group(count=2, cpu_mhz=500), node_pool="gpu"))
    world.run(register("late", group(cpu_mhz=800), node_pool="gpu"))
    found = lines(world)
    assert (found["late"].pool, found["late"].position) == ("gpu", 1)
    assert found["first"].position == 1


def test_what_is_placed_leaves_the_list() -> None:
    """A job without anything open is not on it."""
    world = crowd()
    assert "sand" not in lines(world)
    assert JobId("sand") not in world.state.evaluations.blocked_of


def test_a_parked_job_says_so_by_itself() -> None:
    """Queries for the job or its evaluation name the job ahead of it; an evaluation that is tried has none ahead."""
    world = crowd()
    jobs, table = world.state.jobs.by_id, world.state.evaluations
    evaluation = table.by_key[world.pending("second")]
    wait = evaluation_wait(world.state, evaluation)
    assert (wait.kind, wait.behind) == (PARKED, "first")
    (line,) = job_waits(job_wait(world.state, jobs[JobId("second")]))
    assert (line.group, line.n, line.wait_class) == ("web", 1, "priority")
    world.do(register("third", group(cpu_mhz=800)))
    wait = evaluation_wait(world.state, table.by_key[world.pending("third")])
    assert (wait.kind, wait.behind) == (PENDING, "")
    assert job_waits(job_wait(world.state, jobs[JobId("third")])) == ()
