"""`caravan dead list`."""

import time

from schemas.answers import DeadAnswer
from schemas.projections import Query
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once
from services.cli.runtime.output import CommandOutput
from shared.display.formats import format_size, format_time_and_age


def list_all(out: CommandOutput, *, limit: int) -> int:
    """List messages that could not be decoded, newest first."""
    answer = query_once("dead", DeadAnswer, Query(limit=limit))
    out.result(answer)
    now_ns = time.time_ns()
    rows = [
        (
            one.id,
            format_time_and_age(one.at, now_ns),
            one.subject,
            format_size(one.size),
            one.reason,
        )
        for one in answer.messages
    ]
    out.table("ID|AT|SUBJECT|SIZE>|REASON", rows)
    tables.print_footer(out, len(answer.messages), answer.total, "dead letters")
    return 0
