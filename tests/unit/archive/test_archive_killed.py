"""An export that is killed at any moment is continued by the next one; two at once, and what a spool holds."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.archive import segments
from shared.archive.compaction import compact_segments
from shared.archive.database import FactDatabase, ParquetWriter
from shared.archive.export import Export, ExportReader, FactSpool
from shared.archive.fact_extractor import FactExtractor
from shared.archive.segments import Archive, ArchiveInvalid
from shared.core.runtime.messages import Record
from tests.golden.replay_log import read_log
from tests.not_tested import is_full

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")
FEW = RECORDS[:24]
#: Death comes at every such step: at each one in the full tier.
STRIDE = 1 if is_full() else 4


class Killed(BaseException):
    """The process is no more."""


class Death:
    """Comes at the `left`th step that changes the disk; from then on nothing is changed any more."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_here = False

    def before(self, done: Callable[..., Any], half: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a step; `half` is what it leaves when death comes in its midst."""

        def step(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.is_here:
                raise Killed
            if self.left == 0:
                self.is_here = True
                half(*args, **kwargs)
                raise Killed
            return done(*args, **kwargs)

        return step


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Leave nothing."""


@contextmanager
def dying(death: Death) -> Iterator[None]:
    """Let every step of an export that changes the disk be its last one, when death comes."""
    write, rmtree = segments._write, shutil.rmtree

    def half_a_file(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])

    def half_a_table(_writer: ParquetWriter, *args: Any) -> None:
        args[-1].write_bytes(b"PAR1")

    def taken_away(path: Path, *, ignore_errors: bool = False) -> None:
        if not death.is_here:
            rmtree(path, ignore_errors=ignore_errors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_write", death.before(write, half_a_file))
        patch.setattr(segments, "_sync", death.before(segments._sync, nothing))
        patch.setattr(shutil, "rmtree", taken_away)
        patch.setattr(Path, "rename", death.before(Path.rename, nothing))
        patch.setattr(ParquetWriter, "write", death.before(ParquetWriter.write, half_a_table))
        yield


def export(folder: Path, records: list[Record], *, rows_max: int = 150) -> None:
    """Export as the command does: what is wanted, then the end."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive, rows_max=rows_max)
        try:
            first, _ = work.wanted()
            for record in records[first - 1 :]:
                work.apply(record)
            work.flush()
        finally:
            work.close()


def database_over(folder: Path) -> FactDatabase:
    reading, database = ExportReader(folder), FactDatabase()
    database.lock_sources(reading.files(), reading.bases())
    return database


def test_killed_at_any_step_the_next_export_goes_on(tmp_path: Path) -> None:
    """Whatever step was the last one, the next run needs no help, and the export is then the log, byte by byte."""
    nth, deaths = 1 - STRIDE, 0
    while True:
        nth += STRIDE
        folder, death = tmp_path / f"out-{nth}", Death(nth)
        try:
            with dying(death):
                export(folder, FEW)
        except Killed:
            deaths += 1
        left = {one.name for one in folder.glob("seq-*")}
        export(folder, FEW)
        reading = ExportReader(folder)
        assert reading.problems == []
        assert [one.data for one in reading.records()] == [one.data for one in FEW], nth
        assert left <= {one.name for one in folder.iterdir()}, "a finished segment was written anew"
        assert not list(folder.glob(".draft-*"))
        if not death.is_here:
            break
    assert deaths == nth // STRIDE and nth > 15


def test_who_is_refused_hears_who_exports(tmp_path: Path) -> None:
    """The error of a second export names the process that holds the lock; afterwards it succeeds."""
    folder = tmp_path / "out"
    with Archive(folder).locked():
        with pytest.raises(ArchiveInvalid, match=f"process {os.getpid()} on ") as refused:
            export(folder, FEW)
        assert refused.value.code == "conflict"
    export(folder, FEW)
    assert ExportReader(folder).last_seq == len(FEW)


def test_a_spool_says_what_memory_would(tmp_path: Path) -> None:
    """A log that lies on the disk in parts, with its end in memory, answers as one that is all in memory."""
    whole, parts = FactDatabase(), FactDatabase()
    facts = FactExtractor()
    for record in RECORDS:
        facts.apply(record)
    whole.take(facts)
    whole.lock_sources({})
    spool = FactSpool(FactExtractor(), tmp_path, rows_max=400)
    for record in RECORDS:
        spool.apply(record)
    spool.close()
    parts.take(spool.facts)
    parts.lock_sources(spool.files, spool.bases)
    assert len(spool.files["placements"]) > 2
    for question in (
        "SELECT * FROM allocations_at(200)",
        "SELECT * FROM usage_at(300)",
        "SELECT * FROM allocations",
        "SELECT * EXCLUDE (body) FROM events",
        "SELECT * FROM waiting('service-big')",
    ):
        assert sorted(map(repr, whole.ask(question).rows)) == sorted(
            map(repr, parts.ask(question).rows)
        )


def many_small(folder: Path, step: int) -> set[str]:
    """Export a bit at a time; returns names of segments."""
    for end in (*range(step, len(RECORDS), step), len(RECORDS)):
        export(folder, RECORDS[:end], rows_max=1_000_000)
    return {one.name for one in folder.glob("seq-*")}


def test_small_segments_become_one(tmp_path: Path) -> None:
    """Put together they say at every moment what they said, hold the same records, and exports continue behind them."""
    folder = tmp_path / "out"
    many_small(folder, 20 if is_full() else 30)
    asked = "SELECT * FROM allocations_at(?)"
    before = database_over(folder)
    wanted = {seq: sorted(before.ask(asked, [seq]).rows) for seq in range(1, len(RECORDS), 31)}
    archive = Archive(folder)
    with archive.locked():
        assert compact_segments(archive, rows_max=2_000) > 10
        assert compact_segments(archive, rows_max=2_000) == 0
    reading = ExportReader(folder)
    assert reading.problems == [] and len(reading.segments) > 1
    assert [one.data for one in reading.records()] == [one.data for one in RECORDS]
    after = database_over(folder)
    assert {seq: sorted(after.ask(asked, [seq]).rows) for seq in wanted} == wanted
    export(folder, RECORDS)
    assert ExportReader(folder).last_seq == len(RECORDS)


def test_killed_while_segments_are_put_together(tmp_path: Path) -> None:
    """Whatever step was the last one, nothing is lost, and what was replaced goes with the next export."""
    nth = 1 - STRIDE
    many_small(tmp_path / "small", 100)
    while True:
        nth += STRIDE
        folder, death = tmp_path / f"out-{nth}", Death(nth)
        shutil.copytree(tmp_path / "small", folder)
        archive = Archive(folder)
        try:
            with archive.locked(), dying(death):
                compact_segments(archive)
        except Killed:
            pass
        assert [one.data for one in ExportReader(folder).records()] == [
            one.data for one in RECORDS
        ], nth
        export(folder, RECORDS)
        reading = ExportReader(folder)
        assert reading.problems == []
        assert {one.name for one in folder.glob("*-*")} == {one.name for one in reading.segments}
        if not death.is_here:
            break
        assert nth < 100
    assert nth > 5 and len(ExportReader(folder).segments) == 1
