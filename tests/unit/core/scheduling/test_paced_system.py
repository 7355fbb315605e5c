"""Pace and canaries of jobs that run on every node, after the scenarios of Nomad's reconciler."""

import pytest

from schemas.jobs import Constraint, UpdatePolicy
from schemas.nodes import ChangeLiveness
from schemas.policy import SetEligibility
from tests.builders import group, join
from tests.unit.core.scheduling.rollout import Rollout

CHANGED, UNPROMOTED = "job changed", "canary that was not promoted"
PLAIN = UpdatePolicy(max_parallel=2)


def everywhere(
    nodes: int = 10, *, update: UpdatePolicy | None = PLAIN, job_type: str = "system"
) -> Rollout:
    """A system job, healthy on every node in its old version."""
    world = Rollout(nodes=nodes, job_type=job_type)
    world.old(1, update=update)
    assert len(world.rows()) == nodes
    return world


def nodes_of(world: Rollout, version: int) -> list[int]:
    """Fleet rows on which a version runs, sorted."""
    return sorted(world.table.node[world.rows(version)].tolist())


def stopped(done: object) -> int:
    """How many changed allocations a pass stopped."""
    return len(done.stopped.get(CHANGED, ()))  # type: ignore[attr-defined]


def test_s1_new_dead_and_ineligible_nodes() -> None:
    """S1: a new node is filled, one that is down or ineligible is not."""
    world = everywhere(2)
    world.world.do(join("new"), join("down"), join("shut"))
    world.world.do(
        ChangeLiveness(node_ids=("down",), status="down", seen_seq=world.world.state.seq)
    )
    world.world.do(SetEligibility(request_id="r", node_id="shut", eligible=False))
    world.look()
    names = [world.world.state.fleet.ids[at] for at in nodes_of(world, 0)]
    assert names == ["n00", "n01", "new"]


@pytest.mark.parametrize(("digest", "left"), [("old", 1), ("new", 0)])
def test_s2_an_ineligible_node(digest: str, left: int) -> None:
    """S2: its allocation stays until the job changes, and then stops outside the pace."""
    world = everywhere(1)
    world.world.do(SetEligibility(request_id="r", node_id="n00", eligible=False))
    world.register(digest, count=1, update=PLAIN)
    world.look()
    assert len(world.rows()) == left


def test_s3_only_groups_with_an_update_are_paced() -> None:
    """S3: two of a, all of b; once these are healthy two more of a."""
    world = Rollout(nodes=10, job_type="system")
    for digest in ("old", "new"):
        world.register_groups(group("a", digest=digest, update=PLAIN), group("b", digest=digest))
        world.look()
        if digest == "old":
            world.say(1, world.rows())
            world.end("successful")
    new = [world.group_of(row) for row in world.rows(1)]
    assert (new.count("a"), new.count("b")) == (2, 10)
    assert world.deployment.groups[0].desired_total == 10
    assert stopped(world.look()) == 0
    world.say(1, [row for row in world.rows(1) if world.group_of(row) == "a"])
    assert stopped(world.look()) == 2


def test_s4_failed_ones_come_back_and_block() -> None:
    """S4: two failed new ones are placed again; unlike in Nomad, nothing else is replaced meanwhile."""
    world = everywhere()
    world.register("new", count=1, update=PLAIN)
    world.look()
    world.say(2, world.rows(1))
    world.fail(world.rows(1))
    done = world.look()
    assert len(done.placed) == 2 and not stopped(done)
    assert len(world.rows(0)) == 8


def test_an_unhealthy_one_that_runs_blocks_too() -> None:
    """Nothing more is replaced while one of the new ones is unhealthy."""
    world = everywhere()
    world.register("new", count=1, update=PLAIN)
    world.look()
    first, second = world.rows(1)
    world.say(1, [first])
    assert stopped(world.look()) == 1
    world.say(2, [second])
    world.say(1, [row for row in world.rows(1) if not world.table.health[row]])
    assert stopped(world.look()) == 0


