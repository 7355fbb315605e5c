"""Jobs that run on every node: which nodes get one, keep one, lose one; through place and the applier's decision."""

import msgspec
import numpy as np
import pytest

from schemas.base import NodeId
from schemas.evaluations import EndEvaluations, EvaluationsCreated
from schemas.jobs import Constraint, GroupSpec
from schemas.nodes import ChangeLiveness
from schemas.plans import PlanCommitted, Stops
from schemas.policy import SetEligibility
from shared.core.decide.garbage import decide_garbage, is_finished
from shared.core.state.tables.allocations import RUN
from tests.builders import Cluster, group, join, register, stop

SYSBATCH = {"job_type": "sysbatch"}
SYSTEM = {"job_type": "system"}


def cluster(*nodes: str) -> Cluster:
    world = Cluster()
    for name in nodes or ("n1", "n2", "n3"):
        world.do(join(name))
    return world


def down(world: Cluster, name: str) -> list:
    return world.do(ChangeLiveness(node_ids=(name,), status="down", seen_seq=world.state.seq))


def ready(world: Cluster, name: str) -> list:
    return world.do(ChangeLiveness(node_ids=(name,), status="ready", seen_seq=world.state.seq))


def created(events: list) -> list[tuple[str, str]]:
    return [
        (new.job_id, new.triggered_by)
        for event in events
        if isinstance(event, EvaluationsCreated)
        for new in event.evaluations
    ]


def reasons(events: list) -> list[str]:
    plan = next(event for event in events if isinstance(event, PlanCommitted))
    return [stop.reason for stop in plan.stops]


def settle(world: Cluster, job_id: str = "app") -> None:
    """Schedule until no evaluation of the job is pending."""
    table = world.state.evaluations
    for _ in range(10):
        keys = table.open_of.get(job_id, {})
        if not any(table.by_key[k].status == "pending" for k in keys):
            return
        world.schedule(job_id)
    raise AssertionError("evaluations without an end")


def test_every_feasible_ready_node_gets_one() -> None:
    """One allocation a node; what a constraint refuses is not desired, and no allocation waits for it."""
    world = cluster("n1", "n2")
    world.do(join("n3", attributes={"kernel.name": "windows"}))
    only = Constraint(left="${attr.kernel.name}", operator="is_not_set")
    world.run(register("app", group(constraints=(only,)), **SYSTEM))
    assert world.nodes_of() == ["n1", "n2"]
    assert "app" not in world.state.evaluations.blocked_of
    assert world.state.allocations.index[world.rows()].tolist() == [0, 0]


def test_a_new_node_gets_one() -> None:
    """A registration evaluates the jobs that may want the node, and no others."""
    world = cluster("n1")
    world.run(register("app", **SYSTEM))
    world.run(register("web"))
    world.run(register("far", datacenters=("elsewhere",), **SYSTEM))
    assert created(world.do(join("n2"))) == [("app", "node-update")]
    settle(world)
    assert world.nodes_of() == ["n1", "n2"]


def test_a_burst_of_nodes_is_a_handful_of_evaluations() -> None:
    """While one evaluation is pending no more are made; the plan that ends it sees to the nodes that came after it."""
    world = cluster("n0")
    world.run(register("app", **SYSTEM))
    world.do(join("n1"))
    plan = world.plan()
    made = [one for n in range(2, 60) for one in created(world.do(join(f"n{n}")))]
    assert made == []
    assert created(world.do(plan)) == [("app", "node-update")]
    assert created(world.schedule()) == []
    assert len(world.nodes_of()) == 60


def test_a_canceled_evaluation_forgets_no_node_that_came_while_it_was_pending() -> None:
    """The broker cancels what a plan has seen; a node that came after that plan gets an evaluation of its own."""
    world = cluster("n0")
    world.run(register("app", **SYSTEM))
    world.do(join("n1"))
    (first,) = world.state.evaluations.open_of["app"]
    cancel = EndEvaluations(keys=(first,), status="canceled", reason="superseded")
    assert created(world.do(join("n2"))) == []
    assert created(world.do(cancel)) == [("app", "node-update")]
    (second,) = world.state.evaluations.open_of["app"]
    again = EndEvaluations(keys=(second,), status="canceled", reason="superseded")
    assert created(world.do(again)) == []


