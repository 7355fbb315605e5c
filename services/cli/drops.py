"""`caravan log drop` and `log restore`: an old generation leaves the bus, and comes back from its archive.

Decides what must be proven before anything goes. Of the log itself: the generation is the oldest there is, and over. Of
the archive: it is sound and whole from the first record on, and holds every record of the generation byte for byte. Of
the snapshots: one can be restored, every table of it, whose proof stands behind the generation. Only the administrator
of the bus may delete or make a stream; no service ever can. Next: `rolls.py`.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from services.cli import running_ups
from services.cli.asking import bus_url
from services.cli.output import CliError, Output
from shared.archive.export import Reading
from shared.archive.segments import ArchiveInvalid
from shared.bus import accounts, generations, snapshots, streams, subjects
from shared.bus.connect import BusClient, Login, connect, header_block
from shared.bus.generations import Generation
from shared.bus.records import read_batch
from shared.core.log import Chain
from shared.core.role import Record
from shared.core.state import TABLES

#: Appends under way while records are put back.
_AT_ONCE = 64
_ANSWER_S = 30.0


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """What `log drop` and `log restore` print."""

    generation: int
    first_seq: int
    last_seq: int
    records: int
    #: of the snapshot that a fresh service begins at.
    snapshot_seq: int
    archive: str
    cluster_id: str


def drop(out: Output, *, generation: int, archive: str) -> int:
    """Delete a generation's stream, once everything of it is proven to be elsewhere. Raises CliError."""
    reading = _open(archive)
    told = asyncio.run(_drop(out, generation, reading, archive))
    out.result(told)
    out.line(
        f"generation {generation} is gone: {told.records} records, {told.first_seq} to {told.last_seq}",
        "green",
    )
    out.line(f"what needs them is asked of the archive: --from-file {archive}")
    return 0


def restore(out: Output, *, generation: int, archive: str) -> int:
    """Put a dropped generation back into the bus, from its archive. Raises CliError."""
    reading = _open(archive)
    told = asyncio.run(_restore(out, generation, reading, archive))
    out.result(told)
    out.line(f"generation {generation} is back: {told.records} records", "green")
    return 0


def _open(archive: str) -> Reading:
    try:
        return Reading(Path(archive))
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err


async def _admin() -> BusClient:
    """Connect as who may delete a stream. Raises CliError, BusUnavailable."""
    url = bus_url()
    known = [Path(one.data_dir) for one in running_ups.all_running() if one.url == url]
    path = os.environ.get("CARAVAN_CREDENTIALS") or (
        str(known[-1] / "credentials.json") if known else ""
    )
    if not path:
        text = "only the bus's administrator may do this: CARAVAN_CREDENTIALS names the passwords"
        raise CliError("config", text)
    user, password = accounts.read_credentials(Path(path)).login(accounts.ADMIN)
    return await connect(Login(url=url, user=user, password=password))


# ---- drop ----


