"""Counters: what a role has counted since the start of its process, shown as Prometheus counters.

Decides how a counter is named on the wire: prefix, name, `_total`. Must not know what is counted.
"""

from collections.abc import Iterable, Mapping


class Counters:
    """Sums by name, all 0 at first. `prefix`: what every metric of the role begins with, as `caravan_intake_`."""

    def __init__(self, prefix: str, names: Iterable[str]) -> None:
        self.prefix = prefix
        self._sums = dict.fromkeys(names, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count. Raises KeyError for a name that was not declared."""
        self._sums[name] += count

    def totals(self) -> dict[str, float]:
        """Return all sums under their full names, in the order in which they were declared."""
        return {f"{self.prefix}{name}_total": float(count) for name, count in self._sums.items()}

    def gauges(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return values of now under their full names."""
        return {self.prefix + name: float(value) for name, value in values.items()}
