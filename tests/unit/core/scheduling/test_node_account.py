"""One account of the nodes: each counts once, by the one thing that keeps an allocation from it."""

from typing import Any

import pytest

from schemas.base import JobId, NodeId
from schemas.evaluation_answers import WhyAnswer
from schemas.evaluations import Waiting
from schemas.jobs import Constraint, ResourceAsk
from schemas.nodes import ChangeLiveness, Instance, Pool
from schemas.policy import DeclarePool, DrainNode, Policy, Preemption, SetEligibility
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.query.explain import explain_candidate, shown_lack
from tests.builders import Cluster, group, join, register

UNIT = 10_000


def gpus(count: int, **attributes: str) -> Pool:
    """So many devices of one model."""
    instances = tuple(Instance(id=str(number)) for number in range(count))
    return Pool(name="device.gpu", instances=instances, attributes=attributes)


def waits(cluster: Cluster, job: str, **fields: Any) -> Waiting:
    """Submit a job of one group; return what it waits for."""
    cluster.do(register(job, group("web", **fields), priority=fields.pop("job_priority", 50)))
    (follow_up,) = cluster.propose(job).follow_ups
    assert follow_up.blocked is not None
    return follow_up.blocked.waiting["web"]


def why_not(cluster: Cluster, job: str, row: int | None = None) -> WhyAnswer:
    """Ask why one more allocation of a job has no node; check that the counts of the answer add up."""
    state = cluster.state
    found = explain_candidate(state, PlacementCache(), state.jobs.by_id[JobId(job)], "web", row=row)
    refused = sum(one.refused for one in found.filters)
    assert (
        found.nodes_considered == refused + found.lacking + found.fitting == len(state.fleet.row_of)
    )
    return found


def test_a_node_with_the_device_that_is_ineligible_is_said_to_be() -> None:
    """Three ready nodes, of which one has the device and is ineligible: it is not said that none is ready."""
    cluster = Cluster()
    cluster.do(join("n1"), join("n2"), join("n3", pools=(gpus(1),)))
    cluster.do(SetEligibility(request_id="r", node_id=NodeId("n3"), eligible=False))
    found = waits(cluster, "app", alternatives=((ResourceAsk(pool="device.gpu"),),))
    assert (found.wait_class, found.reasons) == (
        "capacity",
        ("1 of 1 feasible node is ineligible",),
    )
    answer = why_not(cluster, "app")
    assert [(one.name, one.refused) for one in answer.filters] == [
        ("device.gpu", 2),
        ("ineligible", 1),
    ]
    assert (answer.feasible, answer.lacking, answer.fitting) == (1, 0, 0)
    assert "the node is ineligible" in why_not(cluster, "app", row=2).text


def test_all_that_keeps_nodes_away_is_told_apart() -> None:
    """Down, draining, drained, ineligible, too small, full and with room by constraint: each node in one line."""
    cluster = Cluster()
    names = [f"n{number}" for number in range(1, 9)]
    for name in names:
        small = {"memory_mib": 400} if name == "n7" else {}
        cluster.do(join(name, meta={"rack": name}, **small))
    # What keeps n2 from being drained runs there and on n6 and n7.
    there = Constraint(left="${meta.rack}", operator="set_contains_any", right="n2,n6")
    cluster.run(
        register(
            "old",
            group("web", count=2, memory_mib=600, constraints=(there,), distinct_hosts="group"),
        )
    )
    cluster.do(ChangeLiveness(node_ids=(NodeId("n1"),), status="down", seen_seq=cluster.state.seq))
    for name in ("n2", "n3"):
        cluster.do(DrainNode(request_id=name, node_id=NodeId(name), draining=True))
    cluster.do(SetEligibility(request_id="r4", node_id=NodeId("n4"), eligible=False))
    rule = Constraint(left="${meta.rack}", operator="set_contains_any", right=",".join(names[:7]))
    cluster.do(
        register(
            "fill",
            group(
                "web", memory_mib=600, constraints=(Constraint(left="${meta.rack}", right="n5"),)
            ),
        )
    )
    cluster.schedule("fill")
    found = waits(cluster, "app", memory_mib=500, constraints=(rule,))
    assert found.wait_class == "capacity"
    assert found.reasons == (
        "memory exhausted on 2 of 2 nodes",
        "1 of 7 feasible nodes is down",
        "1 of 7 feasible nodes is draining",
        "1 of 7 feasible nodes is drained",
        "1 of 7 feasible nodes is ineligible",
        "1 of 7 feasible nodes is too small, even empty",
    )
    answer = why_not(cluster, "app")
    assert {one.name: one.refused for one in answer.filters} == {
        f"${{meta.rack}} set_contains_any {rule.right}": 1,
        "down": 1,
        "draining": 1,
        "drained": 1,
        "ineligible": 1,
        "too small, even empty": 1,
    }
    assert (answer.feasible, answer.lacking, answer.fitting) == (7, 2, 0)