def test_s5_empty_nodes_are_filled_at_once() -> None:
    """S5: two of five old ones are replaced, and five empty nodes filled beside the pace."""
    world = everywhere(5)
    for at in range(5):
        world.world.do(join(f"m{at}"))
    world.register("new", count=1, update=PLAIN)
    done = world.look()
    assert stopped(done) == 2 and len(done.placed) == 7
    assert world.deployment.groups[0].desired_total == 10


@pytest.mark.parametrize(
    ("percent", "max_parallel", "wanted"),
    [pytest.param(30, 2, 2, id="S6 capped"), (30, 3, 3), (100, 10, 10), (1, 5, 1)],
)
def test_s6_canaries_are_a_part_of_the_nodes(percent: int, max_parallel: int, wanted: int) -> None:
    """S6, S12: a part of the nodes gets canaries, at most max_parallel, and waits for promotion."""
    update = UpdatePolicy(max_parallel=max_parallel, canary=percent)
    world = everywhere(update=update)
    world.register("new", count=1, update=update)
    done = world.look()
    assert len(done.placed) == stopped(done) == wanted and all(one[2] for one in done.placed)
    assert world.deployment.groups[0].desired_canaries == wanted
    again = world.look()
    assert not again.placed and not again.stopped


def test_s7_a_failed_canary_comes_back_first() -> None:
    """S7: one canary healthy, one failed: it is placed again, one more node gets a canary, an empty one is filled."""
    update = UpdatePolicy(max_parallel=3, canary=20)
    world = everywhere(9, update=update)
    world.register("new", count=1, update=update)
    assert len(world.look().placed) == 2
    good, bad = world.rows(1)
    world.say(1, [good])
    world.say(2, [bad])
    failed_on = int(world.table.node[bad])
    world.fail([bad])
    world.world.do(join("empty", cpu_mhz=4_000, memory_mib=4_000))
    world.register("newer", count=1, update=UpdatePolicy(max_parallel=3, canary=30))
    done = world.look()
    assert done.stopped[UNPROMOTED] == [0]
    assert sum(one[2] for one in done.placed) == 3
    assert failed_on in nodes_of(world, 2)


def test_s7_empty_nodes_and_failed_canaries() -> None:
    """S7: within one deployment the failed canary is placed again, and an empty node is filled as no canary."""
    update = UpdatePolicy(max_parallel=3, canary=30)
    world = everywhere(9, update=update)
    world.register("new", count=1, update=update)
    world.look()
    rows = world.rows(1)
    assert len(rows) == 3
    world.say(1, rows[:2])
    world.say(2, rows[2:])
    world.fail(rows[2:])
    world.world.do(join("empty", cpu_mhz=4_000, memory_mib=4_000))
    done = world.look()
    assert sorted(one[2] for one in done.placed) == [False, True] and not stopped(done)
    assert int(world.table.node[rows[2]]) in nodes_of(world, 1)


def test_s8_promotion_lets_the_pace_begin() -> None:
    """S8: three healthy canaries wait; promoted, two more are replaced and the canaries stay."""
    update = UpdatePolicy(max_parallel=3, canary=30)
    world = everywhere(update=update)
    world.register("new", count=1, update=update)
    world.look()
    canaries = world.rows(1)
    world.say(1, canaries)
    assert stopped(world.look()) == 0
    world.promote()
    done = world.look()
    assert stopped(done) == 3 and not any(one[2] for one in done.placed)
    assert set(canaries) <= set(world.rows(1))


