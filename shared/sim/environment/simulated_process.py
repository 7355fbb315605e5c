"""One simulated process: a shell that collects inputs, calls `step`, and performs effects on the in-memory bus.

It keeps the promises of shared/core/runtime/messages.py and nothing more. The effects of an agent on its node are
performed by simulated_node.py, through `perform_task`.
"""

from collections.abc import Callable
from typing import Protocol

from shared.core.runtime import agent_messages, messages
from shared.core.runtime.role import Input, Role
from shared.sim.environment.memory_bus import Delivery, MemoryBus
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.process_writes import ProcessWriter, ScriptedRequest
from shared.sim.role_driver import RoleDriver
from shared.sim.virtual_time import MS, SECOND, RandomDraws, SkewedClock, VirtualLoop

RENEW_NS = 500 * MS
COMPETE_NS = 250 * MS
#: A holder that cannot renew for this long steps down, before its lease on the bus expires.
RENEW_LOST_NS = 1_500 * MS
_RECONNECT_NS = 40 * MS
_STEP_DELAY_MASK = 0xFFFFF


class ProcessObserver(Protocol):
    """Observes a process: the oracle and the trace."""

    def stepped(
        self,
        process: "SimulatedProcess",
        inputs: list[Input],
        effects: list[messages.Effect],
    ) -> None:
        """Called after a step, before its effects are performed."""
        ...

    def ended(self, process: "SimulatedProcess", reason: str, *, raised: bool) -> None:
        """Called when a role stopped its process, or raised."""
        ...


class SimulationContext:
    """The objects that all processes of a world share."""

    def __init__(
        self, loop: VirtualLoop, bus: MemoryBus, message_faults: MessageFaults, draws: RandomDraws
    ) -> None:
        self.loop = loop
        self.bus = bus
        self.message_faults = message_faults
        self.draws = draws
        self.observer: ProcessObserver | None = None


