"""Virtual time and random draws: one heap of events, and draws as hashes of a counter.

Events due at one instant happen in the order in which they were scheduled, so that a run is a pure function of its
seed.
"""

import heapq
from collections.abc import Callable

import numpy as np

from schemas.base import SECOND_NS
from shared.core.splitmix import splitmix64, splitmix64_array

#: Wall clock of every world at its start: 2026-01-01, ns since 1970.
START_NS = 1_767_225_600_000_000_000
MS = 1_000_000
SECOND = SECOND_NS
_AHEAD_MAX = 512
_MASK = (1 << 64) - 1


class RandomDraws:
    """Draws are hashes of a counter: the n-th draw of a seed is always the same."""

    __slots__ = ("_ahead", "_at", "_ready")

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._at = splitmix64(splitmix64(seed) ^ stream)
        #: the next draws, last first; hashed in blocks.
        self._ready: list[int] = []
        self._ahead = 8

    def bits(self) -> int:
        """Return 64 fresh bits."""
        if not self._ready:
            counters = np.arange(self._ahead, 0, -1, dtype=np.uint64) + np.uint64(self._at)
            self._ready = splitmix64_array(counters).tolist()
            self._at = (self._at + self._ahead) & _MASK
            self._ahead = min(self._ahead * 4, _AHEAD_MAX)
        return self._ready.pop()

    def below(self, limit: int) -> int:
        """Return an integer of [0, limit)."""
        return self.bits() % limit

    def between(self, low: int, high: int) -> int:
        """Return an integer of [low, high]."""
        return low + self.bits() % (high - low + 1)

    def hit(self, per_mille: int) -> bool:
        """Return true with a probability of `per_mille` / 1000."""
        return self.bits() % 1000 < per_mille


class VirtualLoop:
    """One heap of (instant, order, action). `now_ns` counts from 0 and is the true time."""

    __slots__ = ("_heap", "_order", "events", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = 0

    def at(self, at_ns: int, action: Callable[..., object], *args: object) -> None:
        """Call `action(*args)` at `at_ns`, or now if that is past."""
        self._order += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._order, action, args))

    def after(self, delay_ns: int, action: Callable[..., object], *args: object) -> None:
        """Call `action(*args)` in `delay_ns`."""
        self._order += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._order, action, args))

    def run(self, until_ns: int) -> None:
        """Run all events due up to `until_ns`."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, action, args = heapq.heappop(heap)
            self.events += 1
            action(*args)
        self.now_ns = max(self.now_ns, until_ns)


class SkewedClock:
    """The wall clock of one process: true time plus a skew, which a fault may change."""

    __slots__ = ("_loop", "skew_ns")

    def __init__(self, loop: VirtualLoop, skew_ns: int = 0) -> None:
        self._loop = loop
        self.skew_ns = skew_ns

    def read(self) -> int:
        """Return the wall clock of the process, ns since 1970."""
        return START_NS + self._loop.now_ns + self.skew_ns
