"""Progress of work that may take longer than a second: a bar on a terminal, a line now and then elsewhere.

All of it goes to stderr, so that stdout holds nothing but the result.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

T = TypeVar("T")
#: Shorter work shows nothing.
_QUIET_S = 1.0
_FRAME_S = 0.1
#: Between lines where there is no terminal.
_LINE_S = 10.0


class ProgressBar:
    """Use as a context; `update` as often as convenient. `total` 0: unknown."""

    def __init__(self, text: str, total: int = 0, unit: str = "records") -> None:
        self._text = text
        self._total = total
        self._unit = unit
        self._bar: Any = None
        self._task: Any = None
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._counted = 0
        self._next_s = time.monotonic() + (_QUIET_S if self._is_live else _LINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int = 0) -> None:
        """Show how much is done."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._total = total or self._total
        # Work must not fail because its terminal has gone.
        with contextlib.suppress(OSError):
            if self._is_live:
                self._next_s = now_s + _FRAME_S
                self._draw(done)
            else:
                self._next_s = now_s + _LINE_S
                of = f" of {self._total}" if self._total else ""
                print(f"{self._text}: {done}{of} {self._unit}", file=sys.stderr, flush=True)

    def counted(self, items: Sequence[T]) -> Iterator[T]:
        """Yield items, counting them; another call counts on."""
        for item in items:
            yield item
            self._counted += 1
            self.update(self._counted)

    def _draw(self, done: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            counts = (
                "{task.completed:.0f}/{task.total:.0f}" if self._total else "{task.completed:.0f}"
            )
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(None),
                TextColumn(f"{counts} {self._unit}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, highlight=False),
                transient=True,
            )
            self._task = self._bar.add_task(self._text, total=self._total or None)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=self._total or None)
