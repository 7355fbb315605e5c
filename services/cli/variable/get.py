"""`caravan var get` and `caravan var list`.

Values go to a terminal, to a file that only its owner reads, or where they were asked for by name (`--json`, `--item`):
a command whose output is kept somewhere, such as that of a build, must not show them by accident.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from schemas.projections import Query
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_pages
from services.cli.runtime.output import CliError, CommandOutput, encode_json
from services.cli.variable.keeper import ask_keeper
from services.cli.variable.spec import NAMESPACE
from shared.display.formats import format_age, format_size, format_time_and_age
from shared.variable_client import OpenedVariable

#: Nomad's `-out` is a format.
_FORMATS = frozenset(("go-template", "hcl", "json", "none", "table"))


class VarGetResult(msgspec.Struct, frozen=True, kw_only=True):
    """`var get --json`."""

    path: str
    namespace: str
    items: dict[str, str]
    modify_index: int


class VarFileResult(msgspec.Struct, frozen=True, kw_only=True):
    """`var get --out --json`: the values are in the file alone."""

    path: str
    namespace: str
    file: str
    modify_index: int


def get(out: CommandOutput, *, path: str, item: str, out_file: str) -> int:
    """Read a variable."""
    if out_file in _FORMATS:
        raise CliError(
            "usage", f"--out is a file, no format; ./{out_file} names one, --json is JSON"
        )
    if not (out.is_terminal or out.is_json or item or out_file):
        text = "standard output is no terminal: --json, --item NAME or --out FILE says that it may hold values"
        raise CliError("usage", text)
    name = path.strip().strip("/")
    found = ask_keeper(lambda client: client.get(name))
    if item and item not in found.items:
        raise CliError("not_found", "the variable has no item of this name", path=found.path)
    items = {item: found.items[item]} if item else found.items
    if out_file:
        content = items[item].encode() if item else _specification(found)
        _write_private(out_file, content)
        out.result(
            VarFileResult(
                path=found.path, namespace=NAMESPACE, file=out_file, modify_index=found.revision
            )
        )
        out.line(f"wrote {out_file}, readable by its owner alone")
        return 0
    out.result(
        VarGetResult(path=found.path, namespace=NAMESPACE, items=items, modify_index=found.revision)
    )
    if not out.is_json:
        _print_item(out, items[item]) if item else _print_whole(out, found)
    return 0


def list_all(out: CommandOutput, *, prefix: str, limit: int) -> int:
    """List variables and locked paths by path, without their items."""
    # Imported here, as every answer of a query is.
    from schemas.variable_answers import VariablesAnswer

    answer = query_pages("variables", VariablesAnswer, Query(id=prefix, limit=limit), "variables")
    now_ns = time.time_ns()
    rows = [
        (
            one.path,
            one.revision,
            one.items,
            format_size(one.size),
            format_age(one.modify_ns, now_ns) if one.revision else "",
            f"since seq {one.lock_seq}" if one.lock_seq else "",
        )
        for one in answer.variables
    ]
    columns = "PATH|CHECK INDEX>|ITEMS>|SIZE>|CHANGED|LOCKED"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="variables")


def _print_item(out: CommandOutput, text: str) -> None:
    """Print a value as it is, for a program that reads it; a terminal gets a line of it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode() + (b"\n" if out.is_terminal else b""))
    sys.stdout.buffer.flush()


def _print_whole(out: CommandOutput, found: OpenedVariable) -> None:
    now_ns = time.time_ns()
    out.fields(
        [
            ("Path", found.path),
            ("Check index", str(found.revision)),
            ("Created", format_time_and_age(found.create_ns, now_ns)),
            ("Changed", format_time_and_age(found.modify_ns, now_ns)),
        ]
    )
    out.line("\nItems", "bold")
    out.fields(sorted(found.items.items()))


def _specification(found: OpenedVariable) -> bytes:
    """A specification that `var put` takes: over this revision alone."""
    spec = {
        "Namespace": NAMESPACE,
        "Path": found.path,
        "CreateIndex": found.create_seq,
        "ModifyIndex": found.revision,
        "CreateTime": found.create_ns,
        "ModifyTime": found.modify_ns,
        "Items": found.items,
    }
    return msgspec.json.format(encode_json(spec), indent=2) + b"\n"


def _write_private(file: str, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all. Raises CliError, OSError."""
    target = Path(file)
    if target.exists() and not target.is_file():
        raise CliError("usage", "is no regular file", file=file)
    # A new file has mode 0600 whatever the one of before had.
    handle, made = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(made).replace(target)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
