"""Rules of placement through the scheduler: affinities, spreads, distinct hosts and properties, algorithms, draws."""

from collections import Counter

import msgspec
import pytest

from schemas.base import JobId
from schemas.evaluations import EvaluationsCreated
from schemas.jobs import Affinity, Constraint, DistinctProperty, GroupSpec, Spread, SpreadTarget
from schemas.policy import Policy
from shared.core.scheduling import plan_state
from shared.core.scheduling.explain.placement_probe import PlacementProbe, score_nodes
from shared.core.scheduling.model import Snapshot
from shared.core.scheduling.scoring.scores import mean_score
from shared.core.scheduling.selection import greedy_coupled
from tests.builders import Cluster, group, join, register


def racks(*, nodes: int = 6, count: int = 3, policy: Policy | None = None) -> Cluster:
    """A cluster of equal nodes in racks by turns."""
    world = Cluster(policy=policy)
    for at in range(nodes):
        world.do(join(f"n{at}", meta={"rack": f"r{at % count}"}, node_class=f"c{at % 2}"))
    return world


def by_rack(world: Cluster, job_id: str = "app") -> Counter[str]:
    fleet = world.state.fleet
    nodes = [int(world.state.allocations.node[row]) for row in world.rows(job_id)]
    return Counter(fleet.specs[node].meta["rack"] for node in nodes)


def waiting(world: Cluster, job_id: str = "app") -> dict[str, list[str]]:
    evaluations = world.state.evaluations
    entry = evaluations.by_key[evaluations.blocked_of[job_id]]  # type: ignore[index]
    assert entry.blocked is not None
    return {name: [one.wait_class, *one.reasons] for name, one in entry.blocked.waiting.items()}


def test_an_even_spread_fills_racks_by_turns() -> None:
    """Without targets every rack gets as many, though binpack alone would fill one node."""
    world = racks()
    world.run(register("app", group(count=6, spreads=(Spread(attribute="${meta.rack}"),))))
    assert by_rack(world) == {"r0": 2, "r1": 2, "r2": 2}


def test_a_spread_counts_what_is_there() -> None:
    """Raising a count continues where the spread stands."""
    world = racks()
    spreads = (Spread(attribute="${meta.rack}"),)
    world.run(register("app", group(count=2, spreads=spreads)))
    world.run(register("app", group(count=6, spreads=spreads), salt=1, submission_id="s2"))
    assert by_rack(world) == {"r0": 2, "r1": 2, "r2": 2}


def test_targets_share_the_count() -> None:
    """Targets get their percent, and what no target names gets what is left."""
    world = racks(nodes=9)
    targets = (SpreadTarget(value="r0", percent=50), SpreadTarget(value="r1", percent=30))
    spread = Spread(attribute="${meta.rack}", targets=targets)
    world.run(register("app", group(count=10, cpu_mhz=10, memory_mib=10, spreads=(spread,))))
    assert by_rack(world) == {"r0": 5, "r1": 3, "r2": 2}


def test_values_without_a_target_share_what_is_left() -> None:
    """What the targets leave is for all other values together, not for each."""
    world = racks(nodes=8, count=4)
    targets = (SpreadTarget(value="r0", percent=60),)
    spread = Spread(attribute="${meta.rack}", targets=targets)
    world.run(register("app", group(count=10, cpu_mhz=10, memory_mib=10, spreads=(spread,))))
    found = by_rack(world)
    # Anti-affinity has its say as well; were the rest meant for each of three values, it would be 3.
    assert found["r0"] >= 5
    assert sum(found.values()) == 10


@pytest.mark.parametrize(("weight", "rack"), [(100, "r2"), (-100, "r0")])
def test_an_affinity_draws_and_repels(weight: int, rack: str) -> None:
    """Nodes that match a positive affinity are taken first, those of a negative one last."""
    world = racks()
    left = Constraint(left="${meta.rack}", right="r2" if weight > 0 else "r1")
    more = () if weight > 0 else (Affinity(left=left.left, right="r2", weight=weight),)
    wish = Affinity(left=left.left, operator="=", right=left.right, weight=weight)
    world.run(register("app", group(count=2, affinities=(wish, *more))))
    assert by_rack(world) == {rack: 2}


