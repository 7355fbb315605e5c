"""A pattern as an automaton: states that test a character, check a place, keep a position, or only fork."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from shared.regexp.char_sets import WORD, Ranges
from shared.regexp.syntax import (
    Assertion,
    Capture,
    CharTest,
    Choice,
    Node,
    PatternRefusedError,
    Repeat,
    Sequence,
)

#: Nodes compiled for each state allowed: repetitions of nothing add no states, and end here.
_PARTS_PER_STATE: Final = 20
_WORD: Final = frozenset(chr(code) for low, high in WORD for code in range(low, high + 1))

Test = Callable[[str], bool]
#: Checks the characters before and after a place; "" is outside of the text.
PlaceTest = Callable[[str, str], bool]


class Program:
    """The states of a pattern; `following` lists successors, the preferred one first. State 0 accepts."""

    def __init__(self, node: Node, *, states_max: int, has_captures: bool) -> None:
        self.tests: list[Test | None] = []
        self.places: list[PlaceTest | None] = []
        #: which position of a match the state keeps: 2n starts group n, 2n + 1 ends it; -1: none.
        self.slots: list[int] = []
        self.following: list[tuple[int, ...]] = []
        #: whether it looks at neighbours inside the text (word boundaries, lines).
        self.looks_around = False
        self._states_max = states_max
        self._parts_left = _PARTS_PER_STATE * states_max
        self._has_captures = has_captures
        accept = self._add()
        try:
            self.start = self._emit(Capture(0, node), accept)
        except RecursionError:
            raise PatternRefusedError("is nested too deeply") from None

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.following)

    def _add(
        self,
        *following: int,
        test: Test | None = None,
        place: PlaceTest | None = None,
        slot: int = -1,
    ) -> int:
        if self.size >= self._states_max:
            raise PatternRefusedError(f"needs more than {self._states_max} states")
        self.tests.append(test)
        self.places.append(place)
        self.slots.append(slot)
        self.following.append(following)
        return self.size - 1

    def _emit(self, node: Node, end: int) -> int:
        """Add the states of a part that continues at `end`; return where it starts."""
        self._parts_left -= 1
        if self._parts_left < 0:
            raise PatternRefusedError("has too many parts")
        if isinstance(node, CharTest):
            return self._add(end, test=_char_test(node))
        if isinstance(node, Assertion):
            self.looks_around |= node.kind not in {"start", "end"}
            return self._add(end, place=_PLACES[node.kind])
        if isinstance(node, Sequence):
            for item in reversed(node.items):
                end = self._emit(item, end)
            return end
        if isinstance(node, Choice):
            return self._add(*[self._emit(branch, end) for branch in node.branches])
        if isinstance(node, Repeat):
            return self._repeat(node, end)
        if not self._has_captures:
            return self._emit(node.inner, end)
        end = self._emit(node.inner, self._add(end, slot=2 * node.number + 1))
        return self._add(end, slot=2 * node.number)

    def _repeat(self, node: Repeat, end: int) -> int:
        if node.most is None:
            loop = self._add()
            start = self._emit(node.inner, loop)
            self.following[loop] = (start, end) if node.is_greedy else (end, start)
            end = loop
        else:
            last = end
            for _ in range(node.most - node.least):
                start = self._emit(node.inner, end)
                end = self._add(*((start, last) if node.is_greedy else (last, start)))
        for _ in range(node.least):
            end = self._emit(node.inner, end)
        return end


_PLACES: Final[dict[str, PlaceTest]] = {
    "start": lambda before, _: not before,
    "end": lambda _, after: not after,
    "line_start": lambda before, _: before in {"", "\n"},
    "line_end": lambda _, after: after in {"", "\n"},
    "word": lambda before, after: (before in _WORD) != (after in _WORD),
    "not_word": lambda before, after: (before in _WORD) == (after in _WORD),
}


def _char_test(node: CharTest) -> Test:
    """Create the test of one character."""
    ranges, wanted = node.ranges, not node.negated
    if node.folds:
        return lambda char: any(_is_in(ranges, one) for one in _cases(char)) is wanted
    if len(ranges) == 1:
        ((low, high),) = ranges
        return lambda char: (low <= ord(char) <= high) is wanted
    return lambda char: _is_in(ranges, char) is wanted


def _is_in(ranges: Ranges, char: str) -> bool:
    at = bisect_right(ranges, (ord(char), 0x110000)) - 1
    return at >= 0 and ord(char) <= ranges[at][1]


def _cases(char: str) -> tuple[str, ...]:
    return tuple(one for one in (char, char.lower(), char.upper()) if len(one) == 1)
