"""The log as tables: facts agree with the state, an export continues and refuses what it must, questions only read."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pytest

from schemas.base import JobId
from schemas.envelope import LeaseHeld
from schemas.jobs import JobRegistered
from shared.archive.database import FactDatabase, SqlInvalid
from shared.archive.export import Export, ExportReader
from shared.archive.fact_extractor import FactExtractor
from shared.archive.segments import Archive, ArchiveInvalid
from shared.core.runtime.chain import Chain, seal
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.state.ids import alloc_id, eval_id
from shared.core.state.state import State
from shared.errors import LogDamaged
from tests.golden.replay_log import read_log
from tests.not_tested import is_full

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")


def database_of(records: Iterable[Record]) -> FactDatabase:
    facts, database = FactExtractor(), FactDatabase()
    for record in records:
        facts.apply(record)
    database.take(facts)
    database.lock_sources({})
    return database


def exported(folder: Path, records: list[Record], *, rows_max: int = 300) -> Export:
    """Export as the command does: what is wanted, then the end."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive, rows_max=rows_max)
        last = 1
        while last:
            first, last = work.wanted()
            for record in records:
                if record.seq >= first and (not last or record.seq <= last):
                    work.apply(record)
        work.flush()
        work.close()
    return work


def database_over(folder: Path) -> FactDatabase:
    database = FactDatabase()
    reading = ExportReader(folder)
    database.lock_sources(reading.files(), reading.bases())
    return database


@pytest.fixture(scope="module")
def database() -> FactDatabase:
    return database_of(RECORDS)


def states(seqs: set[int]) -> Iterable[State]:
    replica = Replica()
    for record in RECORDS:
        replica.apply(record)
        if record.seq in seqs:
            yield replica.state


# ---- what tables say ----


def test_allocations_at_any_seq_are_those_of_the_state(database: FactDatabase) -> None:
    """At every seq looked at, the same allocations hold resources as in the replayed state, with the same status."""
    looked = set(range(1, len(RECORDS), 9))
    for seq, state in zip(sorted(looked), states(looked), strict=True):
        table = state.allocations
        rows = table.live_rows()
        holding = rows[table.is_holding(rows)]
        wanted = {
            (
                alloc_id(int(table.key[row])),
                str(state.fleet.ids[int(table.node[row])]),
                ("pending", "running", "complete", "failed", "lost", "unknown")[table.client[row]],
                ("run", "stop", "evict")[table.desired[row]],
            )
            for row in holding.tolist()
        }
        question = "SELECT id, node_id, client_status, desired_status FROM allocations_at(?)"
        rows = database.ask(question, [seq]).rows
        assert (set(rows), len(rows)) == (wanted, len(wanted)), seq


def test_use_at_any_seq_is_that_of_the_state(database: FactDatabase) -> None:
    """At every seq looked at, each node uses what the state says it holds."""
    looked = set(range(1, len(RECORDS), 9))
    for seq, state in zip(sorted(looked), states(looked), strict=True):
        used = state.allocations.used(state.fleet.size)
        wanted = {
            (str(node_id), *used[row].tolist())
            for row, node_id in enumerate(state.fleet.ids)
            if state.fleet.live[row]
        }
        question = "SELECT node_id, cpu_mhz, memory_mib, disk_mib FROM usage_at(?)"
        rows = database.ask(question, [seq]).rows
        assert (set(rows), len(rows)) == (wanted, len(wanted)), seq


def test_the_state_at_a_seq_is_the_same_over_any_chunks(
    tmp_path: Path, database: FactDatabase
) -> None:
    """Many chunks, some lean, written by one run or by many, and changes alone: all say what one chunk says."""
    step, apart = (100, 23) if is_full() else (200, 61)
    runs = (len(RECORDS),), (*range(5, len(RECORDS), step), len(RECORDS))
    asked = "SELECT * FROM allocations_at(?)"
    wanted = {seq: sorted(database.ask(asked, [seq]).rows) for seq in range(1, len(RECORDS), apart)}
    for nth, ends in enumerate(runs):
        folder = tmp_path / f"export-{nth}"
        for end in ends:
            exported(folder, RECORDS[:end], rows_max=40)
        reading = ExportReader(folder)
        assert {one.spans for one in reading.segments} == {"full", "lean"}
        for bases in (reading.bases(), None):
            over = FactDatabase()
            over.lock_sources(reading.files(), bases)
            for seq, rows in wanted.items():
                assert sorted(over.ask(asked, [seq]).rows) == rows, (nth, bases is None, seq)
            over.close()


