"""The shell of `caravan sql`: questions over several lines, each ended by a semicolon.

Decides what its own words (`.tables`, `.refresh`) do. Must not know where facts come from.
"""

import contextlib
import time

from services.cli.output import CliError, Column, Output
from services.cli.sqls import Source, show
from shared.archive.views import MACROS, TABLES

_HELP = (
    (".tables", "tables and macros"),
    (".schema NAME", "columns of a table or a macro"),
    (".refresh", "read on to the end of the live log"),
    (".quit", "leave; so does Ctrl-D"),
)

_OWN = tuple(word.partition(" ")[0] for word, _ in _HELP)
#: What stands for a table where its columns are asked for: macros are given an argument of the right kind.
_DESCRIBED = {
    **{name: name for name in TABLES},
    **{
        name: f"{name}({'0' if kind == 'seq)' else chr(39) * 2})"
        for name, _, kind in (one.partition("(") for one in MACROS)
        if kind != ")"
    },
}


def shell(out: Output, source: Source, *, limit: int) -> int:
    """Read questions until the end."""
    _edited()
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
        start = time.perf_counter()
        answer = source.ask(question)
        took = time.perf_counter() - start
        show(out, source, answer, comma=False, limit=limit)
        out.line(f"{len(answer.rows)} rows in {took:.3f} s", "dim")
    except CliError as err:
        out.line(err.message, "red")
    except KeyboardInterrupt:
        out.line("interrupted", "yellow")


def _edited() -> None:
    """Let lines be edited, and names be completed by Tab, where the terminal can."""
    with contextlib.suppress(ImportError):
        import readline

        names = [*TABLES, *(one.partition("(")[0] + "(" for one in MACROS), *_OWN]

        def completed(text: str, nth: int) -> str | None:
            found = [name for name in names if name.startswith(text)]
            return found[nth] if nth < len(found) else None

        readline.set_completer(completed)
        readline.set_completer_delims(" \t\n,()")
        readline.parse_and_bind("tab: complete")


def _own(out: Output, source: Source, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == ".tables":
        rows = [(name, "table") for name in TABLES] + [(name, "macro") for name in MACROS]
        out.table([Column("NAME"), Column("WHAT")], rows)
    elif word == ".schema" and rest.strip().partition("(")[0] in _DESCRIBED:
        described = _DESCRIBED[rest.strip().partition("(")[0]]
        found = source.ask(f"SELECT column_name, column_type FROM (DESCRIBE FROM {described})")
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
