"""The chapters of docs/cli.md, written from the table of commands: `python -m tests.docs.cli_page` rewrites the page.

Text that follows the examples of a chapter is written by hand and kept, as is everything before and after the chapters.
"""

import re
import textwrap
from pathlib import Path

from services.cli.command_spec import ArgumentSpec, CommandSpec
from services.cli.command_table import COMMANDS
from services.cli.help import default_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
#: Options of every command; the page describes them once.
_SHARED = frozenset(("json", "context", "from_file"))


def heading(command: CommandSpec) -> str:
    """The words of a command and its positional arguments."""
    words = ["caravan", *command.words]
    for arg in command.args:
        if not arg.flags:
            name = arg.metavar or arg.name.upper()
            name += "..." if arg.kind is list else ""
            words += ["--"] if arg.name == "command" else []
            words.append(name if arg.default is None else f"[{name}]")
    return f"## `{' '.join(words)}`"


def chapter(command: CommandSpec) -> str:
    """What the table says about a command."""
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parts = [heading(command), _wrapped(f"{summary} {command.details}".strip())]
    options = [arg for arg in command.arguments if arg.flags and arg.name not in _SHARED]
    if options:
        rows = ["| option | meaning |", "|---|---|", *map(_option, options)]
        parts.append("\n".join(rows))
    keys = []
    for case in command.results:
        names = ", ".join(f"`{key}`" for key in command.keys(case))
        keys.append(f"Keys{' ' if case else ''}{case}: {names}.")
    if keys:
        parts.append("\n\n".join(keys))
    examples = "\n".join(f"caravan {example}" for example in command.examples)
    parts.append(f"```text\n{examples}\n```")
    return "\n\n".join(parts) + "\n"


def _option(arg: ArgumentSpec) -> str:
    flags = ", ".join(arg.flags) + (f" {arg.metavar}" if arg.metavar else "")
    meaning = f"{arg.help}{default_text(arg)}"
    return f"| `{_cell(flags)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def render(page: str) -> str:
    """The page with every chapter as the table says."""
    head, *rest = re.split(r"(?=^## )", page, flags=re.MULTILINE)
    by_words = {_words(text): text for text in rest}
    chapters = []
    for command in COMMANDS:
        old = by_words.pop(" ".join(command.words), "")
        tail = re.split(r"^```text\n.*?^```\n", old, maxsplit=1, flags=re.MULTILINE | re.DOTALL)
        more = tail[1].strip() if len(tail) > 1 else ""
        chapters.append(chapter(command) + (f"\n{more}\n" if more else "") + "\n")
    others = [text for text in rest if _words(text) in by_words and not _words(text)]
    return head + "".join(chapters) + "".join(others)


def _words(text: str) -> str:
    """The words of the command that a chapter is about; empty: about none."""
    found = re.match(r"## `caravan ([a-z-]+(?: [a-z-]+)*)", text)
    words = found.group(1).split() if found else []
    known = {command.words for command in COMMANDS}
    while words and tuple(words) not in known:
        words.pop()
    return " ".join(words)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
