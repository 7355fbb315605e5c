"""HCL over generated input: no text is a crash, every value survives its own text, another parser agrees."""

import json
import re
from typing import Any

import hcl2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lark.exceptions import LarkError

from shared.errors import CommandInvalid
from shared.jobspec.files.load import load_file, parse_request
from shared.jobspec.hcl.document import Document, VariableInputs
from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.evaluate import ExpressionContext
from shared.jobspec.hcl.syntax.parser import parse_body, parse_expression
from shared.regexp.search import CapturingRegexp
from tests.examples import examples
from tests.unit.jobspec.test_job_files import HELLO, HELLO_JSON

pytestmark = pytest.mark.property

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda one: one not in {"for", "if", "in", "else", "endif", "endfor", "null", "true", "false"}
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
#: Pieces whose mixtures go far into the parser before they go wrong.
PIECES = st.sampled_from(
    [
        *('job "a" {', "group", '"x"', "{", "}", "[", "]", "(", ")", "=", "\n", " ", ",", ".", "*"),
        *(
            '"${',
            "}",
            '"',
            "%{if ",
            "%{for x in ",
            "%{endif}",
            "<<E\n",
            "<<-E\n",
            "E\n",
            "~",
            "?",
            ":",
        ),
        *(
            "var.a",
            "local.b",
            "for",
            "x",
            "in",
            "if",
            "1",
            "2.5",
            "-",
            "!",
            "&&",
            "==",
            "=>",
            "...",
        ),
        *(
            "upper(",
            "range(9)",
            "locals {",
            'variable "a" {',
            "default",
            "dynamic",
            "content",
            "#",
            "/*",
        ),
        *("null", "true", "attr.x", "\\", "$", "ä", "\r\n", "[*]", "task", "driver"),
    ]
)


def literal(value: Any) -> str:
    """Write a value in HCL, with what opens a template doubled."""
    if isinstance(value, str):
        for mark, escape in (
            ("\\", "\\\\"),
            ('"', '\\"'),
            ("\n", "\\n"),
            ("\r", "\\r"),
            ("\t", "\\t"),
        ):
            value = value.replace(mark, escape)
        return '"' + value.replace("${", "$${").replace("%{", "%%{") + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)} = {literal(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


@given(st.lists(PIECES | TEXTS, max_size=40).map("".join))
@examples(400)
def test_no_text_is_a_crash(text: str) -> None:
    """Any text is a job, or faults with a message and a line."""
    found = load_file(text.encode(), "x.hcl")
    assert bool(found.errors) is (found.submission is None)
    assert all(one.message and one.line >= 0 for one in found.errors)


@given(st.integers(0, len(HELLO)), st.integers(0, 30), PIECES)
@examples(200)
def test_no_damage_is_a_crash(at: int, cut: int, piece: str) -> None:
    """A job file with a part cut out and another put in is a job or is refused in words."""
    text = HELLO[:at] + piece + HELLO[at + cut :]
    try:
        parse_request(text.encode())
    except CommandInvalid as fault:
        assert fault.message  # noqa: PT017 - either outcome is fine, silence is not


@given(st.sampled_from(["x.yaml", "x.toml", "x.json", "x"]), st.binary(max_size=60))
@examples(300)
def test_no_bytes_are_a_crash(name: str, content: bytes) -> None:
    """Any bytes under any name are a job or faults."""
    assert bool(load_file(content, name).errors) or load_file(content, name).submission is not None


@given(VALUES)
@examples(300)
def test_values_survive_their_text(value: Any) -> None:
    """A value written in HCL, in JSON by a function, and in a heredoc's template is read as itself."""
    world = ExpressionContext()
    assert world.value(parse_expression(literal(value))) == value
    encoded = world.value(parse_expression(f"jsonencode({literal(value)})"))
    assert json.loads(encoded) == value


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(NAMES, max_size=2), NAMES)
@examples(60)
def test_another_parser_agrees(attributes: dict[str, Any], labels: list[str], name: str) -> None:
    """What we read of a generated file, python-hcl2 reads too: the same blocks, labels and attribute names."""
    quoted = " ".join(f'"{one}"' for one in labels)
    lines = "\n".join(f"  {key} = {literal(one)}" for key, one in attributes.items())
    text = f"{name} {quoted} {{\n{lines}\n}}\n"
    (ours,) = parse_body(text).blocks
    try:
        theirs = hcl2.loads(text)[name][0]
    except LarkError:
        return
    for label in labels:
        theirs = theirs[f'"{label}"'] if f'"{label}"' in theirs else theirs[label]
    assert {one.name for one in ours.body.attributes} == {
        key for key in theirs if not key.startswith("__")
    }


@given(
    st.lists(
        st.sampled_from(
            [
                *("a", "b", ".", "a*", "(a|b)", "[ab]+", "b?", "(?:ab)*", "^", "$", "a+?", "(a*)"),
                *("[^a]", "a{1,2}", "(?:a|ab)", r"\b", r"\w", "(?i:A)"),
            ]
        ),
        min_size=1,
        max_size=5,
    ).map("".join),
    st.text("abc ", max_size=10),
)
@examples(500)
def test_patterns_match_as_pythons(pattern: str, text: str) -> None:
    """Where Python's own engine finds a pattern, ours does, at the same place."""
    ours = next(CapturingRegexp(pattern, states_max=1000).find_all(text, lambda _: None), None)
    theirs = re.search(pattern.replace("$", r"\Z"), text, re.ASCII)
    assert (ours.span if ours else None) == (theirs.span() if theirs else None)


@given(st.permutations(["a", "b", "c", "d"]), st.integers(1, 3))
def test_locals_come_in_any_order(order: list[str], start: int) -> None:
    """The order in which locals are written changes nothing."""
    parts = {"a": f"{start}", "b": "local.a + 1", "c": "local.a + local.b", "d": "local.c * 2"}
    text = (
        "locals {\n"
        + "\n".join(f"{one} = {parts[one]}" for one in order)
        + '\n}\njob "j" { v = local.d }'
    )
    document = Document(text, VariableInputs())
    (job,) = document.blocks()
    assert job.attributes["v"][0] == 2 * (start + start + 1)
    assert document.faults == []


def test_the_example_is_whole() -> None:
    """The file that is damaged above is a job as it stands."""
    assert json.loads(parse_request(HELLO.encode()).job) == HELLO_JSON
    with pytest.raises(HclError):
        parse_body(HELLO[:-3])


SHAPED: st.SearchStrategy[Any] = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "id",
                        "name",
                        "type",
                        "priority",
                        "group",
                        "groups",
                        "task",
                        "TaskGroups",
                        "count",
                    ),
                    *(
                        "constraint",
                        "distinct_hosts",
                        "network",
                        "port",
                        "static",
                        "env",
                        "meta",
                        "config",
                    ),
                    *(
                        "service",
                        "check",
                        "header",
                        "volume",
                        "scaling",
                        "identity",
                        "vault",
                        "restart",
                    ),
                    *(
                        "interval",
                        "resources",
                        "memory",
                        "custom",
                        "template",
                        "connect",
                        "gateway",
                        "x",
                    ),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(SHAPED, st.sampled_from(["job", "Job", ""]), st.booleans())
@examples(120)
def test_no_shape_is_a_crash(value: Any, key: str, in_yaml: bool) -> None:  # noqa: FBT001
    """Values of any shape under names of job files are a job or faults, in JSON and in YAML."""
    text = json.dumps({key: value} if key else value)
    found = load_file(text.encode(), "x.yaml" if in_yaml else "x.json")
    assert bool(found.errors) is (found.submission is None)
