"""Device affinities and packing, told by name."""

from typing import Any

from schemas.base import JobId
from schemas.jobs import Affinity, ResourceAsk
from schemas.nodes import Instance, Pool
from schemas.policy import Policy
from shared.core.looking import scores_of
from shared.core.pow10 import SCALE
from shared.core.scratch import Snapshot
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
    return scores_of(snapshot, found, found.groups[0], range(state.fleet.size))


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
