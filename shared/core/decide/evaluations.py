"""Evaluations: waking and ending what the eval broker asks for."""

from schemas.base import EvalKey, Event, JobId
from schemas.evaluations import (
    EndEvaluations,
    EvaluationEnded,
    EvaluationsCreated,
    EvaluationsWoken,
    NewEvaluation,
    WakeEvaluations,
)
from shared.core.decide.deciders import Deciders, TimedDeciders
from shared.core.decide.system_jobs import has_newer_node, is_pending, node_evaluation
from shared.core.state.state import State

#: A failed evaluation is tried again by another one after this time, as in Nomad (its least delay).
FAILED_FOLLOW_UP_NS = 60_000_000_000


def next_evaluation(state: State) -> EvalKey:
    """Return the key of the next evaluation that the transaction creates."""
    # The state stands in the transaction that is being written, so its seq is the one these events will get.
    ordinal = state.evaluations.next_ordinal(state.seq)
    return EvalKey(state.policy.incarnations.key(state.seq, ordinal))


def decide_wake(state: State, command: WakeEvaluations) -> list[Event]:
    """Wake those that are still blocked, or delayed until now by log time.

    The broker's clock may be ahead of the log's: a delayed one that it wakes too soon would find nothing due, and end.
    """
    table = state.evaluations
    keys = []
    for key in command.keys:
        evaluation = table.by_key.get(key)
        if evaluation is None or not evaluation.is_open:
            continue
        if evaluation.status == "blocked" or 0 < evaluation.wait_until_ns <= state.t_ns:
            keys.append(key)
    keys = list(dict.fromkeys(keys))
    return [EvaluationsWoken(keys=tuple(keys), reason=command.reason)] if keys else []


def decide_end(state: State, command: EndEvaluations, now_ns: int) -> list[Event]:
    """End those that are still open; a failed one leaves a delayed follow-up, so that its job is not forgotten.

    A canceled one of a system job leaves another, where a node came that no other evaluation will see.
    """
    table = state.evaluations
    ended: list[Event] = []
    follow_ups = []
    canceled: dict[JobId, int] = {}
    for key in dict.fromkeys(command.keys):
        evaluation = table.by_key.get(key)
        if evaluation is None or not evaluation.is_open:
            continue
        ended.append(EvaluationEnded(key=key, status=command.status, reason=command.reason))
        if command.status == "failed":
            follow_up = NewEvaluation(
                job_id=evaluation.job_id,
                priority=evaluation.priority,
                job_type=evaluation.job_type,
                triggered_by="failed-follow-up",
                wait_until_ns=now_ns + FAILED_FOLLOW_UP_NS,
                previous=key,
            )
            follow_ups.append(follow_up)
        elif command.status == "canceled":
            seen = canceled.get(evaluation.job_id, evaluation.min_seq)
            canceled[evaluation.job_id] = min(seen, evaluation.min_seq)
    follow_ups += _for_newer_nodes(state, canceled, frozenset(command.keys))
    if follow_ups:
        ended.append(EvaluationsCreated(evaluations=tuple(follow_ups)))
    return ended


def _for_newer_nodes(
    state: State, canceled: dict[JobId, int], keys: frozenset[EvalKey]
) -> list[NewEvaluation]:
    """Evaluate system jobs again for nodes that came while their canceled evaluation (`keys`) was pending.

    Such a node created no evaluation of its own. The plan that made the broker cancel this one had seen it
    created (its `min_seq`), and may be older than the node.
    """
    found = []
    for job_id, seen_seq in canceled.items():
        job = state.jobs.by_id.get(job_id)
        if job is None or is_pending(state, job_id, but=keys):
            continue
        if has_newer_node(state, job, seen_seq):
            found.append(node_evaluation(job))
    return found


DECIDERS: Deciders = {WakeEvaluations: decide_wake}


TIMED_DECIDERS: TimedDeciders = {EndEvaluations: decide_end}
