"""A log with a hole, damage, a foreign record or another decision: the place is named, the rest is usable."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.main import main
from shared.archive.compaction import compact_segments
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


def _garble(segments: list[Path]) -> None:
    (segments[-1] / "segment.json").write_bytes(b'{"first_seq": ')


def _garble_all(segments: list[Path]) -> None:
    for one in segments:
        (one / "segment.json").write_bytes(b"")


def _no_description(segments: list[Path]) -> None:
    (segments[-1] / "segment.json").unlink()


def _no_records(segments: list[Path]) -> None:
    (segments[-1] / "records.parquet").unlink()


def _other_table(segments: list[Path]) -> None:
    path = segments[-1] / "events.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def _a_file(segments: list[Path]) -> None:
    shutil.rmtree(segments[-1])
    segments[-1].write_bytes(b"")


def _renamed(segments: list[Path]) -> None:
    segments[-1].rename(segments[-1].with_name("seq-unknown"))


def _none(segments: list[Path]) -> None:
    for one in segments:
        shutil.rmtree(one)


def _marker(segments: list[Path]) -> None:
    (segments[0].parent / "export.json").write_bytes(b"{")


def _no_marker(segments: list[Path]) -> None:
    (segments[0].parent / "export.json").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        *(_garble, _garble_all, _no_description, _no_records, _other_table),
        *(_a_file, _renamed, _none, _marker, _no_marker),
    ],
)
def test_what_of_an_archive_cannot_be_read_is_damage(
    tmp_path: Path,
    records: list[Record],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[list[Path]], None],
) -> None:
    """Any part of an archive that cannot be read is exit 2, and the proof names the records that it holds for."""
    segments = exported(tmp_path / "export", records)
    damage(segments)
    assert main(["log", "verify", "--json", "--from-file", str(tmp_path / "export")]) == 2
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and told["problem"]
    readable = {"_other_table": records[-1].seq}
    before_last = int(segments[-2].name.rpartition("-")[2])
    nothing = damage in {_garble_all, _none, _marker, _no_marker}
    assert told["last_seq"] == (0 if nothing else readable.get(damage.__name__, before_last))
    main(["log", "verify", "--from-file", str(tmp_path / "export")])
    said = capsys.readouterr().out
    assert (f"holds for records 1 to {told['last_seq']}" in said) == (not nothing)


@pytest.mark.parametrize("damage", [_garble, _no_description, _no_records, _a_file])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("replay",), 1),
        (("job", "status", "web"), 1),
        (("what-if",), 1),
        (("log", "tail", "-n", "2"), 1),
        (("log", "trace", "--otlp", "{folder}/../trace"), 1),
        (("replay", "--to", "{end}"), 1),
        (("replay", "--to", "{sound}"), 0),
        (("what-if", "--from", "8"), 0),
        (("sql", "SELECT last_seq()", "--dir", "{folder}"), 2),
        (("job", "timeline", "web", "--dir", "{folder}"), 2),
    ],
)
def test_a_lost_end_of_an_archive_is_no_shorter_log(
    tmp_path: Path,
    records: list[Record],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[list[Path]], None],
    words: tuple[str, ...],
    code: int,
) -> None:
    """What needs the records that cannot be read says so, and is no success; what does not need them is answered."""
    segments = exported(tmp_path / "export", records)
    damage(segments)
    sound, folder = int(segments[-2].name.rpartition("-")[2]), str(tmp_path / "export")
    asked = [word.format(folder=folder, end=records[-1].seq, sound=sound) for word in words]
    where = [] if "--dir" in asked else ["--from-file", folder]
    assert main([*asked, *where]) == code
    said = capsys.readouterr()
    assert segments[-1].name in said.err
    if code == 1:
        assert f"records {sound + 1} to {records[-1].seq} cannot be read" in said.err


def test_a_segment_of_an_unknown_range_is_a_lost_end(
    tmp_path: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """A segment whose name tells no records: what reads to the end fails, what is asked up to a seq is answered."""
    segments = exported(tmp_path / "export", records)
    _renamed(segments)
    sound, where = segments[-2].name.rpartition("-")[2], ("--from-file", str(tmp_path / "export"))
    assert main(["replay", *where]) == 1
    assert "to an unknown end cannot be read: segment seq-unknown" in capsys.readouterr().err
    assert main(["replay", "--to", str(int(sound)), *where]) == 0


def test_a_half_deleted_part_of_a_larger_segment_is_no_damage(
    tmp_path: Path, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed compaction leaves a small segment without its description: its records are in the larger one."""
    segments = exported(tmp_path / "export", records)
    small = tmp_path / segments[0].name
    shutil.copytree(segments[0], small)
    archive = Archive(tmp_path / "export")
    with archive.locked():
        assert compact_segments(archive) == len(segments)
    (small / "segment.json").unlink()
    shutil.move(small, tmp_path / "export")
    assert main(["log", "verify", "--from-file", str(tmp_path / "export")]) == 0
    with archive.locked():
        assert len(list((tmp_path / "export").glob("seq-*"))) == 1


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
