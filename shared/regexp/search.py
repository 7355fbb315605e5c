"""Finds matches with their groups, in time linear in the text: Thompson's construction with positions (Pike)."""

from collections.abc import Callable, Iterator

from shared.regexp.program import Program
from shared.regexp.syntax import parse_pattern

#: A state, and the positions kept on the way to it.
Thread = tuple[int, tuple[int, ...]]


class RegexpMatch:
    """One match: its span and its groups; the first group is the whole match."""

    def __init__(self, text: str, names: dict[str, int], positions: tuple[int, ...]) -> None:
        self.span = (positions[0], positions[1])
        self.names = names
        self.groups = [
            text[start:end] if start >= 0 <= end else None
            for start, end in zip(positions[::2], positions[1::2], strict=True)
        ]

    def get(self, name: str) -> str:
        """Return a group by number or name; empty: no such group."""
        number = int(name) if name.isdecimal() else self.names.get(name, -1)
        return (self.groups[number] or "") if 0 <= number < len(self.groups) else ""


class CapturingRegexp:
    """A compiled pattern. Raises PatternRefusedError."""

    def __init__(self, pattern: str, *, states_max: int) -> None:
        parsed = parse_pattern(pattern)
        self._names = parsed.names
        self._program = Program(parsed.node, states_max=states_max, has_captures=True)
        self._blank = (-1,) * (2 * parsed.groups)

    def find_all(self, text: str, charge: Callable[[int], None]) -> Iterator[RegexpMatch]:
        """Find matches from left to right, not overlapping.

        `charge` gets the steps of each character, and may raise.
        """
        at = 0
        while at <= len(text):
            positions = self._run(text, at, charge)
            if positions is None:
                return
            yield RegexpMatch(text, self._names, positions)
            at = positions[1] + (positions[1] == positions[0])

    def _run(self, text: str, start: int, charge: Callable[[int], None]) -> tuple[int, ...] | None:
        """Return the positions of the first match at or behind `start`."""
        program = self._program
        best: tuple[int, ...] | None = None
        threads: list[Thread] = []
        for at in range(start, len(text) + 1):
            seen: set[int] = set()
            active: list[Thread] = []
            for thread in threads:
                self._follow(thread, text, at, (seen, active))
            if best is None:
                self._follow((program.start, self._blank), text, at, (seen, active))
            charge(len(seen) + 1)
            threads = []
            for state, positions in active:
                test = program.tests[state]
                if test is None:
                    best = positions
                    break
                if at < len(text) and test(text[at]):
                    threads += [(after, positions) for after in program.following[state]]
            if not threads and best is not None:
                break
        return best

    def _follow(
        self, thread: Thread, text: str, at: int, into: tuple[set[int], list[Thread]]
    ) -> None:
        """Add a thread past all states that take no character; the first to reach a state keeps it."""
        program = self._program
        seen, active = into
        waiting = [thread]
        while waiting:
            state, positions = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            place = program.places[state]
            if place and not place(text[at - 1 : at] if at else "", text[at : at + 1]):
                continue
            if (slot := program.slots[state]) >= 0:
                positions = (*positions[:slot], at, *positions[slot + 1 :])
            following = program.following[state]
            if program.tests[state] is not None or not following:
                active.append((state, positions))
            else:
                waiting += [(after, positions) for after in reversed(following)]
