"""`caravan log roll`, `log drop` and `log restore`: close a generation, delete an old one, and copy it back.

Before a generation is deleted: it is the oldest and closed; the archive is sound, starts at the first record and holds
every record of the generation byte for byte; a snapshot after the generation can be restored completely. Only the
administrator of the bus may delete or create streams; services cannot.
"""

import asyncio

import msgspec

from schemas.operator import RollRequest
from services.cli.runtime.bus_client import selected_bus_url
from services.cli.runtime.export_client import open_export
from services.cli.runtime.local_clusters import login_for
from services.cli.runtime.operator_client import OperatorResult, request_operator
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.progress import ProgressBar
from shared.archive.export import ExportReader
from shared.bus.connection.nats_client import BusClient, connect, header_block
from shared.bus.jetstream import streams
from shared.bus.log import generations, snapshots
from shared.bus.log.generations import Generation
from shared.bus.log.stored_records import read_batch
from shared.bus.server import accounts
from shared.core.runtime.chain import Chain
from shared.core.runtime.messages import Record
from shared.core.state.state import TABLES
from shared.display.formats import count_noun
from shared.protocol import subjects

#: Concurrent appends.
_AT_ONCE = 64
_ANSWER_S = 30.0


class LogRollResult(OperatorResult, frozen=True):
    """`log roll --json`."""

    generation: int


def roll(out: CommandOutput, *, generation: int) -> int:
    """Close a generation of the log; 0: the newest."""
    verdict = request_operator(out, RollRequest(generation=generation), LogRollResult)
    if verdict.changed:
        out.line(f"the log continues in generation {verdict.generation}", "green")
    else:
        text = f"generation {generation} is already closed"
        out.line(f"{text}; the log is in generation {verdict.generation}")
    return 0


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `log drop` and `log restore` print."""

    generation: int
    first_seq: int
    last_seq: int
    records: int
    #: seq of the snapshot that new services start from.
    snapshot_seq: int
    archive: str
    cluster_id: str


def drop(out: CommandOutput, *, generation: int, archive: str) -> int:
    """Delete a generation's stream after its archive was checked. Raises CliError."""
    reading = open_export(archive)
    result = asyncio.run(_drop(out, generation, reading, archive))
    out.result(result)
    out.line(
        f"generation {generation} deleted: {count_noun(result.records, 'record')}, "
        f"{result.first_seq} to {result.last_seq}",
        "green",
    )
    out.line(f"commands read them from the archive with --from-file {archive}")
    return 0


def restore(out: CommandOutput, *, generation: int, archive: str) -> int:
    """Copy a dropped generation from its archive back to the bus. Raises CliError."""
    reading = open_export(archive)
    result = asyncio.run(_restore(generation, reading, archive))
    out.result(result)
    out.line(f"generation {generation} restored: {count_noun(result.records, 'record')}", "green")
    return 0


async def admin_bus() -> BusClient:
    """Connect as the administrator of the bus. Raises CliError, BusUnavailable."""
    login = login_for(selected_bus_url(), accounts.ADMIN)
    if login is None:
        text = "requires the bus administrator's password: set CARAVAN_CREDENTIALS to its file"
        raise CliError("config", text)
    return await connect(login)


# ---- drop ----


async def _drop(
    out: CommandOutput, number: int, reading: ExportReader, archive: str
) -> GenerationResult:
    bus = await admin_bus()
    try:
        found_generations = await generations.list_generations(bus)
        one = _droppable_generation(found_generations, number)
        _check_archive_covers(reading, one, archive)
        with ProgressBar("comparing records") as bar:
            cluster_id = await _compare_records(bus, one, reading, archive, bar=bar)
        out.progress("restoring the newest snapshot")
        found = await snapshots.restore_newest(bus, TABLES, quiet=True)
        if found is None or found.replica.seq <= one.end:
            text = "no snapshot after this generation can be restored; a view writes the next one after"
            bounds = "CARAVAN_SNAPSHOT_RECORDS records or CARAVAN_SNAPSHOT_MINUTES minutes"
            raise CliError("conflict", f"{text} {bounds}")
        if found.replica.chain.cluster_id != cluster_id:
            raise CliError("conflict", "the snapshot belongs to another cluster")
        # Noted first: a beginning without a note counts as lost.
        later = found_generations[1]
        why = f"generation {number} was dropped, its archive holds it"
        await streams.note_beginning(bus, later.stream, one.end + 1, why)
        await _delete(bus, one.stream)
        return GenerationResult(
            generation=number,
            first_seq=one.first_seq,
            last_seq=one.end,
            records=one.end - one.first_seq + 1,
            snapshot_seq=found.replica.seq,
            archive=archive,
            cluster_id=cluster_id,
        )
    finally:
        await bus.end()


def _droppable_generation(found: list[Generation], number: int) -> Generation:
    """Find the generation, which must be the oldest, and closed. Raises CliError."""
    one = next((each for each in found if each.number == number), None)
    have = ", ".join(str(each.number) for each in found)
    if one is None:
        raise CliError("not_found", f"no generation {number} on this bus, only {have}")
    if not one.end:
        text = f"generation {number} is still open; `caravan log roll` closes it"
        raise CliError("conflict", text)
    if one is not found[0]:
        text = f"generation {found[0].number} is older and must be dropped first"
        raise CliError("conflict", text)
    return one


