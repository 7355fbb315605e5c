"""An export in place of the bus (`--from-file`): commands that read the log read that one, and nobody is asked.

Decides what cannot be had from an export. DuckDB comes with it, so it is imported only then.
"""

from collections.abc import AsyncIterator
from pathlib import Path

from services.cli.output import CliError
from shared.archive.export import Reading
from shared.archive.segments import ArchiveInvalid
from shared.bus.client import Client
from shared.core.role import Record


class Archived(Client):
    """A client of no bus."""

    def __init__(self, folder: str) -> None:
        """Raises CliError: no export."""
        super().__init__("")
        try:
            self._reading = Reading(Path(folder))
        except ArchiveInvalid as err:
            raise CliError(err.code, str(err), file=err.path) from err
        #: what is damaged; the rest can be read up to there.
        self.problems = self._reading.problems

    @property
    def last_seq(self) -> int:
        """Where the export ends."""
        return max((one.last_seq for one in self._reading.segments), default=0)

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        """Yield the export's records."""
        for record in self._reading.records(first, last):
            yield record

    async def follow_log(self, first: int = 1) -> AsyncIterator[Record]:
        """Yield what there is, then refuse to wait: nothing comes."""
        async for record in self.read_log(first):
            yield record
        raise CliError("usage", "an export does not grow by itself: --follow needs the bus")

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float = 10.0) -> bytes:
        """Refuse: nobody is there."""
        del body, timeout_s
        raise CliError("unavailable", f"an export cannot answer {subject}")
