"""DuckDB in memory: facts in tables or as Parquet files, and read-only queries. The only module that imports DuckDB.

Accepts single SELECT statements. Queries read the given segments and nothing else, and write nothing.
"""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np

from schemas.usage import UsageMinute
from shared.archive.fact_extractor import FactExtractor
from shared.archive.intervals import OPEN_END, OpenIntervals
from shared.archive.table_buffers import (
    DICTIONARY_CODE,
    FACT_TABLES,
    ColumnArray,
    drain_buffers,
    sql_type,
)
from shared.archive.views import STATE_FROM_CHANGES, STATE_FROM_INTERVALS, VIEWS
from shared.errors import CaravanError

#: How the database begins the line that a question errs in.
_PLACE = re.compile(r"LINE (\d+): ")


#: Types whose values Python cannot hold: with a zone (by a module that is not ours), and with nanoseconds.
_UNREADABLE = re.compile(r"\bTIMESTAMP WITH TIME ZONE\b|\bTIMESTAMP_NS\b")


#: What tasks used: of the live bus, not of the log.
MINUTE_COLUMNS = {
    **dict.fromkeys(("node_id", "alloc_id", "task"), "VARCHAR"),
    **dict.fromkeys(("at_s", "samples", "cpu_millicores", "cpu_peak_millicores"), "BIGINT"),
    **dict.fromkeys(("memory_bytes", "throttled_ms", "oom_kills"), "BIGINT"),
}


