"""Functions of job files."""

from typing import Any

import pytest

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.evaluate import ExpressionContext
from shared.jobspec.hcl.functions.catalog import REFUSED_FUNCTIONS
from shared.jobspec.hcl.functions.registry import FUNCTIONS
from shared.jobspec.hcl.syntax.parser import parse_expression
from tests.unit.jobspec.hcl_text import value

CASES: list[tuple[str, Any]] = [
    ('upper("aé")', "AÉ"),
    ('lower("AB")', "ab"),
    ('title("hello big world")', "Hello Big World"),
    ('trimspace(" a ")', "a"),
    ('trim("xxaxx", "x")', "a"),
    ('trimprefix("v1.2", "v")', "1.2"),
    ('trimsuffix("a.txt", ".txt")', "a"),
    ('chomp("a\\n\\n")', "a"),
    ('strlen("äb")', 2),
    ('strrev("abc")', "cba"),
    ('substr("hello", 1, 3)', "ell"),
    ('substr("hello", -3, -1)', "llo"),
    ('replace("a.b.c", ".", "-")', "a-b-c"),
    ('replace("a1b22", "/[0-9]+/", "#")', "a#b#"),
    ('regex_replace("ab", "(a)(b)", "$2$${1}$$")', "ba$"),
    ('regex("[a-z]+", "12ab")', "ab"),
    ('regex("(\\\\d+)-(\\\\w+)", "x 12-ab")', ["12", "ab"]),
    ('regex("(?P<a>x)(?P<b>y)?", "x")', {"a": "x", "b": None}),
    ('regexall("[a-z]", "1a2b")', ["a", "b"]),
    ('split(",", "a,b")', ["a", "b"]),
    ('join("-", ["a", "b"], ["c"])', "a-b-c"),
    ('indent(2, "a\\nb")', "a\n  b"),
    ('startswith("abc", "ab")', True),
    ('endswith("abc", "ab")', False),
    ('strcontains("abc", "b")', True),
    (
        'format("%s-%03d %5.2f%% %q %v %t %x", "a", 7, 3.14159, "q", [1], true, 255)',
        'a-007  3.14% "q" [1] true ff',
    ),
    ('format("%[2]s %[1]s", "a", "b")', "b a"),
    ('formatlist("%s.%s", ["a", "b"], "x")', ["a.x", "b.x"]),
    ('parseint("ff", 16)', 255),
    ('length("äb")', 2),
    ("length({a = 1})", 1),
    ("concat([1], [2, 3])", [1, 2, 3]),
    ('element(["a", "b"], 3)', "b"),
    ("index([1, 2], 2)", 1),
    ('contains(["a"], "a")', True),
    ('lookup({a = 1}, "b", 2)', 2),
    ("keys({b = 1, a = 2})", ["a", "b"]),
    ("values({b = 1, a = 2})", [2, 1]),
    ("merge({a = 1}, {a = 2, b = 3}, null)", {"a": 2, "b": 3}),
    ('zipmap(["a", "b"], [1, 2])', {"a": 1, "b": 2}),
    ("flatten([[1, [2]], 3])", [1, 2, 3]),
    ('distinct(["a", "b", "a"])', ["a", "b"]),
    ('distinct([1, "1", true])', [1, "1", True]),
    ('compact(["a", "", null])', ["a"]),
    ('coalesce(null, "", "a")', "a"),
    ("coalescelist([], [1])", [1]),
    ("reverse([1, 2])", [2, 1]),
    ('sort(["b", "a"])', ["a", "b"]),
    ("slice([1, 2, 3], 1, 3)", [2, 3]),
    ("chunklist([1, 2, 3], 2)", [[1, 2], [3]]),
    ("range(3)", [0, 1, 2]),
    ("range(1, 7, 3)", [1, 4]),
    ("range(3, 0)", [3, 2, 1]),
    ('setunion(["b"], ["a", "b"])', ["a", "b"]),
    ('setintersection(["a", "b"], ["b"])', ["b"]),
    ('setsubtract(["a", "b"], ["b"])', ["a"]),
    ("setproduct([1, 2], [3])", [[1, 3], [2, 3]]),
    ('toset(["b", "a", "b"])', ["a", "b"]),
    ("tolist([1])", [1]),
    ("tomap({a = 1})", {"a": 1}),
    ("one([1])", 1),
    ("alltrue([true, true])", True),
    ("anytrue([false])", False),
    ("sum([1, 2.5])", 3.5),
    ("abs(-2)", 2),
    ("ceil(1.2)", 2),
    ("floor(-1.2)", -2),
    ("signum(-3)", -1),
    ("min(2, 1)", 1),
    ("max(2, 1)", 2),
    ("pow(2, 10)", 1024),
    ("log(8, 2)", 3),
    ('tonumber("12")', 12),
    ("tostring(1.5)", "1.5"),
    ('tobool("true")', True),
    ('base64encode("a")', "YQ=="),
    ('base64decode("YQ==")', "a"),
    ('urlencode("a b&")', "a+b%26"),
    ('jsonencode({b = [1, "<"], a = null})', '{"a":null,"b":[1,"\\u003c"]}'),
    ('jsondecode("{\\"a\\": [1, 2.5]}")', {"a": [1, 2.5]}),
    ("yamlencode({a = [1]})", "a:\n- 1\n"),
    ('yamldecode("a: [1, yes]")', {"a": [1, "yes"]}),
    ('csvdecode("a,b\\n1,2")', [{"a": "1", "b": "2"}]),
    ('md5("a")', "0cc175b9c0f1b6a831c399e269772661"),
    ('sha1("a")', "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
    ('sha256("")', "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ('substr(sha512(""), 0, 8)', "cf83e135"),
    ('uuidv5("dns", "example.org")', "aad03681-8b63-5304-89e0-8ca8f49461b5"),
    ('cidrhost("10.0.0.0/8", 5)', "10.0.0.5"),
    ('cidrnetmask("10.0.0.0/12")', "255.240.0.0"),
    ('cidrsubnet("10.0.0.0/16", 8, 3)', "10.0.3.0/24"),
    ('basename("a/b/")', "b"),
    ('dirname("a/b")', "a"),
    ('fileexists("a")', False),
]
#: Held by tests of their own.
ELSEWHERE = {"try", "can", "file", "filebase64", "uuidv4"}


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_what_functions_give(text: str, expected: Any) -> None:
    """Each function gives what Nomad's gives."""
    assert value(text) == expected


def test_every_function_is_held() -> None:
    """No function is offered that no test calls, and none is both offered and refused."""
    called = {text.partition("(")[0] for text, _ in CASES} | {"sha512"}
    assert set(FUNCTIONS) - called - ELSEWHERE == set()
    assert not set(FUNCTIONS) & set(REFUSED_FUNCTIONS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('regex("x", "a")', "does not match"),
        ('regex("(a", "a")', "pattern:"),
        ('regex("(?=a)", "a")', "look-around"),
        ('regex("(a)\\\\1", "a")', "back reference"),
        ('regex("a{1001}", "a")', "repeats more than"),
        ('format("%d", "x")', "must be a number"),
        ('format("%s")', "no value for '%s'"),
        ('format("a", 1)', "1 values for 0 verbs"),
        ('formatlist("%s%s", ["a"], ["b", "c"])', "different lengths"),
        ('base64decode("!")', "is not valid base64 of UTF-8 text"),
        ('jsondecode("{")', "not JSON"),
        ('yamldecode("a: &x 1")', "anchors and aliases are not supported"),
        ('uuidv5("x", "a")', "neither dns"),
        ('cidrhost("x", 1)', "x"),
        ("element([], 0)", "needs an element"),
        ("range(2000)", "more than 1024 values"),
        ("range(1, 2, 0)", "must not be 0"),
        ("slice([1], 0, 2)", "out of range for a list of 1"),
        ('lookup({}, "a")', "no element 'a', and no default"),
        ('csvdecode("a,b\\n1")', "number of fields"),
        ('coalesce(null, "")', "all values are null or empty"),
    ],
)
def test_what_functions_refuse(text: str, told: str) -> None:
    """A function that cannot answer says why, naming itself."""
    with pytest.raises(HclError) as caught:
        value(text)
    assert told in caught.value.message
    assert caught.value.message.startswith(text.partition("(")[0])


def test_files_come_from_the_reader_alone() -> None:
    """file() returns the result of the caller's reader, and reports the reader's error."""

    def read(name: str) -> bytes:
        if name == "a.txt":
            return b"content"
        if name == "b.bin":
            return b"\xff"
        raise ValueError("outside the directory of the job file")

    def found(text: str) -> Any:
        return ExpressionContext(read_file=read).value(parse_expression(text))

    assert found('file("a.txt")') == "content"
    assert found('filebase64("b.bin")') == "/w=="
    assert found('[fileexists("a.txt"), fileexists("../x")]') == [True, False]
    with pytest.raises(HclError, match="outside the directory of the job file"):
        found('file("../secret")')
    with pytest.raises(HclError, match="is not UTF-8"):
        found('file("b.bin")')


def test_chance_needs_a_seed() -> None:
    """uuidv4() is refused without a seed; with one it is the same for the same seed, and new at each use."""
    node = parse_expression("[uuidv4(), uuidv4()]")
    with pytest.raises(HclError, match="not deterministic"):
        ExpressionContext().value(node)
    first, second = ExpressionContext(seed="a").value(node)
    assert first != second
    assert first[14] == second[14] == "4"
    assert ExpressionContext(seed="a").value(node) == [first, second]
    assert ExpressionContext(seed="b").value(node) != [first, second]
