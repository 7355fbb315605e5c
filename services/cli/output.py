"""What commands print: one JSON object under `--json`, else tables and lines for people.

Decides width, colour and layout; must not know what is shown. On a terminal rich draws, when piped the same text comes
plain. Nothing wider than the terminal: columns that matter least are left out first, down to 40 columns.
"""

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shared.errors import CaravanError

#: What a word of status looks like.
STYLES = {
    **dict.fromkeys(("running", "ready", "accepted", "ok", "eligible"), "green"),
    **dict.fromkeys(("pending", "blocked", "initializing", "unknown", "disconnected"), "yellow"),
    **dict.fromkeys(("failed", "lost", "down", "refused", "canceled"), "red"),
    **dict.fromkeys(("complete", "dead", "stop", "evict"), "dim"),
    **dict.fromkeys(("dead, stopped", "dead, complete"), "dim"),
    **dict.fromkeys(("dead, failed", "dead, not all complete"), "red"),
}
_GAP = 2
_ENCODER = msgspec.json.Encoder()
#: What a terminal would obey: texts of jobs and tasks are other people's.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CliError(CaravanError):
    """A command could not do what it was asked; `code` is stable."""

    def __init__(
        self, code: str, message: str, *, path: str = "", file: str = "", line: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.file = file
        self.line = line

    def as_object(self) -> dict[str, dict[str, str | int]]:
        """The error as CONTRACTS want it: path, file and line only where they are known."""
        error: dict[str, str | int] = {"code": self.code, "message": self.message}
        rest: dict[str, str | int] = {"path": self.path, "file": self.file, "line": self.line}
        return {"error": {**error, **{key: value for key, value in rest.items() if value}}}


class Column(NamedTuple):
    """A column of a table. `rank`: 0 is always shown, higher ranks leave first when the terminal is narrow."""

    title: str
    rank: int = 0
    right: bool = False


class Output:
    """Where a command's answer goes."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.is_terminal = not is_json and sys.stdout.isatty()
        #: a picture may be drawn and drawn again.
        self.is_live = self.is_terminal and os.environ.get("TERM", "") not in ("", "dumb")
        self._colour = self.is_live and not os.environ.get("NO_COLOR")
        self._columns = _terminal_columns() if self.is_terminal else 0

    @property
    def has_colour(self) -> bool:
        """Whether colours are wanted."""
        return self._colour

    @property
    def columns(self) -> int:
        """Width of the terminal, 80 where there is none."""
        return self._columns or 80

    def result(self, value: Mapping[str, object] | msgspec.Struct) -> None:
        """Print the one object of `--json`; nothing for people."""
        if self.is_json:
            print(_ENCODER.encode(value).decode(), flush=True)

    def progress(self, text: str, style: str = "") -> None:
        """Say what happens now: to people on stdout, beside JSON on stderr; to nobody where nobody reads."""
        said = self.paint(self._wrapped(text), style)
        # What goes on is told from threads and on the way down: the work must not end with its listener.
        with contextlib.suppress(OSError):
            print(said, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """Say something beside the answer, on stderr."""
        print(clean(text), file=sys.stderr, flush=True)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line for people."""
        if not self.is_json:
            print(self.paint(self._wrapped(text), style))

    def parts(self, *parts: tuple[str, str]) -> None:
        """Print one line of texts with their styles, at once, cut to the width of the terminal."""
        if self.is_json:
            return
        left, out = self._columns or sys.maxsize, []
        for text, style in parts:
            shown = clean(text)[:left]
            out.append(self.paint(shown, style))
            left -= len(shown)
        print("".join(out).rstrip(), flush=True)

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values, one pair a line."""
        if self.is_json:
            return
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            shown = self.paint(name.ljust(width), "bold")
            for line in self._in_column(clean(value), width + _GAP):
                print(f"{shown}  {self.paint(line, STYLES.get(value, ''))}".rstrip())
                shown = " " * width

    def commands(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print commands to try, and what each does: beside it, or below on a narrow terminal."""
        if self.is_json:
            return
        width = max(len(command) for command, _ in pairs) + len("caravan ")
        wide = max(len(text) for _, text in pairs) + width + 2 * _GAP <= self.columns
        for command, text in pairs:
            name = self.paint(clean(f"caravan {command}").ljust(width if wide else 0), "cyan")
            print(f"  {name}" + ("  " if wide else "\n      ") + clean(text))

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[object]], title: str = ""
    ) -> None:
        """Print a table; a column whose cells are all empty is left out, and no rows print nothing."""
        if self.is_json or not rows:
            return
        cells = [[clean(str(cell)) for cell in row] for row in rows]
        kept = [i for i in range(len(columns)) if columns[i].rank == 0 or any(r[i] for r in cells)]
        kept = self._fitting(columns, cells, kept)
        if title:
            print(f"\n{self.paint(title, 'bold')}")
        if self._colour:
            self._draw(columns, cells, kept)
            return
        widths = {i: max(len(columns[i].title), *(len(row[i]) for row in cells)) for i in kept}
        for row in ([c.title for c in columns], *cells):
            parts = [
                row[i].rjust(widths[i]) if columns[i].right else row[i].ljust(widths[i])
                for i in kept
            ]
            print((" " * _GAP).join(parts).rstrip())

    def paint(self, text: str, style: str) -> str:
        """Colour a text where colours are wanted."""
        codes = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
        return f"\x1b[{codes[style]}m{text}\x1b[0m" if style and self._colour else text

    def _in_column(self, text: str, begin: int) -> list[str]:
        """Break a value that stands beside its name, where it is too long for the terminal."""
        if not self._columns or len(text) <= self._columns - begin:
            return [text]
        import textwrap

        return textwrap.wrap(text, max(self._columns - begin, 10), break_on_hyphens=False)

    def _wrapped(self, text: str) -> str:
        """Clean a text, and break its lines between words where the terminal would break them anywhere."""
        text = clean(text)
        if not self._columns or len(text) <= self._columns:
            return text
        import textwrap

        lines = []
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()) + _GAP)
            wrapped = textwrap.wrap(
                line, self._columns, subsequent_indent=indent, break_on_hyphens=False
            )
            lines += wrapped or [""]
        return "\n".join(lines)

    def _fitting(
        self, columns: Sequence[Column], cells: Sequence[Sequence[str]], kept: list[int]
    ) -> list[int]:
        """Leave out columns, highest rank first, until the table is as narrow as the terminal."""
        if not self._columns:
            return kept

        def width(of: list[int]) -> int:
            sizes = [max(len(columns[i].title), *(len(row[i]) for row in cells)) for i in of]
            return sum(sizes) + _GAP * (len(of) - 1)

        while width(kept) > self._columns and any(columns[i].rank for i in kept):
            worst = max(columns[i].rank for i in kept)
            kept.remove(next(i for i in reversed(kept) if columns[i].rank == worst))
        return kept

    def _draw(
        self, columns: Sequence[Column], cells: Sequence[Sequence[str]], kept: list[int]
    ) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold dim")
        for i in kept:
            side = "right" if columns[i].right else "left"
            table.add_column(columns[i].title, justify=side, overflow="fold")  # type: ignore[arg-type]
        for row in cells:
            table.add_row(*(Text(row[i], style=STYLES.get(row[i], "")) for i in kept))
        Console(width=self._columns or None, highlight=False).print(table)


def clean(text: str) -> str:
    """Take out control characters, except tab and line feed."""
    return _CONTROL.sub("?", text)


def short(identifier: str) -> str:
    """Shorten a shown id to what people type: its first eight digits."""
    return identifier[:8]


def _terminal_columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80
