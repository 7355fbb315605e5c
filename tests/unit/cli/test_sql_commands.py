"""`caravan sql`, `job timeline`, and `--from-file`, over an export: no bus is there."""

import csv
import io
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schemas.envelope import CORE_VERSION
from services.cli.main import main
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.core.runtime.messages import Record
from tests.golden.replay_log import read_log

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / f"v1-{CORE_VERSION}-seed-2.jsonl.gz")
LAST = len(RECORDS)


def exported(folder: Path, records: list[Record]) -> str:
    """Write records as an export in several parts."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive, rows_max=800)
        work.wanted()
        for record in records:
            work.apply(record)
        work.flush()
        work.close()
    return str(folder)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exported(tmp_path_factory.mktemp("export") / "out", RECORDS)


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export in which one job waits for room and for more important ones."""
    records = read_log(LOGS / "v1-0.2.0-seed-2.jsonl.gz")
    return exported(tmp_path_factory.mktemp("waited") / "out", records)


def test_what_still_waits_has_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that waits at the end of the log has waited until then; each wait before ended when it was woken."""
    records = [one for one in read_log(LOGS / "v1-0.2.0-seed-2.jsonl.gz") if one.seq <= 450]
    folder = exported(tmp_path / "out", records)
    question = (
        "SELECT w.*, epoch((SELECT max(time) FROM records) - from_time) AS until_the_end"
        " FROM waiting('service-big') w ORDER BY from_seq"
    )
    *before, row = told(capsys, "sql", question, "--dir", folder)["rows"]
    assert before and all(one["to_seq"] for one in before)
    woken = [one for one in before if one["woken_seq"]]
    assert woken and all(one["to_seq"] == one["woken_seq"] for one in woken)
    assert (row["to_seq"], row["to_time"]) == (None, None)
    assert row["seconds"] == row["until_the_end"] > 0
    lines = told(capsys, "job", "timeline", "service-big", "--dir", folder)["intervals"]
    (last,) = [
        one for one in lines if one["lane"] == "waiting" and one["from_seq"] == row["from_seq"]
    ]
    assert last["to_seq"] == 0 and last["held_s"] == pytest.approx(row["seconds"])


@pytest.fixture(autouse=True)
def no_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:1")


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out.splitlines()[-1])  # type: ignore[no-any-return]


def test_sql_answers_in_json(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are objects by column; times, lists and JSON stay what they are."""
    question = "SELECT seq, time, body FROM events WHERE type = 'cluster.created'"
    found = told(capsys, "sql", question, "--dir", export)
    assert found["seq"] == LAST and found["cluster_id"] == "simulated" and not found["problems"]
    (row,) = found["rows"]
    assert row["body"]["cluster_id"] == "simulated"
    assert row["time"].startswith("2026-01-01 00:00:00")
    question = "SELECT ['a', 'b'] AS l, 1.5::DECIMAL(4, 1) AS d, 'nan'::DOUBLE AS x, NULL AS n"
    found = told(capsys, "sql", question, "--dir", export)
    assert found["rows"] == [{"l": ["a", "b"], "d": 1.5, "x": None, "n": None}]
    assert found["row_count"] == 1


