"""What the broker counts: names and meanings of its metrics. Must not know why anything happened.

Meanings follow nomad.broker.* and nomad.blocked_evals.*: ready may be leased now, unacked are leased, pending wait for
another evaluation of their job, waiting sleep until a time, cancelable shall end without a plan, blocked wait for room.
"""

from schemas.base import EvalKey
from services.eval_broker.workers import Held
from shared.core.histogram import Histogram

_PREFIX = "caravan_eval_broker_"


class Counters:
    """Sums since the start of the process, and what blocked evaluations ask for. Times are steady ns."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(
            (
                "dead_messages_total",
                "evaluations_failed_total",
                "leases_doubted_total",
                "leases_expired_total",
                "leases_reminded_total",
                "leases_returned_total",
                "leases_total",
                "plans_refused_total",
            ),
            0,
        )
        self._process = Histogram(_PREFIX + "process_seconds")
        self._wait = Histogram(_PREFIX + "wait_seconds")
        self._ready_ns: dict[EvalKey, int] = {}
        #: MHz and MiB.
        self._blocked: dict[EvalKey, tuple[int, int]] = {}
        self._blocked_sum = (0, 0)

    def clear(self) -> None:
        """Forget what hangs on evaluations: another broker acts, or this one starts to."""
        self._ready_ns = {}
        self._blocked = {}
        self._blocked_sum = (0, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count."""
        self._sums[name] += count

    def ready(self, key: EvalKey, now_ns: int) -> None:
        """Take note that an evaluation may be leased from now on."""
        self._ready_ns[key] = now_ns

    def leased(self, keys: list[EvalKey], now_ns: int) -> None:
        """Count leases: the time from being ready to being handed out (broker.wait_time)."""
        self._sums["leases_total"] += len(keys)
        for key in keys:
            self._wait.observe(now_ns - self._ready_ns.pop(key, now_ns))

    def ended(self, key: EvalKey, held: Held | None, now_ns: int) -> None:
        """Count an end: the time from handing out to the log's word (broker.process_time)."""
        self._ready_ns.pop(key, None)
        if held is not None:
            self._process.observe(now_ns - held.given_ns)

    def blocked(self, key: EvalKey, cpu_mhz: int, memory_mib: int) -> None:
        """Count what an evaluation waits for (blocked_evals.cpu and .memory)."""
        self.unblocked(key)
        self._blocked[key] = (cpu_mhz, memory_mib)
        self._blocked_sum = (self._blocked_sum[0] + cpu_mhz, self._blocked_sum[1] + memory_mib)

    def unblocked(self, key: EvalKey) -> None:
        """Take it away again."""
        cpu_mhz, memory_mib = self._blocked.pop(key, (0, 0))
        self._blocked_sum = (self._blocked_sum[0] - cpu_mhz, self._blocked_sum[1] - memory_mib)

    def shown(self, gauges: dict[str, int]) -> dict[str, float]:
        """Return all sums and the given gauges under their full names."""
        blocked = {
            "blocked_cpu_mhz": self._blocked_sum[0],
            "blocked_memory_mib": self._blocked_sum[1],
        }
        shown = {**self._sums, **blocked, **gauges}
        named = {_PREFIX + name: float(value) for name, value in shown.items()}
        return {**named, **self._wait.shown(), **self._process.shown()}