def test_an_exhausted_node_waits_and_is_told() -> None:
    """A feasible node without room blocks with its number; the others are placed; room wakes it."""
    world = cluster("n1", "n2")
    world.run(register("web", group(count=1, cpu_mhz=950)))
    full = world.nodes_of("web")[0]
    world.run(register("app", group(cpu_mhz=100), **SYSTEM))
    assert full not in world.nodes_of() and len(world.nodes_of()) == 1
    key = world.state.evaluations.blocked_of["app"]
    waiting = world.state.evaluations.by_key[key].blocked.waiting["web"]
    assert (waiting.count, waiting.wait_class) == (1, "capacity")
    assert waiting.reasons == ("cpu exhausted on 1 of 1 nodes",)


def test_a_node_that_is_too_small_never_fits() -> None:
    """Where no node is large enough even empty, the class says so."""
    world = cluster("n1")
    world.run(register("app", group(cpu_mhz=5000), **SYSTEM))
    key = world.state.evaluations.blocked_of["app"]
    assert world.state.evaluations.by_key[key].blocked.waiting["web"].wait_class == "never_fits"


def test_a_dead_node_loses_its_own_and_nobody_else_gets_it() -> None:
    """What runs on a node that is down is lost, not replaced elsewhere; the node gets one when it is back."""
    world = cluster("n1", "n2")
    world.run(register("app", **SYSTEM))
    down(world, "n1")
    settle(world)
    assert world.nodes_of() == ["n2"] and "app" not in world.state.evaluations.blocked_of
    ready(world, "n1")
    settle(world)
    assert world.nodes_of() == ["n1", "n2"]


def test_an_ineligible_node_keeps_its_own_until_the_job_changes() -> None:
    """Nothing new goes there; another digest stops what it has, the same one continues in place."""
    world = cluster("n1", "n2")
    world.run(register("app", **SYSTEM))
    world.do(SetEligibility(request_id="r", node_id="n1", eligible=False))
    world.run(register("app", salt=1, submission_id="s2", **SYSTEM))
    assert world.nodes_of() == ["n1", "n2"]
    world.run(register("app", group(digest="d2"), salt=2, submission_id="s3", **SYSTEM))
    assert world.nodes_of() == ["n2"]
    events = world.do(SetEligibility(request_id="r", node_id="n1", eligible=True))
    assert created(events) == [("app", "node-update")]
    settle(world)
    assert world.nodes_of() == ["n1", "n2"]


def test_a_node_that_leaves_the_datacenter_loses_its_own() -> None:
    """A fingerprint that does not match any more stops the allocation there."""
    world = cluster("n1", "n2")
    world.run(register("app", datacenters=("dc1",), **SYSTEM))
    events = world.do(join("n1", number=2, boot="b2", datacenter="dc9"))
    assert created(events) == [("app", "node-update")]
    assert reasons(world.schedule()) == ["node is not feasible any more"]
    assert world.nodes_of() == ["n2"]


def test_a_driver_that_is_away_takes_nothing_from_what_runs() -> None:
    """An engine that does not answer for a while is no reason to stop its tasks; nothing new goes there meanwhile."""
    there = {"driver.docker": "1"}
    world = Cluster()
    world.do(join("n1", attributes=there))
    world.do(join("n2", attributes=there))
    world.run(register("app", group(drivers=("docker",)), **SYSTEM))
    key = int(world.state.allocations.key[world.rows()][0])
    world.do(join("n1", number=2, attributes={"driver.docker.version": "20"}))
    world.do(join("n3", attributes={}))
    settle(world)
    assert world.nodes_of() == ["n1", "n2"]
    assert key in world.state.allocations.key[world.rows()].tolist()
    world.do(join("n3", number=2, attributes=there))
    settle(world)
    assert world.nodes_of() == ["n1", "n2", "n3"]


def test_another_digest_replaces_on_the_same_node_and_the_same_one_goes_on() -> None:
    """Destructive: stop and place on the node, linked. In place: nothing stops."""
    world = cluster("n1", "n2")
    world.run(register("app", group(cpu_mhz=100), **SYSTEM))
    before = {int(world.state.allocations.node[r]): r for r in world.rows()}
    world.run(register("app", group(cpu_mhz=100), salt=1, submission_id="s2", **SYSTEM))
    assert sorted(before.values()) == world.rows()
    world.run(register("app", group(digest="d2"), salt=2, submission_id="s3", **SYSTEM))
    table = world.state.allocations
    for row in world.rows():
        assert table.previous[row] == int(table.key[before[int(table.node[row])]])
    assert len(world.rows()) == 2


