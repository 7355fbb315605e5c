"""A small cluster whose decisions are written as a log, and the source that `caravan top` reads it from."""

import asyncio
from collections.abc import AsyncIterator

from schemas.answers import ClusterAnswer
from schemas.base import Event
from schemas.envelope import AnyCommand, AnyEvent
from schemas.node_answers import AllocAnswer
from shared.core.runtime.messages import Record
from shared.core.runtime.restored import Restored
from shared.errors import BusUnavailable
from tests.builders import Cluster, group, join, register
from tests.unit.core.state.written_log import START_NS, WrittenLog


class WrittenCluster(Cluster):
    """A cluster that writes what it decides."""

    def __init__(self) -> None:
        self.log = WrittenLog()
        super().__init__()
        self.now_ns = START_NS

    def apply(self, *events: Event) -> None:
        """Apply facts; the first record of a log is a lease."""
        if not self.state.seq:
            self.state.begin(1, self.now_ns)
        super().apply(*events)

    def do(self, *commands: AnyCommand) -> list[Event]:
        """Decide commands, and write the facts."""
        events = super().do(*commands)
        self.log.tx(*events, t_ns=self.now_ns)  # type: ignore[arg-type]
        return events

    def apply_logged(self, *events: AnyEvent) -> None:
        """Apply and write facts as they are."""
        self.apply(*events)
        self.log.tx(*events, t_ns=self.now_ns)

    def on_node(self, name: str) -> list[int]:
        """Rows of the allocations of `web` on a node."""
        table, fleet = self.state.allocations, self.state.fleet
        return [row for row in self.rows("web") if fleet.ids[int(table.node[row])] == name]


class WrittenSource:
    """Reads a written log as a bus would: what is written later is followed."""

    def __init__(self, log: WrittenLog, *, is_archive: bool = False) -> None:
        self.log = log
        self.is_archive = is_archive
        self.reads: list[tuple[int, int]] = []
        self.alarms: tuple[str, ...] = ()
        self.ahead = 0
        self.is_away = False
        self.lines = [b"first line\n", b"\x1b[31mred\x1b[0m [bold]not markup[/bold] \x07\n"]

    async def read(self, first: int, last: int = 0) -> AsyncIterator[Record]:
        """Yield records."""
        self.reads.append((first, last))
        for one in self.log.records[first - 1 : last or None]:
            yield one

    async def read_until(self, text: str, first: int) -> AsyncIterator[Record]:
        """Yield records up to a seq; a time is the end."""
        async for one in self.read(first, int(text) if text.isdigit() else 0):
            yield one

    async def follow(self, first: int) -> AsyncIterator[Record]:
        """Yield records forever."""
        while True:
            for one in self.log.records[first - 1 :]:
                first = one.seq + 1
                yield one
            await asyncio.sleep(0.01)

    async def first_seq(self) -> int:
        """The first record."""
        return 1

    async def end_seq(self) -> int:
        """The last record."""
        return self.log.seq

    async def restored(self, text: str) -> Restored | None:
        """There are no snapshots."""
        del text
        return None

    async def cluster(self) -> ClusterAnswer:
        """What a view would say."""
        if self.is_away:
            raise BusUnavailable("no view answers")
        return ClusterAnswer(cluster_id="c1", seq=self.log.seq + self.ahead, alarms=self.alarms)

    async def output(self, alloc: AllocAnswer, task: str, stream: str) -> AsyncIterator[bytes]:
        """Two lines, one of them hostile."""
        yield f"{alloc.allocation.name} {task} {stream}\n".encode()
        for one in self.lines:
            yield one


def small_cluster() -> WrittenCluster:
    """Two nodes; `web` runs on both, one of `big` waits for memory."""
    made = WrittenCluster()
    made.do(join("n1"), join("n2", number=1))
    made.later(10)
    made.run(register("web", group("web", count=2, memory_mib=400)))
    made.later(10)
    for name in ("n1", "n2"):
        made.report(name, *((row, "running") for row in made.on_node(name)))
    made.later(10)
    made.run(register("big", group("big", count=1, memory_mib=5_000)))
    return made
