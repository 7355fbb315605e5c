"""The newest snapshot that the log proves, from the SNAP stream into a replica.

Decides which set is taken: the newest whose bytes and tables hold, else an older one, else none. Whatever is wrong
with a set is a line in the log and never an error: the log itself is always there. Writing is the view's matter
(services/view/snapshots.py).
"""

import asyncio
import contextlib
import gc
from collections.abc import Generator

import structlog

from shared.bus import streams, subjects
from shared.bus.connect import BusClient
from shared.bus.direct import Stored, read_stored
from shared.bus.reading import LogReader
from shared.core.role import Restored
from shared.core.snapshots.sets import Manifest, Part, read_manifest, restore, wanted
from shared.errors import BusUnavailable, LogDropped, SnapshotUnfit

#: Sets looked at before a reader begins at the first record.
SETS_TRIED_MAX = 4
log = structlog.get_logger()
_SNAP = streams.SNAP.name
#: Where the server keeps what the writer's own request said first: nobody but a writer of this stream can have it.
_PROOF = b"Nats-Expected-Stream: " + _SNAP.encode()


async def newest(
    bus: BusClient,
    tables: frozenset[str],
    *,
    last_seq: int = 0,
    last_ns: int = 0,
    quiet: bool = False,
) -> Restored | None:
    """Restore these tables from the newest set that is fit, not newer than `last_seq` and `last_ns` (0: whichever).

    None: there is none, or the bus does not answer; the reason stands in the log, unless `quiet`.
    """
    try:
        log_reader = LogReader(bus)
        known = [one for one in await _manifests(bus) if not last_seq or one[0] <= last_seq]
        for seq, data in _written_by(known, last_ns)[:SETS_TRIED_MAX]:
            try:
                manifest = read_manifest(data)
                found = await _restored(bus, log_reader, seq, manifest=manifest, tables=tables)
            except SnapshotUnfit as err:
                if not quiet:
                    log.warning("snapshot.passed_over", snapshot_seq=seq, reason=str(err))
            else:
                if not quiet:
                    log.info("snapshot.restored", snapshot_seq=seq, tables=sorted(tables))
                return found
    except BusUnavailable as err:
        if not quiet:
            log.warning("snapshot.unreadable", reason=str(err))
    return None


def _written_by(known: list[tuple[int, bytes]], last_ns: int) -> list[tuple[int, bytes]]:
    """Leave out what was written later than a moment; what says no moment is told apart later."""
    return [one for one in known if not last_ns or _t_ns(one[1]) <= last_ns]


def _t_ns(data: bytes) -> int:
    try:
        return read_manifest(data).t_ns
    except SnapshotUnfit:
        return 0


async def _manifests(bus: BusClient) -> list[tuple[int, bytes]]:
    """Every set that says it is whole, as (seq, manifest), newest first. Raises BusUnavailable."""
    found: dict[int, bytes] = {}
    for one in await _all(bus, subjects.SNAPSHOT_SETS):
        seq = subjects.last_token(one.subject)
        if seq.isdigit():
            found[int(seq)] = one.data
    return sorted(found.items(), reverse=True)


async def _all(bus: BusClient, subject: str, size: int = -1) -> list[Stored]:
    """Everything under a subject that a view stored there; `size`: until there are so many bytes."""
    found: list[Stored] = []
    at = 1
    while size and (batch := await read_stored(bus, _SNAP, at, subject=subject)):
        at = batch[-1].seq + 1
        mine = [one for one in batch if one.headers.split(b"\r\n", 2)[1] == _PROOF]
        found += mine
        if size > 0:
            size = max(0, size - sum(len(one.data) for one in mine))
    return found


async def _restored(
    bus: BusClient, log_reader: LogReader, seq: int, *, manifest: Manifest, tables: frozenset[str]
) -> Restored:
    """Fetch what is needed of a set, and the log's word on it. Raises SnapshotUnfit, BusUnavailable."""
    needed = wanted(manifest, tables)
    if manifest.seq != seq:
        raise SnapshotUnfit(f"names seq {manifest.seq}")
    try:
        proof = await log_reader.read(manifest.seq, 1)
    except LogDropped as err:
        raise SnapshotUnfit(f"its proof was dropped: {err}") from err
    if not proof or proof[0].seq != manifest.seq:
        raise SnapshotUnfit(f"the log has nothing at {manifest.seq}")
    parts = {part.table: await _part(bus, manifest.seq, part) for part in needed}

    def made() -> Restored:
        with _without_collector():
            return restore(manifest, parts, proof[0], tables)

    # It takes a while with a million allocations, and the bus and whoever asks after our health must be heard.
    return await asyncio.to_thread(made)


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    """Make many objects without the collector looking at them again and again: measured, five times as fast."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _part(bus: BusClient, seq: int, part: Part) -> bytes:
    """Join the chunks of one part; their hash is the reader's matter. Raises SnapshotUnfit, BusUnavailable."""
    try:
        subject = subjects.snapshot_chunks(seq, part.table, part.hash)
    except ValueError as err:
        raise SnapshotUnfit(f"names a part that cannot be: {err}") from err
    chunks: dict[int, bytes] = {}
    for one in await _all(bus, subject, part.size):
        nth = subjects.last_token(one.subject)
        if nth.isdigit():
            chunks[int(nth)] = one.data
    if sorted(chunks) != list(range(len(chunks))):
        raise SnapshotUnfit(f"{part.table} has chunks {sorted(chunks)[:20]}, some are missing")
    return b"".join(chunks[nth] for nth in range(len(chunks)))
