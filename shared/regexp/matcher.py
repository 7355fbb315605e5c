"""Tells whether a text contains a match, in time linear in the text: all states of the pattern at once.

Each character costs at most one visit of each state; transitions between sets of states are cached. (Backtracking can
take exponential time.)
"""

from collections.abc import Callable, Iterable
from typing import Final

from shared.regexp.program import Program
from shared.regexp.syntax import parse_pattern

#: Cached transitions of a pattern; then the cache is emptied.
_TRANSITIONS_MAX: Final = 4_000
_UNKNOWN: Final[frozenset[int]] = frozenset((-1,))
_ACCEPT: Final = 0

States = frozenset[int]


class RegexpMatcher:
    """A compiled pattern. Raises PatternRefusedError."""

    def __init__(self, pattern: str, *, states_max: int, text_chars_max: int) -> None:
        node = parse_pattern(pattern).node
        self._program = Program(node, states_max=states_max, has_captures=False)
        self._text_chars_max = text_chars_max
        self._initial = frozenset((self._program.start,))
        self._transitions: dict[tuple[States, str], States | None] = {}
        self._ends: dict[tuple[States, str], bool] = {}

    @property
    def size(self) -> int:
        """States of the automaton: the most steps that one character takes."""
        return self._program.size

    def is_in(self, text: str, charge: Callable[[int], None] | None = None) -> bool:
        """Return whether the text contains a match; `charge` gets the steps of each character, and may raise."""
        if len(text) > self._text_chars_max:
            return False
        if len(self._transitions) > _TRANSITIONS_MAX:
            self._transitions.clear()
            self._ends.clear()
        states, before = self._initial, ""
        known, around = self._transitions, self._program.looks_around
        for at, char in enumerate(text):
            # Without assertions inside, only the first place differs from the others.
            seen = before + char if around else (char if at else "^" + char)
            after = known.get((states, seen), _UNKNOWN)
            if after is _UNKNOWN:
                after = known[states, seen] = self._step(states, before, char, charge)
            elif charge is not None:
                charge(1)
            if after is None:
                return True
            states, before = after, char
        edge = before if around or not before else "x"
        if (states, edge) not in self._ends:
            self._ends[states, edge] = _ACCEPT in self._closure(states, before, "", charge)
        return self._ends[states, edge]

    def _step(
        self, states: States, before: str, char: str, charge: Callable[[int], None] | None
    ) -> States | None:
        """Return the states after one character; None: a match ended before it."""
        reached = self._closure(states, before, char, charge)
        if _ACCEPT in reached:
            return None
        program = self._program
        after = {program.start}
        for state in reached:
            test = program.tests[state]
            if test is not None and test(char):
                after.update(program.following[state])
        return frozenset(after)

    def _closure(
        self,
        states: Iterable[int],
        before: str,
        after: str,
        charge: Callable[[int], None] | None,
    ) -> set[int]:
        """Follow forks and assertions; tests of a character stay."""
        program = self._program
        todo = list(states)
        reached = set(todo)
        while todo:
            state = todo.pop()
            place = program.places[state]
            if program.tests[state] is not None or (place and not place(before, after)):
                continue
            for following in program.following[state]:
                if following not in reached:
                    reached.add(following)
                    todo.append(following)
        if charge is not None:
            charge(len(reached))
        return reached
