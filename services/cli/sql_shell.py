"""The shell of `caravan sql`: questions over several lines, each ended by a semicolon.

Decides what its own words (`.tables`, `.refresh`) do. Must not know where facts come from.
"""

import contextlib

from services.cli.output import CliError, Column, Output
from services.cli.sqls import Source, show
from shared.archive.views import MACROS, TABLES

_HELP = (
    (".tables", "tables and macros"),
    (".schema NAME", "columns of a table"),
    (".refresh", "read on to the end of the live log"),
    (".quit", "leave; so does Ctrl-D"),
)


def shell(out: Output, source: Source, *, limit: int) -> int:
    """Read questions until the end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lines can be edited then
    for problem in source.problems:
        out.note(problem)
    out.line(f"cluster {source.cluster_id} at seq {source.seq}; .help tells more", "dim")
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
            _own(out, source, word)
            continue
        if word:
            lines.append(line)
        if word.endswith(";"):
            _answer(out, source, "\n".join(lines), limit)
            lines = []


def _answer(out: Output, source: Source, question: str, limit: int) -> None:
    try:
        show(out, source, source.ask(question), comma=False, limit=limit)
    except CliError as err:
        out.line(err.message, "red")
    except KeyboardInterrupt:
        out.line("interrupted", "yellow")


def _own(out: Output, source: Source, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == ".tables":
        rows = [(name, "table") for name in TABLES] + [(name, "macro") for name in MACROS]
        out.table([Column("NAME"), Column("WHAT")], rows)
    elif word == ".schema" and rest.strip() in TABLES:
        found = source.ask(f"SELECT column_name, column_type FROM (DESCRIBE {rest.strip()})")
        out.table([Column("COLUMN"), Column("TYPE")], found.rows)
    elif word == ".refresh":
        if source.is_live:
            try:
                source.refresh()
            except CliError as err:
                out.line(err.message, "red")
        out.line(f"seq {source.seq}", "dim")
    elif word == ".help":
        out.table([Column("WORD"), Column("WHAT")], _HELP)
    else:
        out.line(f"no {line!r} here; .help lists what there is", "red")
