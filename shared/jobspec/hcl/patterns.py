"""Regular expressions in time linear in the text: no pattern can be slow, whoever wrote it.

Decides RE2's language, which Go and Nomad use: no back references, no look around. Python's own parser reads a
pattern; it then runs as a list of threads over the text (Thompson's construction, with groups), never backtracking.
Rejected: Python's engine, which takes exponential time on some patterns, and bounds of that by a clock.
"""

import re
from collections.abc import Callable, Iterator
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from shared.jobspec.hcl.errors import HclFault
from shared.jobspec.hcl.values import Value

PROGRAM_MAX = 1000
_REPEATS_MAX = 100

Test = Callable[[str], bool]


class Found:
    """One match: its span and its groups."""

    def __init__(self, pattern: "Pattern", text: str, marks: tuple[int, ...]) -> None:
        self._pattern = pattern
        self._groups = [
            text[a:b] if a >= 0 <= b else None for a, b in zip(marks[::2], marks[1::2], strict=True)
        ]
        self.span = (marks[0], marks[1])

    def get(self, name: str) -> str:
        """Take a group by number or name; empty where there is none."""
        at = int(name) if name.isdecimal() else self._pattern.names.get(name, -1)
        return (self._groups[at] or "") if 0 <= at < len(self._groups) else ""

    def value(self) -> Value:
        """Give the text, or the groups as a list, or as an object where they have names."""
        if self._pattern.names:
            return {name: self._groups[at] for name, at in sorted(self._pattern.names.items())}
        return self._groups[1:] if len(self._groups) > 1 else self._groups[0]


class Pattern:
    """A compiled pattern. Raises HclFault where it is none, or not one of RE2's."""

    def __init__(self, text: str) -> None:
        try:
            tree = _parser.parse(text)
        except (re.error, RecursionError, OverflowError) as err:
            raise HclFault(f"pattern: {err}") from None
        self._flags = tree.state.flags
        self.names: dict[str, int] = dict(tree.state.groupdict)
        self._slots = 2 * tree.state.groups
        self._program: list[tuple[Any, ...]] = []
        self._emit("save", 0)
        self._compile(tree, self._flags)
        self._emit("save", 1)
        self._emit("match")

    def all(self, text: str, charge: Callable[[int], None]) -> Iterator[Found]:
        """Find matches from left to right, not overlapping; `charge` is told the work, and may raise."""
        at = 0
        while at <= len(text):
            marks = self._run(text, at, charge)
            if marks is None:
                return
            yield Found(self, text, marks)
            at = marks[1] + (marks[1] == marks[0])

    # ---- running ----

    def _run(self, text: str, start: int, charge: Callable[[int], None]) -> tuple[int, ...] | None:
        """Find the first match at or behind `start`: its marks."""
        best: tuple[int, ...] | None = None
        threads: list[tuple[int, tuple[int, ...]]] = []
        blank = (-1,) * self._slots
        for at in range(start, len(text) + 1):
            seen: set[int] = set()
            active: list[tuple[int, tuple[int, ...]]] = []
            for thread in threads:
                self._follow(thread, text, at, (seen, active))
            if best is None:
                self._follow((0, blank), text, at, (seen, active))
            charge(len(seen) + 1)
            threads = []
            for place, marks in active:
                step = self._program[place]
                if step[0] == "match":
                    best = marks
                    break
                if at < len(text) and step[1](text[at]):
                    threads.append((place + 1, marks))
            if not threads and best is not None:
                break
        return best

    def _follow(
        self,
        thread: tuple[int, tuple[int, ...]],
        text: str,
        at: int,
        into: tuple[set[int], list[tuple[int, tuple[int, ...]]]],
    ) -> None:
        """Add a thread, past all that takes no character; the first to reach a place keeps it."""
        seen, active = into
        waiting = [thread]
        while waiting:
            place, marks = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            step = self._program[place]
            if step[0] == "jump":
                waiting += [(target, marks) for target in reversed(step[1])]
            elif step[0] == "save":
                saved = list(marks)
                saved[step[1]] = at
                waiting.append((place + 1, tuple(saved)))
            elif step[0] == "at":
                if _holds(step[1], text, at):
                    waiting.append((place + 1, marks))
            else:
                active.append((place, marks))

    # ---- compiling ----

    def _emit(self, *step: Any) -> int:
        if len(self._program) >= PROGRAM_MAX:
            raise HclFault("pattern is too long")
        self._program.append(step)
        return len(self._program) - 1

    def _compile(self, tree: Any, flags: int) -> None:
        for operator, argument in tree:
            if operator in {code.LITERAL, code.NOT_LITERAL, code.ANY, code.IN}:
                self._emit("test", _test(operator, argument, flags))
            elif operator is code.AT:
                self._emit("at", _anchor(argument, flags))
            elif operator is code.SUBPATTERN:
                group, added, removed, inner = argument
                if group is not None:
                    self._emit("save", 2 * group)
                self._compile(inner, (flags | added) & ~removed)
                if group is not None:
                    self._emit("save", 2 * group + 1)
            elif operator is code.BRANCH:
                self._branch(argument[1], flags)
            elif operator in {code.MAX_REPEAT, code.MIN_REPEAT}:
                self._repeat(argument, flags, is_greedy=operator is code.MAX_REPEAT)
            else:
                raise HclFault(f"pattern: {str(operator).lower()} is not offered")

    def _branch(self, branches: list[Any], flags: int) -> None:
        fork = self._emit("jump", ())
        starts, ends = [], []
        for branch in branches:
            starts.append(len(self._program))
            self._compile(branch, flags)
            ends.append(self._emit("jump", ()))
        self._program[fork] = ("jump", tuple(starts))
        for end in ends:
            self._program[end] = ("jump", (len(self._program),))

    def _repeat(self, argument: Any, flags: int, *, is_greedy: bool) -> None:
        least, most, inner = argument
        endless = most is code.MAXREPEAT
        if least > _REPEATS_MAX or (not endless and most > _REPEATS_MAX):
            raise HclFault(f"pattern: repeats more than {_REPEATS_MAX} times")
        for _ in range(least):
            self._compile(inner, flags)
        forks = []
        for _ in range(1 if endless else most - least):
            forks.append(fork := self._emit("jump", ()))
            self._compile(inner, flags)
            if endless:
                self._emit("jump", (fork,))
        for fork in forks:
            ways = (fork + 1, len(self._program))
            self._program[fork] = ("jump", ways if is_greedy else ways[::-1])


