"""A wait has two accounts: the last decision of the queue, with its seq, and the one that it would make now."""

from schemas.base import JobId, NodeId
from schemas.evaluation_answers import QueuedWait, WhyAnswer
from schemas.policy import SetEligibility
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.query.explain import explain_candidate
from shared.query.job_wait import job_wait
from shared.query.wait_queue import job_waits, waiting_lines
from tests.builders import Cluster, group, join, register

FULL = ("cpu exhausted on 2 of 2 nodes",)


def full_cluster() -> Cluster:
    """Two nodes without room, and a job that waits."""
    cluster = Cluster()
    cluster.do(join("n1"), join("n2"))
    cluster.run(register("old", group(count=2, cpu_mhz=1000)))
    cluster.run(register("app", group(cpu_mhz=600)))
    return cluster


def why_not(cluster: Cluster, job_id: str) -> WhyAnswer:
    """Ask; check that the counts add up to the fleet."""
    state = cluster.state
    found = explain_candidate(state, PlacementCache(), state.jobs.by_id[JobId(job_id)], "")
    refused = sum(one.refused for one in found.filters)
    assert found.nodes_considered == refused + found.lacking + found.fitting == 2
    return found


def test_where_nothing_changed_the_queue_says_what_why_not_says() -> None:
    """The decision has its seq, and is not told a second time in the sentence."""
    cluster = full_cluster()
    answer = why_not(cluster, "app")
    decided = cluster.state.seq
    assert (answer.wait_class, answer.reasons) == ("capacity", FULL)
    assert answer.queue == QueuedWait(decided_seq=decided, n=1, reasons=FULL)
    assert answer.text == "app.web cannot be placed (capacity)"


def test_all_of_why_not_is_of_the_moment_but_what_the_queue_decided() -> None:
    """Both nodes became ineligible since: table, class, reasons and sentence say so; the sentence has both moments."""
    cluster = full_cluster()
    decided = cluster.state.seq
    for name in ("n1", "n2"):
        cluster.do(SetEligibility(request_id=name, node_id=NodeId(name), eligible=False))
    answer = why_not(cluster, "app")
    assert [(one.name, one.refused) for one in answer.filters] == [("ineligible", 2)]
    assert answer.reasons == ("2 of 2 feasible nodes are ineligible",)
    assert (answer.seq, answer.decision.snapshot_seq) == (cluster.state.seq, cluster.state.seq)
    assert answer.queue == QueuedWait(decided_seq=decided, n=1, reasons=FULL)
    end = f"; the queue decided at seq {decided}: capacity, cpu exhausted on 2 of 2 nodes"
    assert answer.text == f"app.web cannot be placed (capacity){end}"
    (line,) = waiting_lines(cluster.state, lambda _: 0)
    assert (line.decided_seq, line.reasons) == (decided, FULL)


def test_room_of_the_moment_is_told_beside_the_decision_before_it() -> None:
    """Before the queue decides again, why-not says where one more would go, and what the queue decided."""
    cluster = full_cluster()
    decided = cluster.state.seq
    cluster.do(join("n3"))
    state = cluster.state
    answer = explain_candidate(state, PlacementCache(), state.jobs.by_id[JobId("app")], "")
    assert (answer.wait_class, answer.reasons, answer.fitting) == ("", (), 1)
    assert answer.text.startswith("app.web: one more would go to n3, score ")
    assert answer.text.endswith(f"; the queue decided at seq {decided}: capacity, {FULL[0]}")


def test_a_parked_job_has_one_answer() -> None:
    """Queue, status and why-not say behind whom it stands, undecided; why-not says beside it what it lacks."""
    cluster = full_cluster()
    cluster.do(register("next", group(cpu_mhz=600)))
    state = cluster.state
    job = state.jobs.by_id[JobId("next")]
    behind = ("job 'app' is ahead of it in the queue for the same resources",)
    parked = QueuedWait(n=1, wait_class="priority", reasons=behind)
    answer = why_not(cluster, "next")
    assert answer.queue == parked
    assert (answer.wait_class, answer.reasons) == ("capacity", FULL)
    assert answer.text.endswith(f"; the queue has not decided it yet: {behind[0]}")
    (line,) = job_waits(job_wait(state, job))
    (queued,) = [one for one in waiting_lines(state, lambda _: 0) if one.job == "next"]
    for one in (line, queued):
        assert (
            QueuedWait(
                decided_seq=one.decided_seq, n=one.n, wait_class=one.wait_class, reasons=one.reasons
            )
            == parked
        )


def test_a_full_share_of_a_distinct_property_is_named_with_its_nodes() -> None:
    """Two nodes, of which one has its share: table and reasons count it apart from the node that is full."""
    cluster = Cluster()
    cluster.do(join("n1"), join("n2"))
    cluster.run(register("old", group(count=1, cpu_mhz=900)))
    cluster.run(register("app", group(count=2, cpu_mhz=500, distinct_hosts="group")))
    answer = why_not(cluster, "app")
    assert [(one.name, one.refused) for one in answer.filters] == [("distinct_hosts", 1)]
    assert answer.lacking == 1
    assert answer.reasons == (
        "distinct_hosts closes 1 of 2 nodes",
        "cpu exhausted on 1 of 1 nodes",
    )
