"""Follows the health of the allocations of this node: looks when something changed or is due, journals and reports it.

Decides when health is looked at. Measures by the role's clock in steps of at most STEP_MAX_NS: a clock that is set
forward makes nothing healthy, and no deadline pass. Next: `health.py`, which decides.
"""

import heapq
from collections.abc import Iterable

import msgspec

from services.agent.reports import Reports
from services.agent.tasks.check_monitor import failing_checks
from services.agent.tasks.health import (
    UNHEALTHY,
    UNKNOWN,
    due_ns,
    is_decidable,
    late_tasks,
    next_health,
    shifted,
)
from services.agent.tasks.runtime_state import AllocRuntime, CheckState
from services.agent.tasks.supervisor import AgentStep
from shared.core.runtime.agent_messages import HealthKept
from shared.core.runtime.messages import SetTimer

#: The heartbeat wakes the agent each second: a longer gap between two steps does not count.
STEP_MAX_NS = 3_000_000_000
TIMER = "health"


class HealthMonitor:
    """The allocations whose health is not decided, and when each is looked at next."""

    def __init__(
        self,
        reports: Reports,
        allocs: dict[int, AllocRuntime],
        *,
        boot: str = "",
    ) -> None:
        self._reports = reports
        self._allocs = allocs
        #: boot of the machine's kernel; empty: not known.
        self._boot = boot
        self._last_ns = 0
        #: due times and keys; entries that no longer hold are skipped.
        self._due: list[tuple[int, int]] = []
        self._timer_ns = 0

    def restore(self, kept: HealthKept) -> None:
        """Take up what the journal has. After a boot of the machine, the clocks of what is not decided begin again."""
        alloc = self._allocs.get(kept.key)
        if alloc is None:
            return
        is_stale = kept.health == UNKNOWN and kept.boot != self._boot
        alloc.health = None if is_stale else kept
        if not is_stale:
            alloc.checks = {name: CheckState(status, 0) for name, status in kept.checks.items()}

    def update(self, changed: Iterable[int], turn: AgentStep) -> None:
        """Look at every allocation that changed or is due. Called once in each step, after all inputs."""
        now_ns, passed_ns = turn.now_ns, turn.now_ns - self._last_ns
        if self._last_ns and passed_ns > STEP_MAX_NS:
            self._jump(passed_ns - STEP_MAX_NS, turn)
        self._last_ns = now_ns
        keys = dict.fromkeys(changed)
        while self._due and self._due[0][0] <= now_ns:
            keys[heapq.heappop(self._due)[1]] = None
        for key in keys:
            alloc = self._allocs.get(key)
            if alloc is not None:
                self._look(alloc, turn)
        while self._due and not self._is_meant(*self._due[0]):
            heapq.heappop(self._due)
        self._arm(turn)

    # ---- inside ----

    def _look(self, alloc: AllocRuntime, turn: AgentStep) -> None:
        if not is_decidable(alloc):
            return
        before = alloc.health
        found = next_health(alloc, turn.now_ns, failing_checks(alloc))
        if found is None:
            return
        if found is not before:
            alloc.health = msgspec.structs.replace(found, boot=self._boot)
            turn.keep(alloc.health)
            if found.health == UNHEALTHY:
                for task in late_tasks(alloc):
                    task.note("Alloc Unhealthy", found.reason, turn.now_ns)
            if found.health != UNKNOWN or (before is not None and before.health != UNKNOWN):
                self._reports.touch(alloc.key)
        at_ns = due_ns(alloc)
        if at_ns > turn.now_ns:
            heapq.heappush(self._due, (at_ns, alloc.key))

    def _is_meant(self, at_ns: int, key: int) -> bool:
        alloc = self._allocs.get(key)
        return alloc is not None and due_ns(alloc) == at_ns

    def _jump(self, by_ns: int, turn: AgentStep) -> None:
        """Leave out time that did not pass."""
        self._due = []
        for alloc in self._allocs.values():
            if alloc.health is not None and is_decidable(alloc):
                alloc.health = shifted(alloc.health, by_ns)
                turn.keep(alloc.health)
                self._due.append((due_ns(alloc), alloc.key))
        heapq.heapify(self._due)

    def _arm(self, turn: AgentStep) -> None:
        at_ns = self._due[0][0] if self._due else 0
        if at_ns != self._timer_ns:
            self._timer_ns = at_ns
            turn.act(SetTimer(TIMER, at_ns))
