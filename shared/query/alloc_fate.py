"""What became of an allocation: by which plan it was evicted or stopped, and how it ended."""

from collections.abc import Sequence

from schemas.envelope import RECORD_DECODER
from schemas.plans import PlanCommitted
from shared.core.runtime.chain import is_framed
from shared.core.runtime.messages import Record
from shared.core.state.state import State
from shared.core.state.tables.allocations import COMPLETE, FAILED, LOST, RUN

_ENDS = {COMPLETE: "it has completed", FAILED: "it has failed", LOST: "it was lost"}


def fate_of(now: State, records: Sequence[Record], row: int) -> str:
    """Describe what became of the allocation in a row of `now`; empty: it is to run. `records`: the log up to there."""
    table = now.allocations
    end = _ENDS.get(int(table.client[row]), "")
    if table.desired[row] == RUN:
        return end
    placed_seq = now.policy.incarnations.seq(int(table.key[row]))
    for record in reversed(records):
        if record.seq < placed_seq:
            break
        for event in RECORD_DECODER.decode(record.data).events if is_framed(record.data) else ():
            if not isinstance(event, PlanCommitted):
                continue
            if any(row in one.rows for one in event.evictions):
                return f"evicted at seq {record.seq} for job {event.job_id!r}"
            for stop in event.stops:
                if row in stop.rows:
                    said = f"stopped at seq {record.seq}: {stop.reason or 'its job wants fewer'}"
                    return f"{said}; {end}" if end else said
    return end or "it is to stop"
