"""Drives one role without a bus: its inbox, its wake-ups and its named timers, in virtual time.

Two subclasses perform effects: the simulated process, with connections, faults and restarts, and the role of the
engine, whose work takes virtual time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from shared.core.runtime import messages
from shared.core.runtime.role import Input
from shared.sim.virtual_time import VirtualLoop


class RoleDriver(ABC):
    """Collects inputs until the next step. A timer may fire late, never early."""

    def __init__(self, loop: VirtualLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        #: wall clock of the role, ns since 1970.
        self._clock = clock
        #: number of restarts; events scheduled before a restart are ignored.
        self.life = 0
        #: timers do not fire while the role is parked.
        self.is_parked = False
        self._begin_life()

    def _begin_life(self) -> None:
        """Forget all inputs and timers."""
        self.inbox: list[Input] = []
        #: name -> wall time it is set to.
        self.timers: dict[str, int] = {}
        #: name -> wall time of the newest loop event for it.
        self._armed: dict[str, int] = {}
        self._is_woken = False

    @abstractmethod
    def _wake_at(self) -> int:
        """Virtual time of the next step, called once per wake-up."""

    @abstractmethod
    def _step(self, life: int) -> None:
        """Let the role take its inputs, and perform its effects."""

    def accept(self, given: Input) -> None:
        """Put an input into the inbox, and wake the role."""
        self.inbox.append(given)
        self.wake()

    def wake(self) -> None:
        """Schedule the next step, unless it is scheduled."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.at(self._wake_at(), self._step, self.life)

    def set_timer(self, effect: messages.SetTimer) -> None:
        """Set or cancel a timer."""
        name, at_ns = effect.name, effect.at_ns
        if not at_ns:
            self.timers.pop(name, None)
        elif self.timers.get(name) != at_ns:
            self.timers[name] = at_ns
            self._arm(name, at_ns)

    def _arm(self, name: str, at_ns: int) -> None:
        if self._armed.get(name) != at_ns:
            self._armed[name] = at_ns
            wait_ns = max(at_ns - self._clock(), 0)
            self._loop.after(wait_ns, self._ring, self.life, name, at_ns)

    def _ring(self, life: int, name: str, at_ns: int) -> None:
        if life != self.life:
            return
        if self._armed.get(name) == at_ns:
            del self._armed[name]
        if self.timers.get(name) != at_ns or self.is_parked:
            return
        if self._clock() < at_ns:
            self._arm(name, at_ns)  # The clock was set back.
            return
        del self.timers[name]
        self.accept(messages.Timer(name, at_ns))
