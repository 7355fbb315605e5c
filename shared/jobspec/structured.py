"""YAML and TOML: text to plain values, with the line each object stands on, within bounds.

Decides what of YAML is read: plain data. Aliases (a few lines can mean a billion values), merge keys and tags are
refused, and only true and false are bools. Knows nothing of jobs. Next: `mapping.py` through `blocks_of`.
"""

import re
import tomllib
from typing import Any

import msgspec
import yaml

from shared.jobspec.hcl.document import Made
from shared.jobspec.hcl.errors import DEPTH_MAX
from shared.jobspec.nomad_base import Json
from shared.jobspec.shapes import Field, shape_of

#: PyYAML reads about a megabyte in five seconds.
YAML_BYTES_MAX = 256 * 1024
TOML_BYTES_MAX = 1024 * 1024
#: PyYAML calls itself a few times a level.
_DEPTH_MAX = DEPTH_MAX

#: path of keys and indexes -> line.
Lines = dict[tuple[str | int, ...], int]


_TOML_HEAD = re.compile(
    r"\s*(?:(?P<open>\[\[?)(?P<keys>[^\[\]=]+)\]|(?P<key>[\w.\-\"' ]+?)\s*=(?!=))"
)


class StructuredFault(Exception):
    """A text that cannot be read. `line` counts from 1, 0: unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain data: dates, octals and `yes` stay text."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise StructuredFault("anchors and aliases are not read", line)
        tag = getattr(event, "tag", None)
        if tag:
            raise StructuredFault(f"tags are not read, found {tag[:40]}", line)
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise StructuredFault(f"nested deeper than {_DEPTH_MAX} levels", line)
        found = super().compose_node(parent, index)
        self.depth -= 1
        return found


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rsplit(":", 1)[-1] in {"int", "float", "null"}
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def yaml_value(text: str) -> Any:
    """Read YAML. Raises StructuredFault."""
    return read_yaml(text)[0]


def read_yaml(text: str) -> tuple[Any, Lines]:
    """Read YAML: its value, and the lines. Raises StructuredFault."""
    if len(text) > YAML_BYTES_MAX:
        raise StructuredFault(f"{len(text)} characters of YAML, at most {YAML_BYTES_MAX} are read")
    lines: Lines = {}
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, lines
        return _plain(loader, node, (), lines), lines
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark
        problem = ", ".join(one for one in (err.context, err.problem) if one) or "cannot be read"
        raise StructuredFault(f"YAML: {problem}", mark.line + 1 if mark else 0) from None
    except (yaml.YAMLError, RecursionError, ValueError) as err:
        raise StructuredFault(f"YAML: {str(err).splitlines()[0][:200]}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _plain(loader: _Loader, node: yaml.Node, path: tuple[str | int, ...], lines: Lines) -> Any:
    """Make plain values of nodes, noting lines."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, one, (*path, at), lines) for at, one in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = str(key.value)
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise StructuredFault("a key must be text", line)
        if name in found:
            raise StructuredFault(f"{name[:40]!r} comes twice", line)
        found[name] = _plain(loader, value, (*path, name), lines)
        lines[*path, name] = line
    return found


def read_toml(text: str) -> tuple[Any, Lines]:
    """Read TOML: its value, and the lines. Raises StructuredFault."""
    if len(text) > TOML_BYTES_MAX:
        raise StructuredFault(f"{len(text)} characters of TOML, at most {TOML_BYTES_MAX} are read")
    try:
        return tomllib.loads(text), _toml_lines(text)
    except tomllib.TOMLDecodeError as err:
        found = str(err)
        line = found.rpartition("at line ")[2].partition(",")[0]
        raise StructuredFault(f"TOML: {found}", int(line) if line.isdecimal() else 0) from None
    except RecursionError:
        raise StructuredFault("TOML: nested too deep") from None


def _toml_lines(text: str) -> Lines:
    """Guess the lines of tables and keys, which the reader does not tell: one look at each line."""
    lines: Lines = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        found = _TOML_HEAD.match(line)
        if found is None:
            continue
        names: tuple[str | int, ...] = tuple(
            one.strip("\"' ") for one in (found["keys"] or found["key"]).split(".")
        )
        if found["open"] is None:
            lines.setdefault(table + names, number)
            continue
        # Inside an array of tables the last one is meant.
        table = ()
        for name in names:
            table = (*table, name)
            if table in counts and not (found["open"] == "[[" and name is names[-1]):
                table = (*table, counts[table])
        if found["open"] == "[[":
            counts[table] = counts.get(table, -1) + 1
            table = (*table, counts[table])
        lines.setdefault(table, number)
    return lines


def block_of(
    struct: type[Json],
    value: dict[str, Any],
    *,
    name: str,
    labels: tuple[str, ...] = (),
    lines: Lines,
    path: tuple[str | int, ...] = (),
) -> Made:
    """Make a block of an object, in the shape of its Struct. Raises StructuredFault."""
    if len(path) > 2 * DEPTH_MAX:
        raise StructuredFault("nested too deep")
    shape = shape_of(struct)
    attributes: dict[str, tuple[Any, int]] = {}
    blocks: list[Made] = []
    for key, item in value.items():
        here = (*path, key)
        field = shape.names.get(key) or shape.names.get(key.removesuffix("s"))
        if field is None or field.inner is None or not isinstance(item, dict | list):
            attributes[key if field is None else field.hcl] = (item, lines.get(here, 0))
            continue
        blocks += _blocks(field, item, here, lines)
    return Made(name, labels, attributes, tuple(blocks), lines.get(path, 0))


def _blocks(field: Field, value: Any, path: tuple[str | int, ...], lines: Lines) -> list[Made]:
    """Read the blocks of a field: one object, a list of them, or objects by label."""
    assert field.inner is not None
    inner = field.inner
    if isinstance(value, dict):
        if inner.LABEL and value and all(isinstance(one, dict | list) for one in value.values()):
            return [
                msgspec.structs.replace(made, labels=(label,))
                for label, one in value.items()
                for made in _blocks(
                    field, one if isinstance(one, list) else [one], (*path, label), lines
                )
            ]
        value = [value]
        paths: list[tuple[str | int, ...]] = [path]
    else:
        paths = [(*path, at) for at in range(len(value))]
    found: list[Made] = []
    for one, here in zip(value, paths, strict=True):
        if not isinstance(one, dict):
            raise StructuredFault(f"{path[-1]} must hold objects", lines.get(here, 0))
        known = here if here in lines else path
        found.append(block_of(inner, one, name=field.hcl, lines=lines, path=known))
    return found