@pytest.mark.parametrize("macro", ["allocations_at", "usage_at"])
def test_a_moment_beyond_the_end(database: FactDatabase, macro: str) -> None:
    """Asked for a seq that is not there, a macro says where the log ends."""
    with pytest.raises(SqlInvalid, match=f"the log ends at {len(RECORDS)}, asked for 999"):
        database.ask(f"SELECT count(*) FROM {macro}(999)")
    assert database.ask(f"SELECT count(*) FROM {macro}({len(RECORDS)})").rows[0][0] > 0


def test_nothing_of_the_log_is_left_out(database: FactDatabase) -> None:
    """Every record and event has its row, and each plan, evaluation and placement its own."""
    replica = Replica()
    decoded = [one for record in RECORDS if (one := replica.apply(record)) is not None]
    events = [event for record in decoded for event in record.events]
    tags = [str(event.__struct_config__.tag) for event in events]
    assert database.ask("SELECT count(*) FROM records").rows == [(len(RECORDS),)]
    told = dict(database.ask("SELECT type, count(*) FROM events GROUP BY type").rows)
    assert told == {tag: tags.count(tag) for tag in set(tags)}
    plans = tags.count("plan.committed") + tags.count("plan.refused")
    assert database.ask("SELECT count(*) FROM decisions").rows == [(plans,)]


def test_ids_are_those_that_commands_show(database: FactDatabase) -> None:
    """Ids of allocations and evaluations are the ones computed from their keys."""
    for table, shown in (("allocations", alloc_id), ("evaluations", eval_id)):
        rows = database.ask(f"SELECT key, id FROM {table}").rows
        assert rows
        assert all(shown(key) == text for key, text in rows)


def test_reasons_hold_until_the_next_decision(database: FactDatabase) -> None:
    """What waits of a job in the state is what `reasons` says holds, and waiting() joins it without a gap."""
    state = next(iter(states({100})))
    blocked = [
        (one.job_id, group, told.count, told.wait_class)
        for key in state.evaluations.open
        if (one := state.evaluations.by_key[key]).blocked is not None
        for group, told in one.blocked.waiting.items()
    ]
    question = """SELECT job_id, group_name, n, "class" FROM reasons
        WHERE from_seq <= 100 AND (to_seq IS NULL OR to_seq > 100)"""
    assert blocked
    assert set(blocked) <= set(database.ask(question).rows)
    lone = database.ask("SELECT sum(seconds) FROM reasons WHERE job_id = 'service-big'").rows[0][0]
    joined = database.ask("SELECT sum(seconds) FROM waiting('service-big')").rows[0][0]
    assert joined == pytest.approx(lone)


# ---- questions that only read ----


@pytest.mark.parametrize(
    "question",
    [
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '/tmp/never.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/never.csv'",
        "EXPLAIN/* analyze SELECT 1 -- */ ANALYZE COPY (SELECT 1) TO '/tmp/never.csv'",
        "EXPLAIN /* */ ANALYZE COPY (SELECT 1) TO '/tmp/never.csv'",
        "ATTACH '/tmp/never.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "CREATE TABLE x (a INT)",
        "INSERT INTO tail.events SELECT * FROM tail.events",
        "DROP VIEW events",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "SELECT * FROM RECORDS_OF_PYTHON",
        "SELECT nope FROM events",
        "SELECT * FROM",
        "SELECT CAST('x' AS INTEGER)",
        "",
    ],
)
def test_a_question_can_only_read_the_log(database: FactDatabase, question: str) -> None:
    """Whatever else a statement tries, or gets wrong, is refused with one line, and nothing was written."""
    with pytest.raises(SqlInvalid) as refused:
        database.ask(question)
    assert str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path("/tmp/never.csv").exists() and not Path("/tmp/never.db").exists()


def test_an_exports_own_files_are_not_written(tmp_path: Path) -> None:
    """The files that may be read cannot be copied over, explained or not."""
    exported(tmp_path / "out", RECORDS)
    path = next((tmp_path / "out").glob("seq-*/events.parquet"))
    before = path.read_bytes()
    asked = database_over(tmp_path / "out")
    for word in ("", "EXPLAIN ANALYZE "):
        with pytest.raises(SqlInvalid):
            asked.ask(f"{word}COPY (SELECT 1) TO '{path}' (FORMAT parquet)")
    assert path.read_bytes() == before
    with pytest.raises(SqlInvalid):
        asked.ask(f"SELECT * FROM read_text('{tmp_path / 'out' / 'export.json'}')")


