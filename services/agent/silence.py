"""How long the cluster was not heard of, and who minds (Nomad's stop_on_client_after).

Decides when an allocation that asks for it ends because of a silence, and how often an agent has to ask so that a
cluster that is there is heard. Must not know the bus: anything that came from it counts. Next: `desired.py`.
"""

from collections.abc import Callable

from services.agent.lifecycle import SILENCE
from services.agent.supervise import Supervisor, Turn
from services.agent.workload import Alloc
from shared.core.role import SetTimer

#: How often an agent looks whether it missed a projection, without any sign of it; and at most.
LOOK_NS = 30_000_000_000
LOOK_MIN_NS = 1_000_000_000


class Silence:
    """When the cluster was last heard of. `keep` writes that to the journal."""

    def __init__(self, keep: Callable[[Turn], None]) -> None:
        self._keep = keep
        #: 0: never.
        self.heard_ns = 0
        self._kept_ns = 0
        self._due_ns = 0
        self._minders: dict[int, Alloc] = {}

    def restore(self, heard_ns: int) -> None:
        """Take up what the journal has."""
        self.heard_ns = self._kept_ns = heard_ns

    def wake(self, turn: Turn) -> None:
        """Begin a life: silence counts from what was heard before, or from now."""
        self.heard_ns = self.heard_ns or turn.now_ns

    def watch(self, alloc: Alloc) -> None:
        """Take note of an allocation whose plan is new."""
        if alloc.plan is not None and alloc.plan.stop_after_silence_ns:
            self._minders[alloc.key] = alloc
        else:
            self._minders.pop(alloc.key, None)

    def kept_ns(self) -> int:
        """Say what of it the journal shall have: nothing where nobody minds."""
        self._kept_ns = self.heard_ns if self._minders else 0
        return self._kept_ns

    def look_pause_ns(self) -> int:
        """How long to wait before the next look: who minds silence has three in its time."""
        shortest = min((_wait_ns(one) for one in self._minders.values()), default=3 * LOOK_NS)
        return min(LOOK_NS, max(shortest // 3, LOOK_MIN_NS))

    def mind(self, supervisor: Supervisor, turn: Turn) -> None:
        """End who asks to be ended after so long a silence."""
        if not self._minders:
            return
        for key in [key for key, one in self._minders.items() if one.end is not None]:
            del self._minders[key]
        if self.heard_ns >= self._kept_ns + LOOK_MIN_NS:
            self._keep(turn)
        due_ns = 0
        for alloc in list(self._minders.values()):
            at_ns = self.heard_ns + _wait_ns(alloc)
            if turn.now_ns >= at_ns:
                text = f"the cluster was not heard of for {_wait_ns(alloc) // 1_000_000_000} s"
                supervisor.stop(alloc, text, turn, cause=SILENCE)
            else:
                due_ns = min(due_ns or at_ns, at_ns)
        # A timer that fires too early, for something was heard meanwhile, sets the next one: fewer than contacts.
        if due_ns and not turn.now_ns < self._due_ns <= due_ns:
            self._due_ns = due_ns
            turn.act(SetTimer("silence", due_ns))


def _wait_ns(alloc: Alloc) -> int:
    assert alloc.plan is not None
    return alloc.plan.stop_after_silence_ns
