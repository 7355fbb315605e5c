"""Looks at the servers of the bus every second: which are there, who leads, since when nothing can be committed.

Decides from the word of a stream's leader, which has a time: a leader that lost the others still answers, and what it
tells of them then is old. Commits count as possible as long as a majority of the log's servers was in contact within
BLOCKED_S; after that it is a problem of the service, which is not ready then. A log whose leader does not answer is
shown as led by none at once. Where no leader answers for so long, the addresses of the bus are tried themselves. Needs
no other right than to ask about streams. Next: `log_space.py`.
"""

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from schemas.base import SECOND_NS
from schemas.bus_answers import BusServer, BusStatus
from shared.bus.connection.nats_client import redacted_url, server_name
from shared.bus.connection.server_probe import probe
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.log.generations import ActiveGeneration
from shared.bus.log.log_space import watch_log_space
from shared.bus.shell.problems import BUS, STORAGE, Problems, bus_gauges
from shared.core.runtime.messages import BusSeen, Replay
from shared.core.runtime.role import Input
from shared.errors import BusUnavailable
from shared.protocol import subjects

EVERY_S = 1.0
#: Servers of one group hear from each other every second. One that was silent for so long is away.
AWAY_S = 3.0
#: Without contact to a majority for so long nothing can be committed: silence, and the time between two looks.
BLOCKED_S = 4.0
#: A follower lacks something at nearly every look under load: it is behind when it did so for as long.
BEHIND_S = 5.0
log = structlog.get_logger()


class _Server:
    """What is known of one server: when it was last heard of, and when it last held all of each stream; steady time."""

    def __init__(self) -> None:
        self.heard_s = -math.inf
        self.current_s: dict[str, float] = {}
        self.lag: dict[str, int] = {}

    def saw(self, stream: str, at_s: float, replica: streams.StreamReplica) -> None:
        """Take the word of a stream's leader."""
        heard_s = at_s - replica.silent_s
        self.heard_s = max(self.heard_s, heard_s)
        self.lag[stream] = replica.lag
        if replica.current:
            # That it held everything is as old as the contact.
            self.current_s[stream] = max(self.current_s.get(stream, -math.inf), heard_s)
        else:
            self.current_s.setdefault(stream, -math.inf)

    def shown(
        self, name: str, at_s: float, *, told_s: float, leads: bool, leaderless: frozenset[str]
    ) -> BusServer:
        """Describe it at the time of a look; a stream without a leader compares no server.

        `told_s`: when a leader answered last. What has become of a server since then is not known.
        """
        led = {one: at for one, at in self.current_s.items() if one not in leaderless}
        since_s = {stream: at_s - moment for stream, moment in led.items()}
        behind = tuple(sorted(one for one, age_s in since_s.items() if age_s > BEHIND_S))
        silent_s = at_s - self.heard_s
        status = "away" if told_s - self.heard_s > AWAY_S else "behind" if behind else "current"
        return BusServer(
            name=name,
            status=status,
            leads=leads,
            lag=max((self.lag.get(one, 0) for one in behind), default=0),
            behind=behind,
            silent_ms=_ms(silent_s),
            current_ms=_ms(max(since_s.values(), default=0.0)),
        )


def _ms(seconds: float) -> int:
    return -1 if math.isinf(seconds) else max(0, round(seconds * 1000))


