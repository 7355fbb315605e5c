"""The `caravan` command: finds the command, runs its handler, turns errors into one line and an exit code.

Exit codes: 0 done, 1 error, 2 done but not everything was placed, 130 Ctrl-C, 141 the reader of a pipe left. Imports
nothing slow before a command is chosen.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Mapping, Sequence

from services.cli import global_options, sigint
from services.cli.command_spec import CommandSpec
from services.cli.command_table import COMMANDS, GROUPS
from services.cli.help import build_parser, command_overview
from services.cli.runtime.output import CliError, CommandOutput, strip_control_chars
from services.cli.short_forms import SHORT_FORMS, expand
from shared.errors import (
    BusUnavailable,
    CaravanError,
    CommandInvalid,
    ConfigInvalid,
    LogDropped,
    LogError,
)
from shared.extras import missing_extra

sigint.restore_keyboard_interrupt()

#: As a shell reports a process that its closed pipe ended.
_EXIT_PIPE = 141
#: Called by the completion scripts; not listed.
_COMPLETE = "__complete"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    global_options.begin()
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    # Words after -- belong to another command.
    own = words[: words.index("--")] if "--" in words else words
    is_json = not {"--json", "-json"}.isdisjoint(own)
    error_exit = 1
    try:
        if words[:1] == [_COMPLETE]:
            return _complete(words[2:])
        words = expand(words)
        command = _find(words) if words and not words[0].startswith("-") else None
        error_exit = command.error_exit if command is not None else 1
        code = _run(words, command)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader left; nothing may be written at exit either.
        _discard_stdout()
        return _EXIT_PIPE
    except CaravanError as err:
        return _fail(_as_cli_error(err), is_json=is_json, code=error_exit)
    except OSError as err:
        fault = CliError("io", err.strerror or str(err), file=str(err.filename or ""))
        return _fail(fault, is_json=is_json, code=error_exit)
    except UnicodeError:
        # What is not among the arguments: a variable of the environment, or standard input.
        fault = CliError("usage", "standard input or a variable of the environment is not UTF-8")
        return _fail(fault, is_json=is_json, code=error_exit)
    except ModuleNotFoundError as err:
        text = missing_extra(err.name or "")
        text = "benchmarks exist only in a checkout" if err.name == "bench" else text
        if not text:
            raise
        return _fail(CliError("extra", text), is_json=is_json, code=error_exit)
    return code


def _prepare_streams() -> None:
    """Discard output to closed streams (`>&-`), read nothing from a closed one, replace what the encoding lacks by `?`.

    Output is written line by line.

    A cluster that runs into a file (`up > up.log`) must show its lines while it runs.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
        elif hasattr(stream, "reconfigure"):
            lenient = "replace" if stream.errors == "strict" else stream.errors
            stream.reconfigure(errors=lenient, line_buffering=True)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - until the end


def _discard_stdout() -> None:
    """Drop what stdout still holds, and whatever is written to it: at exit it would fail once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(words: list[str]) -> int:
    from services.cli.completion import print_candidates

    print_candidates(words)
    return 0


def _run(words: list[str], command: CommandSpec | None) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(command_overview(), end="")
        return 0
    if words[0] == "--version":
        from shared.release import RELEASE

        print(f"caravan {RELEASE}")
        return 0
    if command is None:
        if words[0].startswith("-"):
            raise CliError("usage", f"unknown option {words[0]!r} (caravan --help lists commands)")
        return 0
    try:
        rest = _long_options(command, words[len(command.words) :])
        given = vars(build_parser(command).parse_args(rest))
    except SystemExit as ended:
        return int(ended.code or 0)
    _require_utf8(command, given)
    out = CommandOutput(is_json=bool(given.pop("json", False)))
    global_options.set_global_options(
        given.pop("context", ""), given.pop("at", ""), given.pop("from_file", "")
    )
    global_options.set_follows_commits(command.changes or bool(given.get("monitor")))
    if command.changes:
        from services.cli.runtime.bus_client import announce_target

        announce_target(out.note)
    handler = command.load_handler()
    gc.enable()
    return int(handler(out, **given))


def _require_utf8(command: CommandSpec, given: Mapping[str, object]) -> None:
    """Refuse arguments that are not UTF-8; a path may be any bytes. Raises CliError."""
    for arg in command.arguments:
        value = given.get(arg.name)
        for text in value if isinstance(value, list | tuple) else (value,):
            if arg.complete == "file" or not isinstance(text, str) or _is_utf8(text):
                continue
            shown = os.fsencode(text)[:80].decode("utf-8", "backslashreplace")
            name = arg.flags[-1] if arg.flags else arg.metavar or arg.name.upper()
            raise CliError("usage", f"argument {name} is not UTF-8: {shown}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find(words: Sequence[str]) -> CommandSpec | None:
    """Find the command that the first words name; None: the help of its group was requested, and printed."""
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    if words[0] in GROUPS:
        if len(words) == 1 or words[1] in {"-h", "--help"}:
            print(command_overview(words[0]), end="")
            return None
        known = ", ".join(" ".join(c.words[1:]) for c in COMMANDS if c.words[0] == words[0])
        text = f"unknown command `caravan {words[0]} {words[1]}`; expected one of: {known}"
        raise CliError("usage", text)
    from difflib import get_close_matches

    near = get_close_matches(words[0], sorted({*SHORT_FORMS, *(c.words[0] for c in COMMANDS)}), 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise CliError("usage", f"unknown command {words[0]!r}{hint} (caravan --help lists commands)")


def _long_options(command: CommandSpec, words: list[str]) -> list[str]:
    """Accept Nomad's `-check-index` for `--check-index`: a known long option with one dash."""
    known = {"--help", *(flag for arg in command.arguments for flag in arg.flags)}
    out: list[str] = []
    for index, word in enumerate(words):
        if word == "--":
            return [*out, *words[index:]]
        twice = f"-{word.partition('=')[0]}"
        is_long = word.startswith("-") and len(twice) > 3 and twice in known
        out.append(f"-{word}" if is_long else word)
    return out


def _as_cli_error(err: CaravanError) -> CliError:
    """Give an error its stable code."""
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
        known = f"records up to seq {err.sound_seq} are sound and can be read (--at, --to, --from)"
        return CliError("failed", f"{err}; {known}")
    return CliError("failed", str(err))


def _fail(err: CliError, *, is_json: bool, code: int = 1) -> int:
    """Print an error: as an object on stdout, or as one line on stderr, also where stdout takes nothing."""
    try:
        if is_json:
            CommandOutput(is_json=True).result(err.as_result())
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
        is_json = False
    if not is_json:
        where = ":".join(part for part in (err.file, str(err.line or "")) if part)
        parts = [part for part in (where, err.path, err.message) if part]
        print(strip_control_chars(f"caravan: {': '.join(parts)}"), file=sys.stderr)
    return code
