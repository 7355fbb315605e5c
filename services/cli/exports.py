"""`caravan log export`: the log as Parquet files, one segment behind the other.

Decides nothing about segments (shared/archive); it reads what of the log is not exported yet.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from schemas.envelope import RECORD_DECODER
from services.cli import chosen
from services.cli.asking import with_bus
from services.cli.output import CliError, Output
from shared.archive.compaction import compacted
from shared.archive.export import Export
from shared.archive.facts import TABLES
from shared.archive.segments import Archive, ArchiveInvalid
from shared.bus import snapshots
from shared.bus.client import Client
from shared.core.log import Chain, is_framed
from shared.core.replica import Replica
from shared.core.role import Record
from shared.errors import LogDamaged, LogDropped, LogError


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What `log export` prints."""

    dir: str
    cluster_id: str
    #: of what was written now; 0: nothing was.
    first_seq: int
    last_seq: int
    segments: int
    records: int
    events: int
    rows: int
    bytes: int
    #: the chain's head at the end of the export.
    head: str
    problem: str
    #: segments that were put together into larger ones.
    compacted: int = 0


def export(out: Output, *, directory: str, compact: bool) -> int:
    """Write what of the log is not exported yet. Exit 2: the log is damaged, and exported up to there."""
    archive = Archive(Path(directory))
    if archive.folder.is_file():
        raise CliError("usage", "this is a file; a folder is wanted", file=directory)
    try:
        with archive.locked():
            work = Export(archive)
            try:
                told = _export(out, archive, work)
            finally:
                work.close()
            if compact:
                told = msgspec.structs.replace(told, compacted=compacted(archive))
            out.result(told)
            _show(out, told)
            return 2 if told.problem else 0
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err


def _export(out: Output, archive: Archive, work: Export) -> Exported:
    problem = ""
    first_seq = 0

    async def read(client: Client) -> None:
        nonlocal first_seq
        cluster_id = await cluster_of(client)
        if archive.cluster_id():
            archive.begin(cluster_id)
        await refuse_another(client, work.last_record(), archive.folder)
        if work.is_whole:
            await begin_within(client, work.begin_at, work.last_seq)
        last = 1
        while last:
            first, last = work.wanted()
            first_seq = first_seq or first
            async for record in client.read_log(first, last):
                work.apply(record)
                if record.seq % 100_000 == 0:
                    out.progress(f"{record.seq} records")
            at = work.facts.replica.next_seq
            if last and at <= last:
                raise LogDamaged(at, "missing: the bus does not have it any more")

    try:
        with_bus(read)
    except LogError as err:
        problem = str(err)
    except LogDropped as err:
        raise CliError("dropped", _dropped(work, err.first_seq), file=str(archive.folder)) from err
    # What can be followed is exported, whatever comes behind it.
    work.flush()
    chain, written = work.facts.replica.chain, work.written
    return Exported(
        dir=str(archive.folder),
        cluster_id=chain.cluster_id,
        first_seq=first_seq if written.records else 0,
        last_seq=chain.next_seq - 1,
        segments=written.segments,
        records=written.records,
        events=written.events,
        rows=written.rows,
        bytes=written.bytes,
        head=chain.head,
        problem=problem,
    )


def _show(out: Output, told: Exported) -> None:
    records = f"{told.records} from {told.first_seq}" if told.records else "nothing new"
    out.fields(
        [
            ("Folder", told.dir),
            ("Cluster", told.cluster_id),
            ("Records", f"{records}, up to {told.last_seq}"),
            ("Written", f"{told.segments} segments, {told.rows} rows, {told.bytes} bytes"),
            ("Head", told.head),
        ]
    )
    if told.compacted:
        out.line(f"{told.compacted} segments were put together into larger ones")
    if told.problem:
        out.line(f"\n{told.problem}; exported up to there", "red")


def _dropped(work: Export, first_seq: int) -> str:
    """Say why an export cannot go on: what comes next is not on the bus any more."""
    here = f"this export ends at {work.last_seq}" if work.last_seq else "this export is empty"
    return (
        f"the log on this bus begins at {first_seq}, what was before was dropped, and {here}; "
        f"go on with the export that holds {first_seq - 1}, or a copy of it"
    )


async def refuse_another(client: Client, ours: Record | None, folder: Path) -> None:
    """Refuse an export that ends otherwise than this log went: a fork's, or one of another life of the cluster.

    `ours`: its last record. Raises CliError.
    """
    if ours is None:
        return
    try:
        theirs = [one.data async for one in client.read_log(ours.seq, ours.seq)]
    except LogDropped:
        # It cannot be compared; what comes next must still link to it.
        return
    if theirs == [ours.data]:
        return
    if theirs:
        text = f"record {ours.seq} of this log is another one than the export's"
    else:
        text = f"this log ends before record {ours.seq}, where the export ends"
    text += ": the export is of a fork, or of another life of this cluster"
    raise CliError("conflict", text, file=str(folder))


async def begin_within(client: Client, begin_at: Callable[[Replica], None], last_seq: int) -> None:
    """Begin at the newest snapshot that is not behind `last_seq`, where there is one: less is replayed."""
    if not last_seq or chosen.from_file():
        return
    restored = await snapshots.newest(client.bus, TABLES, last_seq=last_seq, quiet=True)
    if restored is not None:
        begin_at(restored.replica)


async def cluster_of(client: Client) -> str:
    """Ask the log itself whose it is: its first lease says so. Raises CliError, LogError."""
    chain = Chain()
    try:
        async for record in client.read_log():
            chain.accept(record.seq, record.subject, record.data)
            if chain.cluster_id:
                return chain.cluster_id
    except LogDropped as err:
        return await _cluster_of_rest(client, err.first_seq)
    raise CliError("not_found", "the log holds nothing yet")


async def _cluster_of_rest(client: Client, first_seq: int) -> str:
    """The same where the beginning was dropped: a snapshot that the log proves, else a later lease, says so."""
    restored = await snapshots.newest(client.bus, frozenset({"policy"}), quiet=True)
    if restored is not None:
        return restored.replica.chain.cluster_id
    async for record in client.read_log(first_seq):
        if record.subject.endswith(".lease") and is_framed(record.data):
            lease = RECORD_DECODER.decode(record.data).lease
            if lease is not None:
                return lease.cluster_id
    raise CliError("not_found", f"nothing on this bus says whose log begins at {first_seq}")