class SqlInvalid(CaravanError):
    """A query that the database refuses. `line` and `column` count from 1; 0: unknown."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"{message} (line {line}, column {column})" if line else message)
        self.line = line
        self.column = column


class SqlResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a question found. `types` are those of SQL."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


class FactDatabase:
    """Facts, and the views over them. Fill it, then `lock_sources`, then ask."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(
            ":memory:", config={"python_enable_replacements": "false", "temp_directory": ""}
        )
        self._run("SET TimeZone = 'UTC'; CREATE SCHEMA facts; CREATE SCHEMA tail;")
        self._is_unlocked = True
        for name, types in FACT_TABLES.items():
            columns = ", ".join(f'"{column}" {sql_type(kind)}' for column, kind in types.items())
            self._run(f"CREATE TABLE tail.{name} ({columns})")
        self._run("CREATE TABLE tail.bases (first_seq BIGINT)")
        columns = ", ".join(f'"{name}" {kind}' for name, kind in MINUTE_COLUMNS.items())
        self._run(f"CREATE TABLE facts.task_minutes ({columns})")

    def take(self, facts: FactExtractor) -> None:
        """Take over what the buffers hold, and empty them."""
        first_seq = facts.first_seq
        if facts.replica.next_seq == first_seq:
            return
        if facts.settle():
            self._run(f"INSERT INTO tail.bases VALUES ({first_seq})")
        for name, rows, columns in drain_buffers(facts.buffers):
            if rows:
                with _registered(self._connection, columns, facts.words.texts):
                    self._run(f"INSERT INTO tail.{name} {_insert_select(name)}")
        if not self._is_unlocked:
            missing = (
                "SELECT DISTINCT code, text FROM tail.words ANTI JOIN facts.texts USING (code)"
            )
            self._run(f"INSERT INTO facts.texts {missing}")

    def take_usage(self, minutes: Iterable[UsageMinute]) -> None:
        """Add what tasks used; rows of a minute whose columns differ in length are left out."""
        rows = [row for one in minutes for row in _minute_rows(one)]
        if not rows:
            return
        columns = {
            name: np.array(
                [row[at] for row in rows], dtype=np.int64 if kind == "BIGINT" else object
            )
            for at, (name, kind) in enumerate(MINUTE_COLUMNS.items())
        }
        with _registered(self._connection, columns, ()):
            told = ", ".join(f'"{name}"::{kind}' for name, kind in MINUTE_COLUMNS.items())
            self._run(f"INSERT INTO facts.task_minutes SELECT {told} FROM _buffer")

    def lock_sources(
        self, segments: Mapping[str, Sequence[Path]], bases: Sequence[int] | None = ()
    ) -> None:
        """Show facts and views over the tail and these Parquet files by table; from here on only they can be read.

        `bases`: where full chunks of spans begin; None: some spans are missing, states are made of all changes then.
        Raises SqlInvalid: a file is not a Parquet file of an export.
        """
        files = sorted(str(path) for paths in segments.values() for path in paths)
        quoted = ", ".join(_quoted(path) for path in files)
        if files:
            self._run(f"SET allowed_paths = [{quoted}]")
        self._run("SET enable_external_access = false; SET autoload_known_extensions = false")
        for name, types in FACT_TABLES.items():
            columns = ", ".join(f'"{column}"' for column in types)
            parts = [f"SELECT * FROM tail.{name}"]
            paths = segments.get(name, ())
            if paths:
                listed = ", ".join(_quoted(str(path)) for path in paths)
                parts.append(f"SELECT * FROM read_parquet([{listed}], union_by_name = true)")
            # By name: an older export may lack a column that came later, a newer one have others.
            told = f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(parts)})"
            self._run(f"CREATE VIEW facts.{name} AS {told}")
        # Used by every query about a moment, and few.
        self._run("CREATE TABLE facts.texts AS SELECT DISTINCT code, text FROM facts.words")
        listed = ", ".join(f"({int(one)})" for one in bases or ())
        values = f"UNION ALL SELECT * FROM (VALUES {listed})" if listed else ""
        self._run(f"CREATE VIEW facts.bases AS SELECT first_seq FROM tail.bases {values}")
        self._run(VIEWS + (STATE_FROM_CHANGES if bases is None else STATE_FROM_INTERVALS))
        self._run("SET lock_configuration = true")
        self._is_unlocked = False

    def ask(self, question: str, values: Sequence[object] = ()) -> SqlResult:
        """Answer one question. Raises SqlInvalid: it is none, it errs, or it would do more than read."""
        assert not self._is_unlocked
        self._require_read_only(question)
        try:
            described = self._described(question, values)
            if any(_UNREADABLE.search(kind) for _, kind in described):
                question = _with_texts(question, [kind for _, kind in described])
            found = self._connection.execute(question, list(values) or None)
            told = described or [(str(one[0]), str(one[1])) for one in found.description or []]
            rows = found.fetchall()
        except (duckdb.Error, RuntimeError, ValueError, OverflowError) as err:
            raise _invalid(err) from err
        return SqlResult(
            columns=_unique([name for name, _ in told]),
            types=[kind for _, kind in told],
            rows=rows,
        )

    def _described(self, question: str, values: Sequence[object]) -> list[tuple[str, str]]:
        """Names and types of the columns of a question, before it is asked; none of one that cannot be described."""
        try:
            found = self._connection.execute(f"DESCRIBE {question}", list(values) or None)
            return [(str(one[0]), str(one[1])) for one in found.fetchall()]
        except (duckdb.Error, RuntimeError):
            return []

    def interrupt(self) -> None:
        """End the question under way; from another thread."""
        self._connection.interrupt()

    def close(self) -> None:
        """Let go of all memory."""
        self._connection.close()

    def _require_read_only(self, question: str) -> None:
        try:
            statements = duckdb.extract_statements(question)
        except duckdb.Error as err:
            raise _invalid(err) from err
        if len(statements) != 1:
            said = "the query is empty" if not statements else "only one statement is allowed"
            raise SqlInvalid(said)
        kind = statements[0].type
        if kind == duckdb.StatementType.EXPLAIN:
            # EXPLAIN may run its statement, so that one is checked as if alone. A comment could hide keywords.
            words = question.split()
            rest = words[2:] if len(words) > 1 and words[1].lower() == "analyze" else words[1:]
            is_plain = (
                words[0].lower() == "explain" and "--" not in question and "/*" not in question
            )
            if is_plain and rest and rest[0].lower() != "explain":
                self._require_read_only(" ".join(rest))
                return
        if kind != duckdb.StatementType.SELECT:
            raise SqlInvalid(
                f"only SELECT is answered, this is {kind.name}: the log is read here, never written"
            )

    def _run(self, statements: str) -> None:
        try:
            self._connection.execute(statements)
        except duckdb.Error as err:
            raise SqlInvalid(_one_line(err)) from err


