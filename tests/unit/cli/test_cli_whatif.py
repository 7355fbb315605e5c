"""`caravan what-if` over an export: what it prints, and which words it refuses, by name."""

import json
from pathlib import Path

import pytest

from services.cli import global_options
from services.cli.main import main
from services.cli.what_if import what_if
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from tests.sim.recorded import seq_at, written

KEYS = {
    *("from_seq", "from_time", "until_time", "end_seq", "workers", "wishes", "faithful"),
    *("agreement", "before", "after", "differences", "changed", "moves", "still_waiting"),
    *("assumptions", "out", "deployments"),
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

    monkeypatch.setattr(what_if, "replica_before", begun_at)
    monkeypatch.setattr(what_if, "_FULL_READ_MAX", 1)
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
    at = [said.index(part) for part in ("divergence 0", "Migrations", "Assumptions")]
    assert at == sorted(at)
    assert "web.g[" in said[at[1] : at[2]]
    assert "without end" in said[at[2] :]


def test_a_drain_itself_can_be_asked_about(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`node drain --what-if` answers as what-if does, and orders nothing: a service moves at the pace of `migrate`."""
    monkeypatch.setattr(global_options, "export_dir", lambda: folder)
    assert main(["node", "drain", "--what-if", "--deadline", "5m", "node-1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["from_node"] for one in told["moves"]} == {"node-1"}
    first, second = sorted(one["after_s"] for one in told["moves"])
    assert first < 1 and 10 <= second < 300
    assert main(["node", "drain", "--what-if", "--no-deadline", "node-1"]) == 1
    assert "needs a deadline" in capsys.readouterr().err


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
    assert "not overwritten" in capsys.readouterr().err


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


def test_a_job_that_is_not_there_yet_can_be_asked_about(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job file's job is registered at the fork; the report has what of it is placed; an invalid one is refused."""
    path = tmp_path / "extra.json"
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    task["Resources"] = {"CPU": 1500, "MemoryMB": 64}
    group = {"Name": "g", "Count": 9, "Tasks": [task]}
    body = {"ID": "extra", "Type": "service", "TaskGroups": [group]}
    path.write_text(json.dumps({"Job": body}))
    assert asked(folder, "--job", str(path), "--json")[0] == 0
    told = json.loads(capsys.readouterr().out)
    (found,) = told["differences"]["jobs"]
    assert (found["job"], found["only_after"]) == ("extra", 5)
    # The other four find no room before the deployment's progress deadline.
    outcomes = {one["job"]: one["after"]["status"] for one in told["deployments"] if one["after"]}
    assert outcomes["extra"] == "failed"
    group["Count"] = -1
    path.write_text(json.dumps({"Job": body}))
    assert asked(folder, "--job", str(path))[0] == 1
    assert "extra.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "99999"), "--from 99999: the log ends at"),
        (("--from", "1"), "no cluster exists"),
        (("--from", "yesterday"), "--from must be a seq or a time"),
        (("--until", "99999"), "--until 99999: the log ends at"),
        (("--from", "30", "--until", "20"), "is not after --from"),
        (("--until", "+soon"), "--until +soon"),
        (("--policy", "speed=9"), "one of these names"),
        (("--policy", "algorithm=best"), "'best' is not one of"),
        (("--policy", "nothing.yaml"), "nothing.yaml"),
        (("--add-nodes", "2xnode-9"), "no node 'node-9'"),
        (("--add-nodes", "nodes.yaml"), "nodes.yaml"),
        (("--remove-nodes", "node"), "'node' is not unique among nodes: node-1"),
        (("--drain", "node-1=soon"), "--drain node-1=soon"),
        (("--priority", "web"), "JOB=NUMBER"),
        (("--priority", "nothing=50"), "there is no job 'nothing'"),
        (("--priority", "web=0"), "1 to 100"),
        (("--update", "web=3"), "is not JOB.FIELD=VALUE"),
        (("--update", "web.speed=3"), "unknown field 'speed'; expected one of max_parallel,"),
        (("--update", "web.stagger=3s"), "unknown field 'stagger'"),
        (("--update", "web.max_parallel=many"), "must be a whole number"),
        (("--update", "web.auto_revert=yes"), "must be true or false"),
        (("--update", "web.min_healthy_time=soon"), "--update web.min_healthy_time=soon"),
        (("--update", "nothing.canary=1"), "there is no job 'nothing'"),
        (("--update", "web.canary=1"), "fork before its update"),
        (("--deployment", "web=stop"), "is not JOB=VERB[@+D]; verbs: promote,"),
        (("--deployment", "web=fail@later"), "is not JOB=VERB[@+D]"),
        (("--deployment", "web=fail@+x"), "--deployment web=fail@+x"),
        (("--deployment", "nothing=fail"), "there is no job 'nothing'"),
        (("--job", "nothing.hcl"), "nothing.hcl"),
        (("--durations", "guessed"), "recorded or resampled"),
        (("--workers", "-1"), "--workers must be 1 to 256"),
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
    """A moment behind the end of the log is reached on the assumptions, which are printed."""
    assert asked(folder, "--until", "+2h")[0] == 0
    assert "past the end of the record" in capsys.readouterr().out