def test_s9_ineligible_nodes_are_not_counted() -> None:
    """S9: promoted, two of the old ones' nodes ineligible: all old ones stop, and only open nodes get new ones."""
    update = UpdatePolicy(max_parallel=10, canary=30)
    world = everywhere(update=update)
    world.register("new", count=1, update=update)
    world.look()
    world.say(1, world.rows(1))
    world.promote()
    for at in nodes_of(world, 0)[:2]:
        node_id = world.world.state.fleet.ids[at]
        world.world.do(SetEligibility(request_id="r", node_id=node_id, eligible=False))
    done = world.look()
    assert sum(len(names) for names in done.stopped.values()) == 7 and len(done.placed) == 5
    assert world.deployment.groups[0].desired_total == 8


def test_s10_without_old_ones_there_are_no_canaries() -> None:
    """S10: a first version is placed plainly on all nodes."""
    world = Rollout(nodes=10, job_type="system")
    world.register("new", count=1, update=UpdatePolicy(max_parallel=2, canary=30))
    done = world.look()
    assert len(done.placed) == 10 and not any(one[2] for one in done.placed)


def test_s11_a_node_that_is_forbidden_now() -> None:
    """S11: a constraint excludes one of ten nodes: not counted, its allocation stops, three canaries elsewhere."""
    update = UpdatePolicy(max_parallel=3, canary=30)
    world = everywhere(update=update)
    rule = Constraint(left="${node.unique.id}", operator="!=", right="n00")
    world.register("new", count=1, update=update, constraints=(rule,))
    done = world.look()
    assert done.stopped["node is not feasible any more"] == [0] and stopped(done) == 3
    assert len(done.placed) == 3 and all(is_canary for _, _, is_canary in done.placed)
    assert 0 not in nodes_of(world, 1) and world.deployment.groups[0].desired_total == 9


def test_s12_everywhere_a_canary() -> None:
    """S12: all nodes get canaries and wait; promoted and successful, the version has no second deployment."""
    update = UpdatePolicy(max_parallel=10, canary=100)
    world = everywhere(update=update)
    world.register("new", count=1, update=update)
    assert len(world.look().placed) == 10
    world.say(1, world.rows(1))
    assert world.deployment.needs_promotion and not world.look().placed
    world.promote()
    world.look()
    assert world.deployment.status == "successful"
    ended = world.deployment
    world.fail(world.rows(1))
    done = world.look()
    assert len(done.placed) == 10 and not any(is_canary for _, _, is_canary in done.placed)
    assert world.deployment == ended, "what ended is replaced without a deployment"


def test_failed_canaries_leave_their_nodes_to_the_old_version() -> None:
    """A failed deployment stops its canaries, and their nodes get the version that the others run."""
    update = UpdatePolicy(max_parallel=3, canary=30)
    world = everywhere(update=update)
    world.register("new", count=1, update=update)
    world.look()
    world.end("failed")
    done = world.look()
    assert done.stopped == {UNPROMOTED: [0, 0, 0]}
    assert done.placed == [(0, 0, False)] * 3 and len(world.rows(0)) == 10


def test_a_full_node_is_emptied_first() -> None:
    """Where only its own room would do, the old one stops first, and no more than max_parallel nodes are without."""
    world = Rollout(nodes=6, job_type="system")
    world.old(1, cpu_mhz=4_000, update=PLAIN)
    world.register("new", count=1, cpu_mhz=4_000, update=PLAIN)
    done = world.look()
    assert stopped(done) == 2 and not done.placed
    again = world.look()
    assert not again.stopped and not again.placed and len(world.rows(0)) == 4


@pytest.mark.parametrize(("max_parallel", "wanted"), [(2, 2), (0, 6)])
def test_sysbatch_knows_max_parallel_alone(max_parallel: int, wanted: int) -> None:
    """A sysbatch job begins again on max_parallel nodes at a time, without a deployment."""
    update = UpdatePolicy(max_parallel=max_parallel)
    world = Rollout(nodes=6, job_type="sysbatch")
    world.register("old", count=1, update=None)
    world.look()
    world.say(0, world.rows())
    world.register("new", count=1, update=update)
    assert stopped(world.look()) == wanted