def test_a_reserved_port_is_no_lack_of_size() -> None:
    """What refuses a node even empty is named: a port that it reserves, its size, its pools, or every alternative."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus(4),)), join("n2", reserved_ports=(80,), pools=(gpus(4),)))
    cluster.do(join("n3", memory_mib=400, pools=(gpus(4),)), join("n4", pools=(gpus(1),)))
    two = ResourceAsk(pool="device.gpu", amount=2 * UNIT)
    web = {"memory_mib": 600, "static_ports": (80,)}
    cluster.run(register("old", group("web", **web)))
    found = waits(cluster, "app", **web, alternatives=((two,),))
    assert (found.wait_class, found.reasons) == (
        "capacity",
        (
            "memory exhausted on 1 of 1 nodes",
            "port 80 taken on 1 of 1 nodes",
            "port 80 is reserved on 1 of 4 feasible nodes",
            "too little of device.gpu, even empty, on 1 of 4 feasible nodes",
            "1 of 4 feasible nodes is too small, even empty",
        ),
    )
    assert why_not(cluster, "app", row=1).text.endswith("port 80 is reserved on the node")
    # Nothing that ends makes way on a node that reserves the port.
    assert "n2" not in [one.node for one in why_not(cluster, "app").nearest]
    either = ((two,), (ResourceAsk(pool="device.gpu", amount=3 * UNIT),))
    found = waits(cluster, "either", **web, alternatives=either)
    assert found.reasons[-2:] == (
        "no alternative fits, even empty, on 1 of 4 feasible nodes",
        "1 of 4 feasible nodes is too small, even empty",
    )


def test_nodes_that_each_refuse_by_another_thing_are_told_apart() -> None:
    """One port is reserved here, the other there, and the third node is too small: no condition refuses all."""
    cluster = Cluster()
    cluster.do(join("n1", reserved_ports=(80,)), join("n2", reserved_ports=(81,)))
    cluster.do(join("n3", memory_mib=400))
    found = waits(cluster, "app", memory_mib=600, static_ports=(80, 81))
    assert (found.wait_class, found.reasons) == (
        "never_fits",
        (
            "port 80 is reserved on 1 of 3 feasible nodes",
            "port 81 is reserved on 1 of 3 feasible nodes",
            "1 of 3 feasible nodes is too small, even empty",
        ),
    )


def test_a_shortfall_is_what_lacks() -> None:
    """Of 60.25 where 40.25 is free, 20 lacks; a node without any refuses, and the nearest lacks least."""
    cluster = Cluster()
    for name, amount in (("n1", 50), ("n2", 40), ("n3", 30)):
        cluster.do(join(name))
        pool = Pool(name="scratch", amount=amount * UNIT + UNIT // 4)
        cluster.do(DeclarePool(request_id=name, node_id=NodeId(name), pool=pool))
    cluster.do(join("n4"))
    asks = ((ResourceAsk(pool="scratch", amount=602_500),),)
    cluster.do(register("app", group("web", alternatives=asks)))
    answer = why_not(cluster, "app")
    assert [(one.node, one.shortfall) for one in answer.nearest] == [
        ("n1", {"scratch": 10.0}),
        ("n2", {"scratch": 20.0}),
        ("n3", {"scratch": 30.0}),
    ]
    assert [(one.name, one.refused) for one in answer.filters] == [("scratch", 1)]
    assert "lacks 20 of scratch" in why_not(cluster, "app", row=1).text


@pytest.mark.parametrize(
    ("held", "asked", "lack"),
    [
        ((0, 0), 25_000, 5_000),
        ((6_000, 7_000), 4_000, 0),
        ((6_000, 7_000), 5_000, 1_000),
        ((6_000, 7_000), 10_000, 6_000),
        ((6_000, 7_000), 20_000, 13_000),
        ((6_000, 7_000), 15_000, 8_000),
    ],
)
def test_what_lacks_of_devices(held: tuple[int, int], asked: int, lack: int) -> None:
    """Two devices, parts of which are held: what would have to be free beside, in 1/10,000 of a device."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus(2),)))
    for number, amount in enumerate(held):
        if amount:
            asks = ((ResourceAsk(pool="device.gpu", amount=amount),),)
            cluster.run(register(f"old{number}", group("web", alternatives=asks)))
    cluster.do(
        register(
            "app", group("web", alternatives=((ResourceAsk(pool="device.gpu", amount=asked),),))
        )
    )
    answer = why_not(cluster, "app", row=0)
    assert [one.shortfall for one in answer.nearest] == [{"device.gpu": lack / UNIT}] * bool(lack)
    assert answer.fitting == (not lack)