def _test(operator: Any, argument: Any, flags: int) -> Test:
    """Make the test of one character."""
    if operator is code.ANY:
        dots = bool(flags & re.DOTALL)
        return lambda one: dots or one != "\n"
    if operator is code.IN:
        return _class(argument, flags)
    wanted = chr(argument)
    negated = operator is code.NOT_LITERAL
    if flags & re.IGNORECASE:
        wanted = wanted.lower()
        return lambda one: (one.lower() == wanted) is not negated
    return lambda one: (one == wanted) is not negated


def _class(items: list[Any], flags: int) -> Test:
    negated = bool(items) and items[0][0] is code.NEGATE
    tests: list[Test] = []
    for operator, argument in items[negated:]:
        if operator is code.RANGE:
            low, high = argument
            tests.append(lambda one, low=low, high=high: low <= ord(one) <= high)  # type: ignore[misc]
        elif operator is code.CATEGORY:
            tests.append(_category(argument))
        else:
            tests.append(chr(argument).__eq__)
    folded = bool(flags & re.IGNORECASE)

    def check(one: str) -> bool:
        forms = (one, one.lower(), one.upper()) if folded else (one,)
        return any(test(form) for form in forms for test in tests if len(form) == 1) is not negated

    return check


def _category(category: Any) -> Test:
    r"""Make the test of \\d, \\s, \\w and their opposites, in ASCII as RE2 has them."""
    name = str(category).removeprefix("CATEGORY_")
    wanted = not name.startswith("NOT_")
    kind = name.removeprefix("NOT_")
    if kind == "DIGIT":
        return lambda one: (one.isascii() and one.isdigit()) is wanted
    if kind == "SPACE":
        return lambda one: (one in " \t\n\r\f\v") is wanted
    return lambda one: _is_word(one) is wanted


def _is_word(one: str) -> bool:
    return one == "_" or (one.isascii() and one.isalnum())


def _anchor(argument: Any, flags: int) -> str:
    name = str(argument).removeprefix("AT_")
    if name in {"BEGINNING", "END"} and flags & re.MULTILINE:
        return name + "_LINE"
    # RE2's $ is the very end, not also before a last new line.
    return name.removesuffix("_STRING")


def _holds(anchor: str, text: str, at: int) -> bool:
    if anchor == "BEGINNING":
        return at == 0
    if anchor == "END":
        return at == len(text)
    if anchor == "BEGINNING_LINE":
        return at == 0 or text[at - 1] == "\n"
    if anchor == "END_LINE":
        return at == len(text) or text[at] == "\n"
    before = at > 0 and _is_word(text[at - 1])
    behind = at < len(text) and _is_word(text[at])
    return (before != behind) is (anchor == "BOUNDARY")
