"""`caravan log export`: append the new records of the log to an export of Parquet files (shared/archive)."""

from pathlib import Path

import msgspec

from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.log_source import (
    begin_at_snapshot,
    log_cluster_id,
    log_end_seq_or_zero,
    refuse_other_log,
)
from services.cli.runtime.output import CliError, CommandOutput, result_from
from services.cli.runtime.progress import ProgressBar
from shared.archive.compaction import compact_segments
from shared.archive.export import Export
from shared.archive.segments import Archive, ArchiveInvalid
from shared.bus.connection.public_client import Client
from shared.display.formats import count_noun, format_size
from shared.errors import LogDamaged, LogDropped, LogError


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """`log export --json`."""

    dir: str
    cluster_id: str
    #: first record of this run; 0: there was none.
    first_seq: int
    last_seq: int
    segments: int
    records: int
    events: int
    rows: int
    bytes: int
    #: head of the hash chain at the end of the export.
    head: str
    problem: str
    #: segments merged into larger ones.
    compacted: int = 0


def export(out: CommandOutput, *, directory: str, compact: bool) -> int:
    """Write the records that are not exported yet. Exit 2: the log is damaged; records before that are exported."""
    archive = Archive(Path(directory))
    if archive.folder.is_file():
        raise CliError("usage", "a file, not a folder", file=directory)
    try:
        with archive.locked():
            work = Export(archive)
            try:
                result = _export(archive, work)
            finally:
                work.close()
            if compact:
                result = msgspec.structs.replace(result, compacted=compact_segments(archive))
            out.result(result)
            _show(out, result)
            return 2 if result.problem else 0
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err


def _export(archive: Archive, work: Export) -> ExportResult:
    problem = ""
    first_seq = 0

    async def read(client: Client) -> None:
        nonlocal first_seq
        cluster_id = await log_cluster_id(client)
        if archive.cluster_id():
            archive.begin(cluster_id)
        await refuse_other_log(client, work.last_record(), archive.folder)
        if work.is_whole:
            await begin_at_snapshot(client, work.begin_at, work.last_seq)
        last = 1
        with ProgressBar("exporting", await log_end_seq_or_zero(client)) as bar:
            while last:
                first, last = work.wanted()
                first_seq = first_seq or first
                async for record in client.read_log(first, last):
                    work.apply(record)
                    bar.update(record.seq)
                at = work.facts.replica.next_seq
                if last and at <= last:
                    raise LogDamaged(at, "missing: no longer on the bus")

    try:
        with_bus(read)
    except LogError as err:
        problem = str(err)
    except LogDropped as err:
        raise CliError("dropped", _dropped(work, err.first_seq), file=str(archive.folder)) from err
    # Sound records are exported, whatever follows them.
    work.flush()
    chain, written = work.facts.replica.chain, work.written
    return result_from(
        ExportResult,
        written,
        dir=str(archive.folder),
        cluster_id=chain.cluster_id,
        first_seq=first_seq if written.records else 0,
        last_seq=chain.next_seq - 1,
        head=chain.head,
        problem=problem,
        compacted=0,
    )


def _show(out: CommandOutput, result: ExportResult) -> None:
    records = f"{result.records} from {result.first_seq}" if result.records else "no new records"
    out.fields(
        [
            ("Folder", result.dir),
            ("Cluster", result.cluster_id),
            ("Records", f"{records}, up to {result.last_seq}"),
            (
                "Written",
                f"{count_noun(result.segments, 'segment')}, {result.rows} rows, {format_size(result.bytes)}",
            ),
            ("Head", result.head),
        ]
    )
    if result.compacted:
        out.line(f"{result.compacted} segments merged into larger ones")
    if result.problem:
        out.line(f"\n{result.problem}; records before that are exported", "red")


def _dropped(work: Export, first_seq: int) -> str:
    """Why an export cannot continue: its next record was dropped from the bus."""
    here = f"this export ends at {work.last_seq}" if work.last_seq else "this export is empty"
    return (
        f"the log on this bus begins at {first_seq} (older records were dropped), and {here}; "
        f"continue an export that holds record {first_seq - 1}, or a copy of it"
    )
