"""The time slider of `caravan top`: where in the log the shown state is, and where a key goes from there."""

from collections.abc import Sequence

from shared.display.time_marks import Mark

#: Steps in which `play` crosses the log.
PLAY_STEPS = 200
_BAD_KIND = "node_lost"


class TimeSlider:
    """A position between the first and the last record. `at` 0: now, which moves with the log."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks = marks
        self.first = 1
        self.last = 0
        self.at = 0
        #: seq that differences are made from; 0: none.
        self.pinned = 0

    @property
    def seq(self) -> int:
        """Seq of the shown moment."""
        return self.at or self.last

    def go(self, seq: int) -> None:
        """Go to a seq inside the log; its end is now."""
        seq = max(self.first, seq)
        self.at = 0 if seq >= self.last else seq

    def jump(self, direction: int) -> None:
        """Go to the nearest mark before (-1) or after (1) the moment; without one, to that end of the log."""
        if direction > 0:
            self.go(next((one.seq for one in self._marks if one.seq > self.seq), self.last))
        else:
            older = (one.seq for one in reversed(self._marks) if one.seq < self.seq)
            self.go(next(older, self.first))

    def play_step(self) -> bool:
        """Continue by one step of `play`; False: now is reached."""
        if self.at:
            self.go(self.at + max(1, (self.last - self.at) // PLAY_STEPS))
        return bool(self.at)

    def pin(self) -> None:
        """Pin the moment, or unpin what is pinned."""
        self.pinned = 0 if self.pinned else self.seq

    def bar(self, width: int) -> str:
        """The slider in `width` characters: `!` a lost node, `'` other marks, `P` the pinned, `O` the shown moment."""
        left, right = f"{self.first} ", f" {self.last}"
        cells = ["-"] * max(width - len(left) - len(right), 1)
        span = max(self.last - self.first, 1)

        def put(seq: int, sign: str) -> None:
            place = (len(cells) - 1) * (seq - self.first) // span
            cells[min(max(place, 0), len(cells) - 1)] = sign

        for one in sorted(self._marks, key=lambda one: one.kind == _BAD_KIND):
            put(one.seq, "!" if one.kind == _BAD_KIND else "'")
        if self.pinned:
            put(self.pinned, "P")
        put(self.seq, "O")
        return left + "".join(cells) + right
