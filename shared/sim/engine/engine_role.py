"""One role of the engine: how long it works on a step, and when its effects leave it.

`step` takes everything that arrived while the role was busy, in order. The cluster carries its effects.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.core.runtime import messages
from shared.core.runtime.role import Input, Role
from shared.sim.role_driver import RoleDriver
from shared.sim.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from shared.sim.engine.timed_decisions import TimedPlacement


class EngineRole(RoleDriver):
    """A role at work. The functions given are the cluster's, as one of its roles needs them."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        role: Role,
        *,
        wall: Callable[[], int],
        inputs_for: Callable[["EngineRole", list[Input]], list[Input]],
        cost_ns: Callable[["EngineRole", list[Input]], int],
        carry: Callable[["EngineRole", messages.Effect], None],
    ) -> None:
        super().__init__(loop, wall)
        self.name = name
        self.role = role
        self._inputs_for = inputs_for
        self._cost_ns = cost_ns
        self._carry = carry
        #: virtual time at which the last step is done.
        self.busy_ns = 0
        #: timer -> how much later than requested it fires.
        self.lateness: dict[str, int] = {}
        #: says whether no timer can change anything now; None: the role never parks.
        self.may_park: Callable[[], bool] | None = None
        #: seq of the next record to take.
        self.log_at = role.next_seq
        self.steps = 0
        self.cpu_ns = 0
        self.cpu_clock: Callable[[], int] | None = None
        self.deciding: TimedPlacement | None = None
        self._token = 0

    def hear(
        self, source: str, subject: str, data: bytes, *, reply: bool = False, msg_id: str = ""
    ) -> int:
        """Take a message; returns its token."""
        self._token += 1
        self.accept(messages.Message(source, subject, data, self._token, reply, 0, msg_id))
        return self._token

    def _wake_at(self) -> int:
        return self.busy_ns

    def _step(self, life: int) -> None:
        if life == self.life and self._is_woken:
            self.step_now()

    def step_now(self) -> None:
        """Step at once, busy or not: for a role whose work delays only its own effects."""
        self._is_woken = False
        clock = self.cpu_clock
        waiting, self.inbox = self.inbox, []
        inputs = self._inputs_for(self, waiting)
        began = clock() if clock is not None else 0
        effects = self.role.step(inputs, self._clock())
        if clock is not None:
            self.cpu_ns += clock() - began
        self.steps += 1
        cost = self._cost_ns(self, inputs)
        if cost:
            self.busy_ns = max(self.busy_ns, self._loop.now_ns) + cost
        carried = []
        for effect in effects:
            if type(effect) is messages.SetTimer:
                self.set_timer(effect)
            elif type(effect) is not messages.Ack:
                carried.append(effect)
        if carried:
            self._loop.at(self.busy_ns, self._perform, carried)
        if self.may_park is not None:
            self._park(parks=self.may_park())

    def _perform(self, effects: list[messages.Effect]) -> None:
        for effect in effects:
            self._carry(self, effect)

    # ---- timers ----

    def set_timer(self, effect: messages.SetTimer) -> None:
        """Set a timer, later by its lateness; a role that may park arms its timers after the step."""
        late_ns = self.lateness.get(effect.name, 0)
        if late_ns and effect.at_ns:
            effect = messages.SetTimer(effect.name, effect.at_ns + late_ns)
        super().set_timer(effect)

    def _park(self, *, parks: bool) -> None:
        """Leave timers unarmed while the role is idle, and arm them again when it is not."""
        self.is_parked = parks
        if not parks:
            for name, at_ns in self.timers.items():
                super()._arm(name, at_ns)

    def _arm(self, name: str, at_ns: int) -> None:
        if self.may_park is None:
            super()._arm(name, at_ns)
