"""A bus of one or three servers on loopback, and appends of a given log to it: for benchmarks of the log itself.

Servers are set up as by `caravan up`, each write fsynced; records are appended with the headers of the plan applier.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from shared.bus.connection.nats_client import (
    BusClient,
    Login,
    connect,
    header_block,
    url_with_login,
)
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings, free_port
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime.messages import Record
from shared.core.runtime.role import Role
from shared.errors import BusUnavailable
from shared.protocol import subjects

READY_S = 60.0
#: Appends under way while a log is put into a stream.
_DEPTH = 64


class ClusteredServer(NatsServer):
    """One of three: the config of a lone server, and where the others are."""

    def __init__(
        self,
        settings: ServerSettings,
        credentials: accounts.Credentials,
        *,
        number: int,
        routes: Sequence[int],
    ) -> None:
        super().__init__(settings, credentials)
        self.number = number
        #: as in deploy/compose.yaml.
        self.name = f"nats-{number + 1}"
        self.routes = routes

    def _write_config(self) -> Path:
        path = super()._write_config()
        text = path.read_text().replace("server_name: caravan", f"server_name: {self.name}")
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
        listen = f"127.0.0.1:{self.routes[self.number]}"
        text += f"cluster {{ name: bench, listen: {listen}, routes: [{urls}] }}\n"
        path.write_text(text)
        return path


def clustered_servers(
    settings: Sequence[ServerSettings], credentials: accounts.Credentials
) -> list[ClusteredServer]:
    """Return the servers of one bus, which know each other."""
    routes = [free_port() for _ in settings]
    return [
        ClusteredServer(one, credentials, number=number, routes=routes)
        for number, one in enumerate(settings)
    ]


class BusServers:
    """Servers of one bus. `replicas`: 1 or 3."""

    def __init__(self, folder: Path, replicas: int, *, fsync: bool = True) -> None:
        self.replicas = replicas
        self.credentials = accounts.new_credentials()
        settings = [
            ServerSettings(data_dir=folder / f"bus{n}", fsync=fsync) for n in range(replicas)
        ]
        self.members: list[NatsServer] = (
            [NatsServer(settings[0], self.credentials)]
            if replicas == 1
            else [*clustered_servers(settings, self.credentials)]
        )

    @property
    def url(self) -> str:
        """Where clients connect."""
        return ",".join(one.url for one in self.members)

    @property
    def client_url(self) -> str:
        """Where clients of PUBLIC connect, user and password inside."""
        return url_with_login(self.url, *self.credentials.login(accounts.PUBLIC))

    def login(self, name: str) -> Login:
        """Login of a role, admin or sys."""
        user, password = self.credentials.login(name)
        return Login(url=self.url, user=user, password=password)

    def pids(self) -> dict[str, int]:
        """The servers, by name."""
        names = ("bus", "bus-2", "bus-3")
        return {name: one.pid for name, one in zip(names, self.members, strict=False)}

    @asynccontextmanager
    async def connection(self, name: str = "admin") -> AsyncGenerator[BusClient]:
        """A raw connection as a role or admin."""
        client = await connect(self.login(name))
        try:
            yield client
        finally:
            await client.end()

    async def drive(
        self, role: Role, story: Callable[[Shell], Awaitable[None]], user: str = "plan_applier"
    ) -> None:
        """Run a role on this bus in its real shell while `story` runs. Raises the exception of either."""
        sys_login = self.login("sys") if user == "plan_applier" else None
        own = ShellSettings(login=self.login(user), sys_login=sys_login, replicas=self.replicas)
        shell = Shell(role, own)
        stop = asyncio.Event()
        running = asyncio.create_task(shell.run(stop))
        telling = asyncio.ensure_future(story(shell))
        await asyncio.wait({running, telling}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and not telling.done():
            telling.cancel()
        stop.set()
        await running
        await telling

    async def begin(self) -> None:
        """Create the streams of a new cluster; three servers need a moment to agree who leads."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                async with self.connection() as client:
                    await streams.bootstrap(client, replicas=self.replicas)
            except BusUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


@contextmanager
def servers(replicas: int = 1, *, fsync: bool | None = None) -> Generator[BusServers]:
    """Run servers in a directory of their own, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="caravan-log-"))
    wanted = os.environ.get("CARAVAN_BENCH_FSYNC", "1") != "0" if fsync is None else fsync
    made = BusServers(folder, replicas, fsync=wanted)
    try:
        for one in made.members:
            one.start()
        yield made
    finally:
        for one in made.members:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def append_records(client: BusClient, records: Sequence[Record]) -> None:
    """Append records to LOG_1 as the plan applier would, many at once; the time is not measured."""
    stream = subjects.log_stream(1)
    loop = asyncio.get_running_loop()
    under_way: deque[asyncio.Future[bytes | None]] = deque()
    for record in records:
        done: asyncio.Future[bytes | None] = loop.create_future()
        headers = header_block(nats_msg_id=f"{record.seq}", nats_expected_stream=stream)
        answered = partial(_answered, done)
        client.call(record.subject, record.data, answered, headers=headers, timeout_s=30.0)
        under_way.append(done)
        if len(under_way) >= _DEPTH:
            _check(await under_way.popleft())
    for done in under_way:
        _check(await done)


def _answered(done: asyncio.Future[bytes | None], _headers: bytes, body: bytes | None) -> None:
    done.set_result(body)


def _check(answer: bytes | None) -> None:
    if answer is None or b'"error"' in answer:
        raise BusUnavailable(f"a record was not stored: {answer!r}")


def fsync_ms(folder: Path, times: int = 200) -> float:
    """Median time of a 4 KiB write with fsync on the disk of a directory."""
    took = []
    path = folder / "fsync-probe"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            took.append((time.perf_counter() - start) * 1e3)
    path.unlink()
    return median(took)
