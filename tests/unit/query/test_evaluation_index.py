"""The index of evaluations follows every record, also one that creates, ends and collects an evaluation at once."""

from schemas.base import EvalKey, JobId
from schemas.evaluations import (
    EvaluationEnded,
    EvaluationsCollected,
    EvaluationsCreated,
    NewEvaluation,
)
from shared.core.runtime.replica import Replica
from shared.core.state.ids import make_key
from shared.query.evaluation_index import EvaluationIndex
from tests.unit.core.state.written_log import WrittenLog

JOB = JobId("web")


def followed(log: WrittenLog) -> EvaluationIndex:
    """The index behind every record of a log."""
    replica = Replica()
    index = EvaluationIndex(replica.state)
    for record in log.records:
        decoded = replica.apply(record, index.before)
        assert decoded is not None
        index.after(decoded, record.seq)
    return index


def created() -> EvaluationsCreated:
    return EvaluationsCreated(evaluations=(NewEvaluation(job_id=JOB),))


def test_one_record_may_create_end_and_collect() -> None:
    """Nothing is left of it, and the evaluations of other records stay."""
    log = WrittenLog()
    log.jobs(JOB)
    log.tx(created())
    kept = EvalKey(make_key(log.seq, 0))
    key = EvalKey(make_key(log.seq + 1, 0))
    ended = EvaluationEnded(key=key, status="complete")
    log.tx(created(), ended, EvaluationsCollected(keys=(key,)))
    index = followed(log)
    assert index.of_job(JOB) == [kept]
    assert index.has_open(JOB)


def test_one_record_may_end_and_collect_an_older_one() -> None:
    """Its job is known although the state has forgotten the evaluation by then."""
    log = WrittenLog()
    log.jobs(JOB)
    log.tx(created())
    key = EvalKey(make_key(log.seq, 0))
    log.tx(EvaluationEnded(key=key, status="complete"), EvaluationsCollected(keys=(key,)))
    index = followed(log)
    assert index.of_job(JOB) == []
    assert not index.has_open(JOB)
