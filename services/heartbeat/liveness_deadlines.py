"""Silence: since when which node was not heard, and which of the silent may be declared down now.

Decides deadlines, grace and pace. Independent of messages, commands and the log; a node is a row here. The monitor's
own silence is not the node's: `reset_deadlines` gives every node a fresh deadline. When many fall silent at once the
cause is more likely here, or between, than in each of them: it waits three heartbeats more, then declares at a bounded
pace.

Columns, one scan: a hundred thousand nodes are looked at in some hundred microseconds.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import SECOND_NS
from schemas.nodes import HEARTBEAT_NS

NodeRows = NDArray[np.int64]


class LivenessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When silence becomes absence."""

    heartbeat_ns: int = HEARTBEAT_NS
    #: how late a heartbeat may come and not be missed.
    late_ns: int = SECOND_NS // 4
    #: time for a node to be heard again after this monitor started or reconnected: an agent whose machine or bus
    #: restarts beside it needs several seconds, and to replace tasks that still run is worse than to be late.
    grace_ns: int = 10 * SECOND_NS
    #: more than this part of the fleet at once (and at least `mass_nodes`) is a mass silence.
    mass_pct: int = 20
    mass_nodes: int = 3
    #: heartbeats to wait for in a mass silence, and nodes declared a second after that.
    mass_heartbeats: int = 3
    mass_nodes_per_s: int = 50
    #: an undelivered command is sent again.
    resend_ns: int = SECOND_NS // 2


class LivenessDeadlines:
    """Deadlines of all rows."""

    def __init__(self, settings: LivenessSettings, missed: int) -> None:
        self._settings = settings
        #: from a heartbeat to absence.
        self._down_after_ns = 0
        self.set_missed_limit(missed)
        #: (N,) time at which a row counts as silent.
        self._deadline = np.zeros(0, dtype=np.int64)
        #: (N,) when to ask again for a row that was declared; 0: it was not.
        self._again = np.zeros(0, dtype=np.int64)
        #: declared lately: time and how many.
        self._declared: list[tuple[int, int]] = []
        #: a mass silence: end of the extra wait; 0: none.
        self.mass_silence_until_ns = 0
        #: nodes that may be declared, in 1/SECOND_NS of a node.
        self._allowed = 0
        self._paced_ns = 0

    def set_missed_limit(self, missed: int) -> None:
        """Let a node be absent once so many of its heartbeats in a row did not come; deadlines that run stay."""
        own = self._settings
        self._down_after_ns = missed * own.heartbeat_ns + own.late_ns

    def grow(self, size: int) -> None:
        """Have room for `size` rows."""
        if size > len(self._deadline):
            room = max(64, 2 * size)
            for name in ("_deadline", "_again"):
                column = np.zeros(room, dtype=np.int64)
                old = getattr(self, name)
                column[: len(old)] = old
                setattr(self, name, column)

    def heard(self, rows: NodeRows, now_ns: int) -> None:
        """Record presence messages."""
        self._deadline[rows] = now_ns + self._down_after_ns
        self._again[rows] = 0

    def reset_deadlines(self, now_ns: int, grace_ns: int = 0) -> None:
        """Start every deadline again after missed messages. `grace_ns`: the least time until the next one."""
        fresh = now_ns + max(self._down_after_ns, grace_ns)
        np.maximum(self._deadline, fresh, out=self._deadline)
        self._again[:] = 0
        self._declared.clear()
        self.mass_silence_until_ns = 0

    def scan(self, up: NDArray[np.bool_], now_ns: int) -> NodeRows:
        """Name the rows to be declared down now, resends included, in order. `up`: (N,) rows that count as up."""
        size = len(up)
        silent = up & (self._deadline[:size] <= now_ns)
        if not silent.any():
            self.mass_silence_until_ns = 0
            return np.zeros(0, dtype=np.int64)
        again = self._again[:size]
        fresh = np.flatnonzero(silent & (again == 0))
        resend = np.flatnonzero(silent & (again > 0) & (again <= now_ns))
        fresh = fresh[: self._pace(len(fresh), int(np.count_nonzero(up)), now_ns)]
        if len(fresh):
            self._declared.append((now_ns, len(fresh)))
        rows = np.sort(np.concatenate([fresh, resend]))
        again[rows] = now_ns + self._settings.resend_ns
        return rows

    def shown(self, rows: NodeRows) -> None:
        """Record that the log shows some of those declared at one time: the rest is due now.

        One transaction had no room for all. Nodes waiting only for this may be declared immediately.
        """
        asked_ns = self._again[rows[rows < len(self._again)]]
        self._again[np.isin(self._again, asked_ns[asked_ns > 0])] = 1

    def hurry(self) -> None:
        """Make every row that was declared, and is not shown, due with the next scan."""
        self._again[self._again > 0] = 1

    def still(self, among: NDArray[np.bool_], now_ns: int) -> NodeRows:
        """Name those of these rows that are silent past their deadline. Shape: among (N,)."""
        return np.flatnonzero(among & (self._deadline[: len(among)] <= now_ns))

    def _pace(self, fresh: int, up: int, now_ns: int) -> int:
        """Return how many of `fresh` silent rows may be declared now."""
        own = self._settings
        if not fresh:
            return 0
        if not self.mass_silence_until_ns:
            since = now_ns - self._down_after_ns
            self._declared = [one for one in self._declared if one[0] > since]
            silent = fresh + sum(count for _, count in self._declared)
            fleet = up + sum(count for _, count in self._declared)
            if silent < own.mass_nodes or silent * 100 <= fleet * own.mass_pct:
                return fresh
            self.mass_silence_until_ns = now_ns + own.mass_heartbeats * own.heartbeat_ns
            self._paced_ns = self.mass_silence_until_ns
            self._allowed = 0
        if now_ns < self.mass_silence_until_ns:
            return 0
        passed = min(now_ns - self._paced_ns, SECOND_NS)
        self._paced_ns = now_ns
        self._allowed = min(
            self._allowed + passed * own.mass_nodes_per_s, own.mass_nodes_per_s * SECOND_NS
        )
        count = min(fresh, self._allowed // SECOND_NS)
        self._allowed -= count * SECOND_NS
        return count
