"""What an evaluation needs, by the tables: its shape, its place in the queue, and what room could help it.

Decides whether an evaluation can only place, so that it may stand in line. Must not know lines. Next: `lines.py`.
"""

from schemas.evaluations import Blocked
from services.eval_broker.lines import HOPELESS, Need
from shared.core.ids import key_seq
from shared.core.shapes import asks_of, order_of, waiting_shape, whole_shape
from shared.core.state import State
from shared.core.tables.evaluations import Evaluation


def need_of(state: State, evaluation: Evaluation) -> Need | None:
    """Say what a pending evaluation needs; None: there may be other work for it than placing."""
    job = state.jobs.by_id.get(evaluation.job_id)
    if job is None or (shape := whole_shape(job)) is None:
        return None
    return Need(job.id, shape, evaluation.priority, order_of(job)[1])


def need_of_blocked(state: State, evaluation: Evaluation, blocked: Blocked) -> Need:
    """Say what a blocked evaluation needs."""
    job_id = evaluation.job_id
    job = state.jobs.by_id.get(job_id)
    if job is None:
        return Need(job_id, ("gone", job_id), evaluation.priority, key_seq(evaluation.key))
    names = {name for name, one in blocked.waiting.items() if one.wait_class not in HOPELESS}
    # Where others may be evicted, less room than it asks for may be enough.
    may_evict = getattr(state.policy.policy.preemption, job.job_type, False)
    return Need(
        job_id,
        waiting_shape(job, blocked),
        evaluation.priority,
        order_of(job)[1],
        () if may_evict else asks_of(job, names),
    )