class ServerTable:
    """The servers by name, from the answers of the streams' leaders. Times are steady."""

    def __init__(self) -> None:
        self._known: dict[str, _Server] = {}
        #: the stream that is the log now.
        self._log = subjects.log_stream(1)
        #: when a majority of the log's servers was last known to be in contact.
        self.sure_s = -math.inf
        self._leader = ""
        self._told_s = -math.inf

    def follow(self, stream: str) -> None:
        """Name the stream that the log is written to."""
        self._log = stream

    def learn(self, stream: str, found: streams.StreamInfo, at_s: float, *, lone: str) -> bool:
        """Take an answer about a stream; False: it has no leader. `lone`: the server's name where it has no others."""
        cluster = found.cluster or streams.StreamCluster(leader=lone)
        if not cluster.leader:
            return False
        self._told_s = max(self._told_s, at_s)
        itself = streams.StreamReplica(name=cluster.leader, current=True)
        for replica in (itself, *(cluster.replicas or ())):
            self._known.setdefault(replica.name, _Server()).saw(stream, at_s, replica)
        if stream == self._log:
            self.sure_s = max(self.sure_s, at_s - cluster.majority_silent_s)
            self._leader = cluster.leader
            # A server that was replaced is no member any more, and one without a name may have got it.
            members = {cluster.leader, *(one.name for one in cluster.replicas or ())}
            self._known = {name: one for name, one in self._known.items() if name in members}
        return True

    def shown(self, at_s: float, leaderless: frozenset[str]) -> tuple[BusServer, ...]:
        """All servers at the time of a look; none leads a log without a leader, not the last one either."""
        leader = "" if self._log in leaderless else self._leader
        return tuple(
            one.shown(
                name,
                at_s,
                told_s=self._told_s,
                leads=name == leader,
                leaderless=leaderless,
            )
            for name, one in sorted(self._known.items())
        )

    def shown_blocked(self, at_s: float, up: set[str]) -> tuple[BusServer, ...]:
        """All servers while none can lead; `up`: those that answer."""
        return tuple(
            msgspec.structs.replace(
                one, status="up" if one.name in up else "away", leads=False, lag=0, behind=()
            )
            for one in self.shown(at_s, frozenset())
        )


def why_blocked(since_ns: int, servers: tuple[BusServer, ...], urls: str, through: str) -> str:
    """Say that nothing can be committed, since when, why, and what to do. `through`: the server we are connected to."""
    moment = f"{datetime.fromtimestamp(since_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M:%S}Z"
    head = f"nothing can be committed since {moment}"
    up = [one.name for one in servers if one.status == "up"]
    away = [one.name for one in servers if one.status != "up"]
    needed = len(servers) // 2 + 1
    if not up:
        return f"{head}: no server of the bus answers at {redacted_url(urls)}"
    if len(up) >= needed and through in away:
        # The others may well commit: it is our connection that stands still.
        cut = f"server {through}, by which this service reaches the bus, does not answer since {moment}"
        return f"{cut}: {', '.join(up)} answer, and the service connects to another one"
    if len(up) >= needed:
        return f"{head}: {', '.join(up)} answer, and none of them leads the log yet"
    named = f"{len(up)} of {len(servers)} servers of the bus answers ({', '.join(up)})"
    return f"{head}: {named}, {needed} are needed; start {' or '.join(away)}"


