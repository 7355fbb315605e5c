"""Counters of the broker: names and meanings of its metrics.

Meanings follow nomad.broker.* and nomad.blocked_evals.*: ready may be leased now, unacked are leased, pending wait for
another evaluation of their job, waiting are delayed until a time, cancelable end without a plan, blocked wait for room.
"""

from schemas.base import EvalKey
from shared.core.runtime.counters import Counters
from shared.core.runtime.histogram import Histogram

_PREFIX = "caravan_eval_broker_"


class _RunLengthHistogram(Histogram):
    """A histogram of durations in which consecutive values are often equal: those of one step."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._equal_ns = 0
        self._equal = 0

    def observe(self, duration_ns: int, count: int = 1) -> None:
        """Count a duration; equal ones are added together when the value changes."""
        if duration_ns == self._equal_ns:
            self._equal += count
            return
        if self._equal:
            super().observe(self._equal_ns, self._equal)
        self._equal_ns, self._equal = duration_ns, count

    def shown(self) -> dict[str, float]:
        """Return the exposition, including the values not yet added."""
        if self._equal:
            super().observe(self._equal_ns, self._equal)
            self._equal = 0
        return super().shown()


_NAMES = (
    "dead_messages",
    "evaluations_failed",
    "leases_doubted",
    "leases_expired",
    "leases_reminded",
    "leases_returned",
    "leases",
    "plans_refused",
)


class BrokerCounters(Counters):
    """Sums since the start of the process, and what blocked evaluations request. Times are steady ns."""

    def __init__(self) -> None:
        super().__init__(_PREFIX, _NAMES)
        self._process = _RunLengthHistogram(_PREFIX + "process_seconds")
        self._wait = _RunLengthHistogram(_PREFIX + "wait_seconds")
        #: MHz and MiB.
        self._blocked: dict[EvalKey, tuple[int, int]] = {}
        self._blocked_sum = (0, 0)

    def clear(self) -> None:
        """Reset what belongs to evaluations: another broker acts, or this one starts to."""
        self._blocked = {}
        self._blocked_sum = (0, 0)

    def leased(self, waited_ns: list[int]) -> None:
        """Count leases: the time from being ready to being handed out (broker.wait_time)."""
        self.add("leases", len(waited_ns))
        for duration_ns in waited_ns:
            self._wait.observe(duration_ns)

    def ended(self, given_ns: int, now_ns: int) -> None:
        """Count the end of a leased evaluation: the time until the log shows the result (broker.process_time)."""
        self._process.observe(now_ns - given_ns)

    def blocked(self, key: EvalKey, cpu_mhz: int, memory_mib: int) -> None:
        """Count what an evaluation waits for (blocked_evals.cpu and .memory)."""
        self.unblocked(key)
        self._blocked[key] = (cpu_mhz, memory_mib)
        self._blocked_sum = (self._blocked_sum[0] + cpu_mhz, self._blocked_sum[1] + memory_mib)

    def unblocked(self, key: EvalKey) -> None:
        """Subtract what an evaluation waited for."""
        asked = self._blocked.pop(key, None)
        if asked is not None:
            cpu_mhz, memory_mib = self._blocked_sum
            self._blocked_sum = (cpu_mhz - asked[0], memory_mib - asked[1])

    def shown(self, gauges: dict[str, int]) -> dict[str, float]:
        """Return all sums and the given gauges under their full names."""
        blocked = {
            "blocked_cpu_mhz": self._blocked_sum[0],
            "blocked_memory_mib": self._blocked_sum[1],
        }
        named = self.gauges({**blocked, **gauges})
        return {**self.totals(), **named, **self._wait.shown(), **self._process.shown()}