def test_what_is_fine_is_answered(database: FactDatabase) -> None:
    """SELECT in all its spellings, and EXPLAIN of it."""
    for question in ("FROM jobs", "DESCRIBE jobs", "SHOW TABLES", "EXPLAIN SELECT 1", "VALUES (1)"):
        assert database.ask(question).rows


# ---- exports ----


def test_an_export_tells_the_same_as_the_log(tmp_path: Path, database: FactDatabase) -> None:
    """Over many segments every table has just the rows that it has over the log itself."""
    work = exported(tmp_path / "out", RECORDS)
    assert work.written.segments > 3
    over = database_over(tmp_path / "out")
    for table in ("events", "jobs", "allocations", "allocation_states", "nodes", "evaluations"):
        question = f"SELECT * FROM {table} ORDER BY ALL"
        assert over.ask(question) == database.ask(question), table


def test_a_second_run_goes_on(tmp_path: Path, database: FactDatabase) -> None:
    """What is there stays as it is, only what came since is written, and a third run has nothing to do."""
    exported(tmp_path / "out", RECORDS[:150])
    kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")}
    second = exported(tmp_path / "out", RECORDS)
    assert second.written.records == len(RECORDS) - 150
    assert all(path.read_bytes() == data for path, data in kept.items())
    assert exported(tmp_path / "out", RECORDS).written.segments == 0
    question = "SELECT * FROM allocations ORDER BY key"
    assert database_over(tmp_path / "out").ask(question) == database.ask(question)


def test_an_export_holds_the_records_themselves(tmp_path: Path) -> None:
    """The log can be read back from it, byte by byte."""
    exported(tmp_path / "out", RECORDS)
    assert list(ExportReader(tmp_path / "out").records()) == RECORDS
    assert [one.seq for one in ExportReader(tmp_path / "out").records(20, 90)] == list(
        range(20, 91)
    )


def test_two_exports_at_once(tmp_path: Path) -> None:
    """The second one is refused as long as the first one writes."""
    archive = Archive(tmp_path / "out")
    with (
        archive.locked(),
        pytest.raises(ArchiveInvalid, match="another export"),
        Archive(archive.folder).locked(),
    ):
        pass
    with Archive(archive.folder).locked():
        pass


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """Another cluster's export, and a folder with anything else in it."""
    exported(tmp_path / "out", RECORDS[:50])
    with pytest.raises(ArchiveInvalid, match="of cluster simulated, this is other"):
        Archive(tmp_path / "out").begin("other")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ArchiveInvalid, match=r"letter\.txt"):
        exported(tmp_path / "mine", RECORDS[:50])
    assert [one.name for one in (tmp_path / "mine").glob("*")] == ["letter.txt"]


def test_a_damaged_segment_is_named_and_the_rest_is_usable(tmp_path: Path) -> None:
    """One flipped bit: that table's part is left out, the next export refuses; moved away, it is made again."""
    exported(tmp_path / "out", RECORDS)
    folders = sorted((tmp_path / "out").glob("seq-*"))
    path = folders[1] / "events.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reading = ExportReader(tmp_path / "out")
    assert reading.problems == [
        f"segment {folders[1].name}: events.parquet was modified: its hash differs"
    ]
    over = database_over(tmp_path / "out")
    assert over.ask("SELECT count(*) FROM records").rows == [(len(RECORDS),)]
    assert over.ask("SELECT count(*) > 0 FROM events").rows == [(True,)]
    with pytest.raises(ArchiveInvalid, match=folders[1].name):
        exported(tmp_path / "out", RECORDS)
    shutil.move(folders[1], tmp_path / "away")
    assert "are not in this export" in ExportReader(tmp_path / "out").problems[0]
    again = exported(tmp_path / "out", RECORDS)
    assert again.written.segments == 1
    assert not ExportReader(tmp_path / "out").problems


def test_a_lost_description_is_named(tmp_path: Path) -> None:
    """A segment that does not say what it holds is left out, and stops the next export."""
    exported(tmp_path / "out", RECORDS)
    folder = max((tmp_path / "out").glob("seq-*"))
    (folder / "segment.json").write_text("{")
    assert folder.name in ExportReader(tmp_path / "out").problems[0]
    with pytest.raises(ArchiveInvalid, match=folder.name):
        exported(tmp_path / "out", RECORDS)


