"""Pages of lists: what one answer holds of all that fits the filters of a query; and where in the log it is from."""

from collections.abc import Sequence
from typing import TypedDict, TypeVar

from schemas.projections import Query
from shared.core.columns import Rows
from shared.core.runtime.replica import Replica

T = TypeVar("T")


class AnswerPosition(TypedDict):
    """What every answer carries."""

    seq: int
    cluster_id: str


def answer_position(replica: Replica) -> AnswerPosition:
    """Return the position of an answer from this state."""
    return {"seq": replica.seq, "cluster_id": replica.state.policy.cluster_id}


def page_of(items: Sequence[T], query: Query) -> tuple[T, ...]:
    """Return the page of a list."""
    return tuple(items[_window(query)])


def page_rows(rows: Rows, query: Query) -> Rows:
    """Return the page of rows. Shapes: (N,), (P,)."""
    return rows[_window(query)]


def _window(query: Query) -> slice:
    """Return which part of a list a query wants to see."""
    start = max(query.offset, 0)
    return slice(start, start + query.limit)
