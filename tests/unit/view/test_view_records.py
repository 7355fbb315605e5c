"""What a view makes of rare records: the lease of another applier, and a transaction that forgets what it made."""

from schemas.base import EvalKey, JobId
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCollected,
    EvaluationsCreated,
    NewEvaluation,
)
from schemas.nodes import NodeRegistered
from schemas.policy import IncarnationBegan
from shared.core.state.ids import make_key
from shared.protocol import subjects
from tests.unit.view.test_view import small


def test_every_node_is_told_of_another_applier() -> None:
    """A takeover republishes each node's projection with the new epoch, so that agents send again what was lost."""
    story = small()
    seen = story.land(story.start())
    assert seen[subjects.node("n1")].get("epoch", 0) == 0
    story.later(ms=1000)
    epoch = story.lease("a2")
    seen = story.land(story.later(ms=250))
    assert {seen[subjects.node(name)]["epoch"] for name in ("n1", "n2")} == {epoch}


def test_an_evaluation_may_be_made_ended_and_collected_in_one_transaction() -> None:
    """`system.gc` beside a purge in one batch: the view continues, and knows of no evaluation that the state forgot."""
    story = small()
    story.land(story.start())
    seq = len(story.records) + 1
    key, old = make_key(seq, 0), next(iter(story.view.replica.state.evaluations.open))
    new = NewEvaluation(job_id=JobId("j"), priority=50, job_type="service")
    story.log(
        EvaluationsCreated(evaluations=(new,)),
        EvaluationEnded(key=EvalKey(key), status="complete"),
        EvaluationEnded(key=old, status="complete"),
        EvaluationsCollected(keys=(EvalKey(key), old)),
    )
    story.later()
    state, histories = story.view.replica.state, story.view._histories
    assert not state.evaluations.by_key and not histories.of_job(JobId("j"))
    assert not histories.has_open(JobId("j")) and histories.newest(JobId("j")) is None


def test_a_log_that_was_rolled_back_is_an_alarm_for_a_day() -> None:
    """Where a node had seen more, `query.cluster` and `/health` say what is lost; a mere start of the bus is none."""
    story = small()
    story.start()
    story.log(IncarnationBegan(incarnation=5, reason="the bus was started again"))
    assert story.ask("cluster")["alarms"] == [] and not story.view.alarms
    reason = "node n1 has seen seq 90, the log ends at 9: it was restored from an older copy"
    story.log_ns = story.now_ns
    seq = story.log(IncarnationBegan(incarnation=9, reason=reason, lost_seq=90))
    (alarm,) = story.ask("cluster")["alarms"]
    assert alarm.startswith(reason) and f"records {seq} to 90" in alarm
    assert story.view.alarms == (alarm,)
    story.later(ms=23 * 3_600 * 1_000)
    assert story.ask("cluster")["alarms"] == [alarm]
    story.later(ms=3_600 * 1_000 + 1)
    assert story.ask("cluster")["alarms"] == [] and not story.view.alarms


def test_nodes_that_followed_a_lost_history_are_an_alarm() -> None:
    """A bus that was started on an older copy: the registrations that report it name all that is lost."""
    story = small()
    story.start()
    first = story.log(IncarnationBegan(incarnation=5, reason="the bus was started again"))
    story.log_ns = story.now_ns
    spec = story.view.replica.state.fleet.specs[0]
    for lost_seq in (0, first + 40, first + 30):
        lost = {"lost_first_seq": first, "lost_seq": lost_seq} if lost_seq else {}
        story.log(NodeRegistered(spec=spec, host_id="h", boot_id="b", number=1, **lost))
        assert bool(story.ask("cluster")["alarms"]) == bool(lost_seq)
    (alarm,) = story.ask("cluster")["alarms"]
    assert f"node {spec.node_id} has seen seq {first + 40}" in alarm
    assert f"records {first} to {first + 40}" in alarm and f"continues at {first}" in alarm
