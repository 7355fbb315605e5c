"""Writes and requests of a simulated process, each with exactly one answer: appends, last values, requests.

Answers are lost or delayed by message_faults.py, and must find the life and connection that asked.
"""

from typing import NamedTuple, Protocol

from shared.core.runtime import agent_messages, messages
from shared.core.runtime.role import Input
from shared.sim.environment.memory_bus import MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.virtual_time import MS, RandomDraws

#: Time after which the shell reports an unknown outcome.
APPEND_TIMEOUT_NS = 400 * MS


class WritingProcess(Protocol):
    """The writing process."""

    life: int
    session: int
    is_connected: bool

    def take(self, life: int, given: Input) -> None:
        """Take an input for the life it was meant for."""
        ...


class _InFlightAppend(NamedTuple):
    """An append in flight, with the life and connection that wait for its answer."""

    life: int
    session: int
    number: int
    boot: int
    effect: messages.Append
    is_ack_lost: bool


class ProcessWriter:
    """Appends (one at a time) and puts of one life of a process."""

    def __init__(
        self,
        process: WritingProcess,
        bus: MemoryBus,
        message_faults: MessageFaults,
        draws: RandomDraws,
    ) -> None:
        self.is_appending = False
        self._process = process
        self._bus = bus
        self._message_faults = message_faults
        self._draws = draws
        self._number = 0

    # ---- the log ----

    def append(self, effect: messages.Append) -> None:
        """Append; Appended, AppendRefused or AppendUnknown answers it."""
        process, message_faults, loop = self._process, self._message_faults, self._bus.loop
        self.is_appending = True
        self._number += 1
        fault = message_faults.append() if process.is_connected else ""
        flight = _InFlightAppend(
            life=process.life,
            session=process.session,
            number=self._number,
            boot=self._bus.boot,
            effect=effect,
            is_ack_lost=fault == "ack_lost",
        )
        loop.after(APPEND_TIMEOUT_NS, self._answer, flight, messages.AppendUnknown())
        if process.is_connected and fault != "append_lost":
            delay = message_faults.reliable_hop()
            if fault == "append_late":
                delay += APPEND_TIMEOUT_NS + self._draws.below(300 * MS)
            loop.after(delay, self._append_at_bus, flight)

    def _append_at_bus(self, flight: _InFlightAppend) -> None:
        bus, effect = self._bus, flight.effect
        if not bus.is_up or bus.boot != flight.boot:
            return
        answer: Input
        if bus.loop.now_ns < bus.log.full_until_ns:
            answer = messages.AppendRefused("maximum bytes exceeded", full=True)
        else:
            seq = bus.log.append(effect.kind, effect.data, effect.expected_seq, effect.msg_id)
            answer = messages.Appended(seq or 0)
            if seq is None:
                answer = messages.AppendRefused("wrong last sequence")
        if not flight.is_ack_lost and flight.session == self._process.session:
            flush = self._message_faults.reliable_hop() + self._draws.below(2 * MS)
            bus.loop.after(flush, self._answer, flight, answer)

    def roll(self, effect: messages.Roll) -> None:
        """Prepare a generation; the answer may be lost."""
        flight = (self._bus.boot, self._process.life)
        self._bus.loop.after(self._message_faults.reliable_hop(), self._roll_at_bus, flight, effect)

    def _roll_at_bus(self, flight: tuple[int, int], effect: messages.Roll) -> None:
        bus, (boot, life) = self._bus, flight
        if bus.is_up and bus.boot == boot and self._process.is_connected:
            ready = messages.RollReady(bus.log.prepare(effect.first_seq), effect.first_seq)
            if not self._message_faults.put_is_lost():
                bus.loop.after(self._message_faults.reliable_hop(), self._process.take, life, ready)

    def _answer(self, flight: _InFlightAppend, answer: Input) -> None:
        if flight.number != self._number or not self.is_appending:
            return
        if flight.session != self._process.session and not isinstance(
            answer, messages.AppendUnknown
        ):
            return
        self.is_appending = False
        self._process.take(flight.life, answer)

    # ---- last values ----

    def put(self, effect: messages.Put) -> None:
        """Store a last value; PutDone or PutRefused answers it."""
        flight = (self._bus.boot, self._process.life)
        self._bus.loop.after(self._message_faults.reliable_hop(), self._put_at_bus, flight, effect)

    def _put_at_bus(self, flight: tuple[int, int], effect: messages.Put) -> None:
        bus, (boot, life) = self._bus, flight
        answer: Input = messages.PutRefused(effect.subject, 0, b"")
        delay = APPEND_TIMEOUT_NS
        alive = life == self._process.life and self._process.is_connected
        if bus.is_up and bus.boot == boot and alive:
            done, value = bus.put(effect.subject, effect.data, effect.expected, effect.ttl_s)
            if not self._message_faults.put_is_lost():
                delay = self._message_faults.reliable_hop()
                answer = messages.PutRefused(effect.subject, value.seq, value.data)
                if done:
                    answer = messages.PutDone(effect.subject, value.seq)
        bus.loop.after(delay, self._process.take, life, answer)


class ScriptedRequest:
    """One request of an agent, answered once."""

    def __init__(self, process: WritingProcess, name: str) -> None:
        self._process = process
        self._life = process.life
        self._name = name
        self._is_open = True

    def answer(self, data: bytes | None) -> None:
        """Take the first answer."""
        if self._is_open:
            self._is_open = False
            given = agent_messages.Answer(name=self._name, data=data or None, is_empty=data == b"")
            self._process.take(self._life, given)
