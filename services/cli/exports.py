"""`caravan log export`: the log as Parquet files, one segment behind the other.

Decides nothing about segments (shared/archive); it reads what of the log is not exported yet.
"""

from pathlib import Path

import msgspec

from services.cli.asking import with_bus
from services.cli.output import CliError, Output
from shared.archive.export import Export, Written
from shared.archive.segments import Archive, ArchiveInvalid
from shared.bus.client import Client
from shared.core.log import Chain
from shared.errors import LogDamaged, LogError


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


def export(out: Output, *, directory: str) -> int:
    """Write what of the log is not exported yet. Exit 2: the log is damaged, and exported up to there."""
    archive = Archive(Path(directory))
    try:
        with archive.locked():
            work = Export(archive)
            try:
                return _export(out, archive, work)
            finally:
                work.close()
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err


def _export(out: Output, archive: Archive, work: Export) -> int:
    problem = ""
    first_seq = 0

    async def read(client: Client) -> None:
        nonlocal first_seq
        cluster_id = await cluster_of(client)
        archive.begin(cluster_id)
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
    # What can be followed is exported, whatever comes behind it.
    work.flush()
    chain, written = work.facts.replica.chain, work.written
    told = Exported(
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
    out.result(told)
    _show(out, told, written)
    return 2 if problem else 0


def _show(out: Output, told: Exported, written: Written) -> None:
    records = f"{written.records} from {told.first_seq}" if written.records else "nothing new"
    out.fields(
        [
            ("Folder", told.dir),
            ("Cluster", told.cluster_id),
            ("Records", f"{records}, up to {told.last_seq}"),
            ("Written", f"{written.segments} segments, {written.rows} rows, {written.bytes} bytes"),
            ("Head", told.head),
        ]
    )
    if told.problem:
        out.line(f"\n{told.problem}; exported up to there", "red")


async def cluster_of(client: Client) -> str:
    """Ask the log itself whose it is: its first lease says so. Raises CliError, LogError."""
    chain = Chain()
    async for record in client.read_log():
        chain.accept(record.seq, record.subject, record.data)
        if chain.cluster_id:
            return chain.cluster_id
    raise CliError("not_found", "the log holds nothing yet")
