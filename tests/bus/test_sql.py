"""The live log as tables: export, continue, and ask both together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = pytest.mark.bus
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "two-groups.nomad.json"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    one = Up(tmp_path_factory.mktemp("up"), one_process=True)
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def test_an_export_and_what_came_since(up: Up, tmp_path: Path) -> None:
    """A job runs, the log is exported, the job stops: export and live log together say what the live log says."""
    folder = str(tmp_path / "archive")
    up.documented("job", "run", str(EXAMPLE))
    first = up.documented("log", "export", folder)
    assert (first["first_seq"], first["segments"], first["problem"]) == (1, 1, "")
    up.documented("job", "stop", "two-groups")
    question = (
        "SELECT name, placed_seq, ended_seq IS NOT NULL AS ended FROM allocations ORDER BY name"
    )
    live = up.documented("sql", question)
    both = up.documented("sql", question, "--dir", folder, "--live")
    alone = up.documented("sql", question, "--dir", folder)
    assert live["rows"] == both["rows"]
    assert [row["ended"] for row in live["rows"]] == [True, True, True]
    assert [row["ended"] for row in alone["rows"]] == [False, False, False]
    assert alone["seq"] == first["last_seq"] < both["seq"]
    second = up.documented("log", "export", folder)
    assert second["first_seq"] == first["last_seq"] + 1
    assert second["cluster_id"] == live["cluster_id"]
    code, proof = up.run("log", "verify", "--from-file", folder)
    assert code == 0 and proof["ok"] and proof["head"] == second["head"]
    told = up.documented("job", "timeline", "two-groups")
    assert {one["lane"] for one in told["intervals"]} == {
        *("job", "deployment", "evaluation", "allocation", "stop"),
    }


def test_an_export_of_a_fork_is_no_export_of_this_log(up: Up, tmp_path: Path) -> None:
    """Both name the same cluster; what the cluster wrote is never put behind, or asked with, what a fork made up."""
    folder = tmp_path / "fork"
    up.documented("what-if", "--add-nodes", "1xnode-1", "--out", str(folder))
    before = sorted(one.name for one in folder.iterdir())
    for words in (
        ("log", "export", str(folder)),
        ("sql", "SELECT 1", "--dir", str(folder), "--live"),
    ):
        code, answer = up.run(*words)
        assert code == 1
        assert answer["error"]["code"] == "conflict"
        assert "belongs to a fork" in answer["error"]["message"]
    assert sorted(one.name for one in folder.iterdir()) == before
