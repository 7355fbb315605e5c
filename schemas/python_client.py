"""Write the generated half of the Python client: its messages, from the JSON Schemas, and one method for each query.

Called by `generate.py`; a test compares. The client package must not import this tree, so it has Structs of its own.
They are lenient where a reader must be: words of statuses are plain text, and unknown fields are ignored.
"""

import keyword
import textwrap
from collections.abc import Iterable
from typing import Any

from schemas import queries

Schema = dict[str, Any]
PACKAGE = "clients/python/caravan_client"
MESSAGES_PY = f"{PACKAGE}/messages.py"
QUERIES_PY = f"{PACKAGE}/queries.py"
_WIDTH = 96
#: The text of a big integer, for languages whose numbers are doubles; an int of Python is exact.
_TEXT_TWIN = "as text where it exceeds 2^53; else empty."
#: Parameters of a noun that are not text.
_NUMBERS = ("version", "limit", "offset", "min_seq")
_FLAGS = ("accept_unbuilt", "accept_unknown")
_MESSAGES_HEAD = '''"""Answers and messages of Caravan. Written by `python -m schemas.generate`; a test compares.

A field that is absent has its default, and a field that this release does not know is ignored.
"""

# ruff: noqa: E501

from typing import Any

import msgspec
'''
_QUERIES_HEAD = '''"""One method for each `query.<noun>`. Written by `python -m schemas.generate`; a test compares.

Every answer carries the `seq` of the state that it was made from. With `min_seq`, the `seq` of a verdict, the answer
is at least as new.
"""

from typing import Any, Protocol, TypeVar

from caravan_client import messages

T = TypeVar("T")


class Ask(Protocol):
    """Sends one query and decodes its answer."""

    async def __call__(self, noun: str, parameters: dict[str, Any], answer: type[T], /) -> T:
        """Ask `query.<noun>`; raises on an error."""
        ...

'''


def messages_source(documents: Iterable[Schema]) -> str:
    """Return the module of Structs for the definitions of JSON Schemas; those that others need come first."""
    definitions: dict[str, Schema] = {}
    for one in documents:
        definitions.update(one["$defs"])
    out, written = [_MESSAGES_HEAD], set[str]()

    def write(name: str) -> None:
        if name in written:
            return
        written.add(name)
        for needed in sorted(_references(definitions[name])):
            write(needed)
        out.append(_struct(name, definitions[name]))

    for name in sorted(definitions):
        write(name)
    return "\n\n".join(out)


def queries_source(answers: dict[str, str]) -> str:
    """Return the module of queries; `answers` has the name of the Struct that answers each noun."""
    out = [
        _QUERIES_HEAD,
        "",
        "class Queries:",
        '    """Questions about the state of the cluster, answered by any view."""',
        "",
        "    def __init__(self, ask: Ask) -> None:",
        '        """Send queries by `ask`."""',
        "        self._ask = ask",
    ]
    for noun, row in queries.NOUNS.items():
        out += ["", *_method(noun, row, answers[noun])]
    return "\n".join(out) + "\n"


def _method(noun: str, row: queries.QueryNoun, answer: str) -> list[str]:
    names = list(row.names)
    # `job_id` is the same as `id` where both are taken for one job, one node.
    if row.parameters.get("job_id", "").startswith("the same"):
        names.remove("job_id")
    if row.parameters.get("node_id", "").startswith("the same"):
        names.remove("node_id")
    first = next(iter(row.parameters), "")
    named = [name for name in names if name != first]
    signature = [_parameter(name) for name in named]
    if first == "Job":
        signature = ["job: dict[str, Any]", "*", *signature]
    elif first:
        default = "" if noun in _OF_ONE else ' = ""'
        signature = [f"{_spelled(first)}: str{default}", "*", *signature]
    else:
        signature = ["*", *signature]
    said = [f"{name}: {text}" for name, text in row.parameters.items() if name in names]
    body = [f'"{name}": {_spelled(name)}' for name in names]
    lines = [f"    async def {noun}(", "        self,"]
    lines += [f"        {one}," for one in signature]
    lines += [f"    ) -> messages.{answer}:"]
    about = f"Return {row.order}." if row.order else f"Ask `query.{noun}`."
    if said:
        lines += [f'        """{about}', "", *[f"        {one}." for one in said], '        """']
    else:
        lines += [f'        """{about}"""']
    lines += ["        parameters: dict[str, Any] = {", *[f"            {one}," for one in body]]
    lines += [
        "        }",
        f'        return await self._ask("{noun}", parameters, messages.{answer})',
    ]
    return lines


