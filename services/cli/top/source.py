"""The log behind `caravan top`: of a bus, or of an archive."""

from collections.abc import AsyncIterator

from schemas.answers import ClusterAnswer
from schemas.node_answers import AllocAnswer
from schemas.node_rpc import LogsAsk
from schemas.projections import Query
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.log_position import read_log_until, snapshot_before
from services.cli.runtime.log_source import log_end_seq_or_zero, log_first_seq
from services.cli.runtime.node_client import CliNodeStream
from shared.bus.connection.node_stream import new_session_id
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.core.runtime.restored import Restored
from shared.errors import BusUnavailable

_TAIL_LINES = 1_000


class ClientSource:
    """The log of a client. Raises CaravanError."""

    def __init__(self, client: Client, *, is_archive: bool) -> None:
        self.client = client
        self.is_archive = is_archive

    def read(self, first: int, last: int = 0) -> AsyncIterator[Record]:
        """Yield records; `last` 0: up to the end."""
        return self.client.read_log(first, last)

    def read_until(self, text: str, first: int) -> AsyncIterator[Record]:
        """Yield records up to a seq or a time."""
        return read_log_until(self.client, text, "a moment", first=first)

    def follow(self, first: int) -> AsyncIterator[Record]:
        """Yield records forever."""
        return self.client.follow_log(first)

    async def first_seq(self) -> int:
        """Seq of the first record that is there."""
        return await log_first_seq(self.client)

    async def end_seq(self) -> int:
        """Seq of the last record; 0: no view answers."""
        return await log_end_seq_or_zero(self.client)

    async def restored(self, text: str) -> Restored | None:
        """The newest snapshot not after a moment."""
        return await snapshot_before(self.client, text, "a moment")

    async def cluster(self) -> ClusterAnswer:
        """What the view says of the cluster now."""
        if not self.client.bus.is_connected:
            raise BusUnavailable("no connection to the bus: the newest state is as old as it says")
        return await query_view(self.client, "cluster", ClusterAnswer, Query())

    async def output(self, alloc: AllocAnswer, task: str, stream: str) -> AsyncIterator[bytes]:
        """Follow the output of a task, from its last lines on."""
        one = alloc.allocation
        ask = LogsAsk(
            alloc_id=one.id,
            task=task,
            session=new_session_id(),
            stream=stream,
            follow=one.client_status in ("pending", "running"),
            tail=_TAIL_LINES,
        )
        async with CliNodeStream(self.client, one.node, "logs", ask) as opened:
            async for frame in opened.frames():
                yield frame.data
