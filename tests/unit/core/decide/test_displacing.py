"""What an operator does to what runs: drain, meta and stop, as facts and in what the next plans make of them."""

import pytest

from schemas.allocations import CLIENT_STATUSES, AllocationsDisplaced
from schemas.evaluations import EvaluationsCreated, WakeEvaluations
from schemas.jobs import Constraint
from schemas.nodes import NodeDrainChanged, NodeMetaChanged
from schemas.plans import PlanCommitted
from schemas.policy import DrainNode, OperatorRefused, SetEligibility, SetNodeMeta, StopAllocation
from tests.builders import SECOND, Cluster, group, join, register, stop

SYSTEM = {"job_type": "system"}


def cluster(*nodes: str) -> Cluster:
    world = Cluster()
    for name in nodes or ("n1", "n2"):
        world.do(join(name))
    return world


def reasons(events: list) -> list[str]:
    """Why the plans stopped what they stopped."""
    plans = [event for event in events if isinstance(event, PlanCommitted)]
    return [stop.reason for plan in plans for stop in plan.stops]


def settle(world: Cluster) -> list:
    """Schedule until nothing is pending; returns all events."""
    out: list = []
    table = world.state.evaluations
    while ready := [
        one
        for one in (table.by_key[key] for key in table.open)
        if one.status == "pending" and one.wait_until_ns <= 0
    ]:
        out += world.do(world.plan(ready[0].job_id, key=ready[0].key))
    return out


def every(world: Cluster) -> list[int]:
    """Rows of all jobs that are to run and did not end."""
    table = world.state.allocations
    return [row for job in sorted(table.by_job) for row in world.rows(job)]


def nodes_of(world: Cluster) -> list[str]:
    table = world.state.allocations
    return sorted(world.state.fleet.ids[int(table.node[row])] for row in every(world))


def drain(world: Cluster, node: str, after_s: int = 10, *, draining: bool = True) -> list:
    at_ns = world.now_ns + after_s * SECOND if draining else 0
    command = DrainNode(request_id="r", node_id=node, draining=draining, deadline_ns=at_ns)
    return world.do(command)


def stop_one(world: Cluster, row: int) -> list:
    key = int(world.state.allocations.key[row])
    return world.do(StopAllocation(request_id="r", alloc_key=key))


def wake_due(world: Cluster) -> None:
    """Let the delayed evaluations come whose time it is."""
    table = world.state.evaluations
    keys = [k for k in table.open if 0 < table.by_key[k].wait_until_ns <= world.now_ns]
    world.do(WakeEvaluations(keys=tuple(keys), reason="due"))


def end(world: Cluster, row: int) -> list:
    """The node reports that an allocation ended as ordered."""
    node = world.state.fleet.ids[int(world.state.allocations.node[row])]
    return world.report(node, (row, "complete"))


# ---- alloc stop ----


def test_a_stopped_allocation_is_replaced_under_its_name() -> None:
    """Alloc stop marks one row and makes an evaluation; the plan stops it and places its successor."""
    world = cluster()
    world.run(register("app", group(count=3)))
    row = every(world)[1]
    name = int(world.state.allocations.index[row])
    created = [one for one in stop_one(world, row) if isinstance(one, EvaluationsCreated)]
    assert [one.triggered_by for made in created for one in made.evaluations] == ["alloc-stop"]
    assert reasons(settle(world)) == ["stopped by an operator"]
    table = world.state.allocations
    assert row not in every(world) and len(every(world)) == 3
    assert sorted(table.index[every(world)].tolist()) == [0, 1, 2]
    heir = next(one for one in every(world) if int(table.index[one]) == name)
    assert table.previous[heir] == int(table.key[row])
    assert not table.displaced


def test_a_stop_said_twice_is_one_fact() -> None:
    """Natural key: the command that comes again while the mark stands makes nothing."""
    world = cluster()
    world.run(register("app"))
    row = every(world)[0]
    assert stop_one(world, row)
    assert stop_one(world, row) == []


