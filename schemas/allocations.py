"""Allocations: what became of placed work. They are created by `plan.committed` (plans.py)."""

import msgspec

from schemas.base import DeploymentKey, Event, Wire

#: Order of the codes in the allocations' columns.
CLIENT_STATUSES = ("pending", "running", "complete", "failed", "lost", "unknown")
#: Statuses of an allocation that has ended.
TERMINAL_STATUSES = frozenset({"complete", "failed", "lost"})
DESIRED_STATUSES = ("run", "stop", "evict")
#: Order of the codes of an allocation's health; empty: not known yet.
HEALTHS = ("", "healthy", "unhealthy")


class AllocDetail(Wire, frozen=True, kw_only=True):
    """What a report said about one allocation beyond its status."""

    row: int
    #: task name -> TaskState, raw JSON.
    tasks: msgspec.Raw = msgspec.Raw(b"{}")
    #: log time from which a failed allocation may be replaced; 0: not.
    reschedule_at_ns: int = 0
    #: when the chain it belongs to was and will be rescheduled, oldest first: due time, delay, due time, delay, …
    reschedules: tuple[int, ...] = ()


class AllocationsReported(Event, frozen=True, kw_only=True, tag="allocations.reported"):
    """Reports of one or more nodes. Shapes: nodes, numbers (N,); rows, statuses (A,).

    `numbers[i]` is the report number now seen of the node in fleet row `nodes[i]`.
    """

    nodes: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    #: index into CLIENT_STATUSES.
    statuses: tuple[int, ...] = ()
    details: tuple[AllocDetail, ...] = ()


class HealthCount(Wire, frozen=True, kw_only=True):
    """What health changes add to the counters of one group of a deployment."""

    deployment: DeploymentKey
    group: str
    healthy: int = 0
    unhealthy: int = 0
    #: log time until which the group must make progress now; 0: as before.
    require_by_ns: int = 0


class AllocationsHealthChanged(Event, frozen=True, kw_only=True, tag="allocations.health_changed"):
    """Agents, or an operator, said that allocations are healthy or unhealthy. Shapes: rows, healths (A,).

    The first word counts: a later one follows only from an operator, or under another deployment.
    """

    rows: tuple[int, ...]
    #: index into HEALTHS, not 0.
    healths: tuple[int, ...]
    #: one a row, empty where there is none; or none at all.
    reasons: tuple[str, ...] = ()
    #: agent or operator.
    source: str = "agent"
    counts: tuple[HealthCount, ...] = ()


class AllocationsDisplaced(Event, frozen=True, kw_only=True, tag="allocations.displaced"):
    """An operator wants these allocations to end where they are; their jobs replace them with the next plan."""

    rows: tuple[int, ...]


class AllocationsCollected(Event, frozen=True, kw_only=True, tag="allocations.collected"):
    """Terminal allocations left the state; their rows are free: `rows`, and behind them `runs`."""

    rows: tuple[int, ...]
    #: start, length, start, length, … where that is shorter.
    runs: tuple[int, ...] = ()
