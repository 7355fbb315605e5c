"""Where SQL queries read: an export, the live log, or both. The database is shared/archive's."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from schemas.bounds import bounded_decoder
from schemas.usage import UsageMinute
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.export_client import open_export
from services.cli.runtime.log_source import (
    begin_at_snapshot,
    log_cluster_id,
    log_end_seq_or_zero,
    refuse_other_log,
)
from services.cli.runtime.output import CliError
from services.cli.runtime.progress import ProgressBar
from services.cli.sql.interrupt import interruptible
from shared.archive.database import FactDatabase, SqlInvalid, SqlResult
from shared.archive.export import ExportReader, FactSpool
from shared.archive.fact_extractor import FactExtractor
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import NoResponders, direct_get_batch
from shared.core.runtime.messages import Record
from shared.errors import BusUnavailable, LogDropped, LogError
from shared.protocol import subjects

#: What makes the stream of usage be read.
_NAMES_USAGE = re.compile(r"\btask_usage\b", re.IGNORECASE)
_MINUTE = bounded_decoder(UsageMinute)


class SqlSource:
    """The tables of an export, the live log, or both. Use as a context."""

    def __init__(self, directory: str, *, is_live: bool) -> None:
        """Raises CliError."""
        self.is_live = is_live or not directory
        self.problems: list[str] = []
        self.seq = 0
        self.cluster_id = ""
        self.database = FactDatabase()
        self._directory = directory
        self._reading: ExportReader | None = None
        self._facts = FactExtractor()
        #: the last message of USAGE that was read.
        self._usage_seq = 0
        self._spool: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free memory and temporary files."""
        self.database.close()
        if self._spool is not None:
            self._spool.cleanup()

    def refresh(self) -> None:
        """Read the new records of the live log. Raises CliError."""
        self._read(self._facts.apply)
        self.database.take(self._facts)
        self.seq = self._facts.replica.seq

    def ask(self, question: str, values: Sequence[object] = ()) -> SqlResult:
        """Answer one query; Ctrl-C ends it. Raises CliError."""
        if self.is_live and _NAMES_USAGE.search(question):
            self._read_usage()
        try:
            return interruptible(
                lambda: self.database.ask(question, values), self.database.interrupt
            )
        except SqlInvalid as err:
            raise CliError("sql", str(err), line=err.line) from err

    def _open(self) -> None:
        files: dict[str, list[Path]] = {}
        bases: list[int] | None = []
        if self._directory:
            self._reading = open_export(self._directory)
            self.problems = list(self._reading.problems)
            self.cluster_id = self._reading.cluster_id
            files, bases = self._reading.files(), self._reading.bases()
        if self.is_live:
            spool = self._spooled()
            for table, paths in spool.files.items():
                files.setdefault(table, []).extend(paths)
            bases = None if bases is None else [*bases, *spool.bases]
        try:
            self.database.lock_sources(files, bases)
        except SqlInvalid as err:
            raise CliError("damaged", str(err), file=self._directory) from err
        if not self.is_live:
            self.seq = int(self.ask("SELECT coalesce(last_seq(), 0)").rows[0][0])

    def _spooled(self) -> FactSpool:
        """Read the live log to its end, into temporary files if it is large."""
        if self._reading is not None:
            # Later records refer to rows of the state, which is rebuilt up to the end of the export.
            if self.problems:
                raise CliError(
                    "damaged",
                    f"{self.problems[0]}; without --live the records before it can be read",
                )
            self._facts = FactExtractor(is_recording=False, words=self._reading.words())
        self._spool = tempfile.TemporaryDirectory(prefix="caravan-sql-")
        spool = FactSpool(self._facts, Path(self._spool.name))
        try:
            self._read(spool.apply)
        finally:
            spool.close()
        self.database.take(self._facts)
        self.seq = self._facts.replica.seq
        return spool

    def _read_usage(self) -> None:
        """Read the minutes that came since the last time."""

        async def read(client: Client) -> list[UsageMinute]:
            found: list[UsageMinute] = []
            # A bus without the stream has none.
            with contextlib.suppress(NoResponders):
                while batch := await direct_get_batch(
                    client.bus, streams.USAGE.name, self._usage_seq + 1, subject=subjects.USAGES
                ):
                    self._usage_seq = batch[-1].seq
                    for one in batch:
                        # Nodes write it: what is no minute is one that is missing.
                        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                            found.append(_MINUTE.decode(one.data))
            return found

        try:
            self.database.take_usage(with_bus(read))
        except (CliError, BusUnavailable) as err:
            problem = f"what tasks used could not be read: {err}"
            if problem not in self.problems:
                self.problems.append(problem)

    def _read(self, apply: Callable[[Record], None]) -> None:
        facts = self._facts

        async def read(client: Client) -> None:
            cluster_id = await log_cluster_id(client)
            if self.cluster_id and cluster_id != self.cluster_id:
                text = f"the export belongs to cluster {self.cluster_id}, the log to {cluster_id}"
                raise CliError("conflict", text)
            self.cluster_id = cluster_id
            if self._reading is not None and not facts.is_recording:
                last = next(self._reading.records(self._reading.last_seq), None)
                await refuse_other_log(client, last, Path(self._directory))
                await begin_at_snapshot(client, facts.replica.begin_at, self._reading.last_seq)
                for record in self._reading.records(facts.replica.next_seq):
                    facts.apply(record)
                facts.resume()
            with ProgressBar("reading the log", await log_end_seq_or_zero(client)) as bar:
                async for record in client.read_log(facts.replica.next_seq):
                    apply(record)
                    bar.update(record.seq)

        try:
            with_bus(read)
        except LogDropped as err:
            text = f"the log on this bus begins at {err.first_seq}; older records are in an export"
            raise CliError("dropped", f"{text}: --dir DIR --live reads both") from err
        except LogError as err:
            # Records before the damage can be queried.
            if str(err) not in self.problems:
                self.problems.append(str(err))