def test_an_interrupted_export_leaves_nothing_half(tmp_path: Path) -> None:
    """A draft that was never finished is no segment, and the next run takes it away."""
    exported(tmp_path / "out", RECORDS[:150])
    draft = tmp_path / "out" / ".draft-151"
    draft.mkdir()
    (draft / "events.parquet").write_bytes(b"half")
    assert not ExportReader(tmp_path / "out").problems
    exported(tmp_path / "out", RECORDS)
    assert not draft.exists()
    assert list(ExportReader(tmp_path / "out").records()) == RECORDS


def test_a_gap_in_the_log_ends_the_export_before_it(tmp_path: Path) -> None:
    """What can be followed is kept, and the place is named."""
    archive = Archive(tmp_path / "out")
    with archive.locked():
        work = Export(archive)
        work.wanted()
        for record in RECORDS[:100]:
            work.apply(record)
        with pytest.raises(LogDamaged, match="record 102"):
            work.apply(RECORDS[101])
        work.flush()
        work.close()
    assert [one.seq for one in ExportReader(archive.folder).records()] == list(range(1, 101))


def test_foreign_records_are_kept_and_told(tmp_path: Path) -> None:
    """A message of another writer is in `records` as foreign, and in no other table."""
    foreign = Record(1, "log.1.tx", b"hello")
    database = database_of([foreign])
    assert database.ask("SELECT seq, kind FROM records").rows == [(1, "foreign")]
    assert database.ask("SELECT count(*) FROM events").rows == [(0,)]


def test_texts_that_are_no_json_cost_only_themselves() -> None:
    """A job whose text no database takes for JSON: its cell is null, every other row is there."""
    chain, records = Chain(), []

    def write(kind: str, **told: Any) -> None:
        seq = len(records) + 1
        record = chain.draft(kind, seq, **told)
        data, digest = seal(record)
        chain.wrote(seq, msgspec.structs.replace(record, sum=digest), digest)
        records.append(Record(seq, f"log.1.{kind}", data))

    write("lease", lease=LeaseHeld(holder="a", cluster_id="c"))
    # A character that is none, and digits that no number holds.
    for job_id, spec in (("bad", b'{"ID":"\xff"}'), ("worse", b"[1e99999]"), ("good", b"{}")):
        job = JobRegistered(
            submission_id=job_id,
            digest="d",
            job_id=JobId(job_id),
            version=0,
            spec=msgspec.Raw(spec),
        )
        write("tx", events=[job])
    asked = database_of(records)
    assert asked.ask("SELECT job_id FROM jobs ORDER BY from_seq").rows == [
        ("bad",),
        ("worse",),
        ("good",),
    ]
    assert asked.ask("SELECT spec FROM jobs WHERE job_id = 'good'").rows == [("{}",)]
    assert asked.ask("SELECT count(body) > 0, count(*) FROM events").rows == [(True, 3)]


def test_an_older_export_lacks_what_came_later(tmp_path: Path) -> None:
    """A column that a file does not have is null there, and an unknown one is not shown."""
    path = tmp_path / "events.parquet"
    with duckdb.connect() as other:
        other.execute(
            f"COPY (SELECT 7 AS seq, 'x' AS type, 1 AS news) TO '{path}' (FORMAT parquet)"
        )
    asked = FactDatabase()
    asked.lock_sources({"events": [path]})
    assert asked.ask("SELECT seq, type, job_id FROM events").rows == [(7, "x", None)]
    assert "news" not in asked.ask("FROM facts.events").columns


def test_no_export_here(tmp_path: Path) -> None:
    """A folder without an export is no empty log."""
    with pytest.raises(ArchiveInvalid, match="no export in this folder"):
        ExportReader(tmp_path)


def test_columns_of_a_sheet_stay_in_order() -> None:
    """Rows added one by one and whole columns keep the order in which they came."""
    from shared.archive.table_buffers import TableBuffer

    buffer = TableBuffer({"a": "BIGINT", "b": "VARCHAR"})
    buffer.add(a=1, b="x")
    buffer.extend(2, a=np.array([2, 3]), b="y")
    buffer.add(a=4, b=None)
    taken = buffer.take()
    assert taken["a"].tolist() == [1, 2, 3, 4]
    assert taken["b"].tolist() == ["x", "y", "y", None]
    assert buffer.rows == 0 and not len(buffer.take()["a"])
