"""The log of a living cluster: replays agree wherever they begin, and a fork touches nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = pytest.mark.bus
OFTEN = {"CARAVAN_SNAPSHOT_RECORDS": "5"}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster of one node whose view writes a snapshot every few records."""
    one = Up(tmp_path, **OFTEN)
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


#: Health would take ten seconds.
UPDATE = {"MinHealthyTime": 500_000_000}


def run_job(up: Up, folder: Path, name: str) -> None:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["600"]},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    }
    group = {"Name": "g", "Count": 2, "Tasks": [task]}
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps({"ID": name, "Type": "service", "Update": UPDATE, "TaskGroups": [group]})
    )
    assert up.run("job", "run", str(path))[0] == 0


def test_replays_and_forks_of_a_living_log(up: Up, tmp_path: Path) -> None:
    """Replays agree wherever they begin; what-if and a drain asked about leave the cluster and its log as they were."""
    for name in ("one", "two", "three"):
        run_job(up, tmp_path, name)

    def begun() -> int:
        return int(up.run("replay")[1]["begun_seq"])

    up.until(lambda: begun() > 1, "a replay begins at a snapshot")
    quick = up.run("replay")[1]
    whole = up.run("replay", "--whole", "--to", str(quick["seq"]))[1]
    assert whole["begun_seq"] == 1 < quick["begun_seq"]
    assert (whole["tables"], whole["counts"]) == (quick["tables"], quick["counts"])
    before = up.run("node", "status")[1]["nodes"]
    code, told = up.run("what-if", "--remove-nodes", "node-1")
    assert code == 0
    assert told["faithful"]["checked"] == told["faithful"]["equal"] > 0
    assert told["still_waiting"] == {name: {"capacity": 2} for name in ("one", "three", "two")}
    code, asked = up.run("node", "drain", "--what-if", "--deadline", "1m", "node-1")
    assert code == 0
    assert len(asked["moves"]) == 6 and not any(one["to"] for one in asked["moves"])
    assert up.run("node", "status")[1]["nodes"] == before
    kinds = {one["type"] for one in up.run("log", "tail", "-n", "100")[1]["events"]}
    assert not {"node.drain_changed", "nodes.status_changed"} & kinds
    code, proof = up.run("log", "verify", "--decisions")
    assert (code, proof["ok"]) == (0, True)
