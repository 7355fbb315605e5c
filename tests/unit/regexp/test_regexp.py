"""Regular expressions: RE2's syntax, what earlier releases accepted, and time linear in the text."""

import re
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.core.constraints.regex import compile_pattern
from shared.regexp.char_sets import complement, unicode_class
from shared.regexp.matcher import RegexpMatcher
from shared.regexp.search import CapturingRegexp
from shared.regexp.syntax import PatternRefusedError, parse_pattern
from tests.examples import examples


def is_in(pattern: str, text: str) -> bool:
    return RegexpMatcher(pattern, states_max=2_000, text_chars_max=1_024).is_in(text)


def first(pattern: str, text: str) -> list[str | None] | None:
    regexp = CapturingRegexp(pattern, states_max=1_000)
    match = next(regexp.find_all(text, lambda _: None), None)
    return match.groups if match else None


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        # classes by category and script
        (r"\pL+", "12äß漢x9", ["äß漢x"]),
        (r"\p{Lu}\p{Ll}", "aBéX", ["Bé"]),
        (r"\PL+", "ab-12c", ["-12"]),
        (r"\p{^L}+", "ab-12c", ["-12"]),
        (r"\P{^L}", "1a", ["a"]),
        (r"[\pN_]+", "a1²_b", ["1²_"]),
        (r"[^\pL\d]", "a1-", ["-"]),
        (r"\p{Greek}+", "abδπ", ["δπ"]),
        (r"\p{Han}", "a漢", ["漢"]),
        (r"\p{Any}", "\n", ["\n"]),
        (r"[[:^digit:]]+", "1ab2", ["ab"]),
        (r"[[:word:]-]+", " a-_ ", ["a-_"]),
        # flags
        ("a(?i)bc|d", "aBC", ["aBC"]),
        ("a(?i)b|c", "C", ["C"]),
        ("(a(?i)b)c", "aBC", None),
        ("(?i)a(?-i)b", "AB", None),
        ("(?i-s:a.)b", "A\nb", None),
        ("(?U)a+", "aaa", ["a"]),
        ("(?U)a+?", "aaa", ["aaa"]),
        ("(?s).(?-s).", "\n\n", None),
        ("(?m)^b$", "a\nb\nc", ["b"]),
        # groups, counts, quotes and escapes
        ("(?<year>[0-9]{4})-(?P<month>..)", "on 2024-05", ["2024-05", "2024", "05"]),
        ("(a+?)(a*)", "aaa", ["aaa", "a", "aa"]),
        ("(?:ab){2,3}?", "abababab", ["abab"]),
        ("x{2}{", "xx{", ["xx{"]),
        ("x{,a}", "x{,a}", ["x{,a}"]),
        (r"\Qa.b\E+", "a.bbb", ["a.bbb"]),
        (r"\Qa.b", "aab a.b", ["a.b"]),
        (r"\x41\x{1F600}\101\a\v", "A😀A\x07\x0b", ["A😀A\x07\x0b"]),
        (r"\Aa\z", "a\n", None),
        ("^*a", "ba", ["a"]),
        ("[]a]+", "x]a", ["]a"]),
        ("[a-]+", "-a", ["-a"]),
        (r"\s+", "a\x0b b", [" "]),
        (r"\.\-\_", ".-_", [".-_"]),
        # preference is leftmost, then the first branch
        ("a|ab", "ab", ["a"]),
        (".*b|.*c", "xbxc", ["xb"]),
        ("(a|ab)(c|bcd)", "abcd", ["abcd", "a", "bcd"]),
        ("(a)|b", "b", ["b", None]),
    ],
)
def test_the_syntax_of_re2(pattern: str, text: str, groups: list[str | None] | None) -> None:
    """Patterns mean what they mean in Go, with groups and without."""
    assert first(pattern, text) == groups
    assert is_in(pattern, text) is (groups is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a\Z", "a"),
        (r"^a{,2}$", "aa"),
        (r"^a{,}$", "aaa"),
        (r"^[\b\1]+$", "\x08\x01"),
        ("(?x) a b # comment\n c", "abc"),
        ("(?x: a b )(?#comment)+c", "ababc"),
        ("(?a)a", "a"),
    ],
)
def test_patterns_of_earlier_releases_keep_their_meaning(pattern: str, text: str) -> None:
    """What was once taken in Python's syntax may stand in logged jobs."""
    assert is_in(pattern, text)
    assert compile_pattern(pattern).is_in(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("[:alpha:]", "A-Za-z"), (r"^[[:word:]-z]$", "`"), (r"^\\z$", "\\Z"), (r"^[[:alpha:]]$", "x")],
)
def test_constraints_expand_classes_in_the_text_as_ever(pattern: str, text: str) -> None:
    """Odd readings of the first release stay for constraints, whose decisions are logged."""
    assert compile_pattern(pattern).is_in(text)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)", "look-around"),
        (r"(a)\1", "back reference"),
        ("(?P<n>a)(?P=n)", "back reference"),
        ("a**", "nested repetition"),
        ("a*+", "nested repetition"),
        ("(?>a)", "unsupported syntax"),
        ("(?(1)a)", "unsupported syntax"),
        ("(?y)a", "unsupported syntax"),
        ("(?P<n>a)(?P<n>b)", "duplicate group name"),
        ("(?P<a-b>a)", "invalid group name"),
        ("*a", "missing argument"),
        ("a|*", "missing argument"),
        ("a{2,1}", "invalid repeat count"),
        ("a{1001}", "repeats more than 1000"),
        ("[z-a]", "class range"),
        (r"[a-\d]", "class range"),
        ("[a", r"missing closing \]"),
        ("(a", r"missing closing \)"),
        ("a)", r"unexpected \)"),
        ("(?#a", r"missing closing \)"),
        (r"\y", "escape sequence"),
        (r"\x{110000}", "escape sequence"),
        ("a\\", "trailing backslash"),
        (r"\p{Nowhere}", "unknown character class"),
        ("(" * 300, "nested too deeply"),
    ],
)
def test_what_is_refused(pattern: str, reason: str) -> None:
    """What no matcher in linear time has, and what is no pattern, is refused with a reason."""
    with pytest.raises(PatternRefusedError, match=reason):
        parse_pattern(pattern)


