"""One role in virtual time: its inbox, its timers, when it is busy, and what becomes of its effects.

Keeps the promises of shared/core/role.py: `step` gets what came while the role was busy, in order; timers are named and
fire late, never early. Must not know what a role decides. Beside it: `cluster.py`, which carries messages.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from shared.core import role
from shared.sim.loop import Loop

if TYPE_CHECKING:
    from shared.sim.engine.deciding import Deciding


class Site(Protocol):
    """What surrounds an actor."""

    loop: Loop

    def wall(self) -> int:
        """Wall clock now, ns since 1970."""
        ...

    def records_for(self, actor: "Actor") -> list[role.Input]:
        """Return the records that came since the actor's last step."""
        ...

    def before_step(self, actor: "Actor", inputs: list[role.Input]) -> None:
        """Look at what an actor is about to take, and put before it what it would have heard meanwhile."""
        ...

    def cost_ns(self, actor: "Actor", inputs: list[role.Input]) -> int:
        """How long the step that just happened took."""
        ...

    def carry(self, actor: "Actor", effect: role.Effect) -> None:
        """Perform an effect."""
        ...


class Actor:
    """A role at work."""

    def __init__(self, site: Site, name: str, one: role.Role) -> None:
        self.name = name
        self.role = one
        self._site = site
        self._loop = site.loop
        self.inbox: list[role.Input] = []
        self._is_woken = False
        #: until when it works on its last step.
        self.busy_ns = 0
        #: name -> wall time it is set to.
        self.timers: dict[str, int] = {}
        #: name -> how much later than asked a timer fires.
        self.lateness: dict[str, int] = {}
        #: says whether nothing that a timer is set to would change anything now.
        self.parks: Callable[[], bool] | None = None
        self.is_parked = False
        self._armed: dict[str, int] = {}
        #: seq of the next record to take.
        self.log_at = one.next_seq
        self.steps = 0
        self.cpu_ns = 0
        self.cpu_clock: Callable[[], int] | None = None
        self.deciding: Deciding | None = None
        self._token = 0

    def take(self, given: role.Input) -> None:
        """Take an input."""
        self.inbox.append(given)
        self.wake()

    def hear(
        self, source: str, subject: str, data: bytes, *, reply: bool = False, msg_id: str = ""
    ) -> int:
        """Take a message; returns its token."""
        self._token += 1
        self.take(role.Message(source, subject, data, self._token, reply, 0, msg_id))
        return self._token

    def wake(self) -> None:
        """Step as soon as the last one is over."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.at(self.busy_ns, self._step)

    def _step(self) -> None:
        if self._is_woken:
            self.step_now()

    def step_now(self) -> None:
        """Step at once, whatever it works on: for a role whose work delays only what it sends."""
        self._is_woken = False
        site, clock = self._site, self.cpu_clock
        inputs = site.records_for(self)
        inputs += self.inbox
        self.inbox = []
        site.before_step(self, inputs)
        began = clock() if clock is not None else 0
        effects = self.role.step(inputs, site.wall())
        if clock is not None:
            self.cpu_ns += clock() - began
        self.steps += 1
        cost = site.cost_ns(self, inputs)
        if cost:
            self.busy_ns = max(self.busy_ns, self._loop.now_ns) + cost
        carried = []
        for effect in effects:
            if type(effect) is role.SetTimer:
                self._set(effect)
            elif type(effect) is not role.Ack:
                carried.append(effect)
        if carried:
            self._loop.at(self.busy_ns, self._perform, carried)
        if self.parks is not None:
            self._park(parks=self.parks())

    def _perform(self, effects: list[role.Effect]) -> None:
        for effect in effects:
            self._site.carry(self, effect)

    # ---- timers ----

    def _set(self, effect: role.SetTimer) -> None:
        name, at_ns = effect.name, effect.at_ns
        if not at_ns:
            self.timers.pop(name, None)
            return
        at_ns += self.lateness.get(name, 0)
        if self.timers.get(name) != at_ns:
            self.timers[name] = at_ns
            if self.parks is None:
                self._arm(name, at_ns)

    def _park(self, *, parks: bool) -> None:
        """Leave timers be while nothing depends on them, and let them fire again once something does."""
        self.is_parked = parks
        if not parks:
            for name, at_ns in self.timers.items():
                self._arm(name, at_ns)

    def _arm(self, name: str, at_ns: int) -> None:
        if self._armed.get(name) != at_ns:
            self._armed[name] = at_ns
            wait_ns = max(at_ns - self._site.wall(), 0)
            self._loop.after(wait_ns, self._ring, name, at_ns)

    def _ring(self, name: str, at_ns: int) -> None:
        if self._armed.get(name) == at_ns:
            del self._armed[name]
        if self.timers.get(name) == at_ns and not self.is_parked:
            del self.timers[name]
            self.take(role.Timer(name, at_ns))
