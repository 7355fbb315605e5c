"""Device affinities and packing, told by name."""

from typing import Any

from schemas.base import JobId
from schemas.jobs import Affinity, ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.policy import Policy
from shared.core.scheduling.explain.placement_probe import score_nodes
from shared.core.scheduling.model import Snapshot
from shared.core.scheduling.scoring.pow10 import SCALE
from tests.builders import Cluster, group, join, register

UNIT = 10_000


def two_models(**policy: Any) -> Cluster:
    """A node with a small card and one with a large one."""
    cluster = Cluster(policy=Policy(**policy))
    for name in ("small", "large"):
        cards = tuple(Instance(id=f"{name}{n}") for n in range(2))
        cluster.do(join(name, pools=(Pool(name="device.gpu", model=name, instances=cards),)))
    return cluster


def named(cluster: Cluster, job: str) -> list[dict[str, int]]:
    """The scorers of one more allocation of a job on each node."""
    state = cluster.state
    snapshot = Snapshot(state, state.allocations.held, cluster.masks)
    found = state.jobs.by_id[JobId(job)]
    return score_nodes(snapshot, found, found.groups[0], range(state.fleet.size))


def test_liked_models_are_a_scorer() -> None:
    """Half of all weights for one model, minus half for the other; the liked one is taken while there are any."""
    cluster = two_models()
    wishes = (
        Affinity(left="${device.model}", right="large", weight=40),
        Affinity(left="${device.model}", right="small", weight=-40),
    )
    ask = ResourceAsk(pool="device.gpu", affinities=wishes)
    cluster.do(register("app", group("web", count=3, alternatives=((ask,),))))
    assert [one["devices"] for one in named(cluster, "app")] == [-SCALE // 2, SCALE // 2]
    cluster.schedule("app")
    assert cluster.nodes_of("app") == ["large", "large", "small"]


def test_packing_is_a_scorer_of_its_own() -> None:
    """Under the policy a half goes beside the half that is there, and the score says what that spoils."""
    cluster = two_models(algorithm="fragmentation")
    half = ((ResourceAsk(pool="device.gpu", amount=UNIT // 2),),)
    cluster.run(register("first", group("web", alternatives=half)))
    cluster.do(register("app", group("web", alternatives=half)))
    (first, other) = named(cluster, "app")
    assert set(first) == {"fragmentation"} and first["fragmentation"] > other["fragmentation"]
    cluster.schedule("app")
    table = cluster.state.allocations
    assert [table.holdings[row].parts for row in cluster.rows("app")] == [
        table.holdings[row].parts for row in cluster.rows("first")
    ]


def test_what_the_policy_has_no_word_for_is_packed_by_cpu() -> None:
    """A device and a half, and a group that wants to be spread, are placed by binpack; so is all without devices."""
    cluster = two_models(algorithm="fragmentation")
    more = ((ResourceAsk(pool="device.gpu", amount=15_000),),)
    cluster.do(register("more", group("web", alternatives=more)))
    assert set(named(cluster, "more")[0]) == {"binpack"}
    cluster.schedule("more")
    assert len(cluster.rows("more")) == 1
    plain = Cluster(policy=Policy(algorithm="fragmentation"))
    plain.do(join("n1"), register("app"))
    assert set(named(plain, "app")[0]) == {"binpack"}


def test_the_workload_is_what_the_log_has_seen() -> None:
    """Each new version counts its group as often as it asks; the same text again counts nothing."""
    cluster = two_models()
    half = ((ResourceAsk(pool="device.gpu", amount=UNIT // 2),),)
    job = register("app", group("web", count=3, alternatives=half))
    cluster.do(job)
    cluster.do(register("app", group("web", count=3, alternatives=half), submission_id="again"))
    (shape,) = cluster.state.allocations.workload.counts
    assert (shape.gpus, shape.share) == (1, UNIT // 2)
    assert cluster.state.allocations.workload.counts[shape] == 3
    cluster.do(register("app", group("web", count=5, alternatives=half), submission_id="more"))
    assert cluster.state.allocations.workload.counts[shape] == 8


def test_two_asks_of_a_pool_of_which_one_has_a_wish() -> None:
    """A wish that takes what the other ask needs gives way, and nothing is counted that is not there."""
    cluster = Cluster()
    small = Pool(name="device.gpu", model="small", instances=(Instance(id="s0"),))
    cards = tuple(Instance(id=f"l{n}") for n in range(2))
    cluster.do(join("n1", pools=(small, Pool(name="device.gpu", model="large", instances=cards))))
    half = ResourceAsk(pool="device.gpu", amount=UNIT // 2, model="large")
    cluster.run(register("first", group("web", alternatives=((half,),))))
    wish = Affinity(left="${device.model}", right="large", weight=50)
    quarter = ResourceAsk(pool="device.gpu", amount=UNIT // 4, model="large")
    asks = (quarter, ResourceAsk(pool="device.gpu", amount=UNIT // 2, affinities=(wish,)))
    cluster.run(register("app", group("web", count=9, alternatives=(asks,))))
    # The first has its wish; of three that would fit without any, a quarter then lacks for the last.
    assert len(cluster.rows("app")) == 2


def test_packing_finds_the_other_model_of_a_node() -> None:
    """The policy sees a node as of one model; what asks for another one that is there is placed all the same."""
    cluster = Cluster(policy=Policy(algorithm="fragmentation"))
    pools = [
        Pool(name="device.gpu", model=model, instances=(Instance(id=model),)) for model in "ab"
    ]
    cluster.do(join("n1", pools=tuple(pools)))
    for model in "ab":
        ask = ResourceAsk(pool="device.gpu", model=model)
        cluster.run(register(model, group("web", alternatives=((ask,),))))
        assert len(cluster.rows(model)) == 1
