"""The shell of `caravan sql`: queries over several lines, each ended by a semicolon, and dot commands."""

import contextlib
import time

from services.cli.runtime.output import CliError, CommandOutput
from services.cli.sql.answer_table import print_answer
from services.cli.sql.source import SqlSource
from shared.archive.views import SQL_MACROS, SQL_TABLES

_HELP = (
    (".tables", "list tables and macros"),
    (".schema NAME", "show the columns of a table or macro"),
    (".refresh", "read the new records of the live log"),
    (".quit", "quit, like Ctrl-D"),
)

_DOT_COMMANDS = tuple(word.partition(" ")[0] for word, _ in _HELP)
#: What .schema describes: tables, and macros with an argument of the right type.
_DESCRIBED = {
    **{name: name for name in SQL_TABLES},
    **{
        name: f"{name}({'0' if kind == 'seq)' else chr(39) * 2})"
        for name, _, kind in (one.partition("(") for one in SQL_MACROS)
        if kind != ")"
    },
}


def run_shell(out: CommandOutput, source: SqlSource, *, limit: int) -> int:
    """Read and answer queries until .quit or the end of input."""
    _enable_line_editing()
    for problem in source.problems:
        out.note(problem)
    out.line(f"cluster {source.cluster_id} at seq {source.seq}; .help lists commands", "dim")
    lines: list[str] = []
    while True:
        try:
            line = input("    ... " if lines else "caravan> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            lines = []
            continue
        word = line.strip()
        if not lines and word in {".quit", ".exit", "quit", "exit"}:
            return 0
        if not lines and word.startswith("."):
            _dot_command(out, source, word)
            continue
        if word:
            lines.append(line)
        if word.endswith(";"):
            _answer(out, source, "\n".join(lines), limit)
            lines = []


def _answer(out: CommandOutput, source: SqlSource, question: str, limit: int) -> None:
    try:
        start = time.perf_counter()
        answer = source.ask(question)
        took = time.perf_counter() - start
        print_answer(out, source, answer, comma=False, limit=limit)
        out.line(f"{len(answer.rows)} rows in {took:.3f} s", "dim")
    except CliError as err:
        out.line(err.message, "red")
    except KeyboardInterrupt:
        out.line("interrupted", "yellow")


def _enable_line_editing() -> None:
    """Enable line editing and Tab completion, if readline is there."""
    with contextlib.suppress(ImportError):
        import readline

        names = [*SQL_TABLES, *(one.partition("(")[0] + "(" for one in SQL_MACROS), *_DOT_COMMANDS]

        def completed(text: str, nth: int) -> str | None:
            found = [name for name in names if name.startswith(text)]
            return found[nth] if nth < len(found) else None

        readline.set_completer(completed)
        readline.set_completer_delims(" \t\n,()")
        readline.parse_and_bind("tab: complete")


def _dot_command(out: CommandOutput, source: SqlSource, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == ".tables":
        rows = [(name, "table") for name in SQL_TABLES] + [(name, "macro") for name in SQL_MACROS]
        out.table("NAME|TYPE", rows)
    elif word == ".schema" and rest.strip().partition("(")[0] in _DESCRIBED:
        described = _DESCRIBED[rest.strip().partition("(")[0]]
        found = source.ask(f"SELECT column_name, column_type FROM (DESCRIBE FROM {described})")
        out.table("COLUMN|TYPE", found.rows)
    elif word == ".refresh":
        if source.is_live:
            try:
                source.refresh()
            except CliError as err:
                out.line(err.message, "red")
        out.line(f"seq {source.seq}", "dim")
    elif word == ".help":
        out.table("COMMAND|MEANING", _HELP)
    else:
        out.line(f"unknown command {line!r}; .help lists commands", "red")
