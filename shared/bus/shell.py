"""The shell: collects what arrived, calls the role once, and performs its effects in order.

Decides when a role is called and what reconnecting means for its sources. It has no `if` about meaning and is
the same for every role; `shared/core/role.py` says what it promises. Batches are what one turn of the event
loop brought: there is no timer, so a lone message waits for nothing and a flood is taken in big bites. A turn is a
callback of the loop and no task: a role that slept is called some ten microseconds sooner. Next: `runner.py`.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import structlog

from shared.bus import snapshots, streams
from shared.bus.append import Appender, Putter
from shared.bus.clock import Clock
from shared.bus.connect import (
    BusClient,
    Callbacks,
    Login,
    connect,
    header_block,
    server_fsyncs,
    status,
)
from shared.bus.generations import Head
from shared.bus.inbox import Bell, Inbox, Timers, Tokens
from shared.bus.leader import Leadership
from shared.bus.pull import Link
from shared.bus.replay import LogReplay
from shared.bus.sources import Carrier, Listener, Puller
from shared.bus.space import watch_space
from shared.core import role as r
from shared.core.histogram import Histogram
from shared.errors import BusUnavailable, CaravanError

#: One step takes at most this many inputs, so that the bus is heard in between.
STEP_INPUTS_MAX = 4096
_LOOK_AGAIN_S, _LOOK_AGAIN_S_MAX = 0.25, 2.0
#: An alarm that goes off so much later than its timer was set for is good enough.
_ALARM_LATE_S = 0.05
#: Nobody may be answered on these: a reply there would be a message of ours in a place of the asker's choice.
_NO_REPLY = frozenset(
    {"log", "cmd", "eval", "node", "view", "jobs", "dead", "api", "query", "hb", "presence"}
)
log = structlog.get_logger()

#: Performs an effect that only one role has; an awaitable is awaited before the next effect.
Performer = Callable[[Any], Awaitable[None] | None]


class RoleStopped(CaravanError):
    """The role asked to stop, because going on would do harm."""


class ShellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell needs to know of its bus."""

    login: Login
    #: the system account's user, for the plan applier only: it asks whether the server fsyncs.
    sys_login: Login | None = None
    replicas: int = 1
    #: False for agents: NODES has no streams.
    in_core: bool = True
    #: begin at a snapshot, where there is one that the log proves.
    snapshots: bool = True
    start_timeout_s: float = 10.0


