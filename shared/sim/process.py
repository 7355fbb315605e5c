"""One simulated process: the shell that collects inputs, calls `step`, and performs effects on the in-memory bus.

Keeps the promises of shared/core/role.py and nothing more. Must not know what a role does. What an agent asks of its
node is performed by `drivers.py`, through `Performer`. Beside it: `writes.py`. Next: `chaos.py`.
"""

from collections.abc import Callable
from typing import Protocol

from shared.core import role, tasks
from shared.sim.bus import Bus, Delivery
from shared.sim.loop import MS, SECOND, Clock, Draws, Loop
from shared.sim.weather import Weather
from shared.sim.writes import Asked, Writer

RENEW_NS = 500 * MS
COMPETE_NS = 250 * MS
#: A holder that could not renew for so long gives up by itself, before the bus forgets it.
RENEW_LOST_NS = 1_500 * MS
_RECONNECT_NS = 40 * MS
_STEP_DELAY_MASK = 0xFFFFF


class Performer(Protocol):
    """Performs the effects that only an agent has."""

    def perform(self, process: "Process", effect: object) -> None:
        """Perform one effect of shared/core/tasks.py."""
        ...


class Observer(Protocol):
    """Hears what a process does; `oracle.py` and the trace stand here."""

    def stepped(
        self, process: "Process", inputs: list[role.Input], effects: list[role.Effect]
    ) -> None:
        """Hear of one step, before its effects are performed."""
        ...

    def ended(self, process: "Process", reason: str, *, raised: bool) -> None:
        """Hear that a role stopped its process, or raised."""
        ...


class Site:
    """Everything that processes of one world share."""

    def __init__(self, loop: Loop, bus: Bus, weather: Weather, draws: Draws) -> None:
        self.loop = loop
        self.bus = bus
        self.weather = weather
        self.draws = draws
        self.observer: Observer | None = None


