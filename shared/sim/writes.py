"""What a process writes and asks, and the one answer that each gets: appends, last values, requests.

Decides how an answer goes missing or comes late, by the weather. Must not know what is written. Beside it:
`process.py`, whose life and connection an answer must still find.
"""

from typing import NamedTuple, Protocol

from shared.core import role, tasks
from shared.sim.bus import Bus
from shared.sim.loop import MS, Draws
from shared.sim.weather import Weather

#: The shell says that it does not know after so long.
APPEND_TIMEOUT_NS = 400 * MS


class Writing(Protocol):
    """What is known of the process that writes."""

    life: int
    session: int
    is_connected: bool

    def take(self, life: int, given: role.Input) -> None:
        """Take an input for the life it was meant for."""
        ...


class _Flight(NamedTuple):
    """An append on its way, and the life and connection that wait for its answer."""

    life: int
    session: int
    number: int
    boot: int
    effect: role.Append
    is_ack_lost: bool


class Writer:
    """Appends, one at a time, and puts of one life of a process."""

    def __init__(self, process: Writing, bus: Bus, weather: Weather, draws: Draws) -> None:
        self.is_appending = False
        self._process = process
        self._bus = bus
        self._weather = weather
        self._draws = draws
        self._number = 0

    # ---- the log ----

    def append(self, effect: role.Append) -> None:
        """Append; Appended, AppendRefused or AppendUnknown answers it."""
        process, weather, loop = self._process, self._weather, self._bus.loop
        self.is_appending = True
        self._number += 1
        fate = weather.append() if process.is_connected else ""
        flight = _Flight(
            life=process.life,
            session=process.session,
            number=self._number,
            boot=self._bus.boot,
            effect=effect,
            is_ack_lost=fate == "ack_lost",
        )
        loop.after(APPEND_TIMEOUT_NS, self._answer, flight, role.AppendUnknown())
        if process.is_connected and fate != "append_lost":
            delay = weather.calm_hop()
            if fate == "append_late":
                delay += APPEND_TIMEOUT_NS + self._draws.below(300 * MS)
            loop.after(delay, self._append_at_bus, flight)

    def _append_at_bus(self, flight: _Flight) -> None:
        bus, effect = self._bus, flight.effect
        if not bus.is_up or bus.boot != flight.boot:
            return
        answer: role.Input
        if bus.loop.now_ns < bus.log.full_until_ns:
            answer = role.AppendRefused("maximum bytes exceeded", full=True)
        else:
            seq = bus.log.append(effect.kind, effect.data, effect.expected_seq, effect.msg_id)
            answer = role.Appended(seq or 0)
            if seq is None:
                answer = role.AppendRefused("wrong last sequence")
        if not flight.is_ack_lost and flight.session == self._process.session:
            flush = self._weather.calm_hop() + self._draws.below(2 * MS)
            bus.loop.after(flush, self._answer, flight, answer)

    def roll(self, effect: role.Roll) -> None:
        """Make a generation ready; an answer that goes missing is none."""
        flight = (self._bus.boot, self._process.life)
        self._bus.loop.after(self._weather.calm_hop(), self._roll_at_bus, flight, effect)

    def _roll_at_bus(self, flight: tuple[int, int], effect: role.Roll) -> None:
        bus, (boot, life) = self._bus, flight
        if bus.is_up and bus.boot == boot and self._process.is_connected:
            ready = role.RollReady(bus.log.prepare(effect.first_seq), effect.first_seq)
            if not self._weather.put_is_lost():
                bus.loop.after(self._weather.calm_hop(), self._process.take, life, ready)

    def _answer(self, flight: _Flight, answer: role.Input) -> None:
        if flight.number != self._number or not self.is_appending:
            return
        if flight.session != self._process.session and not isinstance(answer, role.AppendUnknown):
            return
        self.is_appending = False
        self._process.take(flight.life, answer)

    # ---- last values ----

    def put(self, effect: role.Put) -> None:
        """Store a last value; PutDone or PutRefused answers it."""
        flight = (self._bus.boot, self._process.life)
        self._bus.loop.after(self._weather.calm_hop(), self._put_at_bus, flight, effect)

    def _put_at_bus(self, flight: tuple[int, int], effect: role.Put) -> None:
        bus, (boot, life) = self._bus, flight
        answer: role.Input = role.PutRefused(effect.subject, 0, b"")
        delay = APPEND_TIMEOUT_NS
        alive = life == self._process.life and self._process.is_connected
        if bus.is_up and bus.boot == boot and alive:
            done, value = bus.put(effect.subject, effect.data, effect.expected, effect.ttl_s)
            if not self._weather.put_is_lost():
                delay = self._weather.calm_hop()
                answer = role.PutRefused(effect.subject, value.seq, value.data)
                if done:
                    answer = role.PutDone(effect.subject, value.seq)
        bus.loop.after(delay, self._process.take, life, answer)


class Asked:
    """One request of an agent, answered once."""

    def __init__(self, process: Writing, name: str) -> None:
        self._process = process
        self._life = process.life
        self._name = name
        self._is_open = True

    def answer(self, data: bytes | None) -> None:
        """Hand the first answer in."""
        if self._is_open:
            self._is_open = False
            given = tasks.Answer(name=self._name, data=data)
            self._process.take(self._life, given)
