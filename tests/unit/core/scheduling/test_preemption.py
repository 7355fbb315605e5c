"""Preemption: which allocations are evicted for which jobs, what the applier decides, and the fate of the victims."""

import pytest

from schemas.evaluations import EvaluationsCreated
from schemas.nodes import ChangeLiveness
from schemas.plans import Evictions, PlanCommitted, PlanRefused
from schemas.policy import Policy, Preemption, SetPolicy
from shared.core.state.tables.allocations import EVICT, RUN
from tests.builders import Cluster, group, join, placement, register, stop

ALL = Policy(preemption=Preemption(service=True, batch=True, system=True, sysbatch=True))


def fill(
    world: Cluster, job_id: str, *, priority: int, count: int = 1, cpu_mhz: int = 1000
) -> None:
    world.run(
        register(job_id, group(count=count, cpu_mhz=cpu_mhz, memory_mib=10), priority=priority)
    )


def evicted(world: Cluster, job_id: str) -> list[int]:
    table = world.state.allocations
    return [row for row in table.rows_of(job_id).tolist() if table.desired[row] == EVICT]


@pytest.fixture
def world() -> Cluster:
    """Three nodes of 1,000 MHz, full with jobs of priority 20, 30 and 40."""
    world = Cluster(policy=ALL)
    for nth, priority in enumerate((30, 20, 40)):
        world.do(join(f"n{nth + 1}"))
        fill(world, f"p{priority}", priority=priority)
    return world


def test_the_least_important_goes_wherever_it_runs(world: Cluster) -> None:
    """Nodes are compared by what they cost: only the job of priority 20 loses its place."""
    fill(world, "prod", priority=60)
    assert world.nodes_of("prod") == ["n2"]
    assert [len(evicted(world, job)) for job in ("p20", "p30", "p40")] == [1, 0, 0]


def test_ten_levels_lie_between_a_job_and_its_victims(world: Cluster) -> None:
    """A job of priority 29 evicts no allocation of priority 20; a job of priority 30 does."""
    fill(world, "low", priority=29)
    assert world.rows("low") == [] and not evicted(world, "p20")
    fill(world, "high", priority=30)
    assert world.nodes_of("high") == ["n2"] and evicted(world, "p20")


def test_the_policy_says_which_job_types_may(world: Cluster) -> None:
    """Nothing is evicted for a job type that the policy leaves out."""
    world.do(SetPolicy(request_id="r1", policy=Policy(preemption=Preemption(batch=True))))
    fill(world, "prod", priority=90)
    assert world.rows("prod") == [] and not evicted(world, "p20")
    work = register("work", group(cpu_mhz=1000, memory_mib=10), priority=90, job_type="batch")
    world.run(work)
    assert len(world.rows("work")) == 1 and evicted(world, "p20")


def test_nobody_goes_where_it_fits_without(world: Cluster) -> None:
    """Free room goes first, however unimportant the neighbours are."""
    world.do(join("n4"))
    fill(world, "prod", priority=90)
    assert world.nodes_of("prod") == ["n4"]
    assert not any(evicted(world, job) for job in ("p20", "p30", "p40"))


def test_what_is_evicted_holds_nothing_and_its_job_is_evaluated(world: Cluster) -> None:
    """In one transaction: the victim's room is the newcomer's, its job is fenced, and gets an evaluation."""
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=90))
    events = world.schedule("prod")
    committed, created = events[0], events[1]
    assert isinstance(committed, PlanCommitted) and isinstance(created, EvaluationsCreated)
    assert [one.job_id for one in committed.evictions] == ["p20"]
    assert [(one.job_id, one.triggered_by) for one in created.evaluations] == [
        ("p20", "preemption")
    ]
    assert world.state.jobs.by_id["p20"].plan_seq == world.state.seq
    assert world.state.allocations.used(3)[:, 0].tolist() == [1000, 1000, 1000]


def test_the_report_of_a_victims_end_frees_nothing_twice(world: Cluster) -> None:
    """It let go when it was evicted; that it ended is only told. Nor is its end a failure to retry."""
    fill(world, "prod", priority=90)
    row = evicted(world, "p20")[0]
    world.report("n2", (row, "failed"))
    assert world.state.allocations.used(3)[:, 0].tolist() == [1000, 1000, 1000]
    assert row not in world.state.allocations.reschedule_at_ns