LEAVES = st.sampled_from(
    [
        *("a", "b", "c", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\s", r"\W", "(?i:A)"),
        *(r"\b", r"\B", "^", r"\A", r"\n", r"\.", "(?s:.)", "(?m:^)"),
    ]
)
PATTERNS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@pytest.mark.property
@examples(600, gate=200)
@given(PATTERNS, st.text("abcA1 .\n", max_size=10))
def test_both_ways_agree_with_pythons_engine(pattern: str, text: str) -> None:
    """On the syntax that both have, the same texts match, at the same places."""
    # Python before 3.14 finds no \B in an empty text; Go does.
    assume(text or r"\B" not in pattern)
    theirs = re.search(pattern, text, re.ASCII)
    regexp = CapturingRegexp(pattern, states_max=2_000)
    ours = next(regexp.find_all(text, lambda _: None), None)
    assert is_in(pattern, text) is (theirs is not None)
    assert (ours is None) == (theirs is None)
    if ours and theirs:
        assert ours.span[0] == theirs.start()
        if "*" not in pattern and "+" not in pattern:
            # A loop over nothing ends differently in Python.
            assert ours.span == theirs.span()


@pytest.mark.property
@examples(600, gate=200)
@given(st.text(r"ab()[]{}*+?|\^$.-:dwpLQE,12iPx<>=!#", max_size=14), st.text("ab1", max_size=6))
def test_any_text_is_a_pattern_or_is_refused(pattern: str, text: str) -> None:
    """No text makes the parser fail in another way, and both ways to run a pattern agree."""
    try:
        groups = first(pattern, text)
    except PatternRefusedError:
        return
    assert is_in(pattern, text) is (groups is not None)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*)*x", "a*a*a*a*b", "(a?){30}b"])
def test_steps_are_counted_and_linear(pattern: str) -> None:
    """Each character costs at most one visit of each state, in both ways, and the count may end the work."""
    text = "a" * 1_000
    matcher = RegexpMatcher(pattern, states_max=2_000, text_chars_max=1_024)
    steps: list[int] = []
    assert not matcher.is_in(text, steps.append)
    assert len(steps) <= len(text) + 1 and max(steps) <= matcher.size
    regexp = CapturingRegexp(pattern, states_max=2_000)
    counted: list[int] = []
    assert list(regexp.find_all(text, counted.append)) == []
    assert sum(counted) <= (len(text) + 1) * 200

    def stop(_: int) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        next(regexp.find_all(text, stop))


def test_the_tables_are_unicodes() -> None:
    """Each character that was assigned in Unicode 14 has the category that Python knows, but for later changes."""
    categories = {unicodedata.category(chr(code)) for code in range(0x3000)} - {"Cn"}
    differ = 0
    for category in categories:
        ranges = unicode_class(category)
        assert ranges is not None
        differ += sum(
            unicodedata.category(chr(code)) != category
            for low, high in ranges
            for code in range(low, min(high, 0x20000) + 1)
        )
    assert differ < 20
    letters, marks = unicode_class("L"), unicode_class("M")
    assert letters is not None and marks is not None
    assert complement(complement(letters)) == letters
    assert not set(letters) & set(marks)
