"""Handling: which function of a table applies which fact, so that a fact finds them by its type alone."""

from collections.abc import Callable
from typing import Any

from schemas.base import Event

#: By type of the fact: what applies it, given it and its seq. It never refuses.
EventHandlers = dict[type[Event], Callable[[Any, int], None]]


class EventConsumer:
    """What applies facts, each with one function of its own."""

    def handlers(self) -> EventHandlers:
        """Say what applies each kind of fact that changes anything here."""
        raise NotImplementedError

    def evolve(self, event: Event, seq: int) -> None:
        """Apply one fact, one of those named in `handlers`."""
        self.handlers()[type(event)](event, seq)