def test_a_victim_waits_and_comes_back_under_its_name(world: Cluster) -> None:
    """The evicted one is replaced when there is room: same name, linked, not counted as a reschedule."""
    fill(world, "prod", priority=90)
    row = evicted(world, "p20")[0]
    world.schedule("p20")
    assert world.rows("p20") == []
    blocked = world.state.evaluations.by_key[world.state.evaluations.blocked_of["p20"]]
    assert blocked.blocked is not None and blocked.blocked.waiting["web"].wait_class == "priority"
    world.do(join("n4"))
    world.do(
        register("p20", group(cpu_mhz=1000, memory_mib=10), priority=20, salt=1, submission_id="up")
    )
    world.schedule("p20")
    table = world.state.allocations
    (back,) = world.rows("p20")
    assert table.previous[back] == table.key[row] and table.index[back] == table.index[row]
    assert table.reschedules[back] == 0


def test_a_victim_evicts_nobody_in_turn() -> None:
    """No cascades: what replaces an evicted allocation waits, though less important work runs."""
    world = Cluster(policy=ALL)
    world.do(join("n1", cpu_mhz=400), join("n2", cpu_mhz=1000))
    fill(world, "small", priority=10, cpu_mhz=400)
    fill(world, "middle", priority=40, cpu_mhz=400)
    fill(world, "big", priority=80, cpu_mhz=900)
    assert evicted(world, "middle") and not evicted(world, "small")
    world.schedule("middle")
    assert world.rows("middle") == [] and not evicted(world, "small")


def test_superfluous_victims_stay() -> None:
    """Of three small ones and a large one, only the large one goes where all ask for its room."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    for nth in range(3):
        fill(world, f"s{nth}", priority=20, cpu_mhz=100)
    fill(world, "large", priority=20, cpu_mhz=700)
    fill(world, "prod", priority=50, cpu_mhz=700)
    assert evicted(world, "large") and not any(evicted(world, f"s{nth}") for nth in range(3))


def test_many_at_once_fill_what_a_large_victim_leaves() -> None:
    """Four allocations find room where one large one made it: it alone goes."""
    world = Cluster(policy=ALL)
    for nth in range(4):
        world.do(join(f"n{nth}"))
        fill(world, f"old{nth}", priority=20)
    fill(world, "prod", priority=50, count=4, cpu_mhz=250)
    assert len(set(world.nodes_of("prod"))) == 1 and len(world.rows("prod")) == 4
    assert sum(len(evicted(world, f"old{nth}")) for nth in range(4)) == 1


def test_all_at_once_evicts_for_all_or_for_none() -> None:
    """No allocation is evicted for a part of an all-at-once plan."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    fill(world, "old", priority=20)
    gang = group(count=2, cpu_mhz=1000, memory_mib=10)
    world.run(register("gang", gang, priority=90, all_at_once=True))
    assert not evicted(world, "old")


def test_a_victim_that_is_gone_meanwhile_is_spared(world: Cluster) -> None:
    """Its room came by itself: the placement stands, and the log records no eviction."""
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=90))
    plan = world.plan("prod")
    world.report("n2", (world.rows("p20")[0], "complete"))
    committed = world.do(plan)[0]
    assert isinstance(committed, PlanCommitted)
    assert committed.placements and not committed.evictions
    assert [one.job_id for one in committed.spared] == ["p20"]


def test_a_victim_that_became_important_stays(world: Cluster) -> None:
    """The priority of the victim's job now decides: the placement is cut, and planned again."""
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=50))
    plan = world.plan("prod")
    same = group(cpu_mhz=1000, memory_mib=10)
    world.do(register("p20", same, priority=45, salt=1, submission_id="up"))
    committed = world.do(plan)[0]
    assert isinstance(committed, PlanCommitted)
    assert committed.cut and not committed.evictions and not committed.placements
    world.schedule("prod")
    assert world.nodes_of("prod") == ["n1"] and evicted(world, "p30")


def test_of_two_victims_nobody_goes_when_one_is_not_there_any_more() -> None:
    """Where the placement must be cut, what would have gone for it stays."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    fill(world, "one", priority=20, cpu_mhz=500)
    fill(world, "two", priority=20, cpu_mhz=500)
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=90))
    plan = world.plan("prod")
    world.do(
        register("two", group(cpu_mhz=500, memory_mib=10), priority=85, salt=1, submission_id="up")
    )
    committed = world.do(plan)[0]
    assert isinstance(committed, PlanCommitted)
    assert committed.cut and not committed.evictions and len(committed.spared) == 2


def test_rows_that_make_no_sense_are_refused(world: Cluster) -> None:
    """A victim's row that nothing has, or named twice, refuses the plan."""
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=90))
    for rows in ((99,), (0, 0), (-1,)):
        plan = world.plan("prod", evictions=(Evictions(job_id="p20", rows=rows),))
        refused = world.do(plan)[0]
        assert isinstance(refused, PlanRefused) and refused.code == "invalid"


