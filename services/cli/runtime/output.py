"""What commands print: one JSON object under `--json`, else tables and lines for people.

Owns width, colour and layout. No line is wider than the terminal: cells wrap, and a table that still does not fit is
printed as records, one field a line. Piped output has its natural width and no colours.
"""

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from shared.errors import CaravanError
from shared.numerals import is_digits

#: Style of a status.
STYLES = {
    **dict.fromkeys(("running", "ready", "accepted", "ok", "eligible"), "green"),
    **dict.fromkeys(("healthy", "successful"), "green"),
    **dict.fromkeys(("unhealthy", "cancelled"), "red"),
    **dict.fromkeys(("paused", "canary"), "yellow"),
    **dict.fromkeys(("pending", "blocked", "initializing", "unknown", "disconnected"), "yellow"),
    **dict.fromkeys(("failed", "lost", "down", "refused", "canceled"), "red"),
    **dict.fromkeys(("complete", "dead", "stop", "evict"), "dim"),
    **dict.fromkeys(("dead, stopped", "dead, complete"), "dim"),
    **dict.fromkeys(("dead, failed", "dead, not all complete"), "red"),
}
R = TypeVar("R", bound=msgspec.Struct)
_GAP = 2
#: A cell wraps inside words longer than this.
_WORD_MAX = 20
_ENCODER = msgspec.json.Encoder()
#: What a terminal may take for a line break, beside the control characters.
_LINE_BREAKS = re.compile("[\u2028\u2029]")
#: Control characters, which a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ErrorFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as `--json` prints it: path, file and line only where they are known."""

    code: str
    message: str
    path: str = ""
    file: str = ""
    line: int = 0


class ErrorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The object of a command that failed."""

    error: ErrorFields


class CliError(CaravanError):
    """A command failed; `code` is stable.

    `untimed`: the message without how long it was tried, for a caller that says how long it waited in all.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        path: str = "",
        file: str = "",
        line: int = 0,
        untimed: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.file = file
        self.line = line
        self.untimed = untimed or message

    def as_fields(self) -> ErrorFields:
        """The error as part of an object."""
        return ErrorFields(
            code=self.code, message=self.message, path=self.path, file=self.file, line=self.line
        )

    def as_result(self) -> ErrorResult:
        """The error as the whole object."""
        return ErrorResult(error=self.as_fields())


class TableColumn(NamedTuple):
    """A column of a table. `right`: numbers, aligned to the right and never wrapped."""

    title: str
    right: bool = False


