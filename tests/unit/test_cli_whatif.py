"""`caravan what-if` over an export: what it prints, and which words it refuses, by name."""

import json
from pathlib import Path

import pytest

from services.cli import chosen, whatif
from services.cli.main import main
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.core.replica import Replica
from shared.core.role import Record
from tests.sim.recorded import seq_at, written

KEYS = {
    *("from_seq", "from_time", "until_time", "end_seq", "workers", "wishes", "faithful"),
    *("agreement", "before", "after", "differences", "changed", "moves", "still_waiting"),
    *("assumptions", "out"),
}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> str:
    """The log as an export."""
    archive = Archive(tmp_path_factory.mktemp("whatif") / "export")
    with archive.locked():
        work = Export(archive)
        work.wanted()
        for record in records:
            work.apply(record)
        work.flush()
        work.close()
    return str(archive.folder)


def asked(folder: str, *words: str) -> tuple[int, list[str]]:
    return main(["what-if", "--from-file", folder, *words]), [folder, *words]


def test_a_report_is_one_object(
    folder: str, records: list[Record], capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json one object says everything: proof, both forks, differences, moves, assumptions."""
    seq = seq_at(records, 15)
    code, _ = asked(folder, "--from", str(seq), "--add-nodes", "1xnode-1", "--json")
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert code == 0
    assert set(told) == KEYS
    assert told["from_seq"] == seq
    assert told["faithful"]["checked"] == told["faithful"]["equal"] > 0
    assert told["agreement"]["same"] == told["agreement"]["recorded"] == 6
    assert told["differences"]["sooner"] == 4
    assert told["after"]["waiting"].keys() < told["before"]["waiting"].keys()


def test_a_fork_of_now_where_the_newest_snapshot_is_of_the_last_record(
    folder: str,
    records: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An idle cluster's last record is the checkpoint of its last snapshot: the one before has something behind it."""
    snapshots = [seq_at(records, 15), records[-1].seq]

    async def begun_at(_client: object, text: str, _flag: str) -> Replica:
        seq = max(one for one in snapshots if one <= int(text or records[-1].seq))
        replica = Replica()
        for record in records[:seq]:
            replica.apply(record)
        return replica

    monkeypatch.setattr(whatif, "begun_at", begun_at)
    monkeypatch.setattr(whatif, "_WHOLE_MAX", 1)
    code, _ = asked(folder, "--json")
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["from_seq"] == told["end_seq"] == records[-1].seq
    assert told["faithful"]["checked"] == told["faithful"]["equal"] > 0


def test_people_read_what_would_move(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A drain of now, asked for without --from: proof first, then where everything goes, then the assumptions."""
    code, _ = asked(folder, "--drain", "node-1")
    said = capsys.readouterr().out
    assert code == 0
    at = [said.index(part) for part in ("divergence 0", "What would move", "Assumed")]
    assert at == sorted(at)
    assert "web.g[" in said[at[1] : at[2]]
    assert "for ever" in said[at[2] :]


def test_a_drain_itself_can_be_asked_about(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node drain --what-if` answers as what-if does, by its deadline, and orders nothing."""
    monkeypatch.setattr(chosen, "from_file", lambda: folder)
    assert main(["node", "drain", "--what-if", "--deadline", "5m", "node-1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["from_node"] for one in told["moves"]} == {"node-1"}
    assert all(one["after_s"] >= 300 for one in told["moves"])
    assert main(["node", "drain", "--what-if", "--no-deadline", "node-1"]) == 1
    assert "nothing would move" in capsys.readouterr().err


def test_the_log_of_a_fork_is_a_log(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--out writes an export that proves itself, and never over anything."""
    out = str(tmp_path / "fork")
    words = ("--from", "20", "--policy", "algorithm=spread", "--out", out)
    assert asked(folder, *words)[0] == 0
    assert main(["log", "verify", "--decisions", "--from-file", out]) == 0
    assert "the log is sound" in capsys.readouterr().out
    assert asked(folder, *words)[0] == 1
    assert "overwrites nothing" in capsys.readouterr().err


def test_a_policy_may_stand_in_a_file(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields of the policy in YAML mean the same as on the command line; what is none is named with the file."""
    path = tmp_path / "policy.yaml"
    path.write_text("algorithm: spread\npreemption.batch: true\n")
    assert asked(folder, "--from", "20", "--policy", str(path), "--json")[0] == 0
    told = json.loads(capsys.readouterr().out)
    assert told["wishes"] == [f"policy {path}"]
    path.write_text("[1, 2\n")
    assert asked(folder, "--policy", str(path))[0] == 1
    assert "policy.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "99999"), "--from 99999: the log ends at"),
        (("--from", "1"), "there is no cluster yet"),
        (("--from", "yesterday"), "--from is a seq or a time"),
        (("--until", "99999"), "--until 99999: the log ends at"),
        (("--from", "30", "--until", "20"), "is not behind --from"),
        (("--until", "+soon"), "--until +soon"),
        (("--policy", "speed=9"), "names are"),
        (("--policy", "algorithm=best"), "'best' is not one of"),
        (("--policy", "nothing.yaml"), "nothing.yaml"),
        (("--add-nodes", "2xnode-9"), "there is no node 'node-9'"),
        (("--add-nodes", "nodes.yaml"), "nodes.yaml"),
        (("--remove-nodes", "node"), "several nodes begin with 'node'"),
        (("--drain", "node-1=soon"), "--drain node-1=soon"),
        (("--priority", "web"), "JOB=NUMBER"),
        (("--priority", "nothing=50"), "there is no job 'nothing'"),
        (("--priority", "web=0"), "1 to 100"),
        (("--durations", "guessed"), "recorded or resampled"),
        (("--workers", "-1"), "--workers: 1 to 256"),
    ],
)
def test_what_cannot_be_asked_is_said(
    folder: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names what is wrong, exit 1."""
    assert asked(folder, *words)[0] == 1
    err = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(err) == 1
    assert said in err[0]


def test_beyond_the_record_it_goes_on_and_says_so(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A moment behind the end of the log is reached on the assumptions, which are told."""
    assert asked(folder, "--until", "+2h")[0] == 0
    assert "behind the end of the record" in capsys.readouterr().out
