"""How the answer to a SQL query is printed."""

import csv
import sys
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from services.cli.runtime.output import CommandOutput, TableColumn
from services.cli.sql.source import SqlSource
from shared.archive.database import SqlResult

_INTEGER_MAX = 1 << 63
_NUMBERS = frozenset(("BIGINT", "INTEGER", "HUGEINT", "UBIGINT", "DOUBLE", "TINYINT", "FLOAT"))


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`sql --json`."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: list[dict[str, Any]]
    row_count: int
    problems: list[str]
    seq: int
    cluster_id: str


def print_answer(
    out: CommandOutput, source: SqlSource, answer: SqlResult, *, comma: bool, limit: int
) -> None:
    """Print an answer as JSON, as CSV, or as a table of at most `limit` rows (0: all)."""
    if comma:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows([_text(value) for value in row] for row in answer.rows)
        return
    if out.is_json:
        out.result(
            SqlAnswer(
                columns=answer.columns,
                types=answer.types,
                rows=[
                    {
                        name: _json(value, kind)
                        for name, value, kind in zip(answer.columns, row, answer.types, strict=True)
                    }
                    for row in answer.rows
                ],
                row_count=len(answer.rows),
                problems=source.problems,
                seq=source.seq,
                cluster_id=source.cluster_id,
            )
        )
        return
    shown = answer.rows[:limit] if limit > 0 else answer.rows
    kinds = zip(answer.columns, answer.types, strict=True)
    columns = [TableColumn(name, kind.split("(")[0] in _NUMBERS) for name, kind in kinds]
    out.table(columns, [[_text(value) for value in row] for row in shown])
    count = len(answer.rows)
    if not count:
        out.line("no rows", "dim")
    elif count > len(shown):
        out.line(f"{len(shown)} of {count} rows; --limit 0 shows all", "dim")


def _json(value: Any, kind: str) -> Any:
    if kind == "JSON" and isinstance(value, str):
        return msgspec.Raw(value.encode())
    if isinstance(value, dict):
        return {str(key): _json(one, "") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one, "") for one in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - not a number
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int) and -_INTEGER_MAX <= value < 2 * _INTEGER_MAX:
        return value
    return _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        return "; ".join(_text(one) for one in value)
    return str(value)
