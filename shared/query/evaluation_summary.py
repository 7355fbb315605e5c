"""One evaluation in one line, with the wait of its job where it is this evaluation that waits."""

from schemas.projections import EvalSummary, WaitingSummary
from shared.core.state.ids import eval_id
from shared.core.state.state import State
from shared.core.state.tables.evaluations import Evaluation
from shared.query.blocked_shapes import BlockedShapes
from shared.query.job_wait import PARKED, evaluation_wait


def eval_summary(
    state: State, evaluation: Evaluation, shapes: BlockedShapes | None = None
) -> EvalSummary:
    """One evaluation in one line."""
    wait = evaluation_wait(state, evaluation, shapes)
    return EvalSummary(
        id=eval_id(evaluation.key),
        key=evaluation.key,
        job_id=evaluation.job_id,
        status=evaluation.status,
        priority=evaluation.priority,
        job_type=evaluation.job_type,
        triggered_by=evaluation.triggered_by,
        reason=evaluation.reason,
        create_seq=state.policy.incarnations.seq(evaluation.key),
        modify_seq=evaluation.modify_seq,
        wait_until_ns=evaluation.wait_until_ns,
        parked=wait.kind == PARKED,
        waiting={
            group: WaitingSummary(n=one.n, wait_class=one.wait_class, reasons=one.reasons)
            for group, one in sorted(wait.groups.items())
        },
    )
