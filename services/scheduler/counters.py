"""Metrics of a scheduler worker, with the meanings of nomad.worker.*.

`leases` is worker.dequeue_eval, `wait_seconds` worker.wait_for_index, `decided` worker.invoke_scheduler, `submitted`
worker.submit_plan. The shell times the decisions, because a role has no clock.
"""

from shared.core.runtime.counters import Counters
from shared.core.runtime.histogram import Histogram

_PREFIX = "caravan_scheduler_"


_NAMES = (
    "dead_messages",
    "evaluations_decided",
    "evaluations_failed",
    "leases_returned",
    "leases",
    "placements_proposed",
    "plans_cut",
    "plans_refused",
    "plans_resent",
    "plans_submitted",
)


class SchedulerCounters(Counters):
    """Sums since the start of the process, and how long leases waited."""

    def __init__(self) -> None:
        super().__init__(_PREFIX, _NAMES)
        self._wait = Histogram(_PREFIX + "wait_seconds")

    def waited(self, duration_ns: int) -> None:
        """Count how long a lease waited for the log to reach its seq."""
        self._wait.observe(duration_ns)

    def decided(self, placed: int) -> None:
        """Count an evaluation, and the allocations its plan places."""
        self.add("evaluations_decided")
        self.add("plans_submitted")
        self.add("placements_proposed", placed)

    def shown(self, gauges: dict[str, int]) -> dict[str, float]:
        """Return all sums and the given gauges under their full names."""
        return {**self.totals(), **self.gauges(gauges), **self._wait.shown()}
