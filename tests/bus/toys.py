"""Roles small enough to see through, a cluster's bus for one test, and waiting for a level."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from shared.bus.connection.nats_client import (
    BusClient,
    ConnectionCallbacks,
    Login,
    connect,
    header_block,
)
from shared.bus.jetstream import streams
from shared.bus.server import accounts, nats_server
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime import messages as r
from shared.core.runtime.role import Input, Role
from shared.protocol import subjects
from tests.bounds import WAIT_S, level


async def until(holds: Callable[[], object], what: str = "") -> None:
    """Wait for a level, bounded in time."""
    await level(holds, what)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's story in a fresh loop."""
    asyncio.run(story)


async def append(
    writer: BusClient, data: bytes, *, msg_id: str, subject: str = subjects.log(1, "tx")
) -> None:
    """Write one message into the log as its one writer does: only so is it a record of ours."""
    headers = header_block(nats_msg_id=msg_id, nats_expected_stream=subjects.log_stream(1))
    await writer.request_raw(subject, data, headers=headers)


class Bus:
    """A server and the keys to it."""

    def __init__(self, running: nats_server.NatsServer, credentials: accounts.Credentials) -> None:
        self.server = running
        self.credentials = credentials

    def login(self, name: str) -> Login:
        user, password = self.credentials.login(name)
        return Login(url=self.server.url, user=user, password=password)

    def node_login(self, node_id: str) -> Login:
        user, password = self.credentials.node_login(node_id)
        return Login(url=self.server.url, user=user, password=password)

    @contextlib.asynccontextmanager
    async def client(
        self, login: Login | str = "admin", errors: list[str] | None = None
    ) -> AsyncIterator[BusClient]:
        """A raw connection; refusals of the server are added to `errors`."""
        known = self.login(login) if isinstance(login, str) else login
        heard: list[str] = errors if errors is not None else []
        made = await connect(known, ConnectionCallbacks(error=lambda err: heard.append(str(err))))
        try:
            yield made
        finally:
            await made.end()

    async def bootstrap(self, **settings: int) -> None:
        async with self.client() as admin:
            await streams.bootstrap(admin, **settings)

    def settings(self, user: str = "plan_applier", **other: float) -> ShellSettings:
        """What a role's shell in CORE is given."""
        sys_login = self.login("sys") if user == "plan_applier" else None
        own = ShellSettings(login=self.login(user), sys_login=sys_login, start_timeout_s=WAIT_S)
        return msgspec.structs.replace(own, **other)

    def node_settings(self, node_id: str) -> ShellSettings:
        """What an agent's shell is given."""
        return ShellSettings(login=self.node_login(node_id), in_core=False)

    @contextlib.asynccontextmanager
    async def shell(
        self, role: Role, settings: ShellSettings | str = "plan_applier"
    ) -> AsyncIterator[Shell]:
        """A shell that drives `role` while the block runs; a failure of it is the test's."""
        own = self.settings(settings) if isinstance(settings, str) else settings
        shell = Shell(role, own)
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        try:
            yield shell
        finally:
            stop.set()
            await running


class Toy:
    """Remembers every input; effects are what `play` puts there, performed at the next step."""

    name = "plan_applier"

    def __init__(self, *sources: r.Source, leader_key: str = "", instance: str = "toy") -> None:
        self.instance = instance
        self.leader_key = leader_key
        self.next_seq = 1
        self.seen: list[Input] = []
        self.batches: list[int] = []
        self._sources = sources
        self._effects: list[r.Effect] = []

    def sources(self) -> tuple[r.Source, ...]:
        return self._sources

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        self.seen += inputs
        self.batches.append(len(inputs))
        for one in inputs:
            if isinstance(one, r.Record):
                self.next_seq = one.seq + 1
        effects, self._effects = self._effects, []
        return effects

    def metrics(self) -> dict[str, float]:
        return {"caravan_toy_inputs_total": float(len(self.seen))}

    def play(self, shell: Shell, *effects: r.Effect) -> None:
        """Have effects performed by a step that a timer brings about."""
        self._effects += effects
        shell.inject([r.Timer("play", 1)])

    def of(self, kind: type) -> list[Any]:
        """What arrived of one kind."""
        return [one for one in self.seen if isinstance(one, kind)]

    def datas(self, kind: type = r.Message) -> list[bytes]:
        return [one.data for one in self.of(kind)]


class Applier:
    """Writes what it is sent into the log, one record a batch; commands are numbers, each is written once.

    It keeps the rules of the real one: appends only when it has seen the whole log, decides again after a refusal.
    """

    name = "plan_applier"
    leader_key = "plan_applier"

    def __init__(self, instance: str, *, always: bool = False) -> None:
        self.instance = instance
        self.next_seq = 1
        self.log: list[bytes] = []
        self.written: set[bytes] = set()
        self.waiting: dict[bytes, None] = {}
        self.leads = always
        self._always = always
        self._caught_up = False
        self._asked: int = 0
        self.refused = 0
        self.reconnects = 0

    def sources(self) -> tuple[r.Source, ...]:
        return (r.Replay(), r.Work("plan", "CMD", "cmd.plan", "plan", 64))

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        effects: list[r.Effect] = []
        for one in inputs:
            effects += self._take(one)
        fresh = [data for data in self.waiting if data not in self.written]
        self.waiting = dict.fromkeys(fresh)
        if self.leads and self._caught_up and not self._asked and fresh:
            self._asked = self.next_seq
            body = b",".join(fresh[:10])
            name = f"{self.instance}-{self.next_seq}"
            effects.append(r.Append("tx", body, self.next_seq - 1, name))
        return effects

    def _take(self, one: Input) -> Sequence[r.Effect]:
        match one:
            case r.Record():
                assert one.seq == self.next_seq, f"gap: {one.seq} after {self.next_seq - 1}"
                self.next_seq = one.seq + 1
                self.log.append(one.data)
                self.written.update(one.data.split(b","))
                self._settle()
            case r.CaughtUp():
                self._caught_up = True
            case r.Message():
                self.waiting[one.data] = None
                return [r.Ack(one.token)]
            case r.Appended():
                self._acked = one.seq
                self._settle(one.seq)
            case r.AppendRefused():
                self.refused += 1
                self._asked = 0
            case r.AppendUnknown():
                self._caught_up, self._asked = False, 0
                return [r.Rewind(self.next_seq)]
            case r.LeadershipWon():
                self.leads = True
                return [r.Open("plan")]
            case r.LeadershipLost():
                self.leads = self._always
                return [r.Close("plan")]
            case r.Reconnected():
                self.reconnects += 1
            case _:
                pass
        return []

    _acked = 0

    def _settle(self, acked: int = 0) -> None:
        """The next append waits for the answer and for the record itself, whichever comes later."""
        self._acked = max(self._acked, acked)
        if self._asked and self._asked == self._acked and self.next_seq > self._acked:
            self._asked = 0

    def metrics(self) -> dict[str, float]:
        return {}
