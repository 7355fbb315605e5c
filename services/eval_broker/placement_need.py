"""What an evaluation waits for, from the tables: shape of its asks, queue position, and resources that may help it.

Decides whether an evaluation only adds allocations and may therefore wait in a queue of `blocked_queue.py`.
"""

from schemas.evaluations import Blocked
from services.eval_broker.blocked_queue import UNFIXABLE_BY_CAPACITY, PlacementNeed, QueueOrder
from shared.core.scheduling.reservations.wait_shapes import (
    asks_of,
    blocked_shape,
    new_job_shape,
    queue_order,
)
from shared.core.state.state import State
from shared.core.state.tables.evaluations import Evaluation

#: Reasons with which the broker has evaluations woken. One that is woken by another waited for room too.
CAPACITY_FREED = "capacity freed"
TIME_HAS_COME = "its time has come"
_DID_NOT_WAIT = frozenset({"", TIME_HAS_COME})


def has_waited(evaluation: Evaluation) -> bool:
    """Tell whether a pending evaluation was blocked: a plan found no room, and it was woken since."""
    return evaluation.reason not in _DID_NOT_WAIT


def waiting_place(state: State, evaluation: Evaluation) -> QueueOrder:
    """Where a pending evaluation stands among all that wait for room."""
    key, job_id = evaluation.key, evaluation.job_id
    job = state.jobs.by_id.get(job_id)
    age = state.policy.incarnations.seq(key) if job is None else queue_order(job)[1]
    return (-evaluation.priority, age, job_id, key)


def placement_need(state: State, evaluation: Evaluation) -> PlacementNeed | None:
    """Describe what a pending evaluation needs; None: it may have to do more than add allocations."""
    job = state.jobs.by_id.get(evaluation.job_id)
    if job is None or (shape := new_job_shape(job)) is None:
        return None
    return PlacementNeed(job.id, shape, evaluation.priority, queue_order(job)[1])


def blocked_placement_need(state: State, evaluation: Evaluation, blocked: Blocked) -> PlacementNeed:
    """Describe what a blocked evaluation needs."""
    job_id = evaluation.job_id
    job = state.jobs.by_id.get(job_id)
    if job is None:
        made_seq = state.policy.incarnations.seq(evaluation.key)
        return PlacementNeed(job_id, ("gone", job_id), evaluation.priority, made_seq)
    names = {
        name for name, one in blocked.waiting.items() if one.wait_class not in UNFIXABLE_BY_CAPACITY
    }
    # With preemption, less free room than the ask may be enough.
    may_evict = getattr(state.policy.policy.preemption, job.job_type, False)
    return PlacementNeed(
        job_id,
        blocked_shape(job, blocked),
        evaluation.priority,
        queue_order(job)[1],
        () if may_evict else asks_of(job, names),
    )