def test_a_failed_one_is_not_rescheduled_but_placed_with_the_next_evaluation() -> None:
    """No evaluation is made for a system job's failure; any other finds that its node misses one."""
    world = cluster("n1")
    world.run(register("app", **SYSTEM))
    row = world.rows()[0]
    assert created(world.report("n1", (row, "failed"))) == []
    world.do(join("n2"))
    settle(world)
    assert world.nodes_of() == ["n1", "n2"]


@pytest.mark.parametrize("status", ["complete", "failed"])
def test_a_sysbatch_that_ended_stays_ended_until_another_version(status: str) -> None:
    """It runs once a node, however it ends; another version of the same digest runs again."""
    world = cluster("n1", "n2")
    world.run(register("app", **SYSBATCH))
    for row in world.rows():
        name = world.state.fleet.ids[int(world.state.allocations.node[row])]
        assert created(world.report(name, (row, status))) == []
    assert is_finished(world.state, world.state.jobs.by_id["app"])
    world.do(join("n3"))
    settle(world)
    assert world.nodes_of() == ["n3"]
    world.run(register("app", salt=1, submission_id="s2", **SYSBATCH))
    assert world.nodes_of() == ["n1", "n2", "n3"]


def test_what_a_dead_node_did_not_finish_runs_again_there() -> None:
    """A lost sysbatch allocation did not end: its node runs it when it is back."""
    world = cluster("n1")
    world.run(register("app", **SYSBATCH))
    down(world, "n1")
    settle(world)
    assert world.nodes_of() == []
    ready(world, "n1")
    settle(world)
    assert world.nodes_of() == ["n1"]


def test_a_sysbatch_count_is_per_node_and_names_are_per_node() -> None:
    """Count 3 is three on every node, named 0 to 2 there; a lower count stops the highest."""
    world = cluster("n1", "n2")
    world.run(register("app", group(count=3), **SYSBATCH))
    assert world.nodes_of() == ["n1"] * 3 + ["n2"] * 3
    table = world.state.allocations
    assert sorted(table.index[world.rows()].tolist()) == [0, 0, 1, 1, 2, 2]
    world.run(register("app", group(count=1), salt=1, submission_id="s2", **SYSBATCH))
    assert table.index[world.rows()].tolist() == [0, 0] and world.nodes_of() == ["n1", "n2"]


def test_a_node_with_room_for_some_gets_some() -> None:
    """What of a per-node count has no room is what waits."""
    world = cluster("n1")
    world.run(register("app", group(count=3, cpu_mhz=400), **SYSBATCH))
    assert world.nodes_of() == ["n1"] * 2
    key = world.state.evaluations.blocked_of["app"]
    assert world.state.evaluations.by_key[key].blocked.waiting["web"].count == 1


def test_a_free_name_between_is_used_again() -> None:
    """On a node the lowest free names come first."""
    world = cluster("n1")
    job = register("app", group(count=3), **SYSBATCH)
    world.run(job)
    table = world.state.allocations
    middle = next(row for row in world.rows() if table.index[row] == 1)
    world.do(msgspec.structs.replace(job, submission_id="again"))
    world.do(world.plan(placements=(), stops=(Stops(rows=(middle,)),)))
    world.do(msgspec.structs.replace(job, submission_id="and again"))
    settle(world)
    assert sorted(table.index[world.rows()].tolist()) == [0, 1, 2] and middle not in world.rows()


def test_a_stopped_job_stops_everywhere_and_new_nodes_do_not_ask() -> None:
    """After a stop nothing is wanted, and a node that comes makes no evaluation."""
    world = cluster("n1", "n2")
    world.run(register("app", **SYSTEM))
    world.do(stop("app"))
    world.schedule()
    assert world.rows() == []
    assert created(world.do(join("n3"))) == []


def test_what_is_done_of_a_live_sysbatch_is_not_forgotten() -> None:
    """Forgetting a finished allocation would run it again."""
    world = cluster("n1", "n2")
    world.run(register("app", **SYSBATCH))
    row = world.rows()[0]
    name = world.state.fleet.ids[int(world.state.allocations.node[row])]
    world.report(name, (row, "complete"))
    world.later(1e6)
    for event in decide_garbage(world.state, world.horizon, world.now_ns):
        world.apply(event)
    world.do(join("n3"))
    settle(world)
    assert world.state.allocations.client[row] == 2 and name not in world.nodes_of()


