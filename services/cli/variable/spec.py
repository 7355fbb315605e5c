"""Reads what `caravan var put` is given: a specification of a variable, as Nomad has it, and NAME=VALUE arguments.

Errors of a specification say a line and what is wanted there, and show nothing of the text: it is secret.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from services.cli.runtime.output import CliError, CommandOutput

STDIN = "-"
#: The only namespace.
NAMESPACE = "default"
_FILE = "@"
#: Names of a specification in HCL -> in JSON.
_KEYS = {
    "namespace": "Namespace",
    "path": "Path",
    "items": "Items",
    "create_index": "CreateIndex",
    "modify_index": "ModifyIndex",
    "create_time": "CreateTime",
    "modify_time": "ModifyTime",
}
_ARGUMENTS_ARE_SEEN = (
    "warning: other users of this machine can read the arguments of a command, and the shell keeps them; "
    "a specification (@FILE or -), NAME=@FILE and NAME=- do not show a value"
)


class VariableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A variable to put. `modify_index`: the revision that it was read at; 0: none, or that of another path."""

    path: str
    items: dict[str, str]
    modify_index: int = 0


class VarInitResult(msgspec.Struct, frozen=True):
    """`var init --json`."""

    file: str


def read_arguments(out: CommandOutput, words: Sequence[str], spec_format: str) -> VariableSpec:
    """Read `[PATH] [@FILE|-] [NAME=VALUE…]`. Raises CliError, OSError."""
    rest, path, spec = list(words), "", VariableSpec(path="", items={})
    if not _is_source(rest[0]):
        path = rest.pop(0).strip().strip("/")
        if "=" in path:
            raise CliError("usage", "the first argument is the path, @FILE or -, no NAME=VALUE")
    has_stdin = False
    if rest and _is_source(rest[0]):
        has_stdin = rest[0] == STDIN
        spec = _read_source(rest.pop(0), spec_format)
    elif not rest:
        raise CliError("usage", "no items are given: NAME=VALUE, @FILE or - is required")
    if path and path != spec.path:
        spec = VariableSpec(path=path, items=spec.items)
    items = _with_pairs(spec.items, rest, has_stdin=has_stdin)
    if any(_is_shown(one) for one in rest):
        out.note(_ARGUMENTS_ARE_SEEN)
    if not spec.path:
        raise CliError("usage", "neither the arguments nor the specification name a path")
    return msgspec.structs.replace(spec, items=items)


def read_spec(content: bytes, spec_format: str, file: str = "") -> VariableSpec:
    """Read a specification. Raises CliError."""
    found = _of_hcl(content, file) if spec_format == "hcl" else _of_json(content, file)
    namespace = found.get("Namespace") or NAMESPACE
    if namespace != NAMESPACE:
        raise CliError("invalid", f"namespace {namespace!r}: namespaces are not built", file=file)
    if found.get("Lock"):
        raise CliError("invalid", "a put takes no Lock: `caravan var lock` holds a path", file=file)
    items, path, index = (
        found.get("Items") or {},
        found.get("Path") or "",
        found.get("ModifyIndex") or 0,
    )
    if not isinstance(items, dict) or not all(type(one) is str for one in items.values()):
        raise CliError("invalid", "the items must be an object whose values are texts", file=file)
    if not isinstance(path, str) or type(index) is not int or index < 0:
        raise CliError("invalid", "path must be a text and modify_index a number", file=file)
    return VariableSpec(path=path.strip().strip("/"), items=items, modify_index=index)


def init(out: CommandOutput, *, file: str) -> int:
    """Write an example of a specification; an existing file is not overwritten."""
    try:
        with Path(file).open("x", encoding="utf-8") as made:
            made.write(_JSON_EXAMPLE if file.endswith(".json") else _HCL_EXAMPLE)
    except FileExistsError:
        raise CliError("conflict", "file exists; not overwritten", file=file) from None
    out.result(VarInitResult(file))
    out.line(f"wrote {file}; next: caravan var put PATH @{file}")
    return 0


def _is_source(word: str) -> bool:
    return word == STDIN or word.startswith(_FILE)


def _is_shown(pair: str) -> bool:
    """Whether an argument has a value itself."""
    value = pair.partition("=")[2]
    return bool(value) and not _is_source(value)


