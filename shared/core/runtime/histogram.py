"""How long things took, counted in buckets: sums of whole nanoseconds, shown as a Prometheus histogram in seconds.

The bounds are the same for every duration, so that one dashboard reads all. Reads no clock: durations are arguments.
"""

from bisect import bisect_left

_MS = 1_000_000
#: Upper bounds. Units: nanoseconds.
BOUNDS_NS = tuple(
    n * _MS for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
)


class Histogram:
    """Durations since the start of the process. `name`: full, ends in `_seconds`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts = [0] * (len(BOUNDS_NS) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int, count: int = 1) -> None:
        """Count one, or so many equal ones; a clock that ran back counts as nothing."""
        duration_ns = max(duration_ns, 0)
        self._counts[bisect_left(BOUNDS_NS, duration_ns)] += count
        self._sum_ns += duration_ns * count

    def shown(self) -> dict[str, float]:
        """Return `_bucket{le=}` (cumulative, rising), `_sum` in seconds and `_count`."""
        out: dict[str, float] = {}
        total = 0
        for bound_ns, count in zip(BOUNDS_NS, self._counts, strict=False):
            total += count
            out[f'{self.name}_bucket{{le="{bound_ns / 1e9:g}"}}'] = total
        total += self._counts[-1]
        out[f'{self.name}_bucket{{le="+Inf"}}'] = total
        out[f"{self.name}_sum"] = self._sum_ns / 1e9
        out[f"{self.name}_count"] = total
        return out
