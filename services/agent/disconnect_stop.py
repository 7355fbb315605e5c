"""Stops allocations after a time without contact with the cluster (Nomad's stop_on_client_after).

Decides when an allocation ends for lack of contact, and how often the agent queries its projection so that a reachable
cluster answers in time. Any message from the bus counts as contact. Next: `node_reconciler.py`.
"""

from collections.abc import Callable

from services.agent.tasks.lifecycle import SILENCE
from services.agent.tasks.runtime_state import AllocRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.messages import SetTimer

#: How often an agent looks whether it missed a projection, without any sign of it; and at most.
POLL_NS = 30_000_000_000
POLL_MIN_NS = 1_000_000_000


class DisconnectStop:
    """When the cluster was last heard of. `keep` writes that to the journal."""

    def __init__(self, keep: Callable[[AgentStep], None]) -> None:
        self._keep = keep
        #: 0: never.
        self.heard_ns = 0
        self._kept_ns = 0
        self._due_ns = 0
        self._watched_allocs: dict[int, AllocRuntime] = {}

    def restore(self, heard_ns: int) -> None:
        """Take up what the journal has."""
        self.heard_ns = self._kept_ns = heard_ns

    def start_clock(self, turn: AgentStep) -> None:
        """Begin a life: silence counts from what was heard before, or from now."""
        self.heard_ns = self.heard_ns or turn.now_ns

    def watch(self, alloc: AllocRuntime) -> None:
        """Track an allocation with a new plan."""
        if alloc.plan is not None and alloc.plan.stop_after_silence_ns:
            self._watched_allocs[alloc.key] = alloc
        else:
            self._watched_allocs.pop(alloc.key, None)

    def kept_ns(self) -> int:
        """Time of the last contact for the journal; 0 while no allocation has a limit."""
        self._kept_ns = self.heard_ns if self._watched_allocs else 0
        return self._kept_ns

    def poll_interval_ns(self) -> int:
        """Pause before the next query of the projection: three within the shortest limit."""
        shortest = min(
            (_wait_ns(one) for one in self._watched_allocs.values()), default=3 * POLL_NS
        )
        return min(POLL_NS, max(shortest // 3, POLL_MIN_NS))

    def stop_overdue(self, supervisor: Supervisor, turn: AgentStep) -> None:
        """Stop the allocations whose limit is over."""
        if not self._watched_allocs:
            return
        for key in [key for key, one in self._watched_allocs.items() if one.end is not None]:
            del self._watched_allocs[key]
        if self.heard_ns >= self._kept_ns + POLL_MIN_NS:
            self._keep(turn)
        due_ns = 0
        for alloc in list(self._watched_allocs.values()):
            at_ns = self.heard_ns + _wait_ns(alloc)
            if turn.now_ns >= at_ns:
                text = f"no contact with the cluster for {_wait_ns(alloc) // 1_000_000_000} s"
                supervisor.stop(alloc, text, turn, cause=SILENCE)
            else:
                due_ns = min(due_ns or at_ns, at_ns)
        # A timer that fires too early, for something was heard meanwhile, sets the next one: fewer than contacts.
        if due_ns and not turn.now_ns < self._due_ns <= due_ns:
            self._due_ns = due_ns
            turn.act(SetTimer("silence", due_ns))


def _wait_ns(alloc: AllocRuntime) -> int:
    assert alloc.plan is not None
    return alloc.plan.stop_after_silence_ns
