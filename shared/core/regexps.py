r"""Regular expressions in time linear in the text: Go's RE2 syntax, matched by sets of states.

Decides what a pattern means and which patterns are refused. Must not know who asks. A backtracking matcher can be made
to run for ever by a pattern of ten characters, so none is used: the pattern is parsed by Python's own parser into a
tree, compiled into a small automaton, and run over all its states at once; sets of states seen before are remembered.
What such a matcher cannot do (back references, look-around) RE2 cannot do either.

Only whether a text contains a match is asked, as Go's `MatchString` does, so greed and groups mean nothing here.
Unlike RE2's, classes by script (`\pL`) and flags in the middle of a pattern are refused. `\d`, `\w`, `\s` and `\b`
are ASCII, `$` is the very end, as there. Next: `operators.py`.
"""

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

#: Characters of a pattern, instructions of its automaton, repetitions RE2 allows.
PATTERN_CHARS_MAX: Final = 512
PROGRAM_MAX: Final = 2_000
REPEAT_MAX: Final = 1_000
#: A longer text matches nothing: no attribute a pattern is meant for is that long.
TEXT_CHARS_MAX: Final = 1_024
#: Transitions remembered for a pattern; then it starts to learn anew.
_LEARNT_MAX: Final = 4_000
_PATTERNS_KEPT: Final = 64

_POSIX: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_POSIX_CLASS: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_WORD: Final = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_DIGIT: Final = frozenset("0123456789")
_SPACE: Final = frozenset("\t\n\f\r ")
_CATEGORIES: Final = {
    sre.CATEGORY_DIGIT: (_DIGIT, True),
    sre.CATEGORY_NOT_DIGIT: (_DIGIT, False),
    sre.CATEGORY_SPACE: (_SPACE, True),
    sre.CATEGORY_NOT_SPACE: (_SPACE, False),
    sre.CATEGORY_WORD: (_WORD, True),
    sre.CATEGORY_NOT_WORD: (_WORD, False),
}

Test = Callable[[str], bool]
#: Tests the characters before and after a place; "" is outside of the text.
Assertion = Callable[[str, str], bool]


class PatternRefusedError(ValueError):
    """A pattern that is no RE2 pattern, or one that is not supported, with the reason."""


class Pattern:
    """A compiled pattern. Make it with `compile_pattern`."""

    def __init__(self, tree: Any, flags: int) -> None:
        #: per instruction: a test of one character, an assertion, or neither (then only a fork).
        self._tests: list[Test | None] = []
        self._asserts: list[Assertion | None] = []
        self._next: list[tuple[int, ...]] = []
        #: does it look at neighbours inside the text (word boundaries, lines)?
        self._looks_around = False
        self._parts = 0
        self._accept = self._add()
        self._start = self._sequence(tree, flags, self._accept)
        self._initial = frozenset((self._start,))
        self._learnt: dict[tuple[frozenset[int], str], frozenset[int] | None] = {}
        self._ends: dict[tuple[frozenset[int], str], bool] = {}

    @property
    def size(self) -> int:
        """Instructions of the automaton."""
        return len(self._next)

    def is_in(self, text: str) -> bool:
        """Tell whether the text contains a match. Takes at most `size` steps a character."""
        if len(text) > TEXT_CHARS_MAX:
            return False
        if len(self._learnt) > _LEARNT_MAX:
            self._learnt.clear()
            self._ends.clear()
        states, before = self._initial, ""
        learnt, around = self._learnt, self._looks_around
        for at, char in enumerate(text):
            # Without assertions inside, only the first place differs from the others.
            seen = before + char if around else (char if at else "^" + char)
            after = learnt.get((states, seen), _UNKNOWN)
            if after is _UNKNOWN:
                after = learnt[states, seen] = self._step(states, before, char)
            if after is None:
                return True
            states, before = after, char
        edge = before if self._looks_around or not before else "x"
        if (states, edge) not in self._ends:
            self._ends[states, edge] = self._accept in self._closure(states, before, "")
        return self._ends[states, edge]

    def _step(self, states: frozenset[int], before: str, char: str) -> frozenset[int] | None:
        """Return the states after one character; None: a match ended before it."""
        reached = self._closure(states, before, char)
        if self._accept in reached:
            return None
        after = {self._start}
        for state in reached:
            test = self._tests[state]
            if test is not None and test(char):
                after.update(self._next[state])
        return frozenset(after)

    def _closure(self, states: Iterable[int], before: str, after: str) -> set[int]:
        todo = list(states)
        reached = set(todo)
        while todo:
            state = todo.pop()
            assertion = self._asserts[state]
            if self._tests[state] is not None or (assertion and not assertion(before, after)):
                continue
            for following in self._next[state]:
                if following not in reached:
                    reached.add(following)
                    todo.append(following)
        return reached

    # ---- compiling: each returns where the part starts, given where it goes on ----

    def _add(
        self, *following: int, test: Test | None = None, assertion: Assertion | None = None
    ) -> int:
        if len(self._next) >= PROGRAM_MAX:
            raise PatternRefusedError(f"needs more than {PROGRAM_MAX} states")
        self._tests.append(test)
        self._asserts.append(assertion)
        self._next.append(following)
        return len(self._next) - 1

    def _sequence(self, tree: Any, flags: int, end: int) -> int:
        self._parts += 1
        if self._parts > PROGRAM_MAX:
            # Repetitions of nothing add no states; they end here.
            raise PatternRefusedError(f"needs more than {PROGRAM_MAX} parts")
        for op, argument in reversed(list(tree)):
            end = self._part(op, argument, flags, end)
        return end

    def _part(self, op: Any, argument: Any, flags: int, end: int) -> int:
        if op is sre.BRANCH:
            return self._add(*[self._sequence(one, flags, end) for one in argument[1]])
        if op is sre.SUBPATTERN:
            _, on, off, inner = argument
            return self._sequence(inner, (flags | on) & ~off, end)
        if op in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
            return self._repeat(argument, flags, end)
        if op is sre.AT:
            return self._add(end, assertion=self._assertion(argument, flags))
        if op in {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN}:
            return self._add(end, test=_test(op, argument, flags))
        raise PatternRefusedError(f"{str(op).lower().replace('_', ' ')} is not supported")

    def _repeat(self, argument: Any, flags: int, end: int) -> int:
        least, most, inner = argument
        endless = most is sre.MAXREPEAT
        if least > REPEAT_MAX or (not endless and most > REPEAT_MAX):
            raise PatternRefusedError(f"repeats more than {REPEAT_MAX} times")
        if endless:
            loop = self._add()
            self._next[loop] = (self._sequence(inner, flags, loop), end)
            end = loop
        else:
            last = end
            for _ in range(most - least):
                end = self._add(self._sequence(inner, flags, end), last)
        for _ in range(least):
            end = self._sequence(inner, flags, end)
        return end

    def _assertion(self, where: Any, flags: int) -> Assertion:
        if where in {sre.AT_BEGINNING, sre.AT_BEGINNING_STRING}:
            if where is sre.AT_BEGINNING and flags & re.MULTILINE:
                self._looks_around = True
                return lambda before, _: before in {"", "\n"}
            return lambda before, _: not before
        if where in {sre.AT_END, sre.AT_END_STRING}:
            if where is sre.AT_END and flags & re.MULTILINE:
                self._looks_around = True
                return lambda _, after: after in {"", "\n"}
            return lambda _, after: not after
        self._looks_around = True
        inside = where is sre.AT_NON_BOUNDARY
        return lambda before, after: ((before in _WORD) == (after in _WORD)) is inside


