"""Expressions of job files: their values, and their errors."""

from typing import Any

import pytest

from shared.jobspec.hcl.errors import DEPTH_MAX, HclError, HclLimitExceeded
from shared.jobspec.hcl.evaluate import ExpressionContext
from shared.jobspec.hcl.syntax.parser import parse_body, parse_expression
from tests.unit.jobspec.hcl_text import value

NAMES: dict[str, Any] = {
    "n": 3,
    "s": "text",
    "l": ["a", "b", "c"],
    "o": {"x": 1, "y": {"z": "deep"}},
    "rows": [{"id": 1, "tags": ["p", "q"]}, {"id": 2, "tags": ["r"]}],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("1e3", 1000),
        ("true", True),
        ("null", None),
        ('"a\\n\\t\\"\\\\\\u00e4"', 'a\n\t"\\ä'),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("10 / 4", 2.5),
        ("10 / 5", 2),
        ("2 - 3 - 4", -5),
        ("1 < 2 && 2 <= 2 && !false", True),
        ("1 == 1.0", True),
        ('1 == "1"', False),
        ("[1, 2] == [1, 2]", True),
        ("true || upper()", True),
        ("n > 2 ? s : l", "text"),
        ("n > 5 ? 1 : n > 2 ? 2 : 3", 2),
        ("l[0]", "a"),
        ("l.1", "b"),
        ("o.y.z", "deep"),
        ('o["y"]["z"]', "deep"),
        ('o[join("", ["x"])]', 1),
        ("rows[*].id", [1, 2]),
        ("rows.*.id", [1, 2]),
        ("rows[*].tags[0]", ["p", "r"]),
        ("s[*]", ["text"]),
        ("[for x in l : upper(x)]", ["A", "B", "C"]),
        ('[for i, x in l : "${i}${x}" if x != "b"]', ["0a", "2c"]),
        ("{for k, v in {b = 2, a = 1} : k => v * 2}", {"a": 2, "b": 4}),
        ("{for r in rows : r.id => r.tags...}", {"1": [["p", "q"]], "2": [["r"]]}),
        ('{ a = 1, "b c" = 2\n d : 3 }', {"a": 1, "b c": 2, "d": 3}),
        ("{ (s) = 1 }", {"text": 1}),
        ("[\n1,\n2,\n]", [1, 2]),
        ("[1, # one\n 2 /* two */, // three\n 3]", [1, 2, 3]),
        ("max([1, 5, 3]...)", 5),
        ('"${n}"', 3),
        ('"n is ${n}, ${true}"', "n is 3, true"),
        ('"$${n} %%{if}"', "${n} %{if}"),
        ('"${"nested ${s}"}"', "nested text"),
        ('"%{ if n == 3 }yes%{ else }no%{ endif }"', "yes"),
        ('"%{ if n == 4 }yes%{ endif }"', ""),
        ('"%{ for x in l }${x},%{ endfor }"', "a,b,c,"),
        ('"%{ for k, v in {a = 1} }${k}=${v}%{ endfor }"', "a=1"),
        ('"a   ${~ n ~}   b"', "a3b"),
        ('"costs $5 and 5%"', "costs $5 and 5%"),
        ("<<E\n  a ${n}\n b\nE\n", "  a 3\n b\n"),
        ("<<-E\n    a\n      b\n\n    c\n    E\n", "a\n  b\n\nc\n"),
        ("<<-E\n    a\n  ${n}\n  E  \n", "  a\n3\n"),
        ("<<E\nE\n", ""),
        ('<<E\na\\n "q"\nE\n', 'a\\n "q"\n'),
        ("<<E\r\na\r\nE\r\n", "a\r\n"),
    ],
)
def test_what_expressions_are_worth(text: str, expected: Any) -> None:
    """Each expression is worth what HCL says."""
    got = value(text, **NAMES)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${attr.kernel.name}", "${attr.kernel.name}"),
        ("${ node.class }", "${node.class}"),
        ("${meta.rack-id}-x", "${meta.rack-id}-x"),
        ('${env["HOME"]}', '${env["HOME"]}'),
        ("http://${NOMAD_ADDR_http}/", "http://${NOMAD_ADDR_http}/"),
        ("${device.vendor/gpu}", None),
        ("${attr.driver.docker.1}", "${attr.driver.docker.1}"),
    ],
)
def test_what_only_the_node_knows_stays(text: str, expected: str | None) -> None:
    """References that are answered where the task runs stay in the job as they were written."""
    node = parse_expression(f'"{text}"')
    if expected is None:
        with pytest.raises(HclError):
            ExpressionContext().value(node)
    else:
        assert ExpressionContext().value(node) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 +", "expected a value"),
        ("[1, 2", "expected ]"),
        ('"abc', "not closed"),
        ('"a\\q"', "unknown escape"),
        ("<<E\nabc\n", "heredoc is not closed; expected E"),
        ("/* abc", "comment is not closed"),
        ("{ a = 1, a b }", "expected = after"),
        ("a::b::c(1)", "namespaced functions"),
        ('"%{ if true }x"', "if without endif"),
        ('"%{ endfor }"', "endfor without a matching start"),
        ('"%{ while }"', "unknown directive 'while'"),
        ('"${1"', "expected } at the end of a template"),
        ("1 2", "expected the end of the value"),
        ("§", "unexpected character"),
        ("9" * 61, "more than 60 digits"),
        ("1e999", "too large"),
        ("l[3]", "no element 3 in a list of 3"),
        ("o.nope", "no element 'nope'; expected one of x, y"),
        ("s.x", "a text has no elements"),
        ("1 + s", "must be a number, was 'text'"),
        ("!s", "must be true or false"),
        ("1 / 0", "division by zero"),
        ('"a${l}"', "a list cannot be converted to a string"),
        ("s ? 1 : 2", "must be true or false, was 'text'"),
        ('attr.x == "a"', "attr.x is known only on the node of the task"),
        ('"${attr.x}" == "a"', "attr.x is known only on the node of the task"),
        ('{for x in l : "k" => x}', "is duplicate"),
        ("[for x in n : x]", "for needs a list or an object, was a number"),
        ("pow(2, 300)", "out of range"),
        ("uper(s)", "unknown function uper(); did you mean upper?"),
        ("upper()", "upper(text) takes 1 arguments, was 0"),
        ("upper([])", "upper(): must be a string, was a list"),
        ("bcrypt(s)", "bcrypt() is not supported"),
        ('file("/etc/passwd")', "files are not available here"),
    ],
)
def test_what_is_wrong_is_said(text: str, told: str) -> None:
    """A fault says in one line what was wrong."""
    with pytest.raises(HclError) as caught:
        value(text, **NAMES)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500 + "]" * 500,
        "!" * 100_000 + "true",
        "(" * 500 + "1" + ")" * 500,
        '"' + '${"' * 100 + '"}' * 100 + '"',
        "x" + "[0]" * 5000,
        "x" + "[*]" * 5000,
        "1" + "+1" * 500_000,
        '"' + "${x}" * 100_000 + '"',
        "<<E\n" + "$" * 200_000 + "\nE\n",
        "f(" * 300 + ")" * 300,
    ],
)
def test_no_text_is_too_much_to_read(text: str) -> None:
    """What is nested too deeply or has too many parts is refused, never a crash."""
    with pytest.raises(HclError):
        value(text, x=[])