def _read_source(word: str, spec_format: str) -> VariableSpec:
    if word == STDIN:
        return read_spec(sys.stdin.buffer.read(), spec_format or "json", "stdin")
    file = word.removeprefix(_FILE)
    found = spec_format or Path(file).suffix.removeprefix(".")
    if found not in ("hcl", "json"):
        text = "the file must end with .hcl or .json, or --in must say which it is"
        raise CliError("usage", text, file=file)
    return read_spec(Path(file).read_bytes(), found, file)


def _with_pairs(
    items: Mapping[str, str], pairs: Sequence[str], *, has_stdin: bool
) -> dict[str, str]:
    """Items of a specification with arguments over them; an empty value removes an item."""
    made = dict(items)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            # The word may be a secret whose name was forgotten.
            raise CliError("usage", "an argument behind the path is not NAME=VALUE")
        if value == STDIN:
            if has_stdin:
                raise CliError("usage", "standard input is named twice")
            has_stdin, value = True, _text(sys.stdin.buffer.read(), "stdin")
        elif value.startswith(_FILE):
            file = value.removeprefix(_FILE)
            value = _text(Path(file).read_bytes(), file)
        elif value.startswith("\\@"):
            value = value[1:]
        if value:
            made[name] = value
        else:
            made.pop(name, None)
    return made


def _text(content: bytes, file: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CliError("invalid", "is not UTF-8: an item is a text", file=file) from None


def _of_json(content: bytes, file: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise CliError("invalid", "a name stands twice in one object", file=file)
        return found

    try:
        found = json.loads(_text(content, file), object_pairs_hook=unique)
    except json.JSONDecodeError as err:
        raise CliError("invalid", "is not JSON", file=file, line=err.lineno) from None
    except (ValueError, RecursionError):
        raise CliError("invalid", "is not JSON", file=file) from None
    if not isinstance(found, dict):
        raise CliError("invalid", "a specification is a JSON object with Items", file=file)
    # Go reads names whatever their case.
    known = {name.lower(): name for name in (*_KEYS.values(), "Lock")}
    return {known.get(str(name).lower(), str(name)): value for name, value in found.items()}


def _of_hcl(content: bytes, file: str) -> dict[str, Any]:
    # Imported here: the language costs a quarter of a second.
    from shared.jobspec.hcl.errors import HclError
    from shared.jobspec.hcl.syntax.parser import parse_body
    from shared.jobspec.hcl.syntax.tree import Expression, Literal, ObjectLiteral

    text = _text(content, file)

    def refuse(at: int, message: str) -> NoReturn:
        raise CliError("invalid", message, file=file, line=text.count("\n", 0, max(at, 0)) + 1)

    def plain(value: Expression) -> Any:
        if isinstance(value, ObjectLiteral):
            return {str(plain(name)): as_text(one) for name, one in value.items}
        if not isinstance(value, Literal) or value.value is None or type(value.value) is bool:
            refuse(value.at, "a text or a number is required; write $${ for ${ in a text")
        return value.value

    def as_text(value: Expression) -> str:
        found = plain(value)
        return found if isinstance(found, str) else str(found)

    try:
        body = parse_body(text)
    except HclError as err:
        refuse(err.at, "is not HCL here")
    found: dict[str, Any] = {}
    for one in body.attributes:
        if one.name not in _KEYS:
            refuse(one.at, f"a specification has {', '.join(_KEYS)}")
        found[_KEYS[one.name]] = plain(one.value)
    for block in body.blocks:
        if block.name != "items" or block.labels or block.body.blocks or "Items" in found:
            refuse(block.at, "a specification has one block, items { NAME = VALUE }")
        found["Items"] = {one.name: as_text(one.value) for one in block.body.attributes}
    return found


_HCL_EXAMPLE = """\
# A variable for `caravan var put`.

# Where it is stored; a path among the arguments takes precedence.
path = "app/database"

# Put it only over this revision. Without it the path must not exist yet, unless --force or --check-index is given.
# modify_index = 12

# What is stored, encrypted as one. Every value is a text.
# Names of letters, digits and _ are the easiest to use in a template.
items {
  user     = "app"
  password = "change me"
}
"""
_JSON_EXAMPLE = """\
{
  "Path": "app/database",
  "Items": {
    "user": "app",
    "password": "change me"
  }
}
"""
