"""What a person sees of a job on its way: a live picture on a terminal, one line a change elsewhere.

Decides how progress looks; what the progress is, its caller tells. Knows no bus.
"""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from schemas.projections import GroupSummary
from services.cli.output import Output, clean

_BAR = 20
_SECONDS_A_FRAME = 0.1


class Rollout:
    """Use as a context; `show` what is known whenever it may have changed."""

    def __init__(self, out: Output, title: str) -> None:
        self._out = out
        self._title = title
        self._live: Any = None
        self._told: dict[str, str] = {}
        # Asked now: while the picture lives, stdout is not what it was.
        self._is_plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"

    def __enter__(self) -> Self:
        if self._out.is_live:
            from rich.console import Console
            from rich.live import Live

            console = Console(highlight=False, no_color=not self._out.has_colour)
            self._live = Live(
                console=console, refresh_per_second=1 / _SECONDS_A_FRAME, auto_refresh=True
            )
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, value, trace)

    def show(
        self, status: str, groups: Mapping[str, GroupSummary], waiting: Mapping[str, int]
    ) -> None:
        """Show the evaluation's status and, by group, the present version's allocations and how many wait."""
        if self._live is not None:
            self._live.update(self._picture(status, groups, waiting))
            return
        if status != "pending":
            self._tell("", f"evaluation {status}")
        for name, group in sorted(groups.items()):
            if is_begun(group) or waiting.get(name):
                self._tell(name, f"{name}: {told(group, waiting.get(name, 0))}")

    def _tell(self, key: str, text: str) -> None:
        if self._told.get(key) != text:
            self._told[key] = text
            self._out.progress(f"  {text}")

    def _picture(
        self, status: str, groups: Mapping[str, GroupSummary], waiting: Mapping[str, int]
    ) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        done = all(is_settled(one) for one in groups.values()) and status != "pending"
        text = Text(clean(f"{self._title}: evaluation {status}"))
        head: Any = Text("✓ ", style="green") + text if done else Spinner("dots", text=text)
        table = Table.grid(padding=(0, 1))
        width = _BAR if self._out.columns >= 60 else 6
        for name, group in sorted(groups.items()):
            table.add_row(
                Text(f"  {clean(name)}"),
                bar(group, width, "#-" if self._is_plain else "━━"),
                Text(told(group, waiting.get(name, 0)), overflow="fold"),
            )
        return Group(text if self._is_plain else head, table)


def bar(group: GroupSummary, width: int, signs: str) -> Any:
    """Running and complete, failed, pending, and what has no place, as parts of a bar."""
    from rich.text import Text

    total = max(group.desired, 1)
    full, empty = signs[0], signs[1]
    parts = (
        (group.running + group.complete, "green"),
        (group.failed + group.lost, "red"),
        (group.pending + group.unknown, "yellow"),
    )
    out, left = Text(), width
    for count, style in parts:
        size = min(left, -(-width * count // total) if count else 0)
        out.append(full * size, style=style)
        left -= size
    out.append(empty * left, style="dim")
    return out


def told(group: GroupSummary, waiting: int) -> str:
    """A group in words, without what is zero."""
    of = f"{group.running + group.complete}/{group.desired}"
    words = [f"{of} complete" if group.complete and not group.running else f"{of} running"]
    counts = {"pending": group.pending, "failed": group.failed, "lost": group.lost}
    words += [f"{n} {name}" for name, n in counts.items() if n]
    words += [f"{waiting} waiting"] if waiting else []
    return ", ".join(words)


def is_begun(group: GroupSummary) -> bool:
    """Tell whether anything of a group was placed."""
    return bool(group.pending or group.running or group.complete or group.failed or group.lost)


def is_settled(group: GroupSummary) -> bool:
    """Tell whether nothing of a group is on its way."""
    return not group.pending