def test_lacks_have_their_units() -> None:
    """MHz and MiB of the columns, cores by number, and the MHz that cores take."""
    cluster = Cluster()
    cores = Pool(name="cores", instances=tuple(Instance(id=str(number)) for number in range(4)))
    cluster.do(join("n1", pools=(cores,), core_mhz=200))
    three = ((ResourceAsk(pool="cores", amount=3 * UNIT),),)
    cluster.run(register("old", group("web", cpu_mhz=100, alternatives=three)))
    cluster.do(register("app", group("web", cpu_mhz=100, memory_mib=2_000, alternatives=three)))
    text = why_not(cluster, "app", row=0).text
    assert text.endswith("the node lacks 1100 MiB of memory, 2 cores, 400 MHz of cpu of cores")
    assert shown_lack("disk_mib", 5) == "5 MiB of disk" and shown_lack("port 80", 1) == "port 80"


def evicted_from(pool: Pool, **asked: Any) -> Cluster:
    """A node of 1,000 MHz from which a more important job of 200 MHz evicted one that holds a device and 850 MHz."""
    cluster = Cluster(policy=Policy(preemption=Preemption(service=True)))
    cluster.do(join("n1", pools=(pool,)))
    one = ((ResourceAsk(pool="device.gpu"),),)
    cluster.run(register("app", group("web", cpu_mhz=850, alternatives=one)))
    cluster.run(register("high", group("web", **({"cpu_mhz": 200} | asked)), priority=80))
    return cluster


def wait_of(cluster: Cluster) -> Waiting:
    """What the evicted job waits for now."""
    (follow_up,) = cluster.propose("app").follow_ups
    assert follow_up.blocked is not None
    return follow_up.blocked.waiting["web"]


def test_priority_is_said_of_what_more_important_jobs_hold() -> None:
    """The MHz that lack are theirs, or the device is: they have its room."""
    for asked in ({}, {"cpu_mhz": 10, "alternatives": ((ResourceAsk(pool="device.gpu"),),)}):
        found = wait_of(evicted_from(gpus(1), **asked))
        assert found.wait_class == "priority", asked
        assert found.reasons[0] == "more important jobs have its room on 1 of 1 nodes"


def test_priority_is_not_said_of_what_an_equal_job_holds() -> None:
    """The MHz of the more important one would do, and the device is an equal one's: the wait is for capacity."""
    cluster = evicted_from(gpus(1))
    one = ((ResourceAsk(pool="device.gpu"),),)
    cluster.run(register("equal", group("web", cpu_mhz=0, alternatives=one)))
    found = wait_of(cluster)
    assert found.wait_class == "capacity"
    assert found.reasons == (
        "cpu exhausted on 1 of 1 nodes",
        "device.gpu exhausted on 1 of 1 nodes",
    )


@pytest.mark.parametrize(
    ("operator", "right", "is_met"),
    [
        (">=", "30 GiB", True),
        (">=", "40960 MiB", True),
        ("=", "40 GiB", True),
        ("!=", "39 GiB", True),
        (">=", "100 Gi", False),
        (">=", "100 MHz", False),
        (">=", "5", False),
        ("<", "100 MHz", False),
        ("!=", "100 MHz", False),
        ("<=", "banana", False),
    ],
)
def test_device_values_of_other_units_do_not_compare(
    operator: str, right: str, *, is_met: bool
) -> None:
    """40 GiB: compared with bytes; with anything else no comparison is true, and the filter says why."""
    cluster = Cluster()
    cluster.do(join("n1", pools=(gpus(1, memory="40 GiB"),)))
    rule = Constraint(left="${device.attr.memory}", operator=operator, right=right)
    ask = ResourceAsk(pool="device.gpu", constraints=(rule,))
    cluster.do(register("app", group("web", alternatives=((ask,),))))
    answer = why_not(cluster, "app")
    assert bool(answer.fitting) == is_met
    if not is_met:
        (line,) = answer.filters
        assert line.name.endswith(f"(not comparable: 40 GiB and {right})")
