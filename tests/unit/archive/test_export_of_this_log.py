"""An export continues only with the log that it came from: its last record must stand there, byte for byte."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from services.cli.runtime.log_source import refuse_other_log
from services.cli.runtime.output import CliError
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.errors import LogDropped
from tests.golden.replay_log import read_log

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")[:60]


class InMemory(Client):
    """A log in memory instead of a bus; what is before `begins` was dropped."""

    def __init__(self, records: list[Record], begins: int = 1) -> None:
        super().__init__("")
        self._records = records
        self._begins = begins

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        if first < self._begins:
            raise LogDropped(self._begins)
        for one in self._records:
            if one.seq >= first and (not last or one.seq <= last):
                yield one


def last_of(folder: Path) -> Record | None:
    """Export everything, and say what a later run finds at the end."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        work.wanted()
        for record in RECORDS:
            work.apply(record)
        work.flush()
        work.close()
        again = Export(archive)
        found = again.last_record()
        again.close()
    return found


def test_the_last_record_is_compared_with_the_log(tmp_path: Path) -> None:
    """The same log passes; another record there, or none, is refused with the seq and the folder."""
    last = last_of(tmp_path / "out")
    assert last == RECORDS[-1]
    asyncio.run(refuse_other_log(InMemory(RECORDS), last, tmp_path))
    other = msgspec.structs.replace(RECORDS[-1], data=RECORDS[-2].data)
    with pytest.raises(CliError, match="record 60 of this log differs") as refused:
        asyncio.run(refuse_other_log(InMemory([*RECORDS[:-1], other]), last, tmp_path))
    assert (refused.value.code, refused.value.file) == ("conflict", str(tmp_path))
    with pytest.raises(CliError, match="ends before record 60"):
        asyncio.run(refuse_other_log(InMemory(RECORDS[:-1]), last, tmp_path))


def test_a_fresh_folder_and_a_dropped_past_are_no_conflict(tmp_path: Path) -> None:
    """Nothing to compare is no refusal: an empty export, and a log whose generation with that record is gone."""
    archive = Archive(tmp_path / "new")
    with archive.locked():
        work = Export(archive)
        assert work.last_record() is None
        work.close()
    asyncio.run(refuse_other_log(InMemory([]), None, tmp_path))
    asyncio.run(refuse_other_log(InMemory(RECORDS, begins=61), RECORDS[-1], tmp_path))
