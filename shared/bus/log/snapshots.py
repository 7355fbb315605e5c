"""The newest snapshot that the log proves, from the SNAP stream into a replica.

Decides which set is taken: the newest whose bytes and tables hold, else an older one, else none. Whatever is wrong
with a set is a line in the log and never an error: the log itself is always there. Writing is the view's matter
(services/view/snapshot_writer.py).
"""

import asyncio
import contextlib
import gc
from collections.abc import Generator

import structlog

from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import StoredMessage, direct_get_batch
from shared.bus.log.log_reader import LogReader
from shared.core.runtime.restored import Restored
from shared.core.runtime.snapshots import (
    SnapshotManifest,
    SnapshotPart,
    parts_for,
    read_manifest,
    restore_replica,
)
from shared.errors import BusUnavailable, LogDropped, SnapshotUnusable
from shared.protocol import subjects

#: Sets looked at before a reader begins at the first record.
SETS_TRIED_MAX = 4
log = structlog.get_logger()
_SNAP = streams.SNAP.name
#: Where the server keeps what the writer's own request said first: only a writer of this stream can have set it.
_PROOF = b"Nats-Expected-Stream: " + _SNAP.encode()


async def restore_newest(
    bus: BusClient,
    tables: frozenset[str],
    *,
    last_seq: int = 0,
    last_ns: int = 0,
    quiet: bool = False,
) -> Restored | None:
    """Restore these tables from the newest set that is fit, not newer than `last_seq` and `last_ns` (0: whichever).

    None: there is none, or the bus does not answer; the reason is in the log, unless `quiet`.
    """
    try:
        log_reader = LogReader(bus)
        known = [one for one in await _manifests(bus) if not last_seq or one[0] <= last_seq]
        for seq, data in _written_by(known, last_ns)[:SETS_TRIED_MAX]:
            try:
                manifest = read_manifest(data)
                found = await _restored(bus, log_reader, seq, manifest=manifest, tables=tables)
            except SnapshotUnusable as err:
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


async def newest_seqs(bus: BusClient) -> dict[str, int]:
    """Return the seq of the newest set of each cluster, by the cluster's id; its log once reached it.

    Without an answer of the bus: nothing is known.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(BusUnavailable):
        for seq, data in await _manifests(bus):
            with contextlib.suppress(SnapshotUnusable):
                manifest = read_manifest(data)
                if manifest.seq == seq:
                    found[manifest.cluster_id] = max(seq, found.get(manifest.cluster_id, 0))
    return found


def _written_by(known: list[tuple[int, bytes]], last_ns: int) -> list[tuple[int, bytes]]:
    """Leave out what was written later than a moment; a message without a time is judged later."""
    return [one for one in known if not last_ns or _t_ns(one[1]) <= last_ns]


def _t_ns(data: bytes) -> int:
    try:
        return read_manifest(data).t_ns
    except SnapshotUnusable:
        return 0


async def _manifests(bus: BusClient) -> list[tuple[int, bytes]]:
    """Every set with a complete manifest, as (seq, manifest), newest first. Raises BusUnavailable."""
    found: dict[int, bytes] = {}
    for one in await _read_all(bus, subjects.SNAPSHOT_SETS):
        seq = subjects.last_token(one.subject)
        if seq.isdigit():
            found[int(seq)] = one.data
    return sorted(found.items(), reverse=True)


async def _read_all(bus: BusClient, subject: str, size: int = -1) -> list[StoredMessage]:
    """Everything under a subject that a view stored there; `size`: until there are so many bytes."""
    found: list[StoredMessage] = []
    at = 1
    while size and (batch := await direct_get_batch(bus, _SNAP, at, subject=subject)):
        at = batch[-1].seq + 1
        mine = [one for one in batch if one.headers.split(b"\r\n", 2)[1] == _PROOF]
        found += mine
        if size > 0:
            size = max(0, size - sum(len(one.data) for one in mine))
    return found


async def _restored(
    bus: BusClient,
    log_reader: LogReader,
    seq: int,
    *,
    manifest: SnapshotManifest,
    tables: frozenset[str],
) -> Restored:
    """Fetch the required parts of a set and the checkpoint that proves them. Raises SnapshotUnfit, BusUnavailable."""
    needed = parts_for(manifest, tables)
    if manifest.seq != seq:
        raise SnapshotUnusable(f"names seq {manifest.seq}")
    try:
        proof = await log_reader.read(manifest.seq, 1)
    except LogDropped as err:
        raise SnapshotUnusable(f"its proof was dropped: {err}") from err
    if not proof or proof[0].seq != manifest.seq:
        raise SnapshotUnusable(f"the log has no record {manifest.seq}")
    parts = {part.table: await _part(bus, manifest.seq, part) for part in needed}

    def made() -> Restored:
        with _gc_paused():
            return restore_replica(manifest, parts, proof[0], tables)

    # A million allocations take a while; the bus and health checks need answers in the meantime.
    return await asyncio.to_thread(made)


@contextlib.contextmanager
def _gc_paused() -> Generator[None]:
    """Make many objects without the collector looking at them again and again: measured, five times as fast."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _part(bus: BusClient, seq: int, part: SnapshotPart) -> bytes:
    """Join the chunks of one part; their hash is the reader's matter. Raises SnapshotUnfit, BusUnavailable."""
    try:
        subject = subjects.snapshot_chunks(seq, part.table, part.hash)
    except ValueError as err:
        raise SnapshotUnusable(f"names an invalid part: {err}") from err
    chunks: dict[int, bytes] = {}
    for one in await _read_all(bus, subject, part.size):
        nth = subjects.last_token(one.subject)
        if nth.isdigit():
            chunks[int(nth)] = one.data
    if sorted(chunks) != list(range(len(chunks))):
        raise SnapshotUnusable(f"{part.table} has chunks {sorted(chunks)[:20]}, some are missing")
    return b"".join(chunks[nth] for nth in range(len(chunks)))
