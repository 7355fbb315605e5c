"""How the answer to a SQL query is printed."""

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from services.cli.runtime.output import CommandOutput, TableColumn
from services.cli.sql.source import SqlSource
from shared.archive.database import SqlResult

_INTEGER_MAX = 1 << 63
#: What makes a field of comma-separated values need quotes.
_QUOTED_CHARS = frozenset(',"\r\n')
#: How the database hands over the ends of time.
_INFINITE = {datetime.max: "infinity", datetime.min: "-infinity"}  # noqa: DTZ901 - as they are, without a zone
_INFINITE_DATES = {date.max: "infinity", date.min: "-infinity"}
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
        print(",".join(map(_quoted, answer.columns)))
        for row in answer.rows:
            print(",".join(map(_csv_field, row, answer.types)))
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


def _csv_field(value: Any, kind: str) -> str:
    """A value with all its digits: a null is nothing at all, an empty text is "", a list or a struct is JSON."""
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return _quoted(msgspec.json.encode(_json(value, kind)).decode())
    return _quoted(_text(value, is_exact=True))


def _quoted(text: str) -> str:
    needs = not text or not _QUOTED_CHARS.isdisjoint(text)
    return '"' + text.replace('"', '""') + '"' if needs else text


def _raw_json(text: str) -> Any:
    """A text of JSON as it is; the database also writes NaN and Infinity, which JSON has not: null then."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            return json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return text
    return msgspec.Raw(text.encode())


def _json(value: Any, kind: str) -> Any:
    if kind == "JSON" and isinstance(value, str):
        return _raw_json(value)
    if isinstance(value, dict):
        return {str(key): _json(one, "") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one, "") for one in value]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - not a number
    if isinstance(value, Decimal):
        return msgspec.Raw(format(value, "f").encode())
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, int) and -_INTEGER_MAX <= value < 2 * _INTEGER_MAX:
        return value
    return _text(value, is_exact=True)


def _text(value: Any, *, is_exact: bool = False) -> str:
    """Show a value; people get fewer digits of times and of numbers than programs."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        if value in _INFINITE:
            return _INFINITE[value]
        return value.isoformat(sep=" ", timespec="microseconds" if is_exact else "milliseconds")
    if isinstance(value, date):
        return _INFINITE_DATES.get(value, value.isoformat())
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return repr(value) if is_exact else f"{value:.10g}"
    if isinstance(value, list):
        return "; ".join(_text(one) for one in value)
    return str(value)