def test_own_and_renamed_victims_are_spared(world: Cluster) -> None:
    """No plan evicts an allocation of its own job, nor one of another job than the plan names."""
    world.do(
        register(
            "p20",
            group(count=2, cpu_mhz=1000, memory_mib=10),
            priority=90,
            salt=1,
            submission_id="up",
        )
    )
    row = world.rows("p20")[0]
    here = placement((1,), (1,), version=1)
    for named in ("p20", "p30"):
        plan = world.plan(
            "p20",
            placements=(here,),
            evictions=(Evictions(job_id=named, rows=(row,)),),
        )
        committed = world.do(plan)[0]
        assert isinstance(committed, PlanCommitted)
        assert not committed.evictions and committed.cut
    assert world.state.allocations.desired[row] == RUN


def test_a_plan_made_before_its_job_lost_something_is_stale(world: Cluster) -> None:
    """The eviction raises the fence of the victim's job."""
    world.do(
        register(
            "p20",
            group(count=2, cpu_mhz=1000, memory_mib=10),
            priority=20,
            salt=1,
            submission_id="up",
        )
    )
    late = world.plan("p20", worker="w2")
    fill(world, "prod", priority=90)
    (refused,) = world.do(late)
    assert isinstance(refused, PlanRefused) and refused.code == "stale"


def test_a_stopped_job_gets_no_evaluation_for_its_victims(world: Cluster) -> None:
    """It wants nothing any more: its stop is already on its way."""
    world.do(stop("p20"))
    world.do(register("prod", group(cpu_mhz=1000, memory_mib=10), priority=90))
    events = world.schedule("prod")
    assert not any(isinstance(event, EvaluationsCreated) for event in events)
    world.schedule("p20")
    assert world.rows("p20") == []


def test_an_evicted_one_on_a_node_that_dies_is_lost_and_still_replaced(world: Cluster) -> None:
    """Its node's end ends it; it keeps its place in line."""
    fill(world, "prod", priority=90)
    row = evicted(world, "p20")[0]
    world.do(ChangeLiveness(node_ids=("n2",), status="down", seen_seq=world.state.seq))
    world.do(join("n4"))
    world.schedule("p20")
    table = world.state.allocations
    assert table.desired[row] == EVICT and table.client[row] == 4
    (back,) = world.rows("p20")
    assert table.previous[back] == table.key[row]


def test_a_resubmitted_victim_never_displaces_who_displaced_it() -> None:
    """No ping-pong: ten levels lie between them, in one direction only."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    fill(world, "low", priority=30)
    fill(world, "high", priority=70)
    for nth in range(5):
        same = group(cpu_mhz=1000, memory_mib=10)
        world.do(register("low", same, priority=30, salt=nth + 1, submission_id=f"again{nth}"))
        world.schedule("low")
        assert len(world.rows("high")) == 1 and not evicted(world, "high")


def test_a_system_job_makes_room_on_every_node() -> None:
    """Where policy allows it, and it does unless told otherwise, every node gets its allocation."""
    world = Cluster()
    world.do(join("n1"), join("n2"))
    fill(world, "old", priority=20, count=2, cpu_mhz=600)
    what = group(cpu_mhz=500, memory_mib=10)
    world.run(register("all", what, priority=60, job_type="system"))
    assert world.nodes_of("all") == ["n1", "n2"] and len(evicted(world, "old")) == 2


def test_an_evicted_system_allocation_evicts_nobody_on_its_node() -> None:
    """It waits for room there, even if less important allocations run beside its preemptor."""
    world = Cluster(policy=ALL)
    world.do(join("n1", memory_mib=2000))
    world.run(register("all", group(cpu_mhz=600, memory_mib=900), priority=60, job_type="system"))
    fill(world, "low", priority=20, cpu_mhz=400)
    world.run(register("big", group(cpu_mhz=100, memory_mib=1500), priority=90))
    assert evicted(world, "all") and not evicted(world, "low")
    world.schedule("all")
    assert world.rows("all") == [] and not evicted(world, "low")


def test_a_later_group_sees_what_was_placed_normally_after_the_first_eviction() -> None:
    """Room that a group's first allocation just took is no room for its second: that one needs another victim."""
    world = Cluster(policy=ALL)
    world.do(join("n1"))
    fill(world, "whole", priority=20)
    world.do(join("n2"))
    fill(world, "small", priority=30, count=7, cpu_mhz=100)
    first = group("first", cpu_mhz=1000, memory_mib=10)
    second = group("second", count=2, cpu_mhz=300, memory_mib=10)
    world.run(register("prod", first, second, priority=90))
    assert world.nodes_of("prod") == ["n1", "n2", "n2"]
    assert [len(evicted(world, job)) for job in ("whole", "small")] == [1, 3]
