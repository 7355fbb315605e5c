"""The lines above the tables of `caravan top`, and the newest events below them. Pure."""

from collections.abc import Iterable

import msgspec
import numpy as np

from schemas.answers import ClusterAnswer
from services.cli.runtime.output import strip_control_chars
from services.cli.top.listings import TABLES, Listing, Table, Wanted, node_state
from services.cli.top.time_slider import TimeSlider
from shared.core.state.counts import count_state
from shared.display.event_text import EventLine
from shared.display.formats import count_noun, format_clock, format_local_time
from shared.query.fleet_columns import FleetColumns
from shared.query.historical_state import HistoricalState


class Feed(msgspec.Struct):
    """How well the newest state follows the cluster."""

    is_archive: bool = False
    #: records that are not applied yet; -1: not known.
    lag: int = -1
    #: of services, by the view.
    alarms: tuple[str, ...] = ()
    #: why the log is not followed.
    problem: str = ""

    def answered(self, answer: ClusterAnswer, seq: int) -> None:
        """Take over what the view says, where `seq` is the last record applied here."""
        self.lag = max(answer.seq - seq, 0)
        self.alarms = answer.alarms

    def unanswered(self, why: str) -> None:
        """Without a view the end of the log is not known, and alarms are not either."""
        self.lag = -1
        self.alarms = (why,)


def position_line(past: HistoricalState, line: TimeSlider, feed: Feed) -> str:
    """Cluster, moment and lag."""
    state = past.state
    where = "past" if line.at else "end of the archive" if feed.is_archive else "live"
    parts = [f"{state.policy.cluster_id[:8] or 'no cluster'}  {where}"]
    parts.append(f"seq {past.replica.seq} of {line.last}")
    parts += [format_local_time(past.replica.chain.t_ns)]
    if not feed.is_archive:
        parts.append(f"lag {feed.lag}" if feed.lag >= 0 else "lag unknown")
    alarms = len(alarm_texts(past, feed))
    parts += [count_noun(alarms, "alarm")] if alarms else []
    return "  ".join(parts)


def alarm_texts(past: HistoricalState, feed: Feed) -> list[str]:
    """What an operator must see: damage first, then alarms of the log and of services."""
    found = [feed.problem, past.replica.room.alarm, *feed.alarms]
    return [strip_control_chars(one) for one in dict.fromkeys(found) if one]


def count_line(past: HistoricalState, fleet: FleetColumns) -> str:
    """How many there are of each kind, by state."""
    counts = count_state(past.state)
    states: dict[str, int] = {}
    for flags, count in zip(*np.unique(fleet.flags, return_counts=True), strict=True):
        name = node_state(int(flags))
        states[name] = states.get(name, 0) + int(count)
    nodes = ", ".join(f"{n} {name}" for name, n in sorted(states.items(), key=lambda one: -one[1]))
    allocations = ", ".join(f"{n} {name}" for name, n in counts.allocations.items() if n)
    return f"nodes: {nodes or 'none'}  jobs: {counts.jobs}  allocations: {allocations or 'none'}"


def event_lines(events: Iterable[EventLine], count: int) -> list[str]:
    """The newest events, the last one below."""
    newest = list(events)[-count:] if count > 0 else []
    return [
        strip_control_chars(f"{one.seq:>7} {format_clock(one.t_ns)} {one.type:<22} {one.text}")
        for one in newest
    ]


def tab_line(table: Table, wanted: Wanted, listing: Listing) -> str:
    """The tables by their keys, the open one in brackets, and which of its rows are listed."""
    tabs = " ".join(
        f"[{at} {one.name}]" if one is table else f" {at} {one.name} "
        for at, one in enumerate(TABLES, 1)
    )
    shown, total = len(listing.rows), listing.total
    count = f"{shown} of {total}" if shown < total else str(total)
    of = wanted.job or wanted.node
    parts = [tabs, count, f"of {of}" if of else "", f"with {wanted.text}" if wanted.text else ""]
    return strip_control_chars("  ".join(one for one in parts if one))
