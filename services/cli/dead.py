"""`caravan dead list`."""

from datetime import UTC, datetime

from schemas.answers import DeadAnswer
from schemas.projections import Query
from services.cli import lines
from services.cli.asking import ask_once
from services.cli.output import Column, Output


def list_all(out: Output, *, limit: int) -> int:
    """List messages that nobody could read, newest first."""
    answer = ask_once("dead", DeadAnswer, Query(limit=limit))
    out.result(answer)
    rows = [
        (
            one.id,
            datetime.fromtimestamp(one.at / 1e9, UTC).astimezone().strftime("%m-%d %H:%M:%S"),
            one.subject,
            one.size,
            one.reason,
        )
        for one in answer.messages
    ]
    columns = [
        Column("ID"),
        Column("AT", 2),
        Column("SUBJECT"),
        Column("BYTES", 3, right=True),
        Column("REASON", 1),
    ]
    out.table(columns, rows)
    lines.footer(out, len(answer.messages), answer.total, "dead letters")
    return 0