def test_sql_answers_in_csv(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A header and all rows, whatever the limit of tables."""
    question = "SELECT seq, kind FROM records ORDER BY seq"
    assert main(["sql", question, "--dir", export, "--csv", "--limit", "1"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[:2] == [["seq", "kind"], ["1", "lease"]]
    assert len(rows) == LAST + 1


def test_sql_cuts_tables_and_says_so(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """People see as many rows as they asked for, and how many there are."""
    assert main(["sql", "SELECT seq FROM records", "--dir", export, "--limit", "3"]) == 0
    assert capsys.readouterr().out.endswith(f"3 of {LAST} rows; --limit 0 shows all\n")


@pytest.mark.parametrize(
    "question", ["SELECT nope", "selec", "SELECT 1; SELECT 2", "DROP VIEW jobs"]
)
def test_sql_that_errs(export: str, question: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear line, exit 1, nothing else; as an object with --json."""
    assert main(["sql", question, "--dir", export]) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("caravan: ") and shown.err.count("\n") == 1
    assert told(capsys, "sql", question, "--dir", export, code=1)["error"]["code"] == "sql"


def test_sql_without_a_question(
    export: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from stdin; an empty one is a mistake."""
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS seven"))
    assert told(capsys, "sql", "--dir", export)["rows"] == [{"seven": 7}]
    monkeypatch.setattr("sys.stdin", io.StringIO(" "))
    assert told(capsys, "sql", "--dir", export, code=1)["error"]["code"] == "usage"


def test_sql_where_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is no export is named; without one the bus is asked for."""
    error = told(capsys, "sql", "SELECT 1", "--dir", str(tmp_path), code=1)["error"]
    assert error["code"] == "not_found" and error["file"] == str(tmp_path)
    assert told(capsys, "sql", "SELECT 1", code=1)["error"]["code"] == "unavailable"


def test_a_damaged_file_is_told_of(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest answers, the damage is named beside it, and the exit code is 2."""
    path = next(Path(export).glob("seq-*/tasks.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    try:
        found = told(capsys, "sql", "SELECT count(*) AS n FROM records", "--dir", export, code=2)
    finally:
        path.write_bytes(whole)
    assert found["rows"] == [{"n": LAST}]
    assert path.parent.name in found["problems"][0] and "tasks.parquet" in found["problems"][0]


def test_a_timeline_holds_without_a_gap(waited: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each allocation's states follow one another, and what a job waited is the sum of its reasons."""
    found = told(capsys, "job", "timeline", "service-big", "--dir", waited)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in found["intervals"]:
        if one["lane"] == "allocation":
            by_name.setdefault(one["name"], []).append(one)
    assert by_name
    for states in by_name.values():
        assert states[0]["state"] == "pending"
        assert all(one["to_seq"] == other["from_seq"] for one, other in pairwise(states))
    waits = [one for one in found["intervals"] if one["lane"] == "waiting"]
    assert {one["state"] for one in waits} >= {"capacity", "priority"}
    assert {one["state"] for one in found["intervals"] if one["lane"] == "stop"} >= {
        "stop",
        "evict",
    }
    assert found["waited_s"] == pytest.approx(sum(one["held_s"] for one in waits))


def test_a_trace_is_what_browsers_read(
    export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every interval is one complete event on a named thread; a file that exists stays."""
    path = tmp_path / "trace.json"
    words = ("job", "timeline", "service-big", "--dir", export, "--trace", str(path))
    found = told(capsys, *words)
    events = json.loads(path.read_bytes())["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    assert len(spans) == len(found["intervals"])
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in spans} == named
    assert all(isinstance(one["ts"], int) and one["dur"] >= 0 for one in spans)
    # What is drawn on one line lies behind or within each other, or a browser would draw nonsense.
    for thread in named:
        ends: list[int] = []
        mine = [one for one in spans if (one["pid"], one["tid"]) == thread]
        for one in sorted(mine, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= one["ts"]:
                ends.pop()
            assert not ends or one["ts"] + one["dur"] <= ends[-1], thread
            ends.append(one["ts"] + one["dur"])
    told_of = {(one["cat"], one["name"], one["args"]["from_seq"], one["dur"]) for one in spans}
    for one in found["intervals"]:
        assert (one["lane"], one["state"], one["from_seq"], round(one["held_s"] * 1e6)) in told_of
    before = path.read_bytes()
    assert told(capsys, *words, code=1)["error"]["code"] == "conflict"
    assert path.read_bytes() == before


def test_no_timeline_of_nobody(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that the log does not know is an error, no empty picture."""
    error = told(capsys, "job", "timeline", "nobody", "--dir", export, code=1)["error"]
    assert error["code"] == "not_found"


def test_an_export_is_read_instead_of_the_bus(
    export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verify proves it with its decisions, replay and status answer from it, and follow has an end."""
    proof = told(capsys, "log", "verify", "--decisions", "--from-file", export)
    assert proof["ok"] and proof["last_seq"] == LAST
    decisions = proof["decisions"]
    assert decisions["checked"] == decisions["equal"] + decisions["other_version"] > 0
    assert told(capsys, "replay", "--to", "100", "--from-file", export)["seq"] == 100
    assert told(capsys, "job", "status", "--at", "100", "--from-file", export)["seq"] == 100
    assert told(capsys, "node", "status", "--from-file", export)["total"] == 10
    tail = told(capsys, "log", "tail", "-n", "2", "--from-file", export)
    assert tail["last_seq"] == LAST
    spans = tmp_path / "spans.jsonl"
    traced = told(capsys, "log", "trace", "--otlp", str(spans), "--from-file", export)
    assert traced["last_seq"] >= 100
    assert traced["spans"] == spans.read_text().count('"traceId"') - spans.read_text().count(
        '"links"'
    )
    less = told(capsys, "log", "trace", "--otlp", str(spans), "--at", "100", "--from-file", export)
    assert (less["last_seq"], 0 < less["spans"] < traced["spans"]) == (100, True)
    for wrong in ("0", "2", "x"):
        words = ("log", "trace", "--otlp", str(spans), "--sample", wrong, "--from-file", export)
        assert told(capsys, *words, code=1)["error"]["code"] == "usage"
    error = told(capsys, "replay", "--to", "999", "--from-file", export, code=1)["error"]
    assert f"ends at {LAST}" in error["message"]


def test_the_database_is_loaded_when_it_is_asked() -> None:
    """No other command pays for it: neither the command line nor any role."""
    code = """import sys; from services.cli.main import main; main(["--help"])
from services.cli import command_table
from services.cli.job import status
from services.cli.log import replay, tail, verify
from services.cli.runtime import bus_client, log_position
import services.plan_applier.role, services.scheduler.role, services.view.role
assert "duckdb" not in sys.modules"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
