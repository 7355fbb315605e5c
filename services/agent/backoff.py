"""Exponential backoff: a pause between attempts that doubles up to a limit. The unit is the caller's."""

from typing import Generic, TypeVar

Pause = TypeVar("Pause", int, float)


class Backoff(Generic[Pause]):
    """The pause before the next attempt of one operation."""

    __slots__ = ("_first", "_limit", "pause")

    def __init__(self, first: Pause, limit: Pause) -> None:
        self.pause: Pause = first
        self._first: Pause = first
        self._limit: Pause = limit

    def take(self) -> Pause:
        """Return the pause before the next attempt, and double the one after it."""
        pause = self.pause
        self.pause = min(pause * 2, self._limit)
        return pause

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.pause = self._first
