"""The wait of a job at a state: its kinds, who it is parked behind, and what answers derive from it."""

import pytest

from schemas.base import JobId
from schemas.evaluation_answers import QueuedWait
from schemas.evaluations import WakeEvaluations
from services.gateway.nomad.evaluations import nomad_eval
from services.gateway.nomad.jobs import job_summary
from services.gateway.nomad.metrics import nomad_metrics
from services.gateway.nomad.source import ShapeSource
from shared.core.decide.garbage import LogTimeIndex
from shared.query import blocked_shapes
from shared.query.blocked_shapes import BlockedShapes
from shared.query.evaluation_index import EvaluationIndex
from shared.query.evaluation_summary import eval_summary
from shared.query.job_progress import SettlingClock
from shared.query.job_wait import BLOCKED, PARKED, PENDING, WOKEN, JobWait, job_wait
from shared.query.projections import job_projection, progress_of_job
from shared.query.wait_queue import waiting_lines
from tests.builders import Cluster, group, join, register


def full_cluster() -> Cluster:
    """A node without room, a job that is blocked, and one that is parked behind it."""
    cluster = Cluster()
    cluster.do(join("n1"))
    cluster.run(register("old", group(cpu_mhz=1000)))
    cluster.run(register("app", group(count=2, cpu_mhz=600)))
    cluster.do(register("next", group(count=3, cpu_mhz=600)))
    return cluster


def wait_of(cluster: Cluster, job_id: str) -> JobWait:
    return job_wait(cluster.state, cluster.state.jobs.by_id[JobId(job_id)])


def test_blocked_parked_pending_and_woken_are_told_apart() -> None:
    """A woken job, and one that was not decided and has nothing ahead, are in no queue and have no account."""
    cluster = full_cluster()
    decided = cluster.state.evaluations.by_key[cluster.state.evaluations.blocked_of[JobId("app")]]
    app, after = wait_of(cluster, "app"), wait_of(cluster, "next")
    assert (app.kind, app.evaluation, app.behind) == (BLOCKED, decided, "")
    assert app.groups["web"].decided_seq == decided.modify_seq
    behind = ("job 'app' is ahead of it in the queue for the same resources",)
    assert (after.kind, after.behind) == (PARKED, "app")
    assert after.groups == {"web": QueuedWait(n=3, wait_class="priority", reasons=behind)}
    assert wait_of(cluster, "old").kind == ""
    cluster.do(WakeEvaluations(keys=(decided.key,), reason="capacity"))
    for name, kind in (("app", WOKEN), ("next", PENDING)):
        wait = wait_of(cluster, name)
        assert (wait.kind, wait.groups) == (kind, {})
    assert waiting_lines(cluster.state, lambda _: 0) == []


def test_a_group_that_the_newest_version_renamed_waits_until_it_is_decided_anew() -> None:
    """The queue holds the last decision: it has the old name until the next one."""
    cluster = full_cluster()
    cluster.do(register("app", group("api", cpu_mhz=600)))
    (line,) = [one for one in waiting_lines(cluster.state, lambda _: 0) if one.job == "app"]
    assert (line.group, line.n) == ("web", 2)
    cluster.schedule("app")
    (line,) = [one for one in waiting_lines(cluster.state, lambda _: 0) if one.job == "app"]
    assert (line.group, line.n, line.decided_seq) == ("api", 1, cluster.state.seq)


def test_status_evaluation_and_nomads_shapes_tell_of_a_parked_job_that_it_waits() -> None:
    """Progress and evaluation say behind whom; `Queued`, `QueuedAllocations` and the gauge count it."""
    cluster = full_cluster()
    state = cluster.state
    job = state.jobs.by_id[JobId("next")]
    histories = EvaluationIndex(state)
    histories.begin_at([(JobId("app"), 1), (JobId("next"), 1)])
    found = progress_of_job(state, job, histories, SettlingClock(LogTimeIndex()))
    behind = "job 'app' is ahead of it in the queue for the same resources"
    assert (found.status, found.reason) == ("waiting", f"3 of web waiting: {behind}")
    # What is published when the job changes cannot follow the jobs ahead of it.
    published = job_projection(state, job, histories, SettlingClock(LogTimeIndex())).rollout
    assert published is not None
    assert (published.status, published.reason) == ("progressing", "an evaluation is pending")
    evaluation = state.evaluations.by_key[cluster.pending("next")]
    shown = eval_summary(state, evaluation)
    assert (shown.status, shown.parked) == ("pending", True)
    assert (shown.waiting["web"].n, shown.waiting["web"].reasons) == (3, (behind,))
    source = ShapeSource(state, histories, lambda _: 0)
    assert job_summary(source, job)["Summary"]["web"]["Queued"] == 3
    assert nomad_eval(source, evaluation)["QueuedAllocations"] == {"web": 3}
    # It was not decided: nothing of it failed.
    assert nomad_eval(source, evaluation)["FailedTGAllocs"] is None
    gauges = nomad_metrics(source, state.seq, 0.0)
    assert gauges["nomad.nomad.job_summary.queued"] == 5
    assert gauges["nomad.nomad.blocked_evals.total_blocked"] == 1
    assert gauges["nomad.nomad.blocked_evals.cpu"] == 1200


def test_a_question_costs_no_look_at_all_that_are_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept beside the state looks at the jobs that changed, not at the others."""
    cluster = full_cluster()
    for number in range(20):
        cluster.run(register(f"other{number}", group(cpu_mhz=500 + number)))
    state = cluster.state
    shapes = BlockedShapes(state)
    shapes.build()
    looks: list[str] = []
    look = blocked_shapes.blocked_shape
    monkeypatch.setattr(
        blocked_shapes,
        "blocked_shape",
        lambda job, blocked: (looks.append(job.id), look(job, blocked))[1],
    )
    cluster.run(register("first", group(count=2, cpu_mhz=600), priority=70))
    shapes.move(JobId("first"))
    wait = job_wait(state, state.jobs.by_id[JobId("next")], shapes)
    assert (wait.kind, wait.behind, looks) == (PARKED, "first", ["first"])