def _check_archive_covers(reading: ExportReader, one: Generation, archive: str) -> None:
    """Refuse an archive that is damaged or incomplete. Raises CliError."""
    if reading.problems:
        raise CliError("damaged", f"damaged archive: {reading.problems[0]}", file=archive)
    last = max((each.last_seq for each in reading.segments), default=0)
    if last < one.end:
        text = f"the archive ends at {last}, the generation at {one.end}; run caravan log export {archive}"
        raise CliError("conflict", text, file=archive)


async def _compare_records(
    bus: BusClient, one: Generation, reading: ExportReader, archive: str, *, bar: ProgressBar
) -> str:
    """Compare every record with the archive's; returns the cluster id. Raises CliError."""
    kept = reading.records(one.first_seq, one.end)
    at, total = one.first_seq, one.end - one.first_seq + 1
    while at <= one.end:
        bar.update(at - one.first_seq, total)
        batch = await read_batch(bus, one.stream, at, min(1024, one.end - at + 1))
        if not batch or batch[0].seq != at:
            raise CliError("damaged", f"{one.stream} has no record {at}")
        for record in batch:
            copy = next(kept, None)
            if copy is None or copy != record:
                text = f"record {record.seq} of the archive differs from the bus"
                raise CliError("conflict", text, file=archive)
        at = batch[-1].seq + 1
    return reading.cluster_id


async def _delete(bus: BusClient, stream: str) -> None:
    answer = await bus.ask(subjects.js_stream_delete(stream), b"")
    if b'"success":true' not in answer.replace(b" ", b""):
        raise CliError("unavailable", f"stream {stream} was not deleted: {answer.decode()[:200]}")


# ---- restore ----


async def _restore(number: int, reading: ExportReader, archive: str) -> GenerationResult:
    bus = await admin_bus()
    try:
        found = await generations.list_generations(bus)
        oldest = found[0]
        if number >= oldest.number:
            raise CliError(
                "conflict",
                f"generation {number} has not been dropped; the log begins at {oldest.number}",
            )
        first, last = _bounds(reading, number, oldest, archive)
        info = await streams.info(bus, oldest.stream)
        assert info is not None
        assert info.config is not None
        wanted = msgspec.structs.replace(
            streams.log_config(number, info.config.max_bytes),
            num_replicas=info.config.num_replicas,
            first_seq=first,
        )
        await streams.create(bus, wanted)
        if first > 1:
            why = f"generation {number} was restored, those before it were dropped"
            await streams.note_beginning(bus, subjects.log_stream(number), first, why)
        await _append_records(bus, reading, first, last)
        return GenerationResult(
            generation=number,
            first_seq=first,
            last_seq=last,
            records=last - first + 1,
            snapshot_seq=0,
            archive=archive,
            cluster_id=reading.cluster_id,
        )
    finally:
        await bus.end()


def _bounds(
    reading: ExportReader, number: int, oldest: Generation, archive: str
) -> tuple[int, int]:
    """Find the first and last record of a generation in an archive. Raises CliError."""
    if reading.problems:
        raise CliError("damaged", f"damaged archive: {reading.problems[0]}", file=archive)
    mark = subjects.log_all(number).rstrip(">")
    chain, first, last = Chain(), 0, 0
    for record in reading.records(1, oldest.first_seq - 1):
        chain.accept(record.seq, record.subject, record.data)
        if record.subject.startswith(mark):
            first, last = first or record.seq, record.seq
    if not first:
        raise CliError("not_found", f"generation {number} is not in this archive", file=archive)
    if last != oldest.first_seq - 1:
        text = f"it ends at {last}, but {oldest.stream} begins at {oldest.first_seq}"
        raise CliError("conflict", f"{text}; restore newer generations first", file=archive)
    return first, last


async def _append_records(bus: BusClient, reading: ExportReader, first: int, last: int) -> None:
    """Append records unchanged, with the headers of a log writer. Raises CliError."""
    waiting: list[asyncio.Task[bytes]] = []

    async def one(record: Record) -> bytes:
        number = record.subject.split(".")[1]
        headers = header_block(
            nats_msg_id=f"{record.seq}-restored",
            nats_expected_stream=subjects.log_stream(int(number)),
        )
        found = await bus.request_raw(
            record.subject, record.data, headers=headers, timeout_s=_ANSWER_S
        )
        return found[1]

    with ProgressBar("restoring", last - first + 1) as bar:
        for record in reading.records(first, last):
            waiting.append(asyncio.create_task(one(record)))
            if len(waiting) == _AT_ONCE or record.seq == last:
                for answer in await asyncio.gather(*waiting):
                    if b'"error"' in answer:
                        raise CliError("unavailable", f"not stored: {answer.decode()[:200]}")
                waiting = []
                bar.update(record.seq - first + 1)
