"""The shell: collects what arrived, calls the role once, and performs its effects in order.

Decides when a role is called and what reconnecting means for its sources. It does not interpret messages and is the
same for every role; `shared/core/runtime/messages.py` describes its guarantees. A batch is the input of one turn of the
event loop: there is no timer, so a single message is not delayed and a flood is taken in large batches. A turn is a
callback of the loop and no task: an idle role is called about ten microseconds sooner. Next:
`shared/bus/process/runner.py`.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import structlog

from shared.bus.connection.nats_client import (
    BusClient,
    ConnectionCallbacks,
    connect,
    header_block,
    server_fsyncs,
    server_name,
    status,
)
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.jetstream.sender_proof import is_marked, mark_of, stream_read
from shared.bus.log import snapshots
from shared.bus.log.appender import Appender, LastValueWriter
from shared.bus.log.bus_watch import BusWatch
from shared.bus.log.generations import ActiveGeneration
from shared.bus.log.log_replay import LogReplay
from shared.bus.shell.input_queue import CoalescedCallback, InputQueue, MessageTokens, NamedTimers
from shared.bus.shell.leader_election import LeaderElection
from shared.bus.shell.problems import Problems
from shared.bus.shell.shell_settings import ShellSettings
from shared.bus.shell.sources import (
    ConsumerSource,
    SubscribeFunction,
    SubscriptionSource,
    may_reply_to,
)
from shared.bus.shell.wall_clock import WallClock
from shared.core.runtime import messages as r
from shared.core.runtime.histogram import Histogram
from shared.core.runtime.restored import Restored
from shared.core.runtime.role import Role
from shared.errors import BusUnavailable, CaravanError

#: One step takes at most this many inputs, so that the bus is read in between.
STEP_INPUTS_MAX = 4096
_RECONNECT_S, _RECONNECT_S_MAX = 0.25, 2.0
#: Status of a direct get that finds nothing.
_NOT_FOUND = 404
#: A timer may fire so much late.
_WAKEUP_TOLERANCE_S = 0.05
log = structlog.get_logger()

#: Performs an effect that only one role has; an awaitable is awaited before the next effect.
EffectHandler = Callable[[Any], Awaitable[None] | None]


class RoleStopped(CaravanError):
    """The role asked to stop, because continuing would do harm."""


class Shell:
    """Drives one role on NATS. `run` once; the rest may be called from the same loop at any time."""

    def __init__(
        self,
        role: Role,
        settings: ShellSettings,
        *,
        performers: Mapping[type, EffectHandler] | None = None,
        carriers: Mapping[str, SubscribeFunction] | None = None,
        clock: WallClock | None = None,
    ) -> None:
        self._role = role
        self._settings = settings
        self._clock = clock or WallClock()
        self._inbox = InputQueue(CoalescedCallback(self._turn))
        self._timers = NamedTimers()
        self._tokens = MessageTokens()
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
        self._link: CurrentConnection | None = None
        self._listeners: list[SubscriptionSource] = []
        #: functions that subscribe for a Listen source, by its name; the shell subscribes for all others.
        self._subscribe_functions = carriers or {}
        self._pullers: dict[str, ConsumerSource] = {}
        self._replay: LogReplay | None = None
        self._head = ActiveGeneration()
        self._bus_watch: BusWatch | None = None
        #: parts of a snapshot that a role may restore before it has read a record.
        self._restores: frozenset[str] = frozenset()
        self._restoring: asyncio.Task[None] | None = None
        self._appender: Appender | None = None
        self._putter: LastValueWriter | None = None
        self._leadership: LeaderElection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending = False
        self._perform = self._table(performers or {})
        self._steps = Histogram("caravan_shell_step_seconds")
        #: what keeps it from its work; `/health` shows them.
        self.problems = Problems()
        #: called once with the seq up to which the log was read when the role first caught up.
        self.on_replayed: Callable[[int], None] | None = None
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
                # An agent manages its tasks with or without a bus.
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

    def add_performers(self, performers: Mapping[type, EffectHandler]) -> None:
        """Perform effects that only this role has; before `run`."""
        self._perform.update(performers)

    @property
    def is_ready(self) -> bool:
        """Connected, and the log replayed up to what was its end."""
        connected = self._link is not None and self._link.bus.is_connected
        return connected and (self._replay is None or self._replay.caught_up)

    @property
    def bus(self) -> BusClient | None:
        """The connection, for what runs beside the role; None: not connected yet."""
        return self._link.bus if self._link is not None else None

    @property
    def lag(self) -> int:
        """Records of the log that wait at the bus."""
        return self._replay.pending if self._replay is not None else 0

    def metrics(self) -> dict[str, float]:
        """The role's numbers and the shell's own."""
        shown = {f"caravan_shell_{name}_total": float(n) for name, n in self._counts.items()}
        shown["caravan_shell_ready_info"] = float(self.is_ready)
        shown["caravan_shell_problems"] = float(len(self.problems.by_name))
        shown["caravan_shell_lag_records"] = float(self.lag)
        shown["caravan_shell_waiting_inputs"] = float(len(self._inbox))
        failed = getattr(self._role, "failed_messages", 0)
        shown["caravan_shell_messages_failed_total"] = float(failed)
        return {**shown, **self.problems.bus_gauges, **self._steps.shown(), **self._role.metrics()}

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
            # Nothing more is read before the queue has room: else it would grow without a bound.
            while len(self._inbox) > STEP_INPUTS_MAX and self._awaiting is None:
                self._raise_failure()
                self._step_once()
            if self._awaiting is None:
                self._set_alarm()
        except Exception as err:  # noqa: BLE001 - a callback has no caller; `run` raises it.
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
            # It goes by the steady clock: where ours was set forward since, it denotes a time that is past.
            latest_s = time.monotonic() + (at_ns - self._now_ns) / 1e9 + _WAKEUP_TOLERANCE_S
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
        """Connect, build the sources and notify the role."""
        bus, facts = await self._connect_with_retry()
        self._build(CurrentConnection(bus, self._inbox.fail))
        await self._start_sources(facts)

    async def _connect_with_retry(self) -> tuple[BusClient, r.Reconnected]:
        """Retry until it works; a role in CORE gives up after its start time, an agent never."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        pause_s = _RECONNECT_S
        while True:
            try:
                return await self._connect_once()
            except streams.BusRefused:
                # A stream is missing, or is another one: waiting does not help.
                raise
            except BusUnavailable as err:
                if self._settings.in_core and time.monotonic() > deadline:
                    raise
                log.info("bus.awaited", reason=str(err))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _RECONNECT_S_MAX)

    async def _connect_once(self) -> tuple[BusClient, r.Reconnected]:
        bus = await self._connect()
        try:
            return bus, await self._facts(bus)
        except BaseException:
            await bus.end()
            raise

    async def _connect(self) -> BusClient:
        callbacks = ConnectionCallbacks(
            lost=self._on_lost, back=self._on_back, closed=self._on_closed, error=self._on_error
        )
        bus = await connect(self._settings.login, callbacks)
        bus.on_failure = self._inbox.fail
        return bus

    def _build(self, link: CurrentConnection) -> None:
        role, own = self._role, self._settings
        owner = f"{role.name}-{role.instance}"
        self._link = link
        self._appender = Appender(link, self._inbox.put, self._head)
        self._putter = LastValueWriter(link, self._inbox)
        for source in role.sources():
            match source:
                case r.Replay():
                    self._bus_watch = BusWatch(
                        link,
                        self._head,
                        self.problems,
                        self._inbox.put,
                        replay=source,
                        clocks=self._clock.readings,
                        urls=own.login.url,
                    )
                    self._restores = source.tables if own.snapshots else frozenset()
                    window_s = source.batch_window_ns / 1e9
                    self._replay = LogReplay(
                        link, self._inbox, owner=owner, head=self._head, batch_window_s=window_s
                    )
                case r.Listen():
                    carrier = self._subscribe_functions.get(source.name)
                    self._listeners.append(
                        SubscriptionSource(
                            link, self._inbox, self._tokens, source=source, carrier=carrier
                        )
                    )
                case _:
                    self._pullers[source.name] = ConsumerSource(
                        link, self._inbox, self._tokens, source=source, owner=owner
                    )
        if role.leader_key:
            self._leadership = LeaderElection(
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
        replicas = found.config.num_replicas
        return r.Reconnected(
            fsync=fsync, replicas=replicas, bus=bus.server_id if replicas == 1 else ""
        )

    async def _start_sources(self, facts: r.Reconnected) -> None:
        """All parts are ready: listen, notify the role, and start the sources (again)."""
        self._counts["connects"] += 1
        for listener in self._listeners:
            await listener.subscribe()
            listener.look()
        self._inbox.put(facts)
        if self._bus_watch is not None:
            self._bus_watch.start()
        if self._appender is not None:
            self._appender.resend()
        for puller in self._pullers.values():
            puller.reopen()
        if self._replay is None:
            self._compete()
        elif self._replay.next_seq == 1:
            self._replay.on_first_catch_up = self._replayed
            await self._begin()
        else:
            self._replay.resume()

    async def _begin(self) -> None:
        """Replay from the role's first missing seq on; where it has read nothing, from behind a snapshot."""
        assert self._replay is not None
        assert self._link is not None
        first = self._role.next_seq
        if first == 1 and self._restores:
            # Looked up before the end of the log: a later end is never behind them.
            self._replay.once_reached = await snapshots.newest_seqs(self._link.bus)
            found = await snapshots.restore_newest(self._link.bus, self._restores)
            if found is not None:
                self._inbox.put(found)
                first = found.replica.next_seq
        self._replay.rewind(first)

    def _replayed(self) -> None:
        assert self._replay is not None
        if self.on_replayed is not None:
            self.on_replayed(self._replay.next_seq - 1)
        self._compete()

    def _compete(self) -> None:
        """Compete only when caught up: a leader that still replays leaves its role without one."""
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
        """The client gave up permanently, which an error line of the server can make it do: build another."""
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
                await self._start_sources(facts)
            except streams.BusRefused:
                raise
            except BusUnavailable as err:
                log.info("bus.awaited", reason=str(err))
                await asyncio.sleep(_RECONNECT_S)
            else:
                # Whether commits are possible there, the bus watch says.
                log.info("bus.connected", server=server_name(self._link.bus))
                return

    async def _end(self) -> None:
        self._ending = True
        tasks = (self._connecting, self._restoring, self._awaiting, self._alarm)
        for task in (one for one in tasks if one is not None):
            task.cancel()
        for puller in self._pullers.values():
            puller.close()
        if self._bus_watch is not None:
            self._bus_watch.stop()
        if self._replay is not None:
            self._replay.stop()
        if self._leadership is not None:
            self._leadership.stop()
        if self._link is not None:
            await self._link.bus.end()

    # ---- effects ----

    def _table(self, performers: Mapping[type, EffectHandler]) -> dict[type, EffectHandler]:
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
        mark = mark_of(effect.subject)
        if self._link is None or not self._link.bus.send(effect.subject, effect.data, headers=mark):
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
        if not may_reply_to(to):
            self._counts["replies_refused"] += 1
            log.warning("reply.refused", subject=held.message.subject[:200], reply=to[:80])
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
        self._inbox.drop(lambda one: isinstance(one, r.Record | Restored | r.CaughtUp))
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
            # A status is not an answer: no responder, or no stored message.
            is_ours = not status(headers) and is_marked(stream_read(effect.subject), headers)
            answered = body if is_ours else None
            is_empty = status(headers) == _NOT_FOUND
            self.inject([r.Answer(name=effect.name, data=answered, is_empty=is_empty)])

        if self._link is None:
            asyncio.get_running_loop().call_soon(done, b"", None)
        else:
            timeout_s = effect.timeout_ns / 1e9
            headers = header_block(nats_expected_stream=effect.stream) if effect.stream else b""
            self._link.bus.call(
                effect.subject, effect.data, done, headers=headers, timeout_s=timeout_s
            )
