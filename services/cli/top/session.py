"""What `caravan top` shows: the moment, the table, the rows wanted, and the last message. Knows no terminal."""

from collections.abc import Callable, Coroutine
from typing import Any

from services.cli.top.head import Feed
from services.cli.top.listings import TABLES, Wanted
from services.cli.top.state_source import Moments, ShownState
from services.cli.top.time_slider import TimeSlider
from shared.query.answers import QueryEngine

#: Runs a coroutine beside the keys: one of each group, a new one cancels the last.
Work = Callable[[Coroutine[Any, Any, None], str], object]


class Session:
    """One reader of one log."""

    def __init__(self, moments: Moments, *, at: ShownState | None = None) -> None:
        self.moments = moments
        self.line = TimeSlider(moments.marks.marks)
        self.line.last = moments.live.seq
        self.feed = Feed(is_archive=moments.source.is_archive)
        self.table = TABLES[0]
        self.wanted = Wanted()
        #: shown at the bottom until the next key.
        self.message = ""
        #: what is shown differs from what is drawn.
        self.is_dirty = True
        #: the past state that is shown; None: the live one.
        self.past = at
        if at is not None:
            self.line.at = at.seq

    @property
    def shown(self) -> ShownState:
        """The state that is shown."""
        return self.past or self.moments.live

    @property
    def answers(self) -> QueryEngine:
        """Queries of the shown state."""
        return self.shown.past.answers

    def select(self, table: str, wanted: Wanted) -> None:
        """Show these rows of a table."""
        self.table = next(one for one in TABLES if one.name == table)
        self.wanted = wanted
        self.is_dirty = True

    def back(self) -> None:
        """Drop the filter, or leave the job or node."""
        if self.wanted.text:
            self.wanted = self.wanted._replace(text="")
        elif self.wanted.job or self.wanted.node:
            self.select("jobs" if self.wanted.job else "nodes", Wanted())
        self.is_dirty = True

    def say(self, text: str) -> None:
        """Show a message."""
        self.message = text.replace("\n", " ")
        self.is_dirty = True

    def grew(self) -> None:
        """The live state was moved on."""
        self.line.last = self.moments.live.seq
        self.is_dirty = True
