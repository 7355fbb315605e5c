"""YAML and TOML: text to plain values, with the line of each object, within bounds.

YAML is restricted to plain data: aliases (a few lines can mean a billion values), merge keys and tags are refused, and
only true and false are booleans. Next: `block_mapper.py`.
"""

import re
import tomllib
from typing import Any

import yaml

from shared.jobspec.hcl.blocks import LineNumbers
from shared.jobspec.hcl.errors import DEPTH_MAX, StructuredTextError

#: PyYAML reads about a megabyte in five seconds.
YAML_BYTES_MAX = 256 * 1024
TOML_BYTES_MAX = 1024 * 1024

_TOML_HEAD = re.compile(
    r"\s*(?:(?P<open>\[\[?)(?P<keys>[^\[\]=]+)\]|(?P<key>[\w.\-\"' ]+?)\s*=(?!=))"
)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain data: dates, octals and `yes` stay text."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise StructuredTextError("anchors and aliases are not supported", line)
        tag = getattr(event, "tag", None)
        if tag:
            raise StructuredTextError(f"tags are not supported, found {tag[:40]}", line)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise StructuredTextError(f"nested deeper than {DEPTH_MAX} levels", line)
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
    """Read YAML. Raises StructuredTextError."""
    return read_yaml(text)[0]


def read_yaml(text: str) -> tuple[Any, LineNumbers]:
    """Read YAML: its value, and the lines. Raises StructuredTextError."""
    if len(text) > YAML_BYTES_MAX:
        raise StructuredTextError(
            f"{len(text)} characters of YAML, at most {YAML_BYTES_MAX} are allowed"
        )
    lines: LineNumbers = {}
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, lines
        return _plain_values(loader, node, (), lines), lines
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark
        problem = ", ".join(one for one in (err.context, err.problem) if one) or "cannot be read"
        raise StructuredTextError(f"YAML: {problem}", mark.line + 1 if mark else 0) from None
    except (yaml.YAMLError, RecursionError, ValueError) as err:
        raise StructuredTextError(f"YAML: {str(err).splitlines()[0][:200]}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _plain_values(
    loader: _Loader, node: yaml.Node, path: tuple[str | int, ...], lines: LineNumbers
) -> Any:
    """Make plain values of nodes, noting lines."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_plain_values(loader, one, (*path, at), lines) for at, one in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = str(key.value)
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise StructuredTextError("a key must be a string", line)
        if name in found:
            raise StructuredTextError(f"{name[:40]!r} is a duplicate key", line)
        found[name] = _plain_values(loader, value, (*path, name), lines)
        lines[*path, name] = line
    return found


def read_toml(text: str) -> tuple[Any, LineNumbers]:
    """Read TOML: its value, and the lines. Raises StructuredTextError."""
    if len(text) > TOML_BYTES_MAX:
        raise StructuredTextError(
            f"{len(text)} characters of TOML, at most {TOML_BYTES_MAX} are allowed"
        )
    try:
        return tomllib.loads(text), _toml_lines(text)
    except tomllib.TOMLDecodeError as err:
        found = str(err)
        line = found.rpartition("at line ")[2].partition(",")[0]
        raise StructuredTextError(f"TOML: {found}", int(line) if line.isdecimal() else 0) from None
    except RecursionError:
        raise StructuredTextError("TOML: nested too deeply") from None


def _toml_lines(text: str) -> LineNumbers:
    """Estimate the lines of tables and keys, which the parser does not report: one scan of each line."""
    lines: LineNumbers = {}
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
