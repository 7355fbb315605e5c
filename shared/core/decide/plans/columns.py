"""The columns of a plan: their lengths and the range of every value, before anything else reads them.

A scheduler's login may send any numbers; those of a refused plan do not reach the log. Room: `fit.py`; fences:
`verify.py`.
"""

from collections.abc import Sequence

from schemas.bounds import WORDS
from schemas.plans import GroupPlacement, SubmitPlan
from shared.core.resources.asks import OF_CLUSTER, PORT_MAX
from shared.core.state.ids import ORDINAL_BITS
from shared.core.state.state import State

#: Allocations of one plan: the id of an allocation has no room for a larger number within its transaction.
ALLOCS_MAX = 1 << ORDINAL_BITS
#: What a column of the allocation table holds.
_INDEX_MAX = 2**31 - 1
_RESCHEDULES_MAX = 2**15 - 1
_KEY_MAX = 2**63 - 1
_PRIORITY_MAX = 2**31 - 1
#: Columns that a small job's plan does not have.
_RARE = ("previous", "reschedules", "instances", "ports")
_ENDS = ("", "complete", "failed")
_JOB_TYPES = WORDS["EvalSummary", "job_type"]


class MalformedPlanError(ValueError):
    """A plan with inconsistent columns; `code` is that of its refusal."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_plan_columns(state: State, plan: SubmitPlan) -> None:
    """Check the lengths and ranges of all columns. Raises MalformedPlanError."""
    total = 0
    for placement in plan.placements:
        if not _is_run(placement, state.fleet.size):
            _check_placement(placement, state.fleet.size)
        total += sum(placement.counts)
    if total > ALLOCS_MAX:
        raise MalformedPlanError("invalid", f"places {total} allocations, at most {ALLOCS_MAX}")
    size = state.allocations.size
    for rows in [one.rows for one in plan.stops] + [one.rows for one in plan.updates]:
        if not _is_within(rows, 0, size - 1):
            raise MalformedPlanError(
                "unknown_row", "stops or updates a row that is not of this job"
            )
    for eviction in plan.evictions:
        if not _is_within(eviction.rows, 0, size - 1):
            raise MalformedPlanError("invalid", "evicts a row without an allocation")
    if plan.end or plan.follow_ups:
        _check_end(plan)
    if plan.origin.snapshot_seq > state.seq:
        raise MalformedPlanError("invalid", f"made at seq {plan.origin.snapshot_seq}, after now")


def _is_within(column: Sequence[int], low: int, high: int) -> bool:
    # Builtins on tuples: an array would cost more than the question.
    return not column or (min(column) >= low and max(column) <= high)


def _is_run(placement: GroupPlacement, size: int) -> bool:
    """Tell whether it is one sound run of new allocations on one node: what a small job is."""
    rows, counts, names = placement.rows, placement.counts, placement.names
    if not len(rows) == len(counts) == 1 or len(names) != 2:
        return False
    is_sound = names[1] == counts[0] >= 1 and 0 <= rows[0] < size and names[0] >= 0
    is_plain = not any(getattr(placement, name) for name in _RARE)
    return is_sound and is_plain and sum(names) <= _INDEX_MAX


def _check_placement(placement: GroupPlacement, size: int) -> None:
    rows, counts = placement.rows, placement.counts
    if len(rows) != len(counts) or min(counts, default=1) < 1:
        raise MalformedPlanError("invalid", "rows and counts do not agree")
    if not _is_within(rows, 0, size - 1):
        raise MalformedPlanError("unknown_row", "names a row without a node")
    total = sum(counts)
    starts, lengths = placement.names[::2], placement.names[1::2]
    if sum(lengths) != total or len(starts) != len(lengths):
        raise MalformedPlanError("invalid", "names and counts do not agree")
    if not (_is_within(starts, 0, _INDEX_MAX - total) and min(lengths, default=1) >= 1):
        raise MalformedPlanError("invalid", f"a name index is not from 0 to {_INDEX_MAX}")
    for column, high in (
        (placement.previous, _KEY_MAX),
        (placement.reschedules, _RESCHEDULES_MAX),
    ):
        if column and len(column) != total:
            raise MalformedPlanError("invalid", "columns and counts do not agree")
        if not _is_within(column, 0, high):
            raise MalformedPlanError("invalid", f"a value of a column is not from 0 to {high}")
    if not (
        _is_within(placement.instances, OF_CLUSTER, _INDEX_MAX)
        and _is_within(placement.ports, 0, PORT_MAX)
    ):
        raise MalformedPlanError("invalid", "a slot or port is out of range")


def _check_end(plan: SubmitPlan) -> None:
    if plan.end not in _ENDS:
        raise MalformedPlanError("invalid", "ends its evaluation with an unknown status")
    for one in plan.follow_ups:
        if one.job_id != plan.job_id:
            raise MalformedPlanError("invalid", "creates an evaluation of another job")
        if one.job_type not in _JOB_TYPES:
            raise MalformedPlanError("invalid", "creates an evaluation of an unknown job type")
        values = (one.priority, one.wait_until_ns, one.previous)
        if not _is_within(values, 0, _KEY_MAX) or one.priority > _PRIORITY_MAX:
            raise MalformedPlanError("invalid", "creates an evaluation with numbers out of range")