class SimulatedProcess(RoleDriver):
    """A process slot: one role, restarted after each crash."""

    def __init__(
        self,
        context: SimulationContext,
        name: str,
        build: Callable[[str], Role],
        perform_task: Callable[[object], None] | None = None,
    ) -> None:
        self.context = context
        self.name = name
        self.wall = SkewedClock(context.loop)
        self.role: Role | None = None
        self.is_connected = False
        self.is_paused = False
        self.is_partitioned = False
        self.is_leader = False
        self.session = 0
        self._build = build
        self._perform_task = perform_task
        super().__init__(context.loop, self.wall.read)

    def _begin_life(self) -> None:
        """Forget everything that was in memory."""
        super()._begin_life()
        self._tokens: dict[int, tuple[Delivery, messages.Message]] = {}
        self._token = 0
        self._held: dict[str, int] = {}
        #: start of each opened source, and its number of openings: messages of older openings are void.
        self._opened: dict[str, int] = {}
        self._openings: dict[str, int] = {}
        self._log_at = 1
        self._is_fetching = False
        self._announces = False
        self._is_caught_up = False
        self._writer = ProcessWriter(
            self, self.context.bus, self.context.message_faults, self.context.draws
        )
        self._perform: dict[type, Callable[[object], None]] = self._table()
        self._renewed_ns = 0
        self._sources: dict[str, messages.Listen | messages.Work | messages.Read] = {}
        self._listens: tuple[messages.Listen, ...] = ()
        self._replays = False

    # ---- life ----

    @property
    def instance(self) -> str:
        """Instance name of the current life."""
        return f"{self.name}-{self.life}"

    @property
    def _is_running(self) -> bool:
        return self.role is not None

    def start(self) -> None:
        """Begin a life, with a new role."""
        assert self.role is None
        self.life += 1
        self._begin_life()
        self.role = self._build(self.instance)
        sources = self.role.sources()
        self._replays = any(isinstance(one, messages.Replay) for one in sources)
        self._sources = {one.name: one for one in sources if not isinstance(one, messages.Replay)}
        self._listens = tuple(one for one in sources if isinstance(one, messages.Listen))
        self._log_at = self.role.next_seq
        self._announces = True
        self.wake()  # The first step needs no input: an agent recovers its tasks before it connects.
        self.context.loop.after(MS, self._connect, self.life)
        if self.role.leader_key:
            self.context.loop.after(
                self.context.draws.between(MS, 60 * MS), self._campaign, self.life
            )

    def crash(self) -> None:
        """End the life: memory is lost, sent messages stay sent."""
        self.disconnect()
        self.role = None
        self.is_leader = False
        self.is_paused = False
        self.inbox = []

    def pause(self) -> None:
        """Pause (SIGSTOP): inputs wait."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue with the waiting inputs."""
        self.is_paused = False
        self._is_woken = False
        if self.inbox:
            self.wake()

    # ---- connection ----

    def disconnect(self) -> None:
        """Lose the connection and every message in flight to this process."""
        self.context.bus.disconnect(self)
        self.is_connected = False
        self.session += 1

    def reconnect(self) -> None:
        """Connect, with retries."""
        self._connect(self.life)

    def _connect(self, life: int) -> None:
        if life != self.life or self.role is None or self.is_connected:
            return
        bus = self.context.bus
        if self.is_partitioned or not bus.is_up:
            self.context.loop.after(_RECONNECT_NS, self._connect, life)
            return
        self.is_connected = True
        self.session += 1
        bus.connect(self, self._listens, follows_log=self._replays)
        self.accept(messages.Reconnected(fsync=True, bus=bus.identity))
        self._held = {}
        for _, message in self._tokens.values():
            self._held[message.source] = self._held.get(message.source, 0) + 1
        for name, start in self._opened.items():
            self._attach(name, start)
        for listen in self._listens:
            if listen.name == "projection" and (data := bus.values.get(listen.subject).data):
                self.deliver(Delivery(listen.name, listen.subject, data), MS)
        if self._replays:
            self.log_grew()

    def log_grew(self) -> None:
        """Fetch the log from our position."""
        if not self._is_fetching and self.is_connected:
            self._is_fetching = True
            delay = self.context.message_faults.reliable_hop()
            self.context.loop.after(delay, self._fetched, self.life, self.session)

    def _fetched(self, life: int, session: int) -> None:
        if life != self.life or self.role is None:
            return
        self._is_fetching = False
        if session != self.session:
            if self.is_connected:
                self.log_grew()
            return
        log = self.context.bus.log.records
        for at in range(self._log_at, len(log) + 1):
            subject, data = log[at - 1]
            self.accept(messages.Record(at, subject, data))
        self._log_at = len(log) + 1
        if self._announces:
            self._announces = False
            self._is_caught_up = True
            self.accept(messages.CaughtUp(len(log)))

    # ---- inputs ----

    def take(self, life: int, given: Input) -> None:
        """Take an input, if its life is the current one."""
        if life == self.life and self.role is not None:
            self.accept(given)

    def wake(self) -> None:
        """Schedule the next step, unless the process is paused."""
        if not self.is_paused:
            super().wake()

    def _wake_at(self) -> int:
        return self.context.loop.now_ns + (self.context.draws.bits() & _STEP_DELAY_MASK)

    def credit(self, source: str) -> int:
        """Return the remaining credit of an opened source."""
        declared = self._sources[source]
        assert not isinstance(declared, messages.Listen), source
        return declared.credit - self._held.get(source, 0)

    def deliver(self, delivery: Delivery, delay_ns: int) -> None:
        """Take a message that arrives in `delay_ns`."""
        opening = self._openings.get(delivery.source, 0)
        if opening:
            self._held[delivery.source] = self._held.get(delivery.source, 0) + 1
        target = (self.life, self.session, opening)
        self.context.loop.after(delay_ns, self._arrive, target, delivery)

    def _arrive(self, target: tuple[int, int, int], delivery: Delivery) -> None:
        opening = self._openings.get(delivery.source, 0)
        if target != (self.life, self.session, opening) or self.role is None:
            return
        self._token += 1
        message = messages.Message(
            source=delivery.source,
            subject=delivery.subject,
            data=delivery.data,
            token=self._token,
            reply=delivery.answer is not None,
            stream_seq=delivery.stream_seq,
            msg_id=delivery.msg_id,
        )
        if delivery.stream_seq:
            self._opened[delivery.source] = delivery.stream_seq + 1
        if message.reply or opening:
            self._tokens[self._token] = (delivery, message)
        self.accept(message)

    # ---- the step ----

    def _step(self, life: int) -> None:
        if life != self.life or self.role is None or self.is_paused:
            return
        self._is_woken = False
        inputs, self.inbox = self.inbox, []
        observer = self.context.observer
        try:
            effects = self.role.step(inputs, self._clock())
        except Exception as err:
            if observer is None:
                raise
            observer.ended(self, _describe_error(err), raised=True)
            self._die()
            return
        if observer is not None:
            observer.stepped(self, inputs, effects)
        for effect in effects:
            if not self._is_running:
                return
            perform = self._perform.get(type(effect))
            if perform is not None:
                perform(effect)
            elif self._perform_task is not None:
                self._perform_task(effect)
            else:
                raise AssertionError(effect)

    def _die(self) -> None:
        self.crash()
        self.context.loop.after(200 * MS, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if life == self.life and self.role is None:
            self.start()

    # ---- effects: messages ----

    def _send(self, effect: messages.Send) -> None:
        if self.is_connected:
            for delay in self.context.message_faults.hop_delays():
                self.context.loop.after(
                    delay, self._publish, self.context.bus.boot, effect.subject, effect.data
                )

    def _publish(self, boot: int, subject: str, data: bytes) -> None:
        if boot == self.context.bus.boot:
            self.context.bus.publish(subject, data)

    def _ack(self, effect: messages.Ack) -> None:
        self._free(effect.token)

    def _free(self, token: int) -> Delivery | None:
        held = self._tokens.pop(token, None)
        if held is None:
            return None
        source = held[1].source
        self._held[source] = self._held.get(source, 1) - 1
        if source in self._opened and self.is_connected:
            self.context.loop.after(
                self.context.message_faults.reliable_hop(), self.context.bus.pump
            )
        return held[0]

    def _nak(self, effect: messages.Nak) -> None:
        held = self._tokens.get(effect.token)
        if held is not None:
            self.context.loop.after(effect.delay_ns, self.take, self.life, held[1])

    def _reply(self, effect: messages.Reply) -> None:
        delivery = self._free(effect.token)
        if delivery is not None and delivery.answer is not None and self.is_connected:
            for delay in self.context.message_faults.hop_delays():
                self.context.loop.after(delay, delivery.answer, effect.data)

    def _ask(self, effect: agent_messages.Ask) -> None:
        """Send a request; the first answer or the timeout completes it."""
        asked = ScriptedRequest(self, effect.name)
        self.context.loop.after(effect.timeout_ns, asked.answer, None)
        if self.is_connected:
            for delay in self.context.message_faults.hop_delays():
                request = self.context.bus.request
                self.context.loop.after(delay, request, effect.subject, effect.data, asked.answer)

    # ---- effects: the log ----

    def _append(self, effect: messages.Append) -> None:
        if self._writer.is_appending and self.context.observer is not None:
            self.context.observer.ended(self, "second append while one is in flight", raised=True)
        self._writer.append(effect)

    def _rewind(self, effect: messages.Rewind) -> None:
        self._log_at = effect.seq
        self.inbox = [one for one in self.inbox if not isinstance(one, messages.Record)]
        self._announces = True
        self.log_grew()

    # ---- effects: timers, sources, leadership, the end ----

    def _open(self, effect: messages.Open) -> None:
        self._close(messages.Close(effect.name))
        self._opened[effect.name] = effect.start
        if self.is_connected:
            self._attach(effect.name, effect.start)

    def _attach(self, name: str, start: int) -> None:
        source = self._sources[name]
        if isinstance(source, messages.Work):
            self.context.bus.open_work(self, source)
        elif isinstance(source, messages.Read):
            self.context.bus.open_read(self, source, start)

    def _close(self, effect: messages.Close) -> None:
        self._opened.pop(effect.name, None)
        self._openings[effect.name] = self._openings.get(effect.name, 0) + 1
        self._held[effect.name] = 0
        self.context.bus.close(self, effect.name)
        gone = [token for token, (_, held) in self._tokens.items() if held.source == effect.name]
        for token in gone:
            del self._tokens[token]
        self.inbox = [
            one
            for one in self.inbox
            if not isinstance(one, messages.Message) or one.source != effect.name
        ]

    def _purge(self, effect: messages.Purge) -> None:
        if self.is_connected:
            self.context.loop.after(
                self.context.message_faults.reliable_hop(), self.context.bus.purge, effect.below
            )

    def _resign(self, _effect: messages.Resign) -> None:
        assert self.role is not None
        if self.is_connected:
            self.context.bus.leaderships.release(self.role.leader_key, self.instance)
        self.is_leader = False
        self._renewed_ns = self.context.loop.now_ns + SECOND

    def _stop(self, effect: messages.Stop) -> None:
        if self.context.observer is not None:
            self.context.observer.ended(self, effect.reason, raised=False)
        self._die()

    def _campaign(self, life: int) -> None:
        if life != self.life or self.role is None:
            return
        pause = RENEW_NS if self.is_leader else COMPETE_NS
        self.context.loop.after(pause + self.context.draws.below(20 * MS), self._campaign, life)
        now = self.context.loop.now_ns
        if self.is_paused or not self._is_caught_up or self._renewed_ns > now:
            return
        if not self.is_connected:
            if self.is_leader and now - self._renewed_ns > RENEW_LOST_NS:
                self._lead(leads=False)
            return
        leads = self.context.bus.leaderships.take(self.role.leader_key, self.instance)
        if leads:
            self._renewed_ns = now
        if leads is not self.is_leader:
            self._lead(leads=leads)

    def _lead(self, *, leads: bool) -> None:
        self.is_leader = leads
        self.accept(messages.LeadershipWon() if leads else messages.LeadershipLost())

    def _table(self) -> dict[type, Callable[[object], None]]:
        """Handlers by effect type."""
        table: dict[type, Callable[..., None]] = {
            messages.Append: self._append,
            messages.Roll: self._writer.roll,
            messages.Send: self._send,
            messages.Put: self._writer.put,
            messages.Ack: self._ack,
            messages.Nak: self._nak,
            messages.Reply: self._reply,
            messages.SetTimer: self.set_timer,
            messages.Open: self._open,
            messages.Close: self._close,
            messages.Purge: self._purge,
            messages.Rewind: self._rewind,
            messages.Resign: self._resign,
            messages.Stop: self._stop,
            agent_messages.Ask: self._ask,
        }
        return table


def _describe_error(err: Exception) -> str:
    """Describe an exception and where it was raised."""
    last = err.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})"
    return f"{type(err).__name__}: {err}{where}"
