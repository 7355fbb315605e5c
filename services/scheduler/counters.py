"""Metrics of a scheduler worker, with the meanings of nomad.worker.*.

`leases` is worker.dequeue_eval, `wait_seconds` worker.wait_for_index, `decided` worker.invoke_scheduler, `submitted`
worker.submit_plan. The shell times the decisions, because a role has no clock.
"""

from shared.core.runtime.histogram import Histogram

_PREFIX = "caravan_scheduler_"


class SchedulerCounters:
    """Sums since the start of the process."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(
            (
                "dead_messages_total",
                "evaluations_decided_total",
                "evaluations_failed_total",
                "leases_returned_total",
                "leases_total",
                "placements_proposed_total",
                "plans_cut_total",
                "plans_refused_total",
                "plans_resent_total",
                "plans_submitted_total",
            ),
            0,
        )

        self._wait = Histogram(_PREFIX + "wait_seconds")

    def waited(self, duration_ns: int) -> None:
        """Count how long a lease waited for the log to reach its seq."""
        self._wait.observe(duration_ns)

    def decided(self, placed: int) -> None:
        """Count an evaluation, and the allocations its plan places."""
        sums = self._sums
        sums["evaluations_decided_total"] += 1
        sums["plans_submitted_total"] += 1
        sums["placements_proposed_total"] += placed

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self._sums[name] += amount

    def shown(self, gauges: dict[str, int]) -> dict[str, float]:
        """Return all sums and the given gauges under their full names."""
        named = {_PREFIX + name: value for name, value in {**self._sums, **gauges}.items()}
        return {**named, **self._wait.shown()}