def alarms_of(servers: tuple[BusServer, ...], leaderless: tuple[str, ...]) -> tuple[str, ...]:
    """What an operator should know while commits are possible; without numbers, which change at every look."""
    spare = sum(one.status == "current" for one in servers) - (len(servers) // 2 + 1)
    is_led = not leaderless or any(one.leads for one in servers)
    risk = "" if spare > 0 or not is_led else "; the loss of another one stops all commits"
    texts = {"away": "is away", "behind": "does not hold everything yet"}
    found = [
        f"server {one.name} of the bus {texts[one.status]}{risk}"
        for one in servers
        if one.status in texts
    ]
    if leaderless:
        text = f"no server leads {', '.join(leaderless)}: an election takes some seconds"
        found.append(text if is_led else f"{text}; until then nothing can be committed")
    return tuple(found)


class BusWatch:
    """Looks from `start` on, whether the bus is there or not."""

    def __init__(
        self,
        link: CurrentConnection,
        head: ActiveGeneration,
        problems: Problems,
        put: Callable[[Input], None],
        *,
        replay: Replay,
        clocks: Callable[[], tuple[int, ...]],
        urls: str,
    ) -> None:
        self._link = link
        self._head = head
        self._problems = problems
        self._put = put
        self._replay = replay
        self._clocks = clocks
        self._urls = urls
        self._table = ServerTable()
        self._tasks: list[asyncio.Task[None]] = []
        self._began_s = time.monotonic()
        self._confirmed_ns = 0
        self._blocked_since_ns = 0
        self.status = BusStatus()

    def start(self) -> None:
        """Begin, or begin again behind a reconnect: what is known stays."""
        self.stop()
        self._tasks = [self._link.spawn(self._run())]
        if self._replay.space:
            note = partial(self._problems.note, STORAGE)
            space = watch_log_space(self._link, self._head, self._put, note, clocks=self._clocks)
            self._tasks.append(self._link.spawn(space))

    def stop(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(EVERY_S)

    def _streams(self) -> list[str]:
        if not self._replay.servers:
            return [self._head.stream]
        logs = [subjects.log_stream(number) for number in range(1, self._head.number + 1)]
        others = (streams.JOBS, *streams.ENSURED)
        return [*logs, *(one.name for one in others)]

    async def _ask(self, stream: str) -> bool:
        """Ask about a stream; False: no server leads it."""
        try:
            found = await streams.info(self._link.bus, stream)
        except BusUnavailable:
            return False
        if found is None:
            # A generation that was dropped.
            return True
        lone = server_name(self._link.bus)
        is_led = self._table.learn(stream, found, time.monotonic(), lone=lone)
        if is_led and stream == self._head.stream:
            self._confirmed_ns = time.time_ns()
        return is_led

    async def _look(self) -> None:
        names = self._streams()
        self._table.follow(self._head.stream)
        led = await asyncio.gather(*map(self._ask, names))
        leaderless = frozenset(name for name, is_led in zip(names, led, strict=True) if not is_led)
        now_s = time.monotonic()
        is_unknown = math.isinf(self._table.sure_s)
        unsure_s = now_s - (self._began_s if is_unknown else self._table.sure_s)
        # A service that has just begun knows of no contact before: it does not count as one.
        if unsure_s <= BLOCKED_S and not is_unknown:
            self._blocked_since_ns = 0
            self._note(self._table.shown(now_s, leaderless), "", leaderless)
            return
        if not self._blocked_since_ns:
            self._blocked_since_ns = time.time_ns() - round(unsure_s * SECOND_NS)
        servers = self._table.shown_blocked(now_s, await self._answering())
        through = server_name(self._link.bus)
        why = why_blocked(self._blocked_since_ns, servers, self._urls, through)
        self._note(servers, why, leaderless)

    async def _answering(self) -> set[str]:
        """Names of the servers that answer at the addresses of the bus."""
        urls = self._urls.split(",")
        return set(await asyncio.gather(*(probe(one) for one in urls))) - {""}

    def _note(
        self, servers: tuple[BusServer, ...], reason: str, leaderless: frozenset[str]
    ) -> None:
        before = {one.name: one.status for one in self.status.servers}
        # While nothing can be committed the problem names them.
        for one in () if reason else servers:
            if before.get(one.name, "current") != one.status:
                told = log.info if one.status == "current" else log.warning
                told(f"bus.server_{one.status}", server=one.name, behind=list(one.behind))
        self.status = BusStatus(
            servers=servers,
            looked_ns=time.time_ns(),
            confirmed_ns=self._confirmed_ns,
            blocked_since_ns=self._blocked_since_ns,
            reason=reason,
            leaderless=tuple(sorted(leaderless)),
        )
        alarms = self._problems.alarms = (
            () if reason else alarms_of(servers, self.status.leaderless)
        )
        self._problems.note(BUS, reason)
        is_led = any(one.leads for one in servers)
        # Of a log without a leader the rest is of the last answer: the server that led it may be the one that is gone.
        current = sum(one.status == "current" for one in servers) if is_led else 0
        since_ns = self._blocked_since_ns or (0 if is_led else self._confirmed_ns)
        blocked_s = max(0.0, (time.time_ns() - since_ns) / SECOND_NS) if since_ns else 0.0
        self._problems.bus_gauges = bus_gauges(len(servers), current, blocked_s)
        if self._replay.servers:
            self._put(BusSeen(self.status, (reason,) if reason else alarms))