class ParquetWriter:
    """Writes buffers as Parquet, and reads records back."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config={"threads": 2})

    def write(
        self, name: str, columns: Mapping[str, ColumnArray], words: Sequence[str], path: Path
    ) -> None:
        """Write one table of facts. Raises OSError."""
        options = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2"
        if name == "records":
            # A record has up to half a megabyte.
            options += ", ROW_GROUP_SIZE 2048"
        with _registered(self._connection, columns, words):
            try:
                self._connection.execute(
                    f"COPY ({_insert_select(name)}) TO {_quoted(str(path))} ({options})"
                )
            except duckdb.Error as err:
                raise OSError(0, _one_line(err), str(path)) from err

    def records(self, path: Path, first: int = 1) -> Iterable[tuple[int, str, bytes]]:
        """Read back seq, subject and bytes of a segment's records from a seq on. Raises OSError."""
        source = f"read_parquet({_quoted(str(path))}) WHERE seq >= {int(first)} ORDER BY seq"
        try:
            found = self._connection.cursor().execute(f"SELECT seq, subject, data FROM {source}")
            while rows := found.fetchmany(1024):
                yield from rows
        except duckdb.Error as err:
            raise OSError(0, _one_line(err), str(path)) from err

    def standing(self, spans: Sequence[Path], closes: Sequence[Path]) -> OpenIntervals:
        """Read the spans that are open at the end of these chunks, the first of which is a full one. Raises OSError."""
        closed = f"ANTI JOIN (SELECT key, from_seq AS seq FROM {_files(closes)}) USING (key, seq)"
        try:
            found = self._connection.execute(
                f"SELECT key, seq, placed_ns FROM {_files(spans)} {closed if closes else ''} "
                f"WHERE until = {OPEN_END} ORDER BY key"
            ).fetchnumpy()
            lean = self._connection.execute(
                f"SELECT count(*) FROM {_files(spans)} WHERE segment > (SELECT min(segment) FROM {_files(spans)})"
            ).fetchall()
        except duckdb.Error as err:
            raise OSError(0, _one_line(err), str(spans[0])) from err
        columns = [np.asarray(found[name]) for name in ("key", "seq", "placed_ns")]
        keys, seqs, placed_ns = columns
        return OpenIntervals(keys=keys, seqs=seqs, placed_ns=placed_ns, since=int(lean[0][0]))

    def words(self, paths: Sequence[Path]) -> dict[int, str]:
        """Read the words of these chunks by number. Raises OSError."""
        if not paths:
            return {}
        try:
            return dict(
                self._connection.execute(
                    f"SELECT DISTINCT code, text FROM {_files(paths)}"
                ).fetchall()
            )
        except duckdb.Error as err:
            raise OSError(0, _one_line(err), str(paths[0])) from err

    def close(self) -> None:
        """Let go of all memory."""
        self._connection.close()


def _files(paths: Sequence[Path]) -> str:
    listed = ", ".join(_quoted(str(path)) for path in paths)
    return f"read_parquet([{listed}], union_by_name = true)"


@contextmanager
def _registered(
    connection: duckdb.DuckDBPyConnection, columns: Mapping[str, ColumnArray], words: Sequence[str]
) -> Generator[None]:
    """Show a buffer, and the words that it names by number, to a connection."""
    texts = np.array([*words, ""], dtype=object)
    connection.register("_buffer", columns)
    connection.register("_words", {"code": np.arange(len(texts), dtype=np.int32), "text": texts})
    try:
        yield
    finally:
        connection.unregister("_buffer")
        connection.unregister("_words")


