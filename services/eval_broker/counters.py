"""What the broker counts: names and meanings of its metrics. Must not know why anything happened.

Meanings follow nomad.broker.* and nomad.blocked_evals.*: ready may be leased now, unacked are leased, pending wait for
another evaluation of their job, waiting sleep until a time, cancelable shall end without a plan, blocked wait for room.
"""

from services.eval_broker.workers import Held

_PREFIX = "caravan_eval_broker_"


class Counters:
    """Sums since the start of the process."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(
            (
                "dead_messages_total",
                "evaluations_failed_total",
                "leases_expired_total",
                "leases_reminded_total",
                "leases_returned_total",
                "leases_total",
                "plans_refused_total",
                "process_count",
                "process_seconds_sum",
            ),
            0,
        )

    def add(self, name: str, count: int = 1) -> None:
        """Count."""
        self._sums[name] += count

    def leased(self, held: Held, now_ns: int) -> None:
        """Count a lease whose evaluation ended: the time from handing out to the log's word (broker.process_time)."""
        self._sums["process_count"] += 1
        self._sums["process_seconds_sum"] += max(now_ns - held.given_ns, 0) / 1e9

    def shown(self, gauges: dict[str, int]) -> dict[str, float]:
        """Return all sums and the given gauges under their full names."""
        return {_PREFIX + name: value for name, value in {**self._sums, **gauges}.items()}
