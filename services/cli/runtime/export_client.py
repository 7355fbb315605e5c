"""An export in place of the bus (`--from-file`), for commands that read the log.

Imports DuckDB; import this module only when it is used.
"""

from collections.abc import AsyncIterator
from pathlib import Path

from services.cli.runtime.output import CliError
from shared.archive.export import ExportReader
from shared.archive.segments import ArchiveInvalid
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.errors import LogDamaged


def open_export(folder: str | Path) -> ExportReader:
    """Open an export. Raises CliError."""
    try:
        return ExportReader(Path(folder))
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path or str(folder)) from err


class ExportClient(Client):
    """A client that reads an export instead of a bus."""

    def __init__(self, folder: str) -> None:
        """Raises CliError: not an export."""
        super().__init__("")
        self._reading = open_export(folder)
        #: descriptions of damage; records before it can be read.
        self.problems = self._reading.problems

    @property
    def first_seq(self) -> int:
        """Seq of the first record."""
        return min((one.first_seq for one in self._reading.segments), default=1)

    @property
    def last_seq(self) -> int:
        """Seq of the last record that was exported, whether it can be read or not."""
        return self._reading.last_seq

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        """Yield the export's records. Raises LogDamaged where the wanted ones at its end cannot be read."""
        seen = first - 1
        for record in self._reading.records(first, last):
            seen = record.seq
            yield record
        end = min(last or self.last_seq, self.last_seq)
        is_open = not last and any(not one.last_seq for one in self._reading.damages)
        if seen < end or is_open:
            text = f"records {seen + 1} to {end if seen < end else 'an unknown end'} cannot be read"
            raise LogDamaged(seen + 1, f"{text}: {self.problems[-1]}", sound_seq=seen)

    async def follow_log(self, first: int = 1) -> AsyncIterator[Record]:
        """Yield the records, then raise: an export does not grow."""
        async for record in self.read_log(first):
            yield record
        raise CliError("usage", "an export does not grow; --follow requires the bus")

    async def request_bytes(
        self, subject: str, body: bytes, timeout_s: float = 10.0, *, traceparent: str = ""
    ) -> bytes:
        """Raise CliError: there is no service behind an export."""
        del body, timeout_s, traceparent
        raise CliError("unavailable", f"an export cannot answer {subject}")
