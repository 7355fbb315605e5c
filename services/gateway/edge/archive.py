"""An archive in place of a cluster: its records, its past, and a caller who may only read.

There is no bus. What a request would send with its caller's login is refused in one place: the connection of the only
caller (`_NoConnection`).
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from services.gateway.edge.callers import Caller, Callers, token_of
from services.gateway.edge.context import GatewaySettings, ServerContext
from services.gateway.edge.faults import HttpFault, permission_denied
from services.gateway.edge.kept_snapshots import SNAPSHOTS_MAX, KeptSnapshots, take_snapshot
from services.gateway.edge.past_states import PastStates
from services.gateway.role import Gateway
from shared.archive.export import ExportReader
from shared.bus.connection.nats_client import BusClient
from shared.bus.shell.shell import Shell
from shared.core.runtime.messages import CaughtUp, Record, Stop
from shared.core.runtime.restored import Restored, SnapshotExtras

#: Records of one read, and between the first snapshots that are kept.
BATCH_RECORDS, STRIDE = 1_024, 4_000
TEXT = "this is an archive: nothing in it can be changed, and its tasks cannot be reached"


class ArchiveLog:
    """The records of an export. Sequential reads share one pass over its files."""

    def __init__(self, reading: ExportReader) -> None:
        self._reading = reading
        self._lock = asyncio.Lock()
        self._rest: Iterator[Record] = iter(())
        self._next_seq = 0

    async def first_seq(self) -> int:
        """Seq of the first record; 0: it is empty."""
        return self._reading.segments[0].first_seq if self._reading.segments else 0

    async def read(self, seq: int, records: int = BATCH_RECORDS) -> list[Record]:
        """Read some records from a seq on, at most so many; empty at the end."""
        async with self._lock:
            return await asyncio.to_thread(self._batch, seq, records)

    def _batch(self, seq: int, records: int) -> list[Record]:
        if seq != self._next_seq:
            self._rest = self._reading.records(seq)
        found = [one for _, one in zip(range(records), self._rest, strict=False)]
        self._next_seq = found[-1].seq + 1 if found else 0
        return found


class ArchiveContext(ServerContext):
    """What the requests of a gateway on an archive share."""

    def __init__(self, folder: Path, reading: ExportReader, settings: GatewaySettings) -> None:
        super().__init__(Gateway(instance="archive"), cast("Shell", _NoShell()), settings, None)
        self.archive = folder.resolve()
        self.token = f"archive:{secrets.token_urlsafe(24)}"
        self.callers = _OneCaller(self.token)
        #: why it is not shown to its end.
        self.problem = ""
        self._archive_log = ArchiveLog(reading)
        self._snapshots = KeptSnapshots()
        #: CPU time of the replay since the last snapshot.
        self._replayed_s = 0.0
        self.past = PastStates(self, self._snapshots)

    @property
    def is_ready(self) -> bool:
        """The archive was replayed."""
        return self.role.is_caught_up

    @property
    def has_leader(self) -> bool:
        """The applier of the archive is shown as the leader."""
        return True

    @property
    def bus(self) -> BusClient:
        """Raises HttpFault 403: there is none."""
        raise HttpFault(403, TEXT)

    @property
    def log(self) -> ArchiveLog:
        """The records."""
        return self._archive_log

    async def load(self) -> None:
        """Replay the archive, to its end or to its first damage."""
        role = self.role
        while not self.problem and (batch := await self.log.read(role.seq + 1)):
            began_s = time.thread_time()
            effects = role.step(list(batch), 0)
            self._replayed_s += time.thread_time() - began_s
            self.problem = next((one.reason for one in effects if isinstance(one, Stop)), "")
            self._keep()
            await asyncio.sleep(0)
        # Seen from its end, whatever it waited for by then has settled or not.
        role.step([CaughtUp(role.seq)], role.times.at(role.seq))

    def _keep(self) -> None:
        """Keep a snapshot of the present state, the more seldom the longer the archive is."""
        role, before = self.role, self._snapshots.newest(self.role.seq)
        stride = max(STRIDE, role.seq // SNAPSHOTS_MAX)
        if role.seq < stride + (0 if before is None else before.seq):
            return
        asides = SnapshotExtras(
            since_ns=role.histories.open_since_ns(), marks=role.log_times.marks()
        )
        made = take_snapshot(
            role.replica,
            role.changes.tables(),
            asides=asides,
            lease=role.answers.lease,
            replay_s=self._replayed_s,
            others=self._snapshots.around(role.seq),
        )
        self._snapshots.put(made)
        self._replayed_s = 0.0

    async def restore(self, last_seq: int) -> Restored | None:
        """None: all snapshots of an archive are in memory."""
        del last_seq
        return None


class _NoShell:
    """Stands for the shell of a role on the bus."""

    bus = None
    is_ready = False

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}


class _NoConnection:
    """The connection of a caller to the bus, which an archive has not. Any use of it is a refusal."""

    def __getattr__(self, name: str) -> Any:
        raise HttpFault(403, TEXT)


class _OneCaller(Callers):
    """The only caller: who has the token that the one-time code was drawn for."""

    def __init__(self, token: str) -> None:
        super().__init__("")
        self._token = token
        self._caller = Caller("archive", cast("Any", _NoConnection()))

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller. Raises HttpFault 403."""
        return await self.of_token(token_of(headers))

    async def of_token(self, token: str) -> Caller:
        """The caller. Raises HttpFault 403."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise permission_denied("this gateway serves an archive, with a login of its own")
        return self._caller

    async def end(self) -> None:
        """Nothing is open."""
