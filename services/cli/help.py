"""Help texts: the parser of one command, and the overview of all of them."""

import argparse
import shutil
import textwrap
from collections.abc import Callable
from typing import NoReturn

from services.cli.command_spec import ArgumentSpec, CommandSpec
from services.cli.command_table import COMMANDS, GROUPS
from services.cli.runtime.output import CliError
from services.cli.short_forms import SHORT_FORMS
from shared.numerals import parse_whole


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process, so that --json prints the error as an object too."""

    def print_help(self, file: object = None) -> None:
        """Print the help; argparse itself says nothing when it cannot."""
        del file
        print(self.format_help(), end="")

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise CliError("usage", f"{message}; see {self.prog} --help")


def build_parser(command: CommandSpec) -> argparse.ArgumentParser:
    """Build the parser of one command."""
    parser = _Parser(
        prog=f"caravan {' '.join(command.words)}",
        description=_wrapped(f"{command.summary[0].upper()}{command.summary[1:]}."),
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for arg in command.arguments:
        _add(parser, arg)
    return parser


def _whole(text: str) -> int:
    """Read the value of a number argument."""
    try:
        return parse_whole(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"invalid int value: {text[:80]!r}") from err


def _converter(kind: type) -> Callable[[str], object]:
    """What turns an argument's text into its value: Python's own int takes `1_000` and the digits of any script."""
    return _whole if kind is int else kind


def _epilog(command: CommandSpec) -> str | None:
    """Details and examples."""
    lines = [_wrapped(command.details)] if command.details else []
    if command.examples:
        lines += ["", "examples:"] if lines else ["examples:"]
        lines += [f"  caravan {example}" for example in command.examples]
    return "\n".join(lines) or None


def _add(parser: argparse.ArgumentParser, arg: ArgumentSpec) -> None:
    text = arg.help.replace("%", "%%")
    if arg.kind is bool:
        parser.add_argument(*arg.flags, dest=arg.name, action="store_true", help=text)
    elif arg.kind is list and arg.flags:
        parser.add_argument(
            *arg.flags, dest=arg.name, action="append", default=[], metavar=arg.metavar, help=text
        )
    elif arg.kind is list:
        parser.add_argument(arg.name, nargs="+", help=text, metavar=arg.metavar)
    elif arg.flags:
        parser.add_argument(
            *arg.flags,
            dest=arg.name,
            type=_converter(arg.kind),
            default=arg.default,
            metavar=arg.metavar,
            help=text + default_text(arg),
        )
    else:
        nargs = None if arg.default is None else "?"
        parser.add_argument(
            arg.name,
            nargs=nargs,
            type=_converter(arg.kind),
            default=arg.default,
            help=text,
            metavar=arg.metavar or None,
        )


def default_text(arg: ArgumentSpec) -> str:
    """The default of an option, where it is one that help should name."""
    plain = arg.kind in (bool, list) or arg.default in (None, "", 0, -1)
    return "" if plain or not arg.flags else f" (default {arg.default})"


def command_overview(group: str = "") -> str:
    """List the commands of a group, or all of them."""
    chosen = [c for c in COMMANDS if not group or c.words[0] == group]
    width = max(len(" ".join(c.words)) for c in chosen)
    lines = []
    if not group:
        lines += ["caravan: a workload orchestrator whose log is the product", ""]
    lines += [f"usage: caravan {group or 'COMMAND'} ... [--json]", ""]
    last = chosen[0].words[0]
    for command in chosen:
        if command.words[0] != last and (len(command.words) > 1 or last in GROUPS):
            lines.append("")
        last = command.words[0]
        lines += _two_columns(" ".join(command.words), command.summary, width)
    lines += ["", "`caravan COMMAND --help` shows options and examples."]
    if not group:
        text = "Commands use the bus of `caravan up`; CARAVAN_NATS_URL or --context selects another one."
        lines.append(_wrapped(text))
        short = [f"{name} ({' '.join(words)})" for name, words in SHORT_FORMS.items()]
        lines.append(_wrapped(f"Short forms: run FILE (job run), {', '.join(short)}."))
    return "\n".join(lines) + "\n"


def _columns() -> int:
    return max(shutil.get_terminal_size((80, 24)).columns, 20)


def _wrapped(text: str) -> str:
    """Break a text into lines no longer than the terminal's."""
    return textwrap.fill(text, max(_columns() - 2, 20), break_on_hyphens=False)


def _two_columns(left: str, right: str, width: int) -> list[str]:
    """Name and summary side by side, or below one another on a narrow terminal."""
    columns = _columns()
    if columns < width + 34:
        indent = " " * 6
        text = textwrap.wrap(right, columns, initial_indent=indent, subsequent_indent=indent)
        return [f"  {left}", *text]
    parts = textwrap.wrap(right, columns - width - 4, break_on_hyphens=False)
    return [f"  {left.ljust(width)}  {parts[0]}", *(" " * (width + 4) + part for part in parts[1:])]
