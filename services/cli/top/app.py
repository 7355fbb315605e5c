"""The app of `caravan top`: draws the session at most ten times a second, and hands keys on.

Imports textual: imported only by the command itself. What is drawn is decided in the modules beside it.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import ContentSwitcher, DataTable, Input, Static

from schemas.answers import ClusterAnswer
from schemas.node_answers import AllocAnswer
from services.cli.top import head
from services.cli.top.heat import HeatCell, ShareHistory, heat_cells, total_shares
from services.cli.top.keys import KEYS, hint_text
from services.cli.top.listings import TABLES, Wanted
from services.cli.top.live_table import LiveTable
from services.cli.top.page_control import PageControl
from services.cli.top.session import Session
from services.cli.top.time_control import TimeControl
from shared.errors import CaravanError, CommandInvalid
from shared.numerals import is_digits
from shared.query.fleet_columns import FleetColumns, fleet_columns
from shared.query.historical_state import HistoricalState
from shared.query.lookup import find_alloc

#: Shortest time between two pictures; where drawing one takes longer, five times that.
DRAW_S, SHARE = 0.1, 5
PLAY_S = 0.35
#: How often the view is asked for the end of the log and for alarms.
ASK_S = 2.0
WIDTH_MIN, HEIGHT_MIN = 80, 24
HEAT_ROWS = 2
#: From little use to much; heights say the same.
_HEAT_STYLES = (*("cyan",) * 2, *("green",) * 2, *("yellow",) * 2, *("red",) * 2)
_SIGN_STYLE = "bold magenta"


class Services(Protocol):
    """What is asked beside the log. Raises CaravanError."""

    async def cluster(self) -> ClusterAnswer:
        """What the view says of the cluster now."""

    def output(self, alloc: AllocAnswer, task: str, stream: str) -> AsyncIterator[bytes]:
        """Follow the output of a task."""


class TopApp(App[None]):
    """One session on a terminal."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(one.names, f"press('{one.action}')", one.text, show=False) for one in KEYS),
        # In the prompt, too.
        Binding("ctrl+c", "press('quit')", show=False, priority=True),
    ]

    def __init__(self, session: Session, services: Services) -> None:
        # The terminal's own colours; NO_COLOR is read here, and must find it so.
        super().__init__(ansi_color=True)
        self.session = session
        self.time_control = TimeControl(session, self._work)
        self.page_control = PageControl(
            session, self, work=self._work, opened=self.push_screen, outputs=services.output
        )
        self._services = services
        self._shares = ShareHistory()
        self._drawn_s = self._took_s = 0.0
        self._asked_for = ""
        self._columns: FleetColumns | None = None
        self._columns_of = (0, 0)
        #: pictures drawn.
        self.pictures = 0
        self._acts = self._actions()

    def _actions(self) -> dict[str, Callable[[], object]]:
        """What each action of KEYS does."""
        moves, pages = self.time_control, self.page_control
        tables = {one.name: functools.partial(self._show, one.name, Wanted()) for one in TABLES}
        return {
            **tables,
            "drill": self._drill,
            "inspect": pages.inspect,
            "back": self._back,
            "filter": functools.partial(self._ask_for, "filter"),
            "goto": functools.partial(self._ask_for, "goto"),
            "logs": pages.logs,
            "why": pages.why,
            "previous_record": functools.partial(moves.step, -1),
            "next_record": functools.partial(moves.step, 1),
            "previous_mark": functools.partial(moves.jump, -1),
            "next_mark": functools.partial(moves.jump, 1),
            "play": moves.play,
            "now": moves.now,
            "pin": moves.pin,
            "diff": pages.diff,
            "help": pages.help,
            "quit": self.exit,
        }

    def action_press(self, name: str) -> None:
        """Do what a key stands for; it takes the last message away."""
        self.session.say("")
        self._acts[name]()

    @property
    def row_key(self) -> str:
        """Key of the row under the cursor."""
        return self._live_table().row_key

    @property
    def columns(self) -> int:
        """Width of a page."""
        return max(self.size.width - 2, 20)

    # ---- beginning ----

    def compose(self) -> ComposeResult:
        """Everything from the top to the bottom."""
        for name in ("position", "alarms", "counts", "totals", "heat", "tabs"):
            yield Static(id=name)
        with ContentSwitcher(initial=self.session.table.name):
            for one in TABLES:
                yield LiveTable(one)
        yield Static(id="events")
        yield Static(id="slider")
        yield Input(id="prompt")
        yield Static(id="hint")

    async def on_mount(self) -> None:
        """Begin to draw, and to follow the log."""
        self.theme = "ansi-dark"
        self._focus_table()
        self.set_interval(DRAW_S, self._tick)
        self.set_interval(PLAY_S, self.time_control.play_on)
        self._work(self._begin(), "begin")
        if not self.session.feed.is_archive:
            self._work(self._follow(), "follow")
            self._work(self._ask(), "view")

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.session.is_dirty = True

    def _work(self, work: Coroutine[Any, Any, None], group: str) -> None:
        self.run_worker(work, group=group, exclusive=True)

    async def _begin(self) -> None:
        try:
            self.session.line.first = await self.session.moments.source.first_seq()
        except CaravanError as err:
            self.session.feed.problem = str(err)
        self.session.is_dirty = True

    async def _follow(self) -> None:
        try:
            await self.session.moments.follow(self.session.grew)
        except CaravanError as err:
            self.session.feed.problem = f"the log is no longer followed: {err}"
            self.session.is_dirty = True

    async def _ask(self) -> None:
        """Ask the view for the end of the log and for alarms, again and again."""
        while True:
            try:
                answer = await self._services.cluster()
            except CaravanError as err:
                self.session.feed.unanswered(str(err))
            else:
                self.session.feed.answered(answer, self.session.moments.live.seq)
            self.session.is_dirty = True
            await asyncio.sleep(ASK_S)

    # ---- drawing ----

    def _tick(self) -> None:
        if not self.query("#position"):
            # The app is closing: what is drawn on goes before the timer does.
            return
        is_due = time.monotonic() - self._drawn_s >= SHARE * self._took_s
        if self.session.is_dirty and is_due and len(self.screen_stack) == 1:
            self.draw()

    def draw(self) -> None:
        """Draw the session."""
        began_s = time.monotonic()
        session, past = self.session, self.session.shown.past
        session.is_dirty = False
        fleet, width = self._fleet_of(past), self.size.width
        self._shares.note(past.state.seq, total_shares(past.state))
        self._put("position", head.position_line(past, session.line, session.feed))
        alarms = head.alarm_texts(past, session.feed)
        self._put("alarms", "\n".join(alarms))
        self.query_one("#alarms").display = bool(alarms)
        self._put("counts", head.count_line(past, fleet))
        self._put("totals", self._shares.line())
        self.query_one("#heat", Static).update(_heat_text(heat_cells(fleet, HEAT_ROWS * width)))
        listing = session.table.list(past, fleet, session.wanted)
        self._live_table().show(listing.rows)
        self._put("tabs", head.tab_line(session.table, session.wanted, listing))
        room = self.query_one("#events").size.height
        self._put("events", "\n".join(head.event_lines(session.shown.events, room)))
        self._put("slider", session.line.bar(width))
        self._put("hint", self._bottom())
        self.pictures += 1
        self._drawn_s = time.monotonic()
        self._took_s = self._drawn_s - began_s

    def _put(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Text(text))

    def _fleet_of(self, past: HistoricalState) -> FleetColumns:
        of = (id(past), past.state.seq)
        if self._columns is None or of != self._columns_of:
            self._columns, self._columns_of = fleet_columns(past.state), of
        return self._columns

    def _bottom(self) -> str:
        if self.session.message:
            return self.session.message
        if self.size.width < WIDTH_MIN or self.size.height < HEIGHT_MIN:
            return f"terminal below {WIDTH_MIN}x{HEIGHT_MIN}: parts are cut"
        pinned = self.session.line.pinned
        mode = "playing  " if self.time_control.is_playing else ""
        return mode + (f"pinned {pinned}  " if pinned else "") + hint_text()

    # ---- tables ----

    def _live_table(self) -> LiveTable:
        # Of the tables' own screen: a page may lie above it.
        return self.screen_stack[0].query_one(f"#{self.session.table.name}", LiveTable)

    def _focus_table(self) -> None:
        self.query_one(ContentSwitcher).current = self.session.table.name
        table = self._live_table()
        table.screen.set_focus(table)

    def _show(self, table: str, wanted: Wanted) -> None:
        self.session.select(table, wanted)
        self._focus_table()
        self.draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter or a click on a row."""
        event.stop()
        self.action_press("drill")

    def _drill(self) -> None:
        """From a job or node to its allocations; from others to details."""
        key, name = self.row_key, self.session.table.name
        if key and name == "jobs":
            self._show("allocations", Wanted(job=key))
        elif key and name == "nodes":
            self._show("allocations", Wanted(node=key))
        else:
            self.page_control.inspect()

    def _back(self) -> None:
        if self._asked_for:
            self._close_prompt()
        else:
            self.session.back()
            self._focus_table()
            self.draw()

    # ---- prompt ----

    def _ask_for(self, what: str) -> None:
        """Open the prompt for a filter, or for where to go."""
        self._asked_for = what
        prompt = self.query_one("#prompt", Input)
        is_filter = what == "filter"
        prompt.placeholder = (
            "text that rows contain"
            if is_filter
            else "seq, time like 2026-01-31T12:00:00, job, node or allocation"
        )
        prompt.value = self.session.wanted.text if is_filter else ""
        prompt.display = True
        self.screen.set_focus(prompt)

    def _close_prompt(self) -> None:
        self._asked_for = ""
        self.query_one("#prompt").display = False
        self._focus_table()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        if self._asked_for == "filter":
            self.session.wanted = self.session.wanted._replace(text=event.value)
            self.session.is_dirty = True

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text."""
        what, text = self._asked_for, event.value.strip()
        self._close_prompt()
        if what == "goto" and text:
            self._go_to(text)

    def _go_to(self, text: str) -> None:
        """Go to a seq, a job, a node, an allocation or a time."""
        state = self.session.shown.past.state
        if is_digits(text):
            self.time_control.stop()
            self.time_control.go(int(text))
            return
        for table, ids in (("jobs", state.jobs.by_id), ("nodes", state.fleet.row_of)):
            near = min((str(one) for one in ids if one.startswith(text)), default="")
            if near:
                self._show(table, Wanted(text=near))
                self._live_table().point_at(near)
                return
        try:
            find_alloc(state, text)
        except CommandInvalid as err:
            if text[:4].isdigit() and "-" in text:
                self.time_control.go_to_time(text)
            else:
                none = f"no job, node or allocation begins with {text!r}"
                self.session.say(str(err) if err.code == "ambiguous" else none)
            return
        self.page_control.details("allocations", text)


def _heat_text(cells: list[HeatCell]) -> Text:
    found = Text()
    for one in cells:
        found.append(one.glyph, _SIGN_STYLE if one.level < 0 else _HEAT_STYLES[one.level])
    return found
