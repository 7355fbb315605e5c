"""What a command is made of: its words, its arguments, its help; and the arguments that several commands share.

Imports nothing slow, so that help costs nothing: handlers and result Structs are named by strings and imported on use.
"""

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Needs(Enum):
    """What a command works on."""

    NOTHING = "nothing"
    BUS = "bus"
    #: reads the log: the bus, or an export given by --from-file.
    LOG = "log"
    #: is not installed.
    CHECKOUT = "checkout"


class ArgumentSpec(NamedTuple):
    """One argument. Without `flags` it is positional; `kind` bool is a switch, list may be repeated."""

    name: str
    help: str
    kind: type = str
    default: object = None
    flags: tuple[str, ...] = ()
    metavar: str = ""
    #: what a shell completes it with: file, job, node, alloc, eval, deployment, rollout, service, variable, context, or
    #: words in parentheses.
    complete: str = ""


class CommandSpec(NamedTuple):
    """One command. `handler` is `module:function`; modules are of services.cli, or start with a top-level package.

    `results`: the Structs that `--json` prints, `module:Struct` by the case in which they are printed ("" first).
    """

    words: tuple[str, ...]
    summary: str
    handler: str
    args: tuple[ArgumentSpec, ...] = ()
    results: Mapping[str, str] = {}
    needs: Needs = Needs.BUS
    details: str = ""
    #: what --help shows below, without the leading `caravan`.
    examples: tuple[str, ...] = ()
    #: exit code of an error.
    error_exit: int = 1
    #: it changes the cluster: it names which one, and where there are several it wants one chosen.
    changes: bool = False

    @property
    def arguments(self) -> tuple[ArgumentSpec, ...]:
        """Its own arguments and those of every command of its kind: parser, completion and help read these."""
        shared: tuple[ArgumentSpec, ...] = (JSON_FLAG,) if self.results else ()
        shared += (CONTEXT_OPTION,) if self.needs in (Needs.BUS, Needs.LOG) else ()
        shared += (FROM_FILE_OPTION,) if self.needs is Needs.LOG else ()
        return (*self.args, *shared)

    def load_handler(self) -> Any:
        """Import the function that runs it."""
        top = str(Path(__file__).resolve().parents[2])
        if self.needs is Needs.CHECKOUT and top not in sys.path:
            sys.path.append(top)
        return _load(self.handler)

    def keys(self, case: str = "") -> tuple[str, ...]:
        """Keys of the JSON object in one case: the fields of its Struct, without optional ones."""
        from msgspec import UNSET
        from msgspec.structs import fields

        if case not in self.results:
            return ()
        known = fields(_load(self.results[case]))
        return tuple(field.encode_name for field in known if field.default is not UNSET)


def _load(path: str) -> Any:
    from importlib import import_module

    module, _, name = path.partition(":")
    package = "" if module.partition(".")[0] in {"schemas", "shared", "bench"} else "services.cli."
    return getattr(import_module(package + module), name)


def flag_argument(name: str, text: str) -> ArgumentSpec:
    """A switch."""
    return ArgumentSpec(name, text, bool, default=False, flags=(f"--{name.replace('_', '-')}",))


def option_argument(
    name: str,
    text: str,
    kind: type = str,
    *,
    default: object = "",
    metavar: str = "",
    complete: str = "",
    flag: str = "",
) -> ArgumentSpec:
    """An option with a value; kind list: it may be repeated."""
    flags = (flag or f"--{name.replace('_', '-')}",)
    names = {"job": "ID", "node": "ID", "eval": "ID", "context": "NAME"}
    metavar = metavar or ("N" if kind is int else names.get(complete, ""))
    default = () if kind is list else default
    return ArgumentSpec(name, text, kind, default, flags, metavar, complete)


JSON_FLAG = flag_argument("json", "print one JSON object on stdout; everything else goes to stderr")
CONTEXT_OPTION = option_argument(
    "context", "use the bus of this context (caravan context list)", complete="context"
)
FROM_FILE_OPTION = option_argument(
    "from_file",
    "read an export (caravan log export) instead of the live log",
    metavar="DIR",
    complete="file",
)
#: Read by bus_client.py, not by the command.
AT_OPTION = option_argument(
    "at",
    "state at a seq or a time like 2026-01-31T12:00:00, replayed from the log",
    metavar="SEQ|TIME",
)
FILE_ARGUMENT = ArgumentSpec(
    "file",
    "job file in HCL, JSON, YAML or TOML; - reads stdin",
    metavar="FILE",
    complete="file",
)
JOB_FILE_OPTIONS = (
    option_argument("var", "set a variable of the file; repeatable", list, metavar="NAME=VALUE"),
    option_argument(
        "var_file",
        "set variables from a file; repeatable",
        list,
        metavar="FILE",
        complete="file",
    ),
    flag_argument("accept_unbuilt", "accept fields that are not built yet; they have no effect"),
    flag_argument("accept_unknown", "accept unknown parameters; they have no effect"),
)
SUBMISSION_ID_OPTION = option_argument(
    "submission_id", "idempotency key: submitting again has no effect", metavar="ID"
)
VERBOSE_FLAG = flag_argument("verbose", "show full ids and all details")
LIMIT_OPTION = option_argument("limit", "maximum number of rows", int, default=100)
JOB_ARGUMENT = ArgumentSpec("job_id", "job id or a unique prefix", metavar="ID", complete="job")
#: For what changes a job: a prefix that is sent again may name another one (`job stop --purge web` leaves `web-2`).
EXACT_JOB_ARGUMENT = JOB_ARGUMENT._replace(help="job id, in full")
JOB_OPTION = option_argument("job", "only this job: id or a unique prefix", complete="job")
ALLOC_ARGUMENT = ArgumentSpec(
    "alloc_id", "allocation: id prefix, JOB.group or JOB.group[i]", metavar="ID", complete="alloc"
)
NODE_ARGUMENT = ArgumentSpec(
    "node_id", "node: id, unique prefix or name", metavar="ID", complete="node"
)
DETACH_FLAG = flag_argument("detach", "return without waiting for the evaluation")
FOLLOW_FLAG = ArgumentSpec(
    "follow", "keep printing new output", bool, default=False, flags=("-f", "--follow")
)
