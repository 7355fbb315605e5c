"""Operators: what Nomad's comparisons mean for two texts, and which patterns and versions are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.core.constraints.operators import (
    OPERATORS,
    Operand,
    compare,
    compare_versions,
    parse_version,
    right_fault,
)
from shared.core.constraints.regex import (
    PATTERN_CHARS_MAX,
    STATES_MAX,
    TEXT_CHARS_MAX,
    compile_pattern,
)
from shared.regexp.syntax import PatternRefusedError
from tests.examples import examples


def holds(left: str, operator: str, right: str) -> bool:
    return OPERATORS[operator](Operand(left), Operand(right))


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        *[("9", "10", -1), ("-9", "+10", -1), ("10", "10", 0), ("010", "10", 0)],
        *[("9.5", "10", -1), ("1e3", "999", 1), (".5", "0.5", 0), ("inf", "1e300", 1)],
        *[
            ("a9", "a10", 1),
            ("9 ", "10", 1),
            ("", "a", -1),
            ("b", "a", 1),
            ("9223372036854775808", "1", 1),
        ],
        *[("nan", "1", None), ("1_000", "2", -1), ("1" * 300, "2", -1)],
    ],
)
def test_order_is_of_whole_numbers_then_numbers_then_text(
    left: str, right: str, order: int | None
) -> None:
    """Two whole numbers are ordered as such, two numbers as numbers, all else as text; no number has no order."""
    assert compare(left, right) == order
    assert holds(left, "<", right) is (order == -1)
    assert holds(left, "<=", right) is (order in {-1, 0})
    assert holds(left, ">", right) is (order == 1)
    assert holds(left, ">=", right) is (order in {0, 1})


@pytest.mark.parametrize(
    ("left", "right", "version", "semver"),
    [
        ("1.2.3", ">= 1.2, < 2", True, True),
        ("1.2.3", "1.2.3", True, True),
        ("1.2", "= 1.2.0", True, True),
        ("v1.2.3+meta", "1.2.3", True, True),
        ("1.2.3-beta", ">= 1.2", False, True),
        ("1.2.3-beta", ">= 1.2.3-alpha", True, True),
        ("1.2.4-beta", ">= 1.2.3-alpha", False, True),
        ("1.2.3-beta", "< 1.2.3", False, True),
        ("1.2.3-beta.10", "> 1.2.3-beta.9", True, True),
        ("1.2.3-1", "< 1.2.3-a", True, True),
        ("1.7.9", "~> 1.7.3", True, False),
        ("1.8", "~> 1.7.3", False, False),
        ("1.8", "~> 1.7", True, False),
        ("2.0", "~> 1.7", False, False),
        ("1.2.3", "!= 1.2.4", True, True),
        ("linux", ">= 1", False, False),
        ("1.2.3", "newest", False, False),
        ("1.2.3", ">= 1, ", False, False),
        ("1.2.3beta", "1.2.3-beta", True, False),
        ("9" * 19, ">= 1", False, False),
    ],
)
def test_versions(left: str, right: str, *, version: bool, semver: bool) -> None:
    """In `version` a pre-release meets only bounds of its own numbers; in `semver` it is a version like any other."""
    assert holds(left, "version", right) is version
    assert holds(left, "semver", right) is semver


def test_versions_are_ordered() -> None:
    """Semver's own example of precedence holds."""
    texts = "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0"
    found = [parse_version(text, strict=True) for text in texts.split()]
    for at, left in enumerate(found):
        for other, right in enumerate(found):
            assert left is not None and right is not None
            assert compare_versions(left, right) == (at > other) - (at < other)


@pytest.mark.parametrize(
    ("left", "operator", "right", "wanted"),
    [
        ("a, b,c", "set_contains", "c,a", True),
        ("a, b,c", "set_contains_all", "c,d", False),
        ("a, b,c", "set_contains_any", "d, c", True),
        ("a", "set_contains_any", "b", False),
        ("", "set_contains", "", True),
        ("linux", "regexp", "^li", True),
        ("linux", "regexp", "[", False),
    ],
)
def test_sets_and_patterns(left: str, operator: str, right: str, *, wanted: bool) -> None:
    """Sets are comma-separated and trimmed; a pattern that is none matches nothing."""
    assert holds(left, operator, right) is wanted