def _minute_rows(one: UsageMinute) -> Iterable[tuple[object, ...]]:
    figures = (one.samples, one.cpu_millicores, one.cpu_peak_millicores)
    columns = (one.allocs, one.tasks, *figures, one.memory_bytes, one.throttled_ms, one.oom_kills)
    if len({len(column) for column in columns}) > 1:
        return
    for alloc, task, *values in zip(*columns, strict=True):
        yield one.node_id, alloc, task, one.at_s, *values


def _insert_select(name: str) -> str:
    """Say in SQL how a buffer becomes a table of facts."""
    told, joins = [], []
    for at, (column, kind) in enumerate(FACT_TABLES[name].items()):
        if kind == DICTIONARY_CODE:
            told.append(f'w{at}.text::VARCHAR AS "{column}"')
            joins.append(f'LEFT JOIN _words w{at} ON w{at}.code = s."{column}"')
        else:
            told.append(f's."{column}"::{kind} AS "{column}"')
    return f"SELECT {', '.join(told)} FROM _buffer s {' '.join(joins)}"


def _with_texts(question: str, kinds: Sequence[str]) -> str:
    """The same question with texts in place of values that Python cannot hold, nested ones too."""
    inner = duckdb.extract_statements(question)[0].query.rstrip().rstrip(";")
    names = [f"_c{at}" for at in range(len(kinds))]
    told = [
        f"CAST({name} AS {_UNREADABLE.sub('VARCHAR', kind)})" if _UNREADABLE.search(kind) else name
        for name, kind in zip(names, kinds, strict=True)
    ]
    # A comment may end the question, so the bracket is on a line of its own.
    return f"SELECT {', '.join(told)} FROM ({inner}\n) AS _question({', '.join(names)})"


def _unique(names: Sequence[str]) -> list[str]:
    """Number the columns of equal names as the database itself does in a subquery: status, status_1."""
    found: list[str] = []
    for name in names:
        free, number = name, 0
        while free in found or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _invalid(err: Exception) -> SqlInvalid:
    """The database's message on a query, with the position that its marker points at.

    The picture is the line, cut on its left where it is long, and a caret below it.
    """
    lines = str(err).splitlines()
    for at, text in enumerate(lines[:-1]):
        found = _PLACE.match(text)
        caret = lines[at + 1].find("^")
        if found and caret >= found.end() and not text[found.end() :].startswith("..."):
            return SqlInvalid(_one_line(err), int(found[1]), caret - found.end() + 1)
        if found:
            return SqlInvalid(f"{_one_line(err)} (line {found[1]})", 0)
    return SqlInvalid(_one_line(err))


def _one_line(err: Exception) -> str:
    """The database's message on one line, without its marker."""
    told = []
    for line in str(err).splitlines():
        if _PLACE.match(line):
            break
        if line.strip():
            told.append(line.strip())
    return " ".join(told) or type(err).__name__


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write columns of equal length; one of texts stays texts, one of whole numbers whole. Raises OSError."""
    arrays = {name: _array(values) for name, values in columns.items()}
    connection = duckdb.connect(":memory:", config={"threads": 1})
    try:
        connection.register("_table", arrays)
        connection.sql("SELECT * FROM _table").write_parquet(str(path))
    except duckdb.Error as err:
        raise OSError(0, str(err).splitlines()[0], str(path)) from err
    finally:
        connection.close()


def _array(values: Sequence[object]) -> np.ndarray:
    if any(isinstance(one, str) for one in values):
        return np.array(list(values), dtype=object)
    whole = all(isinstance(one, int) for one in values)
    return np.array(list(values), dtype=np.int64 if whole else np.float64)
