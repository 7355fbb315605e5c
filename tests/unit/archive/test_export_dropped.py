"""A log whose beginning was dropped from the bus: an export that holds it continues, another one fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.log import export
from services.cli.main import main
from services.cli.sql import source
from shared.archive.export import Export, ExportReader
from shared.archive.segments import Archive
from shared.core.runtime.messages import Record
from shared.errors import LogDropped
from tests.golden.replay_log import read_log

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")
#: Where the bus's log begins.
FIRST = 100


class Rest:
    """A client of a bus that has the log from FIRST on."""

    async def read_log(self, first: int = 1, last: int = 0) -> AsyncIterator[Record]:
        if first < FIRST:
            raise LogDropped(FIRST)
        for record in RECORDS[first - 1 : last or None]:
            yield record


@pytest.fixture(autouse=True)
def rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whose(_client: Any) -> str:
        return "simulated"

    async def unknown(_client: Any) -> int:
        return 0

    async def nowhere(*_args: Any) -> None:
        pass

    for module in (export, source):
        monkeypatch.setattr(module, "with_bus", lambda work: asyncio.run(work(Rest())))
        monkeypatch.setattr(module, "log_cluster_id", whose)
        monkeypatch.setattr(module, "log_end_seq_or_zero", unknown)
        monkeypatch.setattr(module, "begin_at_snapshot", nowhere)


def begun(folder: Path, upto: int) -> None:
    """Export the beginning while the bus had it."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        work.wanted()
        for record in RECORDS[:upto]:
            work.apply(record)
        work.flush()
        work.close()


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main([*words, "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return answer


def test_an_export_that_holds_the_beginning_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is on the bus begins within or right behind the export: it is added, and all of the log is there."""
    for upto in (FIRST - 1, FIRST + 20):
        folder = tmp_path / f"upto-{upto}"
        begun(folder, upto)
        found = told(capsys, "log", "export", str(folder))
        assert (found["first_seq"], found["last_seq"]) == (upto + 1, len(RECORDS))
        assert [one.data for one in ExportReader(folder).records()] == [one.data for one in RECORDS]


def test_an_export_that_lacks_some_of_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new folder, or one that ends too early: both places are named, and nothing is written."""
    begun(tmp_path / "short", FIRST - 10)
    for name, said in (("new", "this export is empty"), ("short", f"ends at {FIRST - 10}")):
        error = told(capsys, "log", "export", str(tmp_path / name), code=1)["error"]
        assert error["code"] == "dropped" and said in error["message"]
        assert f"begins at {FIRST}" in error["message"]
    assert [one.name for one in (tmp_path / "new").iterdir()] == [".lock"]
    assert ExportReader(tmp_path / "short").last_seq == FIRST - 10


def test_sql_asks_the_export_and_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The live log alone cannot be asked, and says how; an export and the rest of the log can."""
    question = "SELECT count(*) AS n FROM records"
    error = told(capsys, "sql", question, code=1)["error"]
    assert error["code"] == "dropped" and "--dir DIR --live" in error["message"]
    begun(tmp_path / "out", FIRST + 5)
    found = told(capsys, "sql", question, "--dir", str(tmp_path / "out"), "--live")
    assert found["rows"] == [{"n": len(RECORDS)}] and found["seq"] == len(RECORDS)