def test_a_long_chain_is_no_depth() -> None:
    """A thousand additions in a row are worked out; nesting is what is bounded."""
    assert value("1" + " + 1" * 1000) == 1001
    assert value("[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[for a in range(1000) : [for b in range(1000) : a * b]]",
        '[for a in range(1000) : join(",", range(1000))]',
        'regexall("(a*)*(a|a|b)*(a*)*c", join("", [for i in range(1000) : "aaaaaaaaaaaaaaaaaaaa"]))',
        "setproduct(range(1000), range(1000), range(1000))",
        'indent(1000000, "\\n\\n\\n")',
        'replace(join("", range(1000)), "", join("", range(1000)))',
        "distinct([for i in range(1000) : {a = i}])",
    ],
)
def test_work_is_bounded(text: str) -> None:
    """An expression that asks for too much work or too large a value ends with a fault, whatever it is made of."""
    with pytest.raises(HclLimitExceeded):
        value(text)


def test_try_does_not_hide_that_it_is_too_much() -> None:
    """try() and can() answer for what cannot be worked out, not for what takes too long."""
    assert value("try(upper(), 1)") == 1
    assert value('try(o.nope, "other")', **NAMES) == "other"
    assert value("[can(o.x), can(o.nope)]", **NAMES) == [True, False]
    with pytest.raises(HclLimitExceeded):
        value("try([for a in range(1000) : [for b in range(1000) : a * b]], 1)")


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        ('job "a" {\n  group "b" {\n', "block 'group' is not closed by }", 2),
        ('job "a" {\n  x = 1\n  x = 2\n}', "'x' is set twice", 3),
        ('job "a" {\n  count\n}', "'count' needs = and a value, or a body in braces", 2),
        ('job "${x}" {}', "a name or label cannot hold a template", 1),
        ("job {\n  a = [\n  }\n", "expected a value, found '}'", 3),
        ("}", "expected an attribute or a block, found '}'", 1),
    ],
)
def test_a_broken_file_says_where(text: str, told: str, line: int) -> None:
    """Half a file and other broken ones are refused with what was expected and the line."""
    with pytest.raises(HclError) as caught:
        parse_body(text)
    assert told in caught.value.message
    assert text.count("\n", 0, caught.value.at) + 1 == line


def test_old_files_are_read() -> None:
    """Several attributes on a line, commas, dots in names, blocks in objects: one meaning, so they pass."""
    body = parse_body(
        'a { x = 1 y = 2, z = 3 }\nlabels { com.example.a = "b" }\nm = [{ k = 1\n inner { l = 2 } }]\n'
    )
    assert [one.name for one in body.blocks[0].body.attributes] == ["x", "y", "z"]
    assert body.blocks[1].body.attributes[0].name == "com.example.a"
    assert ExpressionContext().value(body.attributes[0].value) == [{"k": 1, "inner": {"l": 2}}]