async def _drop(out: Output, number: int, reading: Reading, archive: str) -> Dropped:
    bus = await _admin()
    try:
        one = _may_go(await generations.chain(bus), number)
        _covers(reading, one, archive)
        out.progress(f"comparing {one.end - one.first_seq + 1} records with the archive")
        cluster_id = await _compare(bus, one, reading, archive)
        out.progress("looking for a snapshot behind it")
        found = await snapshots.newest(bus, TABLES, quiet=True)
        if found is None or found.replica.seq <= one.end:
            text = "no snapshot behind this generation can be restored: a view writes the next one"
            raise CliError("conflict", f"{text}, after CARAVAN_SNAPSHOT_RECORDS or minutes")
        if found.replica.chain.cluster_id != cluster_id:
            raise CliError("conflict", "the snapshot is of another cluster")
        await _delete(bus, one.stream)
        return Dropped(
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


def _may_go(found: list[Generation], number: int) -> Generation:
    """Find the generation, which must be the oldest, and over. Raises CliError."""
    one = next((each for each in found if each.number == number), None)
    have = ", ".join(str(each.number) for each in found)
    if one is None:
        raise CliError("not_found", f"there is no generation {number} on this bus, only {have}")
    if not one.end:
        text = f"generation {number} is the one that is written: caravan log roll ends it"
        raise CliError("conflict", text)
    if one is not found[0]:
        text = f"generation {found[0].number} is older, and goes first"
        raise CliError("conflict", text)
    return one


def _covers(reading: Reading, one: Generation, archive: str) -> None:
    """Refuse an archive that is damaged or lacks something. Raises CliError."""
    if reading.problems:
        text = f"the archive is not sound: {reading.problems[0]}"
        raise CliError("damaged", text, file=archive)
    last = max((each.last_seq for each in reading.segments), default=0)
    if last < one.end:
        text = (
            f"the archive ends at {last}, the generation at {one.end}: caravan log export {archive}"
        )
        raise CliError("conflict", text, file=archive)


async def _compare(bus: BusClient, one: Generation, reading: Reading, archive: str) -> str:
    """Compare every record with the archive's; returns whose log it is. Raises CliError."""
    kept = reading.records(one.first_seq, one.end)
    at = one.first_seq
    while at <= one.end:
        batch = await read_batch(bus, one.stream, at, min(1024, one.end - at + 1))
        if not batch or batch[0].seq != at:
            raise CliError("damaged", f"{one.stream} has nothing at {at}")
        for record in batch:
            copy = next(kept, None)
            if copy is None or copy != record:
                text = f"record {record.seq} of the archive is not the one on the bus"
                raise CliError("conflict", text, file=archive)
        at = batch[-1].seq + 1
    return reading.cluster_id


async def _delete(bus: BusClient, stream: str) -> None:
    answer = await bus.ask(subjects.js_stream_delete(stream), b"")
    if b'"success":true' not in answer.replace(b" ", b""):
        raise CliError("unavailable", f"{stream} was not deleted: {answer.decode()[:200]}")


# ---- restore ----


async def _restore(out: Output, number: int, reading: Reading, archive: str) -> Dropped:
    bus = await _admin()
    try:
        found = await generations.chain(bus)
        oldest = found[0]
        if number >= oldest.number:
            raise CliError("conflict", f"generation {number} is on the bus, or none that was")
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
        out.progress(f"putting {last - first + 1} records back")
        await _put(bus, reading, first, last)
        return Dropped(
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


def _bounds(reading: Reading, number: int, oldest: Generation, archive: str) -> tuple[int, int]:
    """Find where a generation begins and ends in an archive; it must end where the oldest begins. Raises CliError."""
    if reading.problems:
        raise CliError("damaged", f"the archive is not sound: {reading.problems[0]}", file=archive)
    mark = subjects.log_all(number).rstrip(">")
    chain, first, last = Chain(), 0, 0
    for record in reading.records(1, oldest.first_seq - 1):
        chain.accept(record.seq, record.subject, record.data)
        if record.subject.startswith(mark):
            first, last = first or record.seq, record.seq
    if not first:
        raise CliError("not_found", f"generation {number} is not in this archive", file=archive)
    if last != oldest.first_seq - 1:
        text = f"it ends at {last}, and {oldest.stream} begins at {oldest.first_seq}"
        raise CliError("conflict", f"{text}: put the newer ones back first", file=archive)
    return first, last


async def _put(bus: BusClient, reading: Reading, first: int, last: int) -> None:
    """Append records as they were, under the headers of a writer of the log. Raises CliError."""
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

    for record in reading.records(first, last):
        waiting.append(asyncio.create_task(one(record)))
        if len(waiting) == _AT_ONCE or record.seq == last:
            for answer in await asyncio.gather(*waiting):
                if b'"error"' in answer:
                    raise CliError("unavailable", f"not stored: {answer.decode()[:200]}")
            waiting = []