@pytest.mark.parametrize("operator", sorted(OPERATORS.keys() - {"!=", "not", "is_not_set"}))
def test_what_a_node_lacks_meets_nothing(operator: str) -> None:
    """An attribute that is not there meets no comparison but inequality and absence."""
    for right in ("", "1", "a"):
        assert not OPERATORS[operator](Operand("", found=False), Operand(right))
    assert OPERATORS["is_not_set"](Operand("", found=False), Operand(""))
    assert OPERATORS["!="](Operand("", found=False), Operand("a"))


# ---- regular expressions ----

SAFE = [
    *[
        "abc",
        "^a",
        "c$",
        "^abc$",
        "a.c",
        "a*b",
        "(ab)+",
        "a|b",
        "[a-c]+$",
        "[^a]b",
        "a{2,3}$",
        "^$",
    ],
    *[
        r"\d+",
        r"\bab\b",
        r"\Ba",
        "(?i)AB",
        "(?s)a.b",
        "(a|b)*c",
        r"^(a|ab)(c|bcd)$",
        "x?a??",
        r"\w\s",
    ],
]
TEXTS = st.text(alphabet="abcdx 1_\n", max_size=8)


@pytest.mark.property
@examples(300)
@given(st.sampled_from(SAFE), TEXTS)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str, text: str) -> None:
    """The automaton finds what the standard matcher finds, `$` being the very end."""
    theirs = re.search(pattern.replace("$", r"\Z"), text, re.ASCII)
    assert compile_pattern(pattern).is_in(text) is (theirs is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        *[
            "(a+)+$",
            "(a|a)*$",
            "(a*)*$",
            "(.*)*x",
            "(a|b|ab)*c",
            "(a?){30}a{30}",
            "a*a*a*a*a*a*a*b",
        ],
        *["^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "([0-9a]+)*$b"],
    ],
)
def test_patterns_that_explode_elsewhere_take_linear_steps(pattern: str) -> None:
    """What makes a backtracking matcher run forever takes at most the states of the pattern for each character."""
    compiled = compile_pattern(pattern)
    steps: list[int] = []
    compiled.is_in("a" * (TEXT_CHARS_MAX - 1) + "!", steps.append)
    assert len(steps) <= TEXT_CHARS_MAX + 1
    assert max(steps) <= compiled.size <= STATES_MAX
    assert not compiled.is_in("a" * (TEXT_CHARS_MAX + 1))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "back reference"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        ("a{1001}", "1000 times"),
        ("((a{100}){100}){100}", "more than 2000"),
        ("((()){1000}){1000}", "too many parts"),
        ("a" * (PATTERN_CHARS_MAX + 1), "characters"),
        ("[", r"missing closing \]"),
        (r"\p{Klingon}", "unknown character class"),
        ("[[:nonsense:]]", "character class"),
        ("(" * 250 + ")" * 250, ""),
    ],
)
def test_patterns_that_cannot_be_are_refused_with_a_reason(pattern: str, reason: str) -> None:
    """Back references, look-around, and what would need too many states are refused, not run."""
    if reason:
        with pytest.raises(PatternRefusedError, match=reason):
            compile_pattern(pattern)
        assert right_fault("regexp", pattern)
    else:
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("operator", "right", "is_fine"),
    [
        ("regexp", "^a+$", True),
        ("regexp", "${meta.pattern}", True),
        ("version", ">= 1.2, < 2", True),
        ("version", "newest", False),
        ("version", "", False),
        ("semver", "~> 1.2", False),
        ("distinct_hosts", "", True),
        ("distinct_hosts", "maybe", False),
        ("distinct_property", "3", True),
        ("distinct_property", "0", False),
        ("distinct_property", "-1", False),
        ("distinct_property", "${meta.n}", False),
        ("=", "anything", True),
    ],
)
def test_a_right_side_that_never_holds_is_told(operator: str, right: str, *, is_fine: bool) -> None:
    """What can never be met because of its text is a fault; what depends on a node is not."""
    assert (right_fault(operator, right) == "") is is_fine