def test_a_job_of_ten_thousand_nodes_is_one_plan() -> None:
    """All nodes in one placement, within what a record takes."""
    world = Cluster()
    for first in range(0, 10_000, 500):
        world.do(*(join(f"n{first + n}") for n in range(500)))
    world.do(register("app", **SYSTEM))
    proposal = world.propose()
    assert sum(sum(one.counts) for one in proposal.placements) == 10_000
    assert proposal.follow_ups == ()


# ---- against a scalar model ----


def desired(world: Cluster, job_groups: tuple[GroupSpec, ...], node: NodeId, used: int) -> int:
    """How many a node must hold: the ten lines that the vectors must agree with."""
    row = world.state.fleet.row_of[node]
    spec = world.state.fleet.specs[row]
    if not world.state.fleet.ready()[row] or spec.attributes.get("zone") != "a":
        return 0
    (one,) = job_groups
    count = 0
    while count < one.count and used + one.cpu_mhz <= spec.cpu_mhz:
        used += one.cpu_mhz
        count += 1
    return count


@pytest.mark.parametrize("seed", range(25))
def test_random_fleets_agree_with_the_scalar_model(seed: int) -> None:
    """On fleets of any shape, load, status and eligibility each node holds what the model says, through changes."""
    draw = np.random.default_rng(seed)
    world = Cluster()
    names = [f"n{n}" for n in range(int(draw.integers(1, 12)))]
    for name in names:
        zone = {"zone": "a"} if draw.random() < 0.7 else {}
        world.do(join(name, cpu_mhz=int(draw.integers(100, 1000)), attributes=zone))
    world.run(register("load", group(count=int(draw.integers(0, 6)), cpu_mhz=150)))
    kind = ("system", "sysbatch")[int(draw.integers(2))]
    most = 1 if kind == "system" else 3
    for step in range(4):
        for name in names:
            luck = draw.random()
            if luck < 0.15:
                down(world, name)
            elif luck < 0.3:
                ready(world, name)
            elif luck < 0.45:
                eligible = bool(draw.integers(2))
                world.do(SetEligibility(request_id="r", node_id=name, eligible=eligible))
        one = group(
            count=int(draw.integers(1, most + 1)),
            cpu_mhz=int(draw.integers(50, 300)),
            digest=f"d{step}",
            constraints=(Constraint(left="${attr.zone}", right="a"),),
        )
        world.do(stop("app", submission_id=f"x{step}"))
        if step:
            settle(world)
            table = world.state.allocations
            for row in table.rows_of("app").tolist():
                name = world.state.fleet.ids[int(table.node[row])]
                if table.client[row] < 2:
                    world.report(name, (row, "complete"))
        settle(world, "load")
        used = world.state.allocations.held.used[:, 0].copy()
        world.do(register("app", one, job_type=kind, salt=step, submission_id=f"s{step}"))
        settle(world)
        table = world.state.allocations
        held = dict.fromkeys(names, 0)
        for row in table.rows_of("app").tolist():
            if table.desired[row] == RUN and table.client[row] < 2:
                held[world.state.fleet.ids[int(table.node[row])]] += 1
        rows = world.state.fleet.row_of
        assert held == {n: desired(world, (one,), NodeId(n), int(used[rows[n]])) for n in names}


def test_a_node_that_came_behind_the_snapshot_is_looked_at_next() -> None:
    """A plan made before a node came ends its evaluation, and another one follows that sees the node."""
    cluster = Cluster()
    cluster.do(join("n1"))
    cluster.do(register("mon", group("g"), job_type="system"))
    seen = cluster.propose("mon")
    snapshot_seq = cluster.state.seq
    cluster.do(join("n2"))
    command = cluster.plan("mon", placements=seen.placements, end="complete")
    origin = msgspec.structs.replace(command.origin, snapshot_seq=snapshot_seq)
    cluster.do(msgspec.structs.replace(command, origin=origin))
    assert cluster.nodes_of("mon") == ["n1"]
    cluster.schedule("mon")
    assert cluster.nodes_of("mon") == ["n1", "n2"]
    open_ones = [one for one in cluster.state.evaluations.by_key.values() if one.is_open]
    assert not open_ones
