"""Events in one line each where the state before them is known: allocations and nodes by name, not by row.

Decides the words of events that speak of rows; every other event says enough itself (`events.py`). A record that nobody
has proven yet may name rows that are not there: they are shown as numbers.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from schemas.allocations import CLIENT_STATUSES, AllocationsDisplaced, AllocationsReported
from schemas.base import Event
from schemas.nodes import NodeDrainChanged, NodeEligibilityChanged, NodesStatusChanged
from shared.core.state import State

#: Names in one line.
_NAMED_MAX = 3


def named(state: State, event: Event) -> str:
    """Say what an event tells, with names. `state`: before it. Empty: it names no rows."""
    match event:
        case AllocationsReported() if event.rows:
            return _reported(state, event)
        case AllocationsDisplaced():
            return f"{_some(_allocation(state, row) for row in event.rows)} stopped by an operator"
        case NodesStatusChanged():
            reason = f" ({event.reason})" if event.reason else ""
            return f"{_some(_node(state, row) for row in event.rows)} {event.status}{reason}"
        case NodeEligibilityChanged():
            word = "eligible" if event.eligible else "not eligible"
            return f"{_node(state, event.row)} {word}"
        case NodeDrainChanged():
            return f"{_node(state, event.row)} {drained(event)}"
        case _:
            return ""


def drained(event: NodeDrainChanged) -> str:
    """Say until when a node is drained."""
    if not event.draining:
        return "drained no longer"
    return f"drained at {clock(event.deadline_ns)}" if event.deadline_ns else "drained, no deadline"


def clock(t_ns: int) -> str:
    """Time of day here, to the millisecond."""
    if not t_ns:
        return "            "
    return datetime.fromtimestamp(t_ns / 1e9, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _reported(state: State, event: AllocationsReported) -> str:
    """By status: who, and where it all happened on one node, on which."""
    parts = []
    for code in sorted(set(event.statuses)):
        rows = [row for row, one in zip(event.rows, event.statuses, strict=False) if one == code]
        parts.append(f"{_some(_allocation(state, row) for row in rows)} {CLIENT_STATUSES[code]}")
    nodes = sorted(set(event.nodes))
    where = f" on {_node(state, nodes[0])}" if len(nodes) == 1 else ""
    return "; ".join(parts) + where


def _some(names: Iterable[str]) -> str:
    found: Sequence[str] = tuple(names)
    rest = len(found) - _NAMED_MAX
    return ", ".join(found[:_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _allocation(state: State, row: int) -> str:
    table = state.allocations
    if not 0 <= row < len(table.key) or not table.key[row]:
        return f"allocation in row {row}"
    groups, ref = table.groups, int(table.group[row])
    return f"{groups.job_ids[ref]}.{groups.names[ref]}[{int(table.index[row])}]"


def _node(state: State, row: int) -> str:
    ids = state.fleet.ids
    return str(ids[row]) if 0 <= row < len(ids) and ids[row] else f"node in row {row}"