def test_what_ends_or_is_unknown_is_not_stopped() -> None:
    """There is nothing to do for what ends anyhow; what is not there is refused."""
    world = cluster()
    world.run(register("app"))
    row = every(world)[0]
    unknown = world.do(StopAllocation(request_id="r", alloc_key=12345))
    assert isinstance(unknown[0], OperatorRefused) and unknown[0].code == "not_found"
    stop_one(world, row)
    settle(world)
    assert stop_one(world, row) == []


@pytest.mark.parametrize("job", [{}, SYSTEM])
def test_an_accepted_stop_holds_when_the_stopped_job_is_registered_again(job: dict) -> None:
    """The job's stop would have ended the allocation; the job that returns first replaces it (seed 319013608)."""
    world = cluster("n1")
    world.run(register("app", **job))
    row = every(world)[0]
    world.do(stop("app"))
    assert [type(one) for one in stop_one(world, row)] == [AllocationsDisplaced]
    assert stop_one(world, row) == []
    world.do(register("app", submission_id="again", **job))
    assert reasons(settle(world)) == ["stopped by an operator"]
    assert row not in every(world) and len(every(world)) == 1


def test_a_stopped_system_allocation_comes_back_on_its_node() -> None:
    """Its node still wants one."""
    world = cluster()
    world.run(register("app", **SYSTEM))
    row = every(world)[0]
    node = int(world.state.allocations.node[row])
    stop_one(world, row)
    assert reasons(settle(world)) == ["stopped by an operator"]
    nodes = [int(world.state.allocations.node[one]) for one in every(world)]
    assert sorted(nodes) == [0, 1] and node in nodes and row not in every(world)


def test_the_mark_is_in_the_hash() -> None:
    """A replica that missed the mark is found out at the next checkpoint."""
    world = cluster()
    world.run(register("app"))
    before = world.state.allocations.digest()
    stop_one(world, every(world)[0])
    assert world.state.allocations.digest() != before


# ---- node drain ----


def test_a_drained_node_takes_nothing_and_keeps_what_it_has() -> None:
    """Before the deadline nothing is stopped; what is new goes elsewhere."""
    world = cluster()
    world.run(register("app", group(count=2)))
    drain(world, "n1")
    settle(world)
    world.run(register("other", group(count=2)))
    assert len(every(world)) == 4
    assert nodes_of(world).count("n1") <= 1
    assert reasons(settle(world)) == []


def test_at_the_deadline_what_runs_there_is_placed_elsewhere() -> None:
    """Each job of the node gets an evaluation that waits for the deadline; then it moves."""
    world = cluster()
    world.run(register("app", group(count=4)))
    events = drain(world, "n1")
    created = [one for one in events if isinstance(one, EvaluationsCreated)]
    waits = [one.wait_until_ns for made in created for one in made.evaluations]
    assert waits == [world.now_ns + 10 * SECOND]
    world.now_ns += 11 * SECOND
    wake_due(world)
    assert set(reasons(settle(world))) == {"its node is drained"}
    assert set(nodes_of(world)) == {"n2"} and len(every(world)) == 4


def test_a_forced_drain_is_due_at_once() -> None:
    """A deadline of now makes evaluations that do not wait."""
    world = cluster()
    world.run(register("app", group(count=2)))
    drain(world, "n1", 0)
    settle(world)
    assert set(nodes_of(world)) == {"n2"}


def test_a_drain_without_deadline_stops_nothing() -> None:
    """It only keeps what is new away, for as long as it likes."""
    world = cluster()
    world.run(register("app", group(count=4)))
    world.do(DrainNode(request_id="r", node_id="n1", draining=True))
    world.now_ns += 3600 * SECOND
    assert settle(world) == []
    assert "n1" in nodes_of(world)


def test_system_jobs_leave_last() -> None:
    """They go once nothing else lives on the node, and are not placed again on a node that takes nothing."""
    world = cluster()
    world.run(register("app", group(count=2)))
    world.run(register("logs", **SYSTEM))
    drain(world, "n1", 0)
    settle(world)
    table = world.state.allocations

    def on_n1() -> list[int]:
        return [row for row in every(world) if int(table.node[row]) == 0]

    assert [table.groups.job_ids[int(table.group[row])] for row in on_n1()] == ["logs"]
    leaving = [
        row
        for row in range(table.size)
        if int(table.node[row]) == 0 and row not in every(world) and table.key[row]
    ]
    for row in leaving:
        assert CLIENT_STATUSES[table.client[row]] == "pending"
        end(world, row)
    assert reasons(settle(world)) == ["its node is drained"]
    assert on_n1() == []


