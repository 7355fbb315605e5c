"""The `caravan` command: reads the words, runs the one handler, turns what goes wrong into one line and an exit code.

Decides exit codes (0 done, 1 error, 2 done but not everything placed, 130 Ctrl-C) and the shape of errors. Knows no
command by name (`commands.py`) and imports nothing that takes time before a command is chosen.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from services.cli import abrupt, chosen
from services.cli.commands import COMMANDS, GROUPS
from services.cli.output import CliError, Output
from services.cli.words import AT, Arg, Command
from shared.errors import (
    BusUnavailable,
    CaravanError,
    CommandInvalid,
    ConfigInvalid,
    LogDropped,
    LogError,
)

abrupt.over()

#: Commands that talk to a bus.
_ASKING = frozenset(
    (
        "job",
        "node",
        "alloc",
        "eval",
        "system",
        "operator",
        "log",
        "sql",
        "replay",
        "what-if",
        "dead",
        "why",
        "why-not",
    )
)
#: Commands that read the log itself, beside those that take --at.
_READING = frozenset((("log", "tail"), ("log", "verify"), ("replay",), ("what-if",)))
#: As a shell reports a process that its closed pipe ended.
_EXIT_PIPE = 141


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process, so that --json gets its error too."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Refuse the arguments."""
        raise CliError("usage", f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _have_streams()
    # Behind -- stands what is another command's.
    own = words[: words.index("--")] if "--" in words else words
    is_json = not {"--json", "-json"}.isdisjoint(own)
    error_exit = 1
    try:
        command = _find(words) if words and not words[0].startswith("-") else None
        error_exit = command.error_exit if command is not None else 1
        code = _run(words, command)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader left; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_PIPE
    except CaravanError as err:
        return _fail(_as_cli_error(err), is_json=is_json, code=error_exit)
    except OSError as err:
        where = str(err.filename or "")
        told = CliError("io", err.strerror or str(err), file=where)
        return _fail(told, is_json=is_json, code=error_exit)
    return code


def _have_streams() -> None:
    """Write to nobody what was closed (`>&-`), with `?` what the terminal's encoding lacks, and each line at once.

    A cluster that runs into a file (`up > up.log`) must show its lines while it runs.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
        elif hasattr(stream, "reconfigure"):
            lenient = "replace" if stream.errors == "strict" else stream.errors
            stream.reconfigure(errors=lenient, line_buffering=True)


def _run(words: list[str], command: Command | None) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(overview(), end="")
        return 0
    if words[0] == "--version":
        from schemas.envelope import CORE_VERSION

        print(f"caravan {CORE_VERSION}")
        return 0
    if command is None:
        if words[0].startswith("-"):
            raise CliError("usage", f"no option {words[0]!r} here (caravan --help lists commands)")
        return 0
    try:
        rest = _long_options(command, words[len(command.words) :])
        given = vars(parser_of(command).parse_args(rest))
    except SystemExit as ended:
        return int(ended.code or 0)
    out = Output(is_json=bool(given.pop("json", False)))
    chosen.choose(given.pop("context", ""), given.pop("at", ""), given.pop("from_file", ""))
    handler = getattr(import_module(command.module), command.handler)
    return int(handler(out, **given))


def _find(words: Sequence[str]) -> Command | None:
    """Find the command that the first words name; None: its group's help was asked for, and printed."""
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    if words[0] in GROUPS:
        if len(words) == 1 or words[1] in {"-h", "--help"}:
            print(overview(words[0]), end="")
            return None
        known = [" ".join(c.words[1:]) for c in COMMANDS if c.words[0] == words[0]]
        raise CliError("usage", f"caravan {words[0]} has no {words[1]!r}, only {', '.join(known)}")
    from difflib import get_close_matches

    near = get_close_matches(words[0], sorted({c.words[0] for c in COMMANDS}), 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise CliError("usage", f"no command {words[0]!r}{hint} (caravan --help lists them)")


def _long_options(command: Command, words: list[str]) -> list[str]:
    """Take Nomad's `-check-index` for `--check-index`: a known long option with one dash."""
    known = {flag for arg in command.args for flag in arg.flags} | {
        "--json",
        "--context",
        "--from-file",
        "--help",
    }
    out: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            return [*out, *words[index:]]
        twice = f"-{word.partition('=')[0]}"
        is_long = word.startswith("-") and len(twice) > 3 and twice in known
        out.append(f"-{word}" if is_long else word)
    return out


def parser_of(command: Command) -> argparse.ArgumentParser:
    """Build the parser of one command."""
    parser = _Parser(
        prog=f"caravan {' '.join(command.words)}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for arg in command.args:
        _add(parser, arg)
    if command.words != ("run",):
        text = "print one JSON object on stdout; everything else goes to stderr"
        parser.add_argument("--json", action="store_true", help=text)
    if command.module.startswith("services.cli.") and command.words[0] in _ASKING:
        text = "ask the bus of this context (caravan context list)"
        parser.add_argument("--context", default="", metavar="NAME", help=text)
    if AT in command.args or command.words in _READING:
        text = "read an export (caravan log export) instead of the live log"
        parser.add_argument("--from-file", default="", metavar="DIR", help=text)
    return parser


def _epilog(command: Command) -> str | None:
    """What more there is to say, and examples."""
    import shutil
    import textwrap

    width = max(shutil.get_terminal_size((80, 24)).columns - 2, 20)
    lines = textwrap.wrap(command.more, width) if command.more else []
    if command.examples:
        lines += ["", "examples:"] if lines else ["examples:"]
        lines += [f"  caravan {example}" for example in command.examples]
    return "\n".join(lines) or None


def _add(parser: argparse.ArgumentParser, arg: Arg) -> None:
    if arg.kind is list and arg.flags:
        parser.add_argument(
            *arg.flags,
            dest=arg.name,
            action="append",
            default=[],
            metavar=arg.metavar,
            help=arg.help,
        )
    elif arg.kind is list:
        parser.add_argument(arg.name, nargs="+", help=arg.help, metavar=arg.metavar)
    elif arg.kind is bool:
        parser.add_argument(*arg.flags, dest=arg.name, action="store_true", help=arg.help)
    elif arg.flags:
        shown = f" (default {arg.default})" if arg.default not in ("", 0, -1) else ""
        parser.add_argument(
            *arg.flags,
            dest=arg.name,
            type=arg.kind,
            default=arg.default,
            metavar=arg.metavar,
            help=arg.help + shown,
        )
    elif arg.default is None:
        parser.add_argument(arg.name, type=arg.kind, help=arg.help, metavar=arg.metavar or None)
    else:
        parser.add_argument(
            arg.name,
            nargs="?",
            type=arg.kind,
            default=arg.default,
            help=arg.help,
            metavar=arg.metavar or None,
        )


def overview(group: str = "") -> str:
    """List the commands of a group, or of everything."""
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
    lines += ["", "caravan COMMAND --help tells the rest."]
    if not group:
        lines += _wrapped(
            "The bus is that of `caravan up`; CARAVAN_NATS_URL or a context names another one."
        )
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    """Break a text into lines no longer than the terminal's."""
    import shutil
    import textwrap

    return textwrap.wrap(text, max(shutil.get_terminal_size((80, 24)).columns, 20))


def _two_columns(left: str, right: str, width: int) -> list[str]:
    """Name and summary side by side, or below one another on a narrow terminal."""
    import shutil
    import textwrap

    columns = shutil.get_terminal_size((80, 24)).columns
    if columns < width + 34:
        return [
            f"  {left}",
            *textwrap.wrap(
                right, max(columns - 6, 20), initial_indent="      ", subsequent_indent="      "
            ),
        ]
    room = columns - width - 4
    parts = textwrap.wrap(right, room)
    return [f"  {left.ljust(width)}  {parts[0]}", *(" " * (width + 4) + part for part in parts[1:])]


def _as_cli_error(err: CaravanError) -> CliError:
    """Name what went wrong by a stable code."""
    if isinstance(err, CliError):
        return err
    if isinstance(err, CommandInvalid):
        return CliError(err.code, err.message, path=err.path)
    if isinstance(err, BusUnavailable):
        return CliError("unavailable", str(err))
    if isinstance(err, LogDropped):
        return CliError("dropped", str(err))
    if isinstance(err, ConfigInvalid):
        return CliError("config", str(err))
    if isinstance(err, LogError) and err.sound_seq > 0:
        known = (
            f"up to seq {err.sound_seq} it is sound, and can be asked about (--at, --to, --from)"
        )
        return CliError("failed", f"{err}; {known}")
    return CliError("failed", str(err))


def _fail(err: CliError, *, is_json: bool, code: int = 1) -> int:
    """Print an error where its reader looks for it."""
    from services.cli.output import clean

    if is_json:
        Output(is_json=True).result(err.as_object())
    else:
        where = ":".join(part for part in (err.file, str(err.line or "")) if part)
        parts = [part for part in (where, err.path, err.message) if part]
        print(clean(f"caravan: {': '.join(parts)}"), file=sys.stderr)
    return code