def test_distinct_hosts_of_a_group() -> None:
    """No two allocations of the group share a node; what is too many waits for room and says why."""
    world = racks(nodes=3)
    world.run(register("app", group(count=5, distinct_hosts="group")))
    assert sorted(Counter(world.nodes_of()).values()) == [1, 1, 1]
    assert waiting(world)["web"] == ["capacity", "distinct_hosts closes 3 of 3 nodes"]


@pytest.mark.parametrize(("scope", "left"), [("job", 0), ("group", 2)])
def test_distinct_hosts_of_a_job_see_the_other_groups(scope: str, left: int) -> None:
    """Over the job, groups of one plan do not share a node either; over the group they may."""
    world = racks(nodes=3)
    groups = [group(name, count=3 if name == "a" else 2, distinct_hosts=scope) for name in "ab"]
    world.run(register("app", *groups))
    assert len(world.rows()) == 3 + left


def test_a_distinct_property_bounds_each_value() -> None:
    """At most so many on nodes that share the value; nodes without it are closed."""
    world = racks()
    world.do(join("bare"))
    rule = DistinctProperty(attribute="${meta.rack}", limit=2)
    world.run(register("app", group(count=8, distinct_properties=(rule,))))
    assert by_rack(world) == {"r0": 2, "r1": 2, "r2": 2}
    assert waiting(world)["web"][1] == "distinct_property ${meta.rack} 2 closes 7 of 7 nodes"


def test_a_distinct_property_of_the_job_counts_all_groups() -> None:
    """Over the job, the allocations of other groups use up a value, in this plan and before it."""
    world = racks()
    rule = DistinctProperty(attribute="${meta.rack}", limit=1, job_wide=True)
    both = [group(name, count=2, distinct_properties=(rule,)) for name in "ab"]
    world.run(register("app", *both))
    assert by_rack(world) == {"r0": 1, "r1": 1, "r2": 1}


def test_a_replacement_frees_its_host() -> None:
    """What the same plan stops does not keep its node from its successor."""
    world = racks(nodes=2)
    world.run(register("app", group(count=2, distinct_hosts="job")))
    changed = group(count=2, distinct_hosts="job", digest="d2")
    world.run(register("app", changed, salt=1, submission_id="s2"))
    assert sorted(Counter(world.nodes_of()).values()) == [1, 1]


@pytest.mark.parametrize(
    ("policy", "own", "nodes"),
    [
        (Policy(anti_affinity=False), "", 1),
        (Policy(anti_affinity=False, algorithm="spread"), "", 4),
        (Policy(anti_affinity=False, pool_algorithms={"default": "spread"}), "", 4),
        (Policy(anti_affinity=False, pool_algorithms={"default": "spread"}), "binpack", 1),
        (Policy(anti_affinity=False, algorithm="spread"), "binpack", 1),
        (Policy(anti_affinity=False), "spread", 4),
    ],
)
def test_the_algorithm_is_the_jobs_the_pools_or_the_clusters(
    policy: Policy, own: str, nodes: int
) -> None:
    """A job's own word goes before its pool's, and that before the cluster's."""
    world = racks(nodes=4, policy=policy)
    world.run(register("app", group(count=4, algorithm=own)))
    assert len(set(world.nodes_of())) == nodes


@pytest.mark.parametrize("candidates", ["two_choices", "log2"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"spreads": (Spread(attribute="${meta.rack}"),)},
        {"distinct_hosts": "job"},
        {"distinct_properties": (DistinctProperty(attribute="${meta.rack}", limit=3),)},
    ],
)
def test_drawn_candidates_place_all_that_fits(candidates: str, fields: dict[str, object]) -> None:
    """Looking at few nodes finds room wherever there is any, keeps every rule, and is the same for the same seed."""
    world = racks(nodes=12, policy=Policy(candidates=candidates))
    world.do(register("app", group(count=9, cpu_mhz=500, **fields)))
    first, second = world.propose(), world.propose()
    assert first == second
    world.schedule()
    assert len(world.rows()) == 9
    if "distinct_properties" in fields:
        assert set(by_rack(world).values()) == {3}
    if "distinct_hosts" in fields:
        assert set(Counter(world.nodes_of()).values()) == {1}