class Shell:
    """Drives one role on NATS. `run` once; the rest may be called from the same loop at any time."""

    def __init__(
        self,
        role: r.Role,
        settings: ShellSettings,
        *,
        performers: Mapping[type, Performer] | None = None,
        carriers: Mapping[str, Carrier] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._role = role
        self._settings = settings
        self._clock = clock or Clock()
        self._inbox = Inbox(Bell(self._turn))
        self._timers = Timers()
        self._tokens = Tokens()
        self._alarm: asyncio.TimerHandle | None = None
        #: the timer that it was set for, and when it goes off by the steady clock.
        self._alarm_ns = 0
        self._alarm_s = 0.0
        #: time of the last turn.
        self._now_ns = 0
        #: turns are taken between the start and the end; not while an effect is awaited.
        self._is_running = False
        self._awaiting: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._link: Link | None = None
        self._listeners: list[Listener] = []
        #: who subscribes for a Listen source, by its name; for all others we do.
        self._carriers = carriers or {}
        self._pullers: dict[str, Puller] = {}
        self._replay: LogReplay | None = None
        self._head = Head()
        self._tells_space = False
        #: what a role that has read nothing may be given of a snapshot.
        self._restores: frozenset[str] = frozenset()
        self._restoring: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._appender: Appender | None = None
        self._putter: Putter | None = None
        self._leadership: Leadership | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending = False
        self._perform = self._table(performers or {})
        self._steps = Histogram("caravan_shell_step_seconds")
        self._counts = dict.fromkeys(
            ("inputs", "effects", "sends_dropped", "replies_refused", "connects"), 0
        )

    # ---- life ----

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set.

        Raises BusUnavailable: no bus within the start time, or one that we may not work on; RoleStopped; and whatever
        the role's own step raised.
        """
        self._over = asyncio.get_running_loop().create_future()
        watch = asyncio.create_task(self._watch(stop))
        self._connecting = self._spawn(self._start())
        try:
            if self._settings.in_core:
                await asyncio.wait({self._connecting, watch}, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failure()
            else:
                # An agent minds its tasks whether there is a bus or not.
                self._step([], self._clock.now_ns())
            self._is_running = True
            self._turn()
            await self._over
            # Behind what is awaited another effect of the step may have to be.
            while self._awaiting is not None:
                await self._awaiting
        finally:
            self._is_running = False
            watch.cancel()
            await self._end()

    def inject(self, inputs: Iterable[Any]) -> None:
        """Hand the role inputs that a performer has to report."""
        for one in inputs:
            self._inbox.put(one)

    def add_performers(self, performers: Mapping[type, Performer]) -> None:
        """Perform effects that only this role has; before `run`."""
        self._perform.update(performers)

    @property
    def is_ready(self) -> bool:
        """Connected, and the log replayed up to what was its end."""
        connected = self._link is not None and self._link.bus.is_connected
        return connected and (self._replay is None or self._replay.caught_up)

    @property
    def lag(self) -> int:
        """Records of the log that wait at the bus."""
        return self._replay.pending if self._replay is not None else 0

    def metrics(self) -> dict[str, float]:
        """The role's numbers and the shell's own."""
        shown = {f"caravan_shell_{name}_total": float(n) for name, n in self._counts.items()}
        shown["caravan_shell_ready_info"] = float(self.is_ready)
        shown["caravan_shell_lag_records"] = float(self.lag)
        shown["caravan_shell_waiting_inputs"] = float(len(self._inbox))
        return {**shown, **self._steps.shown(), **self._role.metrics()}

    # ---- the loop ----

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._finish(None)

    def _finish(self, err: Exception | None) -> None:
        assert self._over is not None
        if self._over.done():
            return
        if err is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(err)

    def _turn(self) -> None:
        """Collect, step, perform. What is raised ends `run`."""
        if not self._is_running or (self._over is not None and self._over.done()):
            return
        try:
            self._raise_failure()
            if self._awaiting is not None:
                return
            self._step_once()
            # Nothing more is read before there is room for it: else a flood would gather here, where nobody bounds it.
            while len(self._inbox) > STEP_INPUTS_MAX and self._awaiting is None:
                self._raise_failure()
                self._step_once()
            if self._awaiting is None:
                self._set_alarm()
        except Exception as err:  # noqa: BLE001 - a callback has nobody above it; who runs us gets it.
            self._finish(err)

    def _step_once(self) -> None:
        now_ns = self._now_ns = self._clock.now_ns()
        inputs: list[Any] = self._inbox.take(STEP_INPUTS_MAX)
        inputs += self._timers.due(now_ns)
        if inputs:
            self._counts["inputs"] += len(inputs)
            self._step(inputs, now_ns)

    def _raise_failure(self) -> None:
        if self._inbox.failure is not None:
            raise self._inbox.failure

    def _step(self, inputs: list[Any], now_ns: int) -> None:
        began_ns = time.perf_counter_ns()
        effects = self._role.step(inputs, now_ns)
        self._steps.observe(time.perf_counter_ns() - began_ns)
        self._counts["effects"] += len(effects)
        if self._replay is not None:
            self._replay.stepped()
        self._do(iter(effects))

    def _do(self, effects: Iterator[Any]) -> None:
        """Perform effects in order; behind one that has to be awaited the rest waits, and so does the next turn."""
        for effect in effects:
            waiting = self._perform[type(effect)](effect)
            if waiting is not None and inspect.isawaitable(waiting):
                self._awaiting = self._spawn(self._await(waiting, effects))
                break
        if self._link is not None:
            self._link.bus.flush_now()

    async def _await(self, waiting: Awaitable[None], rest: Iterator[Any]) -> None:
        await waiting
        self._awaiting = None
        self._do(rest)
        self._inbox.wake.set()

    def _set_alarm(self) -> None:
        """See to it that a turn is taken at the next deadline; one too early finds nothing due and sets it again."""
        at_ns = self._timers.next_ns()
        if not at_ns:
            return
        if self._alarm is not None:
            # It goes by the steady clock: where ours was set forward since, it stands for a time that is past.
            latest_s = time.monotonic() + (at_ns - self._now_ns) / 1e9 + _ALARM_LATE_S
            if self._alarm_ns <= at_ns and self._alarm_s <= latest_s:
                return
            self._alarm.cancel()
        delay_s = max(0, at_ns - self._clock.now_ns()) / 1e9
        self._alarm_ns, self._alarm_s = at_ns, time.monotonic() + delay_s
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._inbox.wake.set()

    # ---- connecting ----

    async def _start(self) -> None:
        """Connect, build the sources and tell the role."""
        bus, facts = await self._patiently()
        self._build(Link(bus, self._inbox.fail))
        await self._go(facts)

    async def _patiently(self) -> tuple[BusClient, r.Reconnected]:
        """Try until it works; a role in CORE gives up after its start time, an agent never."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        pause_s = _LOOK_AGAIN_S
        while True:
            try:
                return await self._connect_and_look()
            except BusUnavailable as err:
                if self._settings.in_core and time.monotonic() > deadline:
                    raise
                log.info("bus.awaited", reason=str(err))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LOOK_AGAIN_S_MAX)

    async def _connect_and_look(self) -> tuple[BusClient, r.Reconnected]:
        bus = await self._connect()
        try:
            return bus, await self._facts(bus)
        except BaseException:
            await bus.end()
            raise

    async def _connect(self) -> BusClient:
        told = Callbacks(
            lost=self._on_lost, back=self._on_back, closed=self._on_closed, error=self._on_error
        )
        bus = await connect(self._settings.login, told)
        bus.on_failure = self._inbox.fail
        return bus

    def _build(self, link: Link) -> None:
        role, own = self._role, self._settings
        owner = f"{role.name}-{role.instance}"
        self._link = link
        self._appender = Appender(link, self._inbox.put, self._head)
        self._putter = Putter(link, self._inbox)
        for source in role.sources():
            match source:
                case r.Replay():
                    self._tells_space = source.space
                    self._restores = source.tables if own.snapshots else frozenset()
                    lull_s = source.lull_ns / 1e9
                    self._replay = LogReplay(
                        link, self._inbox, owner=owner, head=self._head, lull_s=lull_s
                    )
                case r.Listen():
                    carrier = self._carriers.get(source.name)
                    self._listeners.append(
                        Listener(link, self._inbox, self._tokens, source=source, carrier=carrier)
                    )
                case _:
                    self._pullers[source.name] = Puller(
                        link, self._inbox, self._tokens, source=source, owner=owner
                    )
        if role.leader_key:
            self._leadership = Leadership(
                link, self._inbox.put, key=role.leader_key, instance=role.instance
            )

    async def _facts(self, bus: BusClient) -> r.Reconnected:
        """Make sure of the streams and learn what the server promises."""
        own = self._settings
        if not own.in_core:
            return r.Reconnected()
        found = await streams.ensure(bus, own.replicas)
        fsync = await server_fsyncs(own.sys_login) if own.sys_login is not None else False
        assert found.config is not None
        return r.Reconnected(fsync=fsync, replicas=found.config.num_replicas)

    async def _go(self, facts: r.Reconnected) -> None:
        """Everything is there: listen, tell the role, and let the sources run (again)."""
        self._counts["connects"] += 1
        for listener in self._listeners:
            await listener.subscribe()
            listener.look()
        self._inbox.put(facts)
        if self._tells_space and self._link is not None:
            if self._measuring is not None:
                self._measuring.cancel()
            self._measuring = self._spawn(watch_space(self._link, self._head, self._inbox.put))
        if self._appender is not None:
            self._appender.resend()
        for puller in self._pullers.values():
            puller.reopen()
        if self._replay is None:
            self._compete()
        elif self._replay.next_seq == 1:
            self._replay.first_caught_up = self._compete
            await self._begin()
        else:
            self._replay.resume()

    async def _begin(self) -> None:
        """Replay from the role's first missing seq on; where it has read nothing, from behind a snapshot."""
        assert self._replay is not None
        assert self._link is not None
        first = self._role.next_seq
        if first == 1 and self._restores:
            found = await snapshots.newest(self._link.bus, self._restores)
            if found is not None:
                self._inbox.put(found)
                first = found.replica.next_seq
        self._replay.rewind(first)

    def _compete(self) -> None:
        """Only who has caught up may lead: a leader that replays first would leave its role without one."""
        if self._leadership is not None:
            self._leadership.start()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        err = None if task.cancelled() else task.exception()
        if err is not None:
            self._inbox.fail(err)

    def _on_lost(self) -> None:
        if not self._ending:
            log.warning("bus.lost")

    def _on_error(self, err: Exception) -> None:
        if not self._ending:
            log.warning("bus.error", reason=str(err) or type(err).__name__)

    def _on_back(self) -> None:
        self._reconnect(rebuild=False)

    def _on_closed(self) -> None:
        """The client gave up for good, which an error line of the server can make it do: build another."""
        self._reconnect(rebuild=True)

    def _reconnect(self, *, rebuild: bool) -> None:
        if self._ending or self._link is None:
            return
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = self._spawn(self._again(rebuild=rebuild))

    async def _again(self, *, rebuild: bool) -> None:
        assert self._link is not None
        while True:
            try:
                if rebuild and self._link.bus.is_closed:
                    self._link.bus = await self._connect()
                facts = await self._facts(self._link.bus)
                await self._go(facts)
            except streams.BusRefused:
                raise
            except BusUnavailable as err:
                log.info("bus.awaited", reason=str(err))
                await asyncio.sleep(_LOOK_AGAIN_S)
            else:
                log.info("bus.back")
                return

    async def _end(self) -> None:
        self._ending = True
        tasks = (self._connecting, self._measuring, self._restoring, self._awaiting, self._alarm)
        for task in tasks:
            if task is not None:
                task.cancel()
        for puller in self._pullers.values():
            puller.close()
        if self._replay is not None:
            self._replay.stop()
        if self._leadership is not None:
            self._leadership.stop()
        if self._link is not None:
            await self._link.bus.end()

    # ---- effects ----

    def _table(self, performers: Mapping[type, Performer]) -> dict[type, Performer]:
        return {
            r.Append: self._append,
            r.Roll: self._roll,
            r.Send: self._send,
            r.Put: self._put,
            r.Ack: self._ack,
            r.Nak: self._nak,
            r.Reply: self._reply,
            r.SetTimer: self._set_timer,
            r.Open: self._open,
            r.Close: self._close,
            r.Purge: self._purge,
            r.Rewind: self._rewind,
            r.Resign: self._resign,
            r.Stop: self._stop,
            r.Ask: self._ask,
            **performers,
        }

    def _append(self, effect: r.Append) -> None:
        assert self._appender is not None
        self._appender.append(effect)

    def _roll(self, effect: r.Roll) -> None:
        self._spawn(self._prepare(effect))

    async def _prepare(self, effect: r.Roll) -> None:
        assert self._appender is not None
        self._inbox.put(await self._appender.prepare(effect, self._settings.replicas))

    def _send(self, effect: r.Send) -> None:
        if self._link is None or not self._link.bus.send(effect.subject, effect.data):
            self._counts["sends_dropped"] += 1

    def _put(self, effect: r.Put) -> None:
        assert self._putter is not None
        self._putter.put(effect)

    def _ack(self, effect: r.Ack) -> None:
        self._tokens.answer(effect.token)

    def _nak(self, effect: r.Nak) -> None:
        delay_s = max(0, effect.delay_ns) / 1e9
        asyncio.get_running_loop().call_later(delay_s, self._redeliver, effect.token)

    def _redeliver(self, token: int) -> None:
        held = self._tokens.peek(token)
        if held is not None:
            self._inbox.put(held.message)

    def _reply(self, effect: r.Reply) -> None:
        assert self._link is not None
        held = self._tokens.answer(effect.token)
        if held is None or not held.reply:
            return
        to = held.reply.decode("ascii", "replace")
        first = to.partition(".")[0]
        if first in _NO_REPLY or first.startswith("$"):
            self._counts["replies_refused"] += 1
            log.warning("reply.refused", subject=held.message.subject, reply=to[:80])
        elif not self._link.bus.send(to, effect.data):
            self._counts["sends_dropped"] += 1

    def _set_timer(self, effect: r.SetTimer) -> None:
        self._timers.set(effect.name, effect.at_ns)

    def _open(self, effect: r.Open) -> None:
        self._close(r.Close(effect.name))
        self._pullers[effect.name].open(effect.start)

    def _close(self, effect: r.Close) -> None:
        name = effect.name
        self._pullers[name].close()
        self._inbox.drop(lambda one: isinstance(one, r.Message) and one.source == name)

    def _purge(self, effect: r.Purge) -> None:
        self._pullers[effect.name].purge(effect.below)

    def _rewind(self, effect: r.Rewind) -> None:
        if self._replay is None:
            return
        self._inbox.drop(lambda one: isinstance(one, r.Record | r.Restored | r.CaughtUp))
        if self._restoring is not None:
            self._restoring.cancel()
        if effect.seq == self._role.next_seq == 1 and self._restores:
            self._replay.stop()
            self._restoring = self._spawn(self._begin())
        else:
            self._replay.rewind(effect.seq)

    def _resign(self, _effect: r.Resign) -> None:
        self._inbox.drop(lambda one: isinstance(one, r.LeadershipWon | r.LeadershipLost))
        if self._leadership is not None:
            self._leadership.resign()

    def _stop(self, effect: r.Stop) -> None:
        raise RoleStopped(effect.reason)

    def _ask(self, effect: r.Ask) -> None:
        def done(headers: bytes, body: bytes | None) -> None:
            # A status is no answer: nobody listens, or nothing is there.
            answered = None if status(headers) else body
            self.inject([r.Answer(name=effect.name, data=answered)])

        if self._link is None:
            asyncio.get_running_loop().call_soon(done, b"", None)
        else:
            timeout_s = effect.timeout_ns / 1e9
            headers = header_block(nats_expected_stream=effect.stream) if effect.stream else b""
            self._link.bus.call(
                effect.subject, effect.data, done, headers=headers, timeout_s=timeout_s
            )
