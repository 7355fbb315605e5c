"""What a command is made of: its words, its arguments, its help; and the arguments that several commands share.

Decides nothing about any one command. Imports nothing, so that help costs nothing.
"""

from typing import NamedTuple


class Arg(NamedTuple):
    """One argument. Without `flags` it is positional; `kind` bool is a switch, list may be given again."""

    name: str
    help: str
    kind: type = str
    default: object = None
    flags: tuple[str, ...] = ()
    metavar: str = ""
    #: what a shell may complete it with: file, job, node, alloc, eval, context or words in parentheses.
    complete: str = ""


class Command(NamedTuple):
    """One command. `keys` are those of its JSON object, as docs/cli.md lists them."""

    words: tuple[str, ...]
    summary: str
    module: str
    handler: str
    args: tuple[Arg, ...] = ()
    keys: tuple[str, ...] = ()
    more: str = ""
    #: what --help shows below, without the leading `caravan`.
    examples: tuple[str, ...] = ()
    #: exit code of an error.
    error_exit: int = 1


def flag(name: str, text: str) -> Arg:
    """A switch."""
    return Arg(name, text, bool, default=False, flags=(f"--{name.replace('_', '-')}",))


def option(
    name: str,
    text: str,
    kind: type = str,
    *,
    default: object = "",
    metavar: str = "",
    complete: str = "",
) -> Arg:
    """An option with a value."""
    return Arg(name, text, kind, default, (f"--{name.replace('_', '-')}",), metavar, complete)


FILE = Arg(
    "file",
    "job file: HCL, JSON, YAML or TOML; - reads it from stdin",
    metavar="FILE",
    complete="file",
)
VARIABLES = (
    Arg(
        "var", "set a variable of the file; may be given again", list, (), ("--var",), "NAME=VALUE"
    ),
    Arg(
        "var_file",
        "set variables from a file; may be given again",
        list,
        (),
        ("--var-file",),
        "FILE",
        "file",
    ),
)
VERBOSE = flag("verbose", "show whole ids and everything else")
LIMIT = option("limit", "lines at the most", int, default=100, metavar="N")
JOB = Arg("job_id", "job", metavar="ID", complete="job")
#: Read by whatever asks (asking.py), not by the command.
AT = option("at", "as it was at a seq, or a time as 2026-01-31T12:00:00", metavar="SEQ|TIME")
DETACH = flag("detach", "do not wait for the evaluation")