#: Nouns about one thing, which its id must name.
_OF_ONE = frozenset(
    {
        "alloc",
        "eval",
        "job",
        "job_version",
        "job_versions",
        "node",
        "service",
        "submission",
        "why_not",
    }
)


def _parameter(name: str) -> str:
    if name in _NUMBERS:
        default = {"version": -1, "limit": 1000}.get(name, 0)
        return f"{name}: int = {default}"
    if name in _FLAGS:
        return f"{name}: bool = False"
    return f'{_spelled(name)}: str = ""'


def _spelled(name: str) -> str:
    """Spell a parameter as Python does."""
    return {"id": "id_", "Job": "job"}.get(name, name)


def _references(schema: Any) -> set[str]:
    """Names of the definitions that one of them needs."""
    if isinstance(schema, dict):
        found = {schema["$ref"].rsplit("/", 1)[1]} if "$ref" in schema else set()
        return found.union(*(_references(value) for value in schema.values()))
    if isinstance(schema, list):
        return set[str]().union(*(_references(value) for value in schema))
    return set()


def _struct(name: str, schema: Schema) -> str:
    lines = [f"class {name}(msgspec.Struct, frozen=True, kw_only=True):"]
    lines += _comment(schema.get("description") or f"{name}.", "    ", docstring=True)
    required = set(schema.get("required", ()))
    for field, value in schema.get("properties", {}).items():
        description = value.get("description", "")
        if description.endswith(_TEXT_TWIN):
            continue
        if words := [word for word in value.get("enum", ()) if word and word not in description]:
            description = f"{description} One of {', '.join(words)}.".strip()
        if description:
            lines += _comment(description, "    #: ")
        lines.append(f"    {_field(field, value, is_required=field in required)}")
    return "\n".join(lines) + "\n"


def _field(name: str, schema: Schema, *, is_required: bool) -> str:
    kind = _type(schema)
    spelled = f"{name}_" if keyword.iskeyword(name) else name
    if is_required:
        return f"{spelled}: {kind}"
    if "default" not in schema and "$ref" not in schema and "None" not in kind:
        return f"{spelled}: {kind} | None = None"
    return f"{spelled}: {kind} = {_default(schema)}"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if "$ref" in schema:
        return f"msgspec.field(default_factory=lambda: {schema['$ref'].rsplit('/', 1)[1]}())"
    if value == []:
        return "()"
    if schema.get("contentEncoding") == "base64":
        return 'b""'
    return repr(value).replace("'", '"')


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if schema.get("contentEncoding") == "base64":
        return "bytes"
    match schema.get("type"):
        case "array":
            return f"tuple[{_type(schema.get('items', {}))}, ...]"
        case "object":
            return f"dict[str, {_type(schema.get('additionalProperties', {}))}]"
        case str() as plain:
            return _PLAIN[plain]
        case _:
            return "Any"


_PLAIN = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}


def _comment(text: str, start: str, *, docstring: bool = False) -> list[str]:
    """Wrap a text to the width of a line, as a comment or a docstring."""
    text = " ".join(text.split())
    if docstring:
        text = text if text.endswith(".") else f"{text}."
        lines = textwrap.wrap(text, _WIDTH - len(start) - 6, break_long_words=False)
        if len(lines) == 1:
            return [f'{start}"""{lines[0]}"""']
        return [f'{start}"""{lines[0]}', *[f"{start}{line}" for line in lines[1:]], f'{start}"""']
    lines = textwrap.wrap(text, _WIDTH - len(start), break_long_words=False)
    return [f"{start}{line}" for line in lines]