def test_a_count_of_many_steps_goes_on_in_the_next_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan that would take too long ends early and asks for another evaluation, until all is placed."""
    monkeypatch.setattr(plan_state, "STEPS_MAX", 10)
    monkeypatch.setattr(greedy_coupled, "_PASSES_COUNT_MAX", 0)
    world = racks()
    spread = (Spread(attribute="${meta.rack}"),)
    events = world.run(register("app", group(count=12, spreads=spread)))
    rounds = 1
    while any(isinstance(event, EvaluationsCreated) for event in events):
        assert len(world.rows()) < 12
        events = world.schedule()
        rounds += 1
    assert rounds > 1
    assert by_rack(world) == {"r0": 4, "r1": 4, "r2": 4}


def report(world: Cluster, wanted: GroupSpec) -> dict[str, tuple[int, dict[str, int]]]:
    job = next(iter(world.state.jobs.by_id.values()))
    snapshot = Snapshot(world.state, world.state.allocations.held, world.masks)
    found = PlacementProbe(snapshot, job, wanted).report()
    return {line.name: (line.refused, line.by_class) for line in found.filters}


def test_every_filter_says_whom_it_refuses() -> None:
    """A node is counted once, at the first filter that refuses it, also by class."""
    world = racks(nodes=4, count=2)
    world.do(join("far", datacenter="dc2", node_class="c9"))
    rule = Constraint(left="${meta.rack}", right="r0")
    wanted = group(count=1, constraints=(rule,), distinct_hosts="group")
    world.run(register("app", wanted, datacenters=("dc1",)))
    assert report(world, wanted) == {
        "datacenter dc1": (1, {"c9": 1}),
        "${meta.rack} = r0": (2, {"c1": 2}),
        "distinct_hosts": (1, {"c0": 1}),
    }


def test_the_named_scores_rank_as_the_scheduler_does() -> None:
    """The next node has the highest mean of the reported scorers; ties go to the lowest row."""
    world = racks(nodes=9)
    wanted = group(
        count=5,
        affinities=(Affinity(left="${node.class}", right="c1", weight=30),),
        spreads=(Spread(attribute="${meta.rack}"),),
    )
    world.run(register("app", msgspec.structs.replace(wanted, count=4)))
    world.do(register("app", wanted, salt=1, submission_id="s2"))
    job = world.state.jobs.by_id[JobId("app")]
    snapshot = Snapshot(world.state, world.state.allocations.held, world.masks)
    told = score_nodes(snapshot, job, wanted, range(9))
    assert {"binpack", "node-affinity", "allocation-spread"} <= set().union(*told)
    means = [mean_score(list(scores.values())) for scores in told]
    (placement,) = world.propose().placements
    assert placement.rows == (means.index(max(means)),)


def test_a_job_that_no_node_may_run_says_what_refuses() -> None:
    """The reasons name the filters, the one that refuses most first."""
    world = racks(nodes=3)
    rule = Constraint(left="${attr.os.version}", operator="version", right=">= 3")
    world.run(register("app", group(constraints=(rule,))))
    kind, *reasons = waiting(world)["web"]
    assert kind == "misconfigured"
    assert reasons[0] == "none of 3 nodes satisfies its constraints"
    assert reasons[1] == "${attr.os.version} version >= 3 refuses 3 of 3 nodes"


def test_a_wait_names_why_nodes_lack_what_is_asked_for() -> None:
    """In the words that most of the refusing nodes have of it, where any has."""
    world = Cluster()
    for number, why in enumerate(("not root", "no nft", "no nft", "")):
        more = {"network.bridge.off": why} if why else {}
        world.do(join(f"n{number}", attributes={"os.name": "x", **more}))
    rule = Constraint(left="${attr.network.bridge}", operator="=", right="nft")
    world.run(register("app", group(constraints=(rule,))))
    reasons = waiting(world)["web"][1:]
    assert "${attr.network.bridge} = nft (no nft) refuses 4 of 4 nodes" in reasons


def test_rules_travel_whole() -> None:
    """A group's rules survive the wire, and what is default is not written."""
    full = group(
        affinities=(Affinity(left="${node.class}", right="a", weight=-7),),
        spreads=(Spread(attribute="${meta.rack}", targets=(SpreadTarget(value="*", percent=3),)),),
        distinct_hosts="job",
        distinct_properties=(DistinctProperty(attribute="${meta.rack}", limit=2, job_wide=True),),
    )
    assert msgspec.json.decode(msgspec.json.encode(full), type=GroupSpec) == full
    assert b"spreads" not in msgspec.json.encode(group())
