"""Children of jobs: the facts that register a child of a periodic or parameterized job.

Whether and when is decided in `launches.py` and `dispatch.py`.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from schemas.base import EvalKey, Event, JobId
from schemas.evaluations import EvaluationsCreated, NewEvaluation
from schemas.jobs import PeriodicBlock
from schemas.launches import JobPayload
from shared.core.decide.evaluations import next_evaluation
from shared.core.decide.job_fields import registration_of
from shared.core.state.state import State
from shared.core.state.tables.jobs import Job

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_META = msgspec.json.Decoder(dict[str, str])


def child_spec(spec: bytes, *, without: str, **fields: object) -> bytes:
    """Make the canonical text of a child from that of its parent: without its pattern, with fields of its own."""
    found: dict[str, object] = {
        key: value for key, value in _FIELDS.decode(spec).items() if key != without
    }
    return msgspec.json.encode(dict(sorted((found | fields).items())))


def merged_meta(spec: bytes, meta: Mapping[str, str]) -> dict[str, str]:
    """Lay meta over that of a text: keys in order."""
    known = _FIELDS.decode(spec).get("Meta")
    return dict(sorted({**(_META.decode(known) if known is not None else {}), **meta}.items()))


def register_child(
    state: State,
    parent: Job,
    child_id: JobId,
    *,
    spec: bytes,
    triggered_by: str,
    payload: bytes = b"",
    submission_id: str = "",
    digest: str = "",
    dispatch_token: str = "",
    priority: int | None = None,
    periodic: PeriodicBlock | None = None,
) -> list[Event]:
    """Register a child with its payload, and evaluate it unless it is a pattern itself."""
    is_pattern = periodic is not None
    child = replace(
        parent,
        parent=parent.id,
        priority=parent.priority if priority is None else priority,
        stopped=False,
        periodic=periodic,
        # What makes the parent a pattern, and what holds back deployments, stays with the parent.
        parameterized=None,
        gates=(),
        windows=(),
    )
    registered = registration_of(
        child,
        child_id,
        0,
        msgspec.Raw(spec),
        submission_id=submission_id,
        digest=digest,
        evaluation=EvalKey(0) if is_pattern else next_evaluation(state),
        launches_after_ns=state.t_ns if is_pattern else 0,
        dispatch_token=dispatch_token,
    )
    events: list[Event] = [registered]
    if payload:
        events.append(JobPayload(job_id=child_id, data=payload))
    if not is_pattern:
        new = NewEvaluation(
            job_id=child_id,
            priority=registered.priority,
            job_type=parent.job_type,
            triggered_by=triggered_by,
        )
        events.append(EvaluationsCreated(evaluations=(new,)))
    return events
