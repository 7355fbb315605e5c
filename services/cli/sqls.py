"""`caravan sql`: questions in SQL, over an export or the live log.

Decides what an answer looks like and where its facts come from; the database is shared/archive's. See
`sql_shell.py` for the shell.
"""

import csv
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import msgspec

from services.cli.asking import with_bus
from services.cli.exports import begin_within, cluster_of, refuse_another
from services.cli.output import CliError, Column, Output
from shared.archive.database import Answer, Database, SqlInvalid
from shared.archive.export import Reading, Spool
from shared.archive.facts import Facts
from shared.archive.segments import ArchiveInvalid
from shared.bus.client import Client
from shared.core.role import Record
from shared.errors import LogDropped, LogError

_INTEGER_MAX = 1 << 63
_NUMBERS = frozenset(("BIGINT", "INTEGER", "HUGEINT", "UBIGINT", "DOUBLE", "TINYINT", "FLOAT"))


class Source:
    """Where the tables come from: an export, the live log, or both. Use as `with Source(…) as source`."""

    def __init__(self, directory: str, *, is_live: bool) -> None:
        """Raises CliError."""
        self.is_live = is_live or not directory
        self.problems: list[str] = []
        self.seq = 0
        self.cluster_id = ""
        self.database = Database()
        self._directory = directory
        self._reading: Reading | None = None
        self._facts = Facts()
        self._spool: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of memory, and of what lies on the disk for the time of asking."""
        self.database.close()
        if self._spool is not None:
            self._spool.cleanup()

    def refresh(self) -> None:
        """Read on to the end of the live log. Raises CliError."""
        self._read(self._facts.apply)
        self.database.take(self._facts)
        self.seq = self._facts.replica.seq

    def ask(self, question: str, values: Sequence[object] = ()) -> Answer:
        """Answer one question. Raises CliError."""
        try:
            return self.database.ask(question, values)
        except SqlInvalid as err:
            raise CliError("sql", str(err), line=err.line) from err

    def _open(self) -> None:
        files: dict[str, list[Path]] = {}
        bases: list[int] | None = []
        if self._directory:
            try:
                self._reading = Reading(Path(self._directory))
            except ArchiveInvalid as err:
                raise CliError(err.code, str(err), file=err.path) from err
            self.problems = list(self._reading.problems)
            self.cluster_id = self._reading.cluster_id
            files, bases = self._reading.files(), self._reading.bases()
        if self.is_live:
            spool = self._spooled()
            for table, paths in spool.files.items():
                files.setdefault(table, []).extend(paths)
            bases = None if bases is None else [*bases, *spool.bases]
        try:
            self.database.close_doors(files, bases)
        except SqlInvalid as err:
            raise CliError("damaged", str(err), file=self._directory) from err
        if not self.is_live:
            self.seq = int(self.ask("SELECT coalesce(last_seq(), 0)").rows[0][0])

    def _spooled(self) -> Spool:
        """Read the live log to its end: what is more than memory should hold lies on the disk."""
        if self._reading is not None:
            # What comes names rows of the state: it is rebuilt up to where the export ends.
            if self.problems:
                raise CliError("damaged", f"{self.problems[0]}; without --live the rest is shown")
            self._facts = Facts(keeps=False, words=self._reading.words())
        self._spool = tempfile.TemporaryDirectory(prefix="caravan-sql-")
        spool = Spool(self._facts, Path(self._spool.name))
        try:
            self._read(spool.apply)
        finally:
            spool.close()
        self.database.take(self._facts)
        self.seq = self._facts.replica.seq
        return spool

    def _read(self, apply: Callable[[Record], None]) -> None:
        facts = self._facts

        async def read(client: Client) -> None:
            cluster_id = await cluster_of(client)
            if self.cluster_id and cluster_id != self.cluster_id:
                text = f"the export is of cluster {self.cluster_id}, the log of {cluster_id}"
                raise CliError("conflict", text)
            self.cluster_id = cluster_id
            if self._reading is not None and not facts.keeps:
                last = next(self._reading.records(self._reading.last_seq), None)
                await refuse_another(client, last, Path(self._directory))
                await begin_within(client, facts.replica.begin_at, self._reading.last_seq)
                for record in self._reading.records(facts.replica.next_seq):
                    facts.apply(record)
                facts.resume()
            async for record in client.read_log(facts.replica.next_seq):
                apply(record)

        try:
            with_bus(read)
        except LogDropped as err:
            text = f"the log on this bus begins at {err.first_seq}; what was before is in an export"
            raise CliError("dropped", f"{text}: --dir DIR --live asks both") from err
        except LogError as err:
            # What can be followed can be asked.
            if str(err) not in self.problems:
                self.problems.append(str(err))


def sql(out: Output, *, question: str, directory: str, live: bool, comma: bool, limit: int) -> int:
    """Answer a question, or open the shell."""
    if out.is_json and comma:
        raise CliError("usage", "--json or --csv, not both")
    if question == "-" or (not question and not sys.stdin.isatty()):
        question = sys.stdin.read()
    if question.strip():
        with Source(directory, is_live=live) as source:
            for problem in source.problems:
                out.note(problem)
            show(out, source, source.ask(question), comma=comma, limit=limit)
        return 0
    if out.is_json or comma or not sys.stdin.isatty():
        raise CliError("usage", "no question: caravan sql 'SELECT …'")
    from services.cli.sql_shell import shell

    with Source(directory, is_live=live) as source:
        return shell(out, source, limit=limit)


def show(out: Output, source: Source, answer: Answer, *, comma: bool, limit: int) -> None:
    """Print an answer: as JSON, as CSV, or as a table of at most `limit` rows (0: all)."""
    if comma:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows([_text(value) for value in row] for row in answer.rows)
        return
    if out.is_json:
        out.result(
            {
                "columns": answer.columns,
                "types": answer.types,
                "rows": [
                    {
                        name: _json(value, kind)
                        for name, value, kind in zip(answer.columns, row, answer.types, strict=True)
                    }
                    for row in answer.rows
                ],
                "row_count": len(answer.rows),
                "problems": source.problems,
                "seq": source.seq,
                "cluster_id": source.cluster_id,
            }
        )
        return
    shown = answer.rows[:limit] if limit > 0 else answer.rows
    kinds = zip(answer.columns, answer.types, strict=True)
    columns = [Column(name, 0, kind.split("(")[0] in _NUMBERS) for name, kind in kinds]
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
