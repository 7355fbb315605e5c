"""Counters of the plan applier: names and meanings of its metrics. Independent of the cause of an event.

Plan queue depth as in Nomad's nomad.plan.queue_depth; docs/metrics.md lists all.
"""

from collections.abc import Iterable
from typing import cast

from schemas.base import Event
from schemas.plans import PlanCommitted, PlanRefused
from services.plan_applier.command_queue import CommandQueue
from shared.core.runtime.counters import Counters
from shared.core.runtime.histogram import Histogram
from shared.core.runtime.replica import Replica
from shared.protocol import subjects

_PREFIX = "caravan_plan_applier_"
CLOCK_ALARM_NS = 5_000_000_000


_NAMES = (
    "transactions",
    "commands",
    "events",
    "rebuilds",
    "dead",
    "plans_refused",
    "plans_cut",
    "evictions",
    "evictions_spared",
)


class ApplierCounters(Counters):
    """Sums since the start of the process, and how far its clock is from the bus's."""

    def __init__(self) -> None:
        super().__init__(_PREFIX, _NAMES)
        self._clock_off_ns = 0
        self._log_ahead_ns = 0
        self._durable = Histogram(_PREFIX + "append_seconds")

    def compared_clocks(self, off_ns: int, log_ahead_ns: int) -> None:
        """Record how far our clock is from the bus's, and how far log time is ahead of it; its age says nothing."""
        self._clock_off_ns, self._log_ahead_ns = abs(off_ns), max(0, log_ahead_ns)

    def durable(self, passed_ns: int) -> None:
        """Record the time from sending a record to its confirmation."""
        self._durable.observe(passed_ns)

    def decided(self, commands: int, events: Iterable[Event]) -> None:
        """Count commands, and committed and refused plans."""
        self.add("commands", commands)
        for event in events:
            kind = type(event)
            if kind is PlanCommitted:
                self._committed(cast("PlanCommitted", event))
            elif kind is PlanRefused:
                self.add("plans_refused")

    def _committed(self, plan: PlanCommitted) -> None:
        if plan.cut:
            self.add("plans_cut")
        for name, some in (("evictions", plan.evictions), ("evictions_spared", plan.spared)):
            if some:
                self.add(name, sum(len(one.rows) for one in some))

    def shown(self, replica: Replica, inbox: CommandQueue, *, is_active: bool) -> dict[str, float]:
        """Return everything under its full name."""
        out = self.totals()
        for kind in subjects.COMMAND_KINDS:
            out[f'{_PREFIX}queue_depth{{kind="{kind}"}}'] = float(inbox.depth(kind))
        out[_PREFIX + "active"] = float(is_active)
        held = replica.state.reservations.by_job.values()
        out[_PREFIX + "reservations"] = float(len(held))
        out[_PREFIX + "nodes_held_back"] = float(
            sum(len(h.rows) for one in held for h in one.holds)
        )
        out[_PREFIX + "epoch"] = float(replica.chain.epoch)
        out["caravan_log_seq"] = float(replica.seq)
        out["caravan_log_foreign_total"] = float(replica.chain.foreign)
        out["caravan_log_fill_ratio"] = replica.room.share
        out["caravan_log_fill_alarm_info"] = float(replica.room.is_alarming)
        out[_PREFIX + "clock_off_seconds"] = self._clock_off_ns / 1e9
        out[_PREFIX + "clock_alarm"] = float(self._clock_off_ns > CLOCK_ALARM_NS)
        out[_PREFIX + "log_ahead_seconds"] = self._log_ahead_ns / 1e9
        return {**out, **self._durable.shown()}
