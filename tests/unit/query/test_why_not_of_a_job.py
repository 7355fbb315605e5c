"""Why-not decides the whole job, as the scheduler does, and counts nodes in the order of the reasons."""

from schemas.base import JobId, NodeId
from schemas.evaluation_answers import WhyAnswer
from schemas.policy import Policy, Preemption, SetEligibility
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.query.explain import RESERVED, explain_candidate
from shared.query.wait_queue import waiting_lines
from tests.builders import Cluster, group, join, register
from tests.property.reason_counts import check_reason_counts


def why_not(cluster: Cluster, job_id: str, name: str = "", row: int | None = None) -> WhyAnswer:
    """Ask; check that the counts add up to the fleet, and that reasons and tables agree."""
    state = cluster.state
    job = state.jobs.by_id[JobId(job_id)]
    found = explain_candidate(state, PlacementCache(), job, name, row=row)
    refused = sum(one.refused for one in found.filters)
    assert found.nodes_considered == refused + found.lacking + found.fitting
    check_reason_counts(found, job.job_type)
    return found


def counts(answer: WhyAnswer) -> tuple[dict[str, int], dict[str, int]]:
    """Filters and exhausted dimensions."""
    return (
        {one.name: one.refused for one in answer.filters},
        {one.dimension: one.nodes for one in answer.exhausted},
    )


def test_a_full_node_that_is_reserved_lacks_room() -> None:
    """It counts as exhausted, as the reason has it; a reservation refuses nodes that have room."""
    cluster = Cluster()
    cluster.do(join("n0"), join("n1"))
    cluster.run(register("sand", group(count=6, cpu_mhz=300), job_type="batch"))
    cluster.run(register("couch", group(cpu_mhz=900)))
    cluster.run(register("small", group(cpu_mhz=200)))
    assert cluster.state.reservations.by_job
    answer = why_not(cluster, "small")
    assert answer.reasons == ("cpu exhausted on 2 of 2 nodes",)
    assert (counts(answer), answer.lacking) == (({}, {"cpu_mhz": 2}), 2)


def test_a_node_with_room_that_is_reserved_is_refused_by_the_reservation() -> None:
    """The reason, the filter and the sentence about the node name it."""
    cluster = Cluster()
    cluster.do(join("n0"), join("n1"))
    cluster.run(register("sand", group(count=2, cpu_mhz=700), job_type="batch"))
    cluster.run(register("couch", group(cpu_mhz=900)))
    cluster.run(register("small", group(count=2, cpu_mhz=200)))
    job = cluster.state.jobs.by_id[JobId("small")]
    answer = why_not(cluster, "small")
    assert job.id in {one.job for one in waiting_lines(cluster.state, lambda _: 0)}
    assert answer.wait_class == "reservation"
    filters, _ = counts(answer)
    assert filters[RESERVED] >= 1
    (held,) = {hold.rows for hold in cluster.state.reservations.by_job[JobId("couch")].holds}
    text = why_not(cluster, "small", row=held[0]).text
    assert f"{RESERVED} excludes the node" in text


def test_what_is_too_small_and_ineligible_counts_once_in_the_same_place() -> None:
    """Two nodes are ineligible, one of them is too small: tables and reasons say one and one."""
    cluster = Cluster()
    for number in range(1, 7):
        cluster.do(join(f"n{number}", cpu_mhz=1000 if number != 6 else 100))
    cluster.run(register("old", group(count=5, cpu_mhz=900)))
    for name in ("n1", "n6"):
        cluster.do(SetEligibility(request_id=name, node_id=NodeId(name), eligible=False))
    cluster.run(register("app", group(cpu_mhz=600)))
    answer = why_not(cluster, "app")
    assert answer.reasons == (
        "cpu exhausted on 4 of 4 nodes",
        "1 of 6 feasible nodes is ineligible",
        "1 of 6 feasible nodes is too small, even empty",
    )
    assert counts(answer) == ({"too small, even empty": 1, "ineligible": 1}, {"cpu_mhz": 4})


def test_of_a_job_all_at_once_nothing_is_evicted_for_a_part() -> None:
    """Where another group never fits, why-not of the first says what the plan says: it waits, and evicts nothing."""
    cluster = Cluster(policy=Policy(preemption=Preemption(service=True)))
    cluster.do(join("n1"))
    cluster.run(register("low", group(cpu_mhz=1000), priority=20))
    groups = (group("a", cpu_mhz=600), group("b", cpu_mhz=5000))
    cluster.run(register("app", *groups, priority=80, all_at_once=True))
    answer = why_not(cluster, "app", "a")
    assert (answer.wait_class, answer.victims) == ("capacity", ())
    assert answer.queue is not None and answer.reasons == answer.queue.reasons
    # One group alone may evict.
    cluster.run(register("alone", group("a", cpu_mhz=600), priority=80))
    assert "alone" not in {one.job for one in waiting_lines(cluster.state, lambda _: 0)}


def test_a_group_before_takes_the_room_of_the_next() -> None:
    """Two groups wait and room for one comes: the first would be placed, the second says what lacks behind it."""
    cluster = Cluster()
    cluster.do(join("n1"))
    cluster.run(register("old", group(cpu_mhz=1000)))
    cluster.run(register("app", group("a", cpu_mhz=600), group("b", cpu_mhz=600)))
    cluster.do(join("n2"))
    first, second = why_not(cluster, "app", "a"), why_not(cluster, "app", "b")
    assert (first.wait_class, first.fitting) == ("", 1)
    assert "one more would go to n2" in first.text
    assert (second.wait_class, second.reasons) == ("capacity", ("cpu exhausted on 2 of 2 nodes",))
    assert counts(second) == ({}, {"cpu_mhz": 2})
    assert [one.shortfall for one in second.nearest] == [{"cpu_mhz": 200}, {"cpu_mhz": 600}]


def test_a_system_job_that_runs_on_every_node_would_evict_nothing() -> None:
    """No node lacks its allocation: no victim is named, and a named node changes the sentence alone."""
    cluster = Cluster(policy=Policy(preemption=Preemption(system=True)))
    cluster.do(join("n1"))
    cluster.run(register("sys", group(cpu_mhz=300), job_type="system", priority=80))
    cluster.run(register("low", group(cpu_mhz=700), priority=20))
    answer, named = why_not(cluster, "sys"), why_not(cluster, "sys", row=0)
    assert answer.text == "sys.web runs or has ended on every allowed node"
    assert (
        named.text == "sys.web would not go to n1: existing allocation of the job excludes the node"
    )
    for one in (answer, named):
        assert (one.wait_class, one.reasons, one.victims) == ("", (), ())
