"""The progress of a rollout: a live display on a terminal, one line per change elsewhere.

A group is shown by the health of its allocations where a deployment counts it, else by their client status.
"""

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from schemas.projections import DeploymentGroupLine, DeploymentLine, GroupSummary
from services.cli.runtime.output import CommandOutput, strip_control_chars

_BAR = 20
_SECONDS_A_FRAME = 0.1
#: By outcome of the rollout.
_SIGNS = {
    "running": ("✓", "green"),
    "complete": ("✓", "green"),
    "stopped": ("✓", "green"),
    "successful": ("✓", "green"),
    "waiting": ("!", "yellow"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "red"),
}


class GroupRow(NamedTuple):
    """One group in one line. `parts`: counts for the bar, each with its style."""

    name: str
    text: str
    total: int
    parts: tuple[tuple[int, str], ...]
    #: something of it was placed, or waits.
    is_started: bool = True


class RolloutDisplay:
    """Use as a context; call `show` whenever the state may have changed."""

    def __init__(self, out: CommandOutput, title: str) -> None:
        self._out = out
        self._title = title
        self._live: Any = None
        #: by group, each prefixed by a blank so that none is taken for another line.
        self._told: dict[str, str] = {}
        # Read now: the live display replaces stdout.
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
        self, head: str, rows: Sequence[GroupRow], outcome: str = "", *, note: str = ""
    ) -> None:
        """Show how far it is, and each group. `outcome`: as in Rollout or DeploymentLine; empty: it continues.

        `note`: what went wrong on the way.
        """
        if self._live is not None:
            self._live.update(self._picture(head, rows, outcome, note))
            return
        if head:
            self._tell("", head)
        for row in rows:
            if row.is_started:
                self._tell(f" {row.name}", f"{row.name}: {row.text}")
        if note:
            self._tell("note", note)

    def _tell(self, key: str, text: str) -> None:
        if self._told.get(key) != text:
            self._told[key] = text
            self._out.progress(f"  {text}")

    def _picture(self, head: str, rows: Sequence[GroupRow], outcome: str, note: str) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        text = Text(strip_control_chars(f"{self._title}: {head}" if head else self._title))
        sign, style = _SIGNS.get(outcome, ("", ""))
        first: Any = Text(f"{sign} ", style=style) + text if sign else Spinner("dots", text=text)
        table = Table.grid(padding=(0, 1))
        width = _BAR if self._out.columns >= 60 else 6
        for row in rows:
            table.add_row(
                Text(f"  {strip_control_chars(row.name)}"),
                group_bar(row, width, "#-" if self._is_plain else "━━"),
                Text(row.text, overflow="fold"),
            )
        parts = [text if self._is_plain else first, table]
        parts += [Text(strip_control_chars(f"  {note}"), style="yellow")] if note else []
        return Group(*parts)


def group_bar(row: GroupRow, width: int, signs: str) -> Any:
    """A bar of the parts of a group, and of what is not placed."""
    from rich.text import Text

    total = max(row.total, 1)
    full, empty = signs[0], signs[1]
    out, left = Text(), width
    for count, style in row.parts:
        size = min(left, -(-width * count // total) if count else 0)
        out.append(full * size, style=style)
        left -= size
    out.append(empty * left, style="dim")
    return out


def status_rows(
    groups: Mapping[str, GroupSummary], waiting: Mapping[str, int]
) -> tuple[GroupRow, ...]:
    """Groups by the client status of their allocations. `waiting`: how many found no place, by group."""
    return tuple(
        GroupRow(
            name,
            group_summary(one, waiting.get(name, 0)),
            one.desired,
            (
                (one.running + one.complete, "green"),
                (one.failed + one.lost, "red"),
                (one.pending + one.unknown, "yellow"),
            ),
            is_started(one) or bool(waiting.get(name)),
        )
        for name, one in sorted(groups.items())
    )


def health_rows(
    deployment: DeploymentLine, waiting: Mapping[str, int] | None = None
) -> tuple[GroupRow, ...]:
    """Groups of a deployment by the health of their allocations."""
    return tuple(
        GroupRow(
            name,
            health_summary(one, (waiting or {}).get(name, 0)),
            one.canaries if is_in_canary_phase(one) else one.desired,
            ((one.healthy, "green"), (one.unhealthy, "red"), (_undecided(one), "yellow")),
        )
        for name, one in sorted(deployment.groups.items())
    )


def is_in_canary_phase(group: DeploymentGroupLine) -> bool:
    """Whether a group's canaries are still to be promoted."""
    return group.canaries > 0 and not group.promoted


def health_summary(group: DeploymentGroupLine, waiting: int = 0) -> str:
    """How many allocations are healthy, without zeros: `2/3 healthy, 1 placed`."""
    words = [f"{group.healthy}/{group.desired} healthy"]
    if is_in_canary_phase(group):
        words = [f"{group.healthy}/{group.canaries} canaries healthy"]
    counts = {"placed": _undecided(group), "unhealthy": group.unhealthy, "waiting": waiting}
    words += [f"{n} {name}" for name, n in counts.items() if n]
    if is_in_canary_phase(group) and group.healthy >= group.canaries:
        words.append("to be promoted" if group.auto_promote else "waits for its promotion")
    return ", ".join(words)


def _undecided(group: DeploymentGroupLine) -> int:
    """Placed allocations that have no health yet."""
    return max(group.placed - group.healthy - group.unhealthy, 0)


def group_summary(group: GroupSummary, waiting: int) -> str:
    """The counts of a group, without zeros."""
    of = f"{group.running + group.complete}/{group.desired}"
    words = [f"{of} complete" if group.complete and not group.running else f"{of} running"]
    counts = {"pending": group.pending, "failed": group.failed, "lost": group.lost}
    words += [f"{n} {name}" for name, n in counts.items() if n]
    words += [f"{waiting} waiting"] if waiting else []
    return ", ".join(words)


def is_started(group: GroupSummary) -> bool:
    """Whether any allocation of a group was placed."""
    return bool(group.pending or group.running or group.complete or group.failed or group.lost)
