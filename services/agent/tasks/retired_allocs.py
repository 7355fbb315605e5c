"""Allocations of this node that ended, are in the log, and are wanted no more: only their directories are left.

Decides how long these stay: those of the newest few, so that their logs can be read, and for a while those whose data
may move to another node. Pure.
"""

from collections.abc import Container

from services.agent.tasks.runtime_state import AllocRuntime

#: A replacement on another node fetches the data within this time; restarts of the agent begin it anew.
FETCH_NS = 15 * 60 * 1_000_000_000


class RetiredAllocs:
    """Oldest first. `kept_max`: how many stay; as many again may stay for their data alone."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        #: key -> shown id, and until when its data may be fetched; 0: it moves nowhere.
        self._rows: dict[int, tuple[str, int]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def keys(self) -> Container[int]:
        """Return the keys of all."""
        return frozenset(self._rows)

    def add(self, alloc: AllocRuntime, now_ns: int) -> None:
        """Take an allocation that is over."""
        moves = alloc.plan is not None and alloc.plan.migrates
        self._rows[alloc.key] = (alloc.desired.alloc_id, now_ns + FETCH_NS if moves else 0)

    def take_surplus(self, now_ns: int) -> list[tuple[int, str]]:
        """Take out those whose directories go now, as (key, shown id)."""
        surplus = len(self._rows) - self._kept_max
        found: list[tuple[int, str]] = []
        for at, (key, (alloc_id, until_ns)) in enumerate(list(self._rows.items())):
            if at >= surplus:
                break
            if until_ns <= now_ns or surplus - len(found) > self._kept_max:
                found.append((key, alloc_id))
                del self._rows[key]
        return found
