"""Which cluster a log belongs to, where it ends, and whether an export continues it."""

from collections.abc import Callable
from pathlib import Path

from schemas.answers import ClusterAnswer
from schemas.envelope import RECORD_DECODER
from schemas.projections import Query
from services.cli import global_options
from services.cli.runtime.bus_client import query_view
from services.cli.runtime.output import CliError
from shared.bus.connection.public_client import Client
from shared.bus.log import snapshots
from shared.core.runtime.chain import Chain, is_framed
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.errors import LogDropped
from shared.numerals import is_digits


async def log_end_seq(client: Client) -> int:
    """The end of the log according to the view; the end of an export."""
    if global_options.export_dir():
        from services.cli.runtime.export_client import ExportClient

        assert isinstance(client, ExportClient)
        return client.last_seq
    return (await query_view(client, "cluster", ClusterAnswer, Query())).seq


async def log_first_seq(client: Client) -> int:
    """The first record that the bus, or the export, holds."""
    if global_options.export_dir():
        from services.cli.runtime.export_client import ExportClient

        assert isinstance(client, ExportClient)
        return client.first_seq
    return max(await client.log.first_seq(), 1)


async def log_end_seq_or_zero(client: Client) -> int:
    """How far a command reads, for its progress bar; 0: unknown, or no view answers."""
    if at := global_options.at_position():
        return int(at) if is_digits(at) else 0
    try:
        return await log_end_seq(client)
    except CliError as err:
        if err.code != "unavailable":
            raise
        return 0


async def refuse_other_log(client: Client, ours: Record | None, folder: Path) -> None:
    """Refuse an export whose last record (`ours`) differs from the log's: the export of a fork. Raises CliError."""
    if ours is None:
        return
    try:
        theirs = [one.data async for one in client.read_log(ours.seq, ours.seq)]
    except LogDropped:
        # Not comparable; the next record must still link to it.
        return
    if theirs == [ours.data]:
        return
    if theirs:
        text = f"record {ours.seq} of this log differs from the export's"
    else:
        text = f"this log ends before record {ours.seq}, the end of the export"
    text += ": the export belongs to a fork, or to an earlier log of this cluster"
    raise CliError("conflict", text, file=str(folder))


async def begin_at_snapshot(
    client: Client, begin_at: Callable[[Replica], None], last_seq: int
) -> None:
    """Start at the newest snapshot not after `last_seq`, if there is one, to replay less."""
    if not last_seq or global_options.export_dir():
        return
    # Imported here: it brings a database along.
    from shared.archive.fact_extractor import REPLAYED_TABLES

    restored = await snapshots.restore_newest(
        client.bus, REPLAYED_TABLES, last_seq=last_seq, quiet=True
    )
    if restored is not None:
        begin_at(restored.replica)


async def log_cluster_id(client: Client) -> str:
    """Read the cluster id from the first lease of the log. Raises CliError, LogError."""
    chain = Chain()
    try:
        async for record in client.read_log():
            chain.accept(record.seq, record.subject, record.data)
            if chain.cluster_id:
                return chain.cluster_id
    except LogDropped as err:
        return await _cluster_id_after_drop(client, err.first_seq)
    raise CliError("not_found", "the log is empty")


async def _cluster_id_after_drop(client: Client, first_seq: int) -> str:
    """The same after a drop: from a verified snapshot, else from a later lease."""
    restored = await snapshots.restore_newest(client.bus, frozenset({"policy"}), quiet=True)
    if restored is not None:
        return restored.replica.chain.cluster_id
    async for record in client.read_log(first_seq):
        if record.subject.endswith(".lease") and is_framed(record.data):
            lease = RECORD_DECODER.decode(record.data).lease
            if lease is not None:
                return lease.cluster_id
    raise CliError(
        "not_found", f"no snapshot or lease names the cluster of the log that begins at {first_seq}"
    )