class CommandOutput:
    """Prints what a command returns."""

    def __init__(self, *, is_json: bool = False, columns: int = 0) -> None:
        """`columns`: the width to keep to where there is no terminal; 0: none."""
        self.is_json = is_json
        self.is_terminal = not is_json and sys.stdout.isatty()
        #: whether lines may be redrawn.
        self.is_live = self.is_terminal and os.environ.get("TERM", "") not in ("", "dumb")
        self._colour = self.is_live and not os.environ.get("NO_COLOR")
        self._columns = _terminal_columns() if self.is_terminal else columns

    @property
    def has_colour(self) -> bool:
        """Whether output is coloured."""
        return self._colour

    @property
    def columns(self) -> int:
        """Width of the terminal, 80 where there is none."""
        return self._columns or 80

    def result(self, value: msgspec.Struct) -> None:
        """Print the one object of `--json`; nothing for people."""
        if self.is_json:
            print(encode_json(value).decode(), flush=True)

    def progress(self, text: str, style: str = "") -> None:
        """Print what happens now: on stdout, with --json on stderr."""
        shown = self.paint(self._wrapped(text), style)
        # Threads and shutdown code call this: work must not fail because its terminal has gone.
        with contextlib.suppress(OSError):
            print(shown, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        print(strip_control_chars(text), file=sys.stderr, flush=True)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line for people."""
        if not self.is_json:
            print(self.paint(self._wrapped(text), style))

    def write(self, data: bytes) -> None:
        """Write bytes to stdout as they are, at once."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def parts(self, *parts: tuple[str, str]) -> None:
        """Print one line of styled texts, cut to the width of the terminal."""
        if self.is_json:
            return
        left, out = self._columns or sys.maxsize, []
        for text, style in parts:
            shown = strip_control_chars(text)[:left]
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
            for line in self._wrap_value(strip_control_chars(value), width + _GAP):
                print(f"{shown}  {self.paint(line, STYLES.get(value, ''))}".rstrip())
                shown = " " * width

    def commands(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print commands and what each does: beside it, or below on a narrow terminal."""
        if self.is_json:
            return
        program = program_name()
        width = max(len(command) for command, _ in pairs) + len(f"{program} ")
        wide = max(len(text) for _, text in pairs) + width + 2 * _GAP <= self.columns
        for command, text in pairs:
            name = self.paint(
                strip_control_chars(f"{program} {command}").ljust(width if wide else 0), "cyan"
            )
            print(f"  {name}" + ("  " if wide else "\n      ") + strip_control_chars(text))

    def table(
        self,
        columns: str | Sequence[TableColumn],
        rows: Sequence[Sequence[object]],
        title: str = "",
        *,
        limit: int = 0,
        below: Mapping[int, str] | None = None,
    ) -> None:
        """Print a table of at most `limit` rows (0: all), every column of it; nothing without rows.

        `columns` may be a heading like `NAME|COUNT>`, where `>` aligns a column to the right. `below`: a text under the
        row of that number.
        """
        if self.is_json or not rows:
            return
        if isinstance(columns, str):
            heads = columns.split("|")
            columns = [TableColumn(head.rstrip(">"), head.endswith(">")) for head in heads]
        shown = rows[:limit] if limit else rows
        cells = [[one_line(str(cell)) for cell in row] for row in shown]
        if title:
            print(f"\n{self.paint(title, 'bold')}")
        widths = self._column_widths(columns, cells)
        if widths:
            self._print_row(columns, [column.title for column in columns], widths, "bold")
            for at, row in enumerate(cells):
                self._print_row(columns, row, widths)
                if below and at in below:
                    self.line(f"    {below[at]}", "dim")
        else:
            for at, row in enumerate(cells):
                print(end="\n" if at else "")
                self.fields([(c.title, text) for c, text in zip(columns, row, strict=True) if text])
                if below and at in below:
                    self.line(f"    {below[at]}", "dim")
        if len(rows) > len(shown):
            self.line(f"and {len(rows) - len(shown)} more", "dim")

    def _column_widths(
        self, columns: Sequence[TableColumn], cells: Sequence[Sequence[str]]
    ) -> list[int]:
        """Widths of columns; the widest are narrowed until the table fits. Empty: it cannot fit."""
        widths, least = [], []
        for at, column in enumerate(columns):
            texts = [row[at] for row in cells]
            longest = max(len(line) for text in texts for line in (*text.split("\n"), ""))
            word = max(len(word) for text in texts for word in (*text.split(), ""))
            widths.append(max(longest, len(column.title)))
            floor = min(word, _WORD_MAX) if not column.right else longest
            least.append(max(floor, len(column.title)))
        room = self._columns - _GAP * (len(columns) - 1)
        if not self._columns or sum(widths) <= room:
            return widths
        if sum(least) > room:
            return []
        while sum(widths) > room:
            wide = [at for at, width in enumerate(widths) if width > least[at]]
            widths[max(wide, key=widths.__getitem__)] -= 1
        return widths

    def _print_row(
        self,
        columns: Sequence[TableColumn],
        row: Sequence[str],
        widths: Sequence[int],
        style: str = "",
    ) -> None:
        """Print one row, its cells wrapped."""
        wrapped = [
            [part for line in text.split("\n") for part in _wrap(line, width)]
            for text, width in zip(row, widths, strict=True)
        ]
        for at in range(max(len(lines) for lines in wrapped)):
            parts = []
            for column, text, lines, width in zip(columns, row, wrapped, widths, strict=True):
                part = lines[at] if at < len(lines) else ""
                space = " " * (width - len(part))
                shown = self.paint(part, style or STYLES.get(text, ""))
                parts.append(space + shown if column.right else shown + space)
            print((" " * _GAP).join(parts).rstrip())

    def paint(self, text: str, style: str) -> str:
        """Colour a text where colours are wanted."""
        codes = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
        return f"\x1b[{codes[style]}m{text}\x1b[0m" if style and self._colour else text

    def _wrap_value(self, text: str, begin: int) -> list[str]:
        """Wrap a value beside its name if it is too long for the terminal."""
        return _wrap(text, max(self._columns - begin, 10)) if self._columns else [text]

    def _wrapped(self, text: str) -> str:
        """Clean a text, and break its lines between words."""
        text = strip_control_chars(text)
        if not self._columns or len(text) <= self._columns:
            return text
        lines = []
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()) + _GAP)
            lines += _wrap(line, self._columns, indent)
        return "\n".join(lines)


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a line into lines of at most `width`; at least one line."""
    if len(text) <= width:
        return [text]
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return lines or [""]


def result_from(result: type[R], *sources: object, **own: object) -> R:
    """Create a result of `own` fields and, by name, those of the first source that has them."""
    names = [name for name in result.__struct_fields__ if name not in own]
    found = {
        name: getattr(source, name)
        for source in reversed(sources)
        for name in names
        if hasattr(source, name)
    }
    return result(**found, **own)


def parse_pairs(given: Sequence[str], flag: str = "") -> dict[str, str]:
    """Parse NAME=VALUE arguments. Raises CliError."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise CliError("usage", f"{flag} {text!r} is not NAME=VALUE".strip())
        found[name.strip()] = value
    return found


def strip_control_chars(text: str) -> str:
    """Replace control characters, except tab and line feed, by question marks."""
    return _CONTROL.sub("?", text)


def one_line(text: str) -> str:
    """Show a text on one line of a table, its line breaks and tabs as they are escaped."""
    text = text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return strip_control_chars(_LINE_BREAKS.sub("?", text))


def encode_json(value: object) -> bytes:
    """Encode an object; bytes of a path that are not UTF-8 are shown escaped."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_as_utf8(msgspec.to_builtins(value)))


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return os.fsencode(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_utf8(item) for item in value]
    return value


def program_name() -> str:
    """How to start this program from a shell: `caravan` where PATH finds it, else its path."""
    own = Path(sys.executable).parent / "caravan"
    found = shutil.which("caravan")
    if not own.exists() or (found is not None and Path(found).samefile(own)):
        return "caravan"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def short_id(identifier: str) -> str:
    """The first eight digits of an id, as tables show it."""
    return identifier[:8]


def _terminal_columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if is_digits(given) and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80