class Process:
    """A named place where lives of one role follow each other."""

    def __init__(
        self,
        site: Site,
        name: str,
        build: Callable[[str], role.Role],
        performer: Performer | None = None,
    ) -> None:
        self.site = site
        self.name = name
        self.clock = Clock(site.loop)
        self.life = 0
        self.role: role.Role | None = None
        self.is_connected = False
        self.is_paused = False
        self.is_partitioned = False
        self.is_leader = False
        self.session = 0
        self._build = build
        self._performer = performer
        self._perform: dict[type, Callable[[object], None]] = self._table()
        self._reset()

    def _reset(self) -> None:
        self._inbox: list[role.Input] = []
        self._is_woken = False
        self._timers: dict[str, int] = {}
        self._tokens: dict[int, tuple[Delivery, role.Message]] = {}
        self._token = 0
        self._held: dict[str, int] = {}
        #: start of each opened source, and how often it was opened: what an older opening sent is void.
        self._opened: dict[str, int] = {}
        self._openings: dict[str, int] = {}
        self._log_at = 1
        self._is_fetching = False
        self._announces = False
        self._is_caught_up = False
        self._writer = Writer(self, self.site.bus, self.site.weather, self.site.draws)
        self._renewed_ns = 0
        self._sources: dict[str, role.Listen | role.Work | role.Read] = {}
        self._listens: tuple[role.Listen, ...] = ()
        self._replays = False

    # ---- life ----

    @property
    def instance(self) -> str:
        """Name of the present life."""
        return f"{self.name}-{self.life}"

    @property
    def is_running(self) -> bool:
        """Say whether there is a present life; a paused one is one."""
        return self.role is not None

    def start(self) -> None:
        """Begin a life with nothing but what the builder gives."""
        assert self.role is None
        self.life += 1
        self._reset()
        self.role = self._build(self.instance)
        sources = self.role.sources()
        self._replays = any(isinstance(one, role.Replay) for one in sources)
        self._sources = {one.name: one for one in sources if not isinstance(one, role.Replay)}
        self._listens = tuple(one for one in sources if isinstance(one, role.Listen))
        self._log_at = self.role.next_seq
        self._announces = True
        self._wake()  # The first step needs no input: an agent adopts its tasks before it has a connection.
        self.site.loop.after(MS, self._connect, self.life)
        if self.role.leader_key:
            self.site.loop.after(self.site.draws.between(MS, 60 * MS), self._campaign, self.life)

    def crash(self) -> None:
        """End the life; everything in memory is lost, what was sent stays sent."""
        self.disconnect()
        self.role = None
        self.is_leader = False
        self.is_paused = False
        self._inbox = []

    def pause(self) -> None:
        """Stop to run (SIGSTOP): inputs wait, the process believes what it believed."""
        self.is_paused = True

    def resume(self) -> None:
        """Run on with whatever waited."""
        self.is_paused = False
        self._is_woken = False
        if self._inbox:
            self._wake()

    # ---- connection ----

    def disconnect(self) -> None:
        """Lose the connection and every message on its way here."""
        self.site.bus.disconnect(self)
        self.is_connected = False
        self.session += 1

    def reconnect(self) -> None:
        """Try to connect until it works."""
        self._connect(self.life)

    def _connect(self, life: int) -> None:
        if life != self.life or self.role is None or self.is_connected:
            return
        bus = self.site.bus
        if self.is_partitioned or not bus.is_up:
            self.site.loop.after(_RECONNECT_NS, self._connect, life)
            return
        self.is_connected = True
        self.session += 1
        bus.connect(self, self._listens, follows_log=self._replays)
        self._take(role.Reconnected(fsync=True))
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
        """Fetch what the log has from our position on."""
        if not self._is_fetching and self.is_connected:
            self._is_fetching = True
            delay = self.site.weather.calm_hop()
            self.site.loop.after(delay, self._fetched, self.life, self.session)

    def _fetched(self, life: int, session: int) -> None:
        if life != self.life or self.role is None:
            return
        self._is_fetching = False
        if session != self.session:
            if self.is_connected:
                self.log_grew()
            return
        log = self.site.bus.log.records
        for at in range(self._log_at, len(log) + 1):
            subject, data = log[at - 1]
            self._take(role.Record(at, subject, data))
        self._log_at = len(log) + 1
        if self._announces:
            self._announces = False
            self._is_caught_up = True
            self._take(role.CaughtUp(len(log)))

    # ---- inputs ----

    def take(self, life: int, given: role.Input) -> None:
        """Take an input for the life it was meant for."""
        if life == self.life and self.role is not None:
            self._take(given)

    def _take(self, given: role.Input) -> None:
        self._inbox.append(given)
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken and not self.is_paused:
            self._is_woken = True
            delay = self.site.draws.bits() & _STEP_DELAY_MASK
            self.site.loop.after(delay, self._step, self.life)

    def credit(self, source: str) -> int:
        """Return how many more messages an opened source takes now."""
        declared = self._sources[source]
        assert not isinstance(declared, role.Listen), source
        return declared.credit - self._held.get(source, 0)

    def deliver(self, delivery: Delivery, delay_ns: int) -> None:
        """Take a message that arrives in `delay_ns`."""
        opening = self._openings.get(delivery.source, 0)
        if opening:
            self._held[delivery.source] = self._held.get(delivery.source, 0) + 1
        target = (self.life, self.session, opening)
        self.site.loop.after(delay_ns, self._arrive, target, delivery)

    def _arrive(self, target: tuple[int, int, int], delivery: Delivery) -> None:
        opening = self._openings.get(delivery.source, 0)
        if target != (self.life, self.session, opening) or self.role is None:
            return
        self._token += 1
        message = role.Message(
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
        self._take(message)

    # ---- the step ----

    def _step(self, life: int) -> None:
        if life != self.life or self.role is None or self.is_paused:
            return
        self._is_woken = False
        inputs, self._inbox = self._inbox, []
        observer = self.site.observer
        try:
            effects = self.role.step(inputs, self.clock.read())
        except Exception as err:
            if observer is None:
                raise
            observer.ended(self, _told(err), raised=True)
            self._die()
            return
        if observer is not None:
            observer.stepped(self, inputs, effects)
        for effect in effects:
            if not self.is_running:
                return
            perform = self._perform.get(type(effect))
            if perform is not None:
                perform(effect)
            elif self._performer is not None:
                self._performer.perform(self, effect)
            else:
                raise AssertionError(effect)

    def _die(self) -> None:
        self.crash()
        self.site.loop.after(200 * MS, self._start_again, self.life)

    def _start_again(self, life: int) -> None:
        if life == self.life and self.role is None:
            self.start()

    # ---- effects: messages ----

    def _send(self, effect: role.Send) -> None:
        if self.is_connected:
            for delay in self.site.weather.hop():
                self.site.loop.after(
                    delay, self._publish, self.site.bus.boot, effect.subject, effect.data
                )

    def _publish(self, boot: int, subject: str, data: bytes) -> None:
        if boot == self.site.bus.boot:
            self.site.bus.publish(subject, data)

    def _ack(self, effect: role.Ack) -> None:
        self._free(effect.token)

    def _free(self, token: int) -> Delivery | None:
        held = self._tokens.pop(token, None)
        if held is None:
            return None
        source = held[1].source
        self._held[source] = self._held.get(source, 1) - 1
        if source in self._opened and self.is_connected:
            self.site.loop.after(self.site.weather.calm_hop(), self.site.bus.pump)
        return held[0]

    def _nak(self, effect: role.Nak) -> None:
        held = self._tokens.get(effect.token)
        if held is not None:
            self.site.loop.after(effect.delay_ns, self.take, self.life, held[1])

    def _reply(self, effect: role.Reply) -> None:
        delivery = self._free(effect.token)
        if delivery is not None and delivery.answer is not None and self.is_connected:
            for delay in self.site.weather.hop():
                self.site.loop.after(delay, delivery.answer, effect.data)

    def _ask(self, effect: tasks.Ask) -> None:
        """Send a request; the first answer, or the timeout, is the one that counts."""
        asked = Asked(self, effect.name)
        self.site.loop.after(effect.timeout_ns, asked.answer, None)
        if self.is_connected:
            for delay in self.site.weather.hop():
                request = self.site.bus.request
                self.site.loop.after(delay, request, effect.subject, effect.data, asked.answer)

    # ---- effects: the log ----

    def _append(self, effect: role.Append) -> None:
        if self._writer.is_appending and self.site.observer is not None:
            self.site.observer.ended(self, "a second append while one is in flight", raised=True)
        self._writer.append(effect)

    def _roll(self, effect: role.Roll) -> None:
        self._writer.roll(effect)

    def _put(self, effect: role.Put) -> None:
        self._writer.put(effect)

    def _rewind(self, effect: role.Rewind) -> None:
        self._log_at = effect.seq
        self._inbox = [one for one in self._inbox if not isinstance(one, role.Record)]
        self._announces = True
        self.log_grew()

    # ---- effects: timers, sources, leadership, the end ----

    def _set_timer(self, effect: role.SetTimer) -> None:
        if effect.at_ns == 0:
            self._timers.pop(effect.name, None)
        elif self._timers.get(effect.name) != effect.at_ns:
            self._timers[effect.name] = effect.at_ns
            self._arm(effect.name, effect.at_ns)

    def _arm(self, name: str, at_ns: int) -> None:
        wait = max(at_ns - self.clock.read(), 0)
        self.site.loop.after(wait, self._ring, self.life, name, at_ns)

    def _ring(self, life: int, name: str, at_ns: int) -> None:
        if life != self.life or self._timers.get(name) != at_ns:
            return
        if self.clock.read() < at_ns:
            self._arm(name, at_ns)  # The clock was set back: late, never early.
            return
        del self._timers[name]
        self._take(role.Timer(name, at_ns))

    def _open(self, effect: role.Open) -> None:
        self._close(role.Close(effect.name))
        self._opened[effect.name] = effect.start
        if self.is_connected:
            self._attach(effect.name, effect.start)

    def _attach(self, name: str, start: int) -> None:
        source = self._sources[name]
        if isinstance(source, role.Work):
            self.site.bus.open_work(self, source)
        elif isinstance(source, role.Read):
            self.site.bus.open_read(self, source, start)

    def _close(self, effect: role.Close) -> None:
        self._opened.pop(effect.name, None)
        self._openings[effect.name] = self._openings.get(effect.name, 0) + 1
        self._held[effect.name] = 0
        self.site.bus.close(self, effect.name)
        gone = [token for token, (_, held) in self._tokens.items() if held.source == effect.name]
        for token in gone:
            del self._tokens[token]
        self._inbox = [
            one
            for one in self._inbox
            if not isinstance(one, role.Message) or one.source != effect.name
        ]

    def _purge(self, effect: role.Purge) -> None:
        if self.is_connected:
            self.site.loop.after(self.site.weather.calm_hop(), self.site.bus.purge, effect.below)

    def _resign(self, _effect: role.Resign) -> None:
        assert self.role is not None
        if self.is_connected:
            self.site.bus.leaderships.release(self.role.leader_key, self.instance)
        self.is_leader = False
        self._renewed_ns = self.site.loop.now_ns + SECOND

    def _stop(self, effect: role.Stop) -> None:
        if self.site.observer is not None:
            self.site.observer.ended(self, effect.reason, raised=False)
        self._die()

    def _campaign(self, life: int) -> None:
        if life != self.life or self.role is None:
            return
        pause = RENEW_NS if self.is_leader else COMPETE_NS
        self.site.loop.after(pause + self.site.draws.below(20 * MS), self._campaign, life)
        now = self.site.loop.now_ns
        if self.is_paused or not self._is_caught_up or self._renewed_ns > now:
            return
        if not self.is_connected:
            if self.is_leader and now - self._renewed_ns > RENEW_LOST_NS:
                self._lead(leads=False)
            return
        leads = self.site.bus.leaderships.take(self.role.leader_key, self.instance)
        if leads:
            self._renewed_ns = now
        if leads is not self.is_leader:
            self._lead(leads=leads)

    def _lead(self, *, leads: bool) -> None:
        self.is_leader = leads
        self._take(role.LeadershipWon() if leads else role.LeadershipLost())

    def _table(self) -> dict[type, Callable[[object], None]]:
        """Effect -> what performs it."""
        table: dict[type, Callable[..., None]] = {
            role.Append: self._append,
            role.Roll: self._roll,
            role.Send: self._send,
            role.Put: self._put,
            role.Ack: self._ack,
            role.Nak: self._nak,
            role.Reply: self._reply,
            role.SetTimer: self._set_timer,
            role.Open: self._open,
            role.Close: self._close,
            role.Purge: self._purge,
            role.Rewind: self._rewind,
            role.Resign: self._resign,
            role.Stop: self._stop,
            tasks.Ask: self._ask,
        }
        return table


def _told(err: Exception) -> str:
    """Say an exception with the place where it was raised."""
    last = err.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})"
    return f"{type(err).__name__}: {err}{where}"
