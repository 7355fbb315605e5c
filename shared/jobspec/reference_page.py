"""Writes the reference half of docs/jobs.md: `python -m shared.jobspec.reference_page`.

The text of a field is the `#:` line above it in the Struct, that of a function its docstring; supported fields are
listed in `checks/supported_fields.py`. A test writes the page again and compares.
"""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from shared.durations import write_in_one_unit
from shared.jobspec.checks.supported_fields import SUPPORTED_FIELDS, SUPPORTED_JOB_TYPES
from shared.jobspec.hcl.functions.catalog import REFUSED_FUNCTIONS
from shared.jobspec.hcl.functions.registry import FUNCTIONS
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import FieldSchema, block_schema
from shared.jobspec.nomad.job import JobSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"
GENERATED_MARK = "<!-- from here on written by `python -m shared.jobspec.reference_page` -->"

_KINDS = {
    "text": "text",
    "whole": "number",
    "amount": "number",
    "bool": "bool",
    "duration": "duration",
    "texts": "list of text",
    "wholes": "list of numbers",
    "map": "map of text",
    "lists": "map of lists",
    "raw": "anything",
    "block": "block",
    "blocks": "blocks",
    "labelled": "blocks",
}


def render_page(old: str) -> str:
    """Write the page: what is above the mark stays."""
    head = old.partition(GENERATED_MARK)[0]
    lines = [GENERATED_MARK, "", "## Blocks and parameters", ""]
    lines += [
        "**yes**: supported. **not yet**: refused, unless `--accept-unbuilt` accepts the job without it.",
        f"All types are supported: {_listed(sorted(SUPPORTED_JOB_TYPES))}.",
        "",
    ]
    for name, struct, is_acted_on in _structs():
        lines += _block(name, struct, is_acted_on=is_acted_on)
    lines += ["## Functions", "", "| function | gives |", "|---|---|"]
    for name in sorted(FUNCTIONS):
        one = FUNCTIONS[name]
        lines.append(f"| `{name}({one.parameters})` | {_purpose(one.purpose)} |")
    lines += ["", "Not offered:", ""]
    lines += [f"- `{name}`: it {REFUSED_FUNCTIONS[name]}." for name in sorted(REFUSED_FUNCTIONS)]
    return head + "\n".join(lines) + "\n"


def _purpose(text: str) -> str:
    return text.removesuffix(".").replace("|", "\\|")


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _structs() -> list[tuple[str, type[JobBlock], bool]]:
    """List every block once, outer ones first: its name, its Struct, and whether the block around it is supported."""
    found: dict[type[JobBlock], tuple[str, bool]] = {}
    waiting: list[tuple[str, type[JobBlock], bool]] = [("job", JobSpec, True)]
    while waiting:
        name, struct, is_acted_on = waiting.pop(0)
        known = found.get(struct, ("", False))
        if known[0] and (known[1] or not is_acted_on):
            continue
        found[struct] = (known[0] or name, is_acted_on)
        waiting += [
            (field.hcl, field.inner, is_acted_on and _is_built(struct, field))
            for field in block_schema(struct).fields
            if field.inner is not None
        ]
    return [(name, struct, is_acted_on) for struct, (name, is_acted_on) in found.items()]


def _is_built(struct: type[JobBlock], field: FieldSchema) -> bool:
    """Return whether a field of a supported block is supported; a block without an entry is supported as a whole."""
    return struct not in SUPPORTED_FIELDS or field.json in SUPPORTED_FIELDS[struct]


def _block(name: str, struct: type[JobBlock], *, is_acted_on: bool) -> list[str]:
    label = f' "{struct.LABEL.lower()}"' if struct.LABEL else ""
    lines = [f"### {name}{label}", "", (inspect.getdoc(struct) or "").split("\n")[0], ""]
    lines += ["| parameter | is | default | in JSON | today | |", "|---|---|---|---|---|---|"]
    notes = _notes(struct)
    for field in block_schema(struct).fields:
        if field.json == struct.LABEL and struct is not JobSpec:
            continue
        today = "yes" if is_acted_on and _is_built(struct, field) else "not yet"
        note = notes.get(field.json, "").replace("|", "\\|")
        lines.append(
            f"| `{field.hcl}` | {_KINDS[field.kind]} | {_default(field)} | `{field.json}` | {today} | {note} |"
        )
    return [*lines, ""]


def _default(field: FieldSchema) -> str:
    value: Any = field.default
    if field.inner is not None or value is None or value in ("", {}, (), []):
        return ""
    if field.kind == "duration":
        return f"`{write_in_one_unit(value)}`"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, list | tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


@cache
def _notes(struct: type[JobBlock]) -> dict[str, str]:
    """Read the `#:` lines above a Struct's fields: JSON name -> text."""
    module = importlib.import_module(struct.__module__)
    lines = inspect.getsource(module).splitlines()
    tree = ast.parse("\n".join(lines))
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != struct.__name__:
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.value, ast.Call):
                above: list[str] = []
                at = item.lineno - 2
                while lines[at].strip().startswith("#:"):
                    above.insert(0, lines[at].strip().removeprefix("#:").strip())
                    at -= 1
                name = next(
                    (
                        one.value.value
                        for one in item.value.keywords
                        if one.arg == "name" and isinstance(one.value, ast.Constant)
                    ),
                    "",
                )
                found[str(name)] = " ".join(above)
    return found


def main() -> None:
    """Write the page."""
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
