"""Pages that `caravan top` opens above its tables: a text, or the output of a task."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.screen import ModalScreen
from textual.widgets import RichLog, Static

from services.cli.top.detail_pages import log_line
from shared.errors import CaravanError

#: Opens the output of a task, by task and stream; raises CaravanError.
Output = Callable[[str, str], AsyncIterator[bytes]]
_LINES_MAX, _LINE_MAX = 5_000, 10_000


class TextPage(ModalScreen[None]):
    """A text to scroll in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", priority=True),
        Binding("ctrl+c", "app.quit", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self.title_text = title
        self.text = text

    def compose(self) -> ComposeResult:
        """A title, the text, the way back."""
        yield Static(Text(f"{self.title_text}  (esc closes)", "bold"), classes="bar")
        with ScrollableContainer():
            yield Static(Text(self.text), classes="text")

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one(ScrollableContainer).focus()


class LogPage(ModalScreen[None]):
    """The output of the tasks of an allocation, followed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "close", priority=True),
        Binding("t", "next_task", "next task"),
        Binding("e", "other_stream", "stdout or stderr"),
        Binding("ctrl+c", "app.quit", show=False),
    ]

    def __init__(self, name: str, tasks: list[str], output: Output) -> None:
        super().__init__()
        self._alloc = name
        self._tasks = tasks
        self._output = output
        self._at = 0
        self._stream = "stdout"

    def compose(self) -> ComposeResult:
        """A title and the lines."""
        yield Static(classes="bar")
        yield RichLog(max_lines=_LINES_MAX, wrap=True, markup=False, highlight=False)

    def on_mount(self) -> None:
        """Begin with the first task."""
        self.query_one(RichLog).focus()
        self._begin()

    def action_next_task(self) -> None:
        """Show the next task's output."""
        self._at = (self._at + 1) % len(self._tasks)
        self._begin()

    def action_other_stream(self) -> None:
        """Show the other stream."""
        self._stream = "stderr" if self._stream == "stdout" else "stdout"
        self._begin()

    def _begin(self) -> None:
        task = self._tasks[self._at]
        more = "t next task, " if len(self._tasks) > 1 else ""
        title = f"{self._alloc} {task} {self._stream}  ({more}e other stream, esc closes)"
        self.query_one(".bar", Static).update(Text(title, "bold"))
        self.query_one(RichLog).clear()
        self.run_worker(self._read(task, self._stream), exclusive=True)

    async def _read(self, task: str, stream: str) -> None:
        log, left = self.query_one(RichLog), ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            async for data in self._output(task, stream):
                *lines, left = (left + decoder.decode(data)).split("\n")
                if len(left) > _LINE_MAX:
                    lines, left = [*lines, left], ""
                for one in lines:
                    log.write(Text(log_line(one)))
                await asyncio.sleep(0)
        except CaravanError as err:
            log.write(Text(str(err), "red"))
        if left:
            log.write(Text(log_line(left)))