def test_a_node_with_system_jobs_alone_is_emptied_at_its_deadline() -> None:
    """There is nothing to wait for."""
    world = cluster()
    world.run(register("logs", **SYSTEM))
    drain(world, "n1", 0)
    settle(world)
    assert nodes_of(world) == ["n2"]


def test_a_drain_that_ends_makes_the_node_eligible() -> None:
    """Who waits for room, and system jobs, look again."""
    world = cluster()
    world.run(register("logs", **SYSTEM))
    drain(world, "n1", 0)
    settle(world)
    refused = world.do(SetEligibility(request_id="r", node_id="n1", eligible=True))
    assert isinstance(refused[0], OperatorRefused) and refused[0].code == "conflict"
    drain(world, "n1", draining=False)
    settle(world)
    assert nodes_of(world) == ["n1", "n2"]
    assert drain(world, "n1", draining=False) == []


def test_a_drain_outlives_its_node_registering_again() -> None:
    """A restarted agent on a drained node gets nothing new."""
    world = cluster()
    drain(world, "n1")
    world.do(join("n1", number=2, boot="b2"))
    world.run(register("app", group(count=2)))
    assert set(nodes_of(world)) == {"n2"}


def test_a_drain_said_twice_is_one_fact() -> None:
    """Natural key: node and deadline; another deadline is another fact."""
    world = cluster("n1")
    world.run(register("app", group()))
    assert any(isinstance(one, NodeDrainChanged) for one in drain(world, "n1"))
    assert drain(world, "n1") == []
    assert any(isinstance(one, NodeDrainChanged) for one in drain(world, "n1", 20))


# ---- node meta ----


def say(world: Cluster, node: str, **change: str | None) -> list:
    return world.do(SetNodeMeta(request_id="r", node_id=node, change=change))


def test_constraints_see_what_an_operator_says() -> None:
    """A job that waits for such a node is placed there once one is said to be it."""
    world = cluster()
    wanted = Constraint(left="${meta.rack}", operator="=", right="r7")
    world.run(register("app", group(constraints=(wanted,))))
    assert every(world) == []
    say(world, "n2", rack="r7")
    key = world.state.evaluations.blocked_of["app"]
    world.do(WakeEvaluations(keys=(key,), reason="room"))
    settle(world)
    assert nodes_of(world) == ["n2"]


def test_what_is_said_stays_when_the_agent_registers_again() -> None:
    """The operator's word is laid over whatever the agent says, a key that is taken out too."""
    world = Cluster()
    world.do(join("n1", meta={"rack": "r1", "tier": "gold"}))
    say(world, "n1", rack="r7", tier=None)
    fleet = world.state.fleet
    assert fleet.shown(0).meta == {"rack": "r7"}
    world.do(join("n1", number=2, boot="b2", meta={"rack": "r2", "tier": "gold", "os": "x"}))
    assert fleet.shown(0).meta == {"os": "x", "rack": "r7"}
    assert fleet.specs[0].meta["rack"] == "r2"


def test_what_changes_nothing_is_no_fact() -> None:
    """Natural key: node, key and value."""
    world = cluster()
    assert any(isinstance(one, NodeMetaChanged) for one in say(world, "n1", rack="r7"))
    assert say(world, "n1", rack="r7") == []
    assert say(world, "n1", other=None) == []
    assert any(isinstance(one, NodeMetaChanged) for one in say(world, "n1", rack=None))
    assert world.state.fleet.operator_meta == {}


def test_bad_meta_is_refused() -> None:
    """A key with blanks, a value without end, more keys than an operator may say."""
    world = cluster()
    for change in ({"a b": "x"}, {"a": "x" * 501}, {f"k{n}": "x" for n in range(101)}):
        events = world.do(SetNodeMeta(request_id="r", node_id="n1", change=change))
        assert isinstance(events[0], OperatorRefused) and events[0].code == "invalid"