_UNKNOWN: Final[frozenset[int]] = frozenset((-1,))


def _test(op: Any, argument: Any, flags: int) -> Test:
    """Make the test of one character."""
    if op is sre.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda char: char != "\n")
    members = [(op, argument)] if op is not sre.IN else list(argument)
    wanted = True
    if members[0][0] in {sre.NEGATE, sre.NOT_LITERAL}:
        wanted = False
        members = members[1:] if members[0][0] is sre.NEGATE else [(sre.LITERAL, argument)]
    if flags & re.IGNORECASE:
        return lambda char: (
            any(_is_member(members, one) for one in {char, *_folded(char)}) is wanted
        )
    if len(members) == 1 and members[0][0] is sre.LITERAL:
        literal = chr(members[0][1])
        return lambda char: (char == literal) is wanted
    return lambda char: _is_member(members, char) is wanted


def _folded(char: str) -> tuple[str, str]:
    return char.lower(), char.upper()


def _is_member(members: list[tuple[Any, Any]], char: str) -> bool:
    code = ord(char) if len(char) == 1 else -1
    for op, argument in members:
        if op is sre.LITERAL:
            found = code == argument
        elif op is sre.RANGE:
            found = argument[0] <= code <= argument[1]
        elif op is sre.CATEGORY:
            chars, positive = _CATEGORIES[argument]
            found = (char in chars) is positive
        else:
            raise PatternRefusedError(f"{op} is not supported")
        if found:
            return True
    return False


def _posix(found: re.Match[str]) -> str:
    negated, name = found.groups()
    if negated or name not in _POSIX:
        raise PatternRefusedError(f"character class {found[0]!r} is not supported")
    return _POSIX[name]


@lru_cache(maxsize=_PATTERNS_KEPT)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern. Raises: PatternRefusedError."""
    if len(text) > PATTERN_CHARS_MAX:
        raise PatternRefusedError(
            f"has {len(text)} characters, at most {PATTERN_CHARS_MAX} are allowed"
        )
    plain = _QUOTED.sub(lambda found: re.escape(found[1]), text).replace(r"\z", r"\Z")
    plain = _POSIX_CLASS.sub(_posix, plain)
    try:
        with warnings.catch_warnings():
            # A bracket inside a set is a character of it, here as in RE2.
            warnings.simplefilter("ignore")
            tree = _parser.parse(plain, re.ASCII.value)
            return Pattern(tree, tree.state.flags)
    except re.error as err:
        raise PatternRefusedError(str(err)) from None
    except (RecursionError, OverflowError):
        raise PatternRefusedError("is nested too deeply") from None
