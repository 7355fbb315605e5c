"""A log with a hole, damage, a foreign record or another decision: the place is named, the rest is usable."""

import json
import shutil
from pathlib import Path

import pytest

from services.cli.main import main
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.core.runtime.messages import Record
from tests.sim.recorded import written
from tests.sim.test_whatif import planted

#: Rows of a segment: few, so that there are several.
_ROWS = 60


def exported(folder: Path, records: list[Record]) -> list[Path]:
    """Export a log; returns its segments."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive, rows_max=_ROWS)
        work.wanted()
        for record in records:
            work.apply(record)
        work.flush()
        work.close()
    return sorted(folder.glob("seq-*"))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written()


@pytest.fixture(params=["hole", "damaged"])
def broken(
    request: pytest.FixtureRequest, tmp_path: Path, records: list[Record]
) -> tuple[str, int]:
    """An export whose third segment is away or damaged, and the last record before it."""
    segments = exported(tmp_path / "export", records)
    assert len(segments) > 3
    if request.param == "hole":
        shutil.rmtree(segments[2])
    else:
        path = segments[2] / "records.parquet"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    return str(tmp_path / "export"), int(segments[1].name.rpartition("-")[2])


@pytest.mark.parametrize(
    "words",
    [("replay",), ("job", "status", "web"), ("why", "web.g[0]"), ("what-if",), ("log", "verify")],
)
def test_the_place_is_named(
    broken: tuple[str, int], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """What needs the whole log says which records are missing, and how far it is sound; it ends with an error."""
    folder, sound = broken
    assert main([*words, "--from-file", folder]) == (2 if words[0] == "log" else 1)
    said = capsys.readouterr()
    told = said.out + said.err
    assert f"records {sound + 1} to " in told and "are missing" in told
    assert words[0] == "log" or f"up to seq {sound} are sound" in told


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "--to", "{at}"),
        ("replay", "--diff", "5", "{at}"),
        ("job", "status", "web", "--at", "{at}"),
        ("why-not", "web", "--at", "{at}"),
        ("what-if", "--from", "{at}", "--policy", "algorithm=spread"),
        ("what-if", "--from", "8"),
        ("log", "tail", "-n", "2"),
    ],
)
def test_the_rest_is_usable(
    broken: tuple[str, int], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """What needs only the sound part is answered; the damage is reported beside the answer."""
    folder, sound = broken
    asked = [word.format(at=sound) for word in words]
    assert main([*asked, "--from-file", folder, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])
    assert "not in this export" in said.err or "its hash differs" in said.err


def test_decisions_before_the_damage_are_decided_again(
    broken: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """With --decisions a damaged log is exit 2 all the same, and its sound part is decided again."""
    assert main(["log", "verify", "--decisions", "--json", "--from-file", broken[0]]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["decisions"]["checked"] == told["decisions"]["equal"] > 0
    assert "are missing" in told["problem"]


def test_a_proof_that_compared_nothing_is_no_success(
    tmp_path: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound log without a plan is exit 0; asked for its decisions it is exit 1, and says why."""
    exported(tmp_path / "export", records[:2])
    where = ("--from-file", str(tmp_path / "export"))
    assert main(["log", "verify", *where]) == 0
    assert main(["log", "verify", "--decisions", *where]) == 1
    assert "no decision was compared: the log holds no plan" in capsys.readouterr().out


def test_a_foreign_record_is_in_nobodys_way(
    tmp_path: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is counted, and a log with one is decided again and forked like any other."""
    foreign = Record(records[-1].seq + 1, "log.1.tx", b'{"stream":"LOG_1","seq":7}')
    exported(tmp_path / "export", [*records, foreign])
    where = ("--from-file", str(tmp_path / "export"), "--json")
    assert main(["log", "verify", "--decisions", *where]) == 0
    assert json.loads(capsys.readouterr().out)["foreign"] == 1
    assert main(["what-if", "--from", "10", *where]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agreement"]["same"] == told["agreement"]["recorded"]
    assert main(["what-if", "--from", str(foreign.seq), *where]) == 0


def test_a_divergence_is_told_loudly(
    tmp_path: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands that decide again exit 1 and show the first difference, recorded and decided, by names."""
    exported(tmp_path / "export", planted(records))
    where = ("--from-file", str(tmp_path / "export"))
    assert main(["log", "verify", "--decisions", *where]) == 1
    said = capsys.readouterr().out
    assert "First difference: seq 10, job import" in said
    assert said.index("recorded  place g[5]") < said.index("decided   place g[5]")
    assert main(["what-if", "--from", "4", *where]) == 1
    assert "DIVERGENCE 1" in capsys.readouterr().out
    assert main(["what-if", "--from", "4", "--json", *where]) == 1
    told = json.loads(capsys.readouterr().out)["faithful"]["differences"]
    assert [one["job_id"] for one in told] == ["import"]
