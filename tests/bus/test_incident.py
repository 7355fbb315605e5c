"""An incident with its questions: what waited and why, who evicted whom, what changed, and what would have helped.

A script makes it on a real cluster of two nodes; every answer is asked for by the command line.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bounds import until
from tests.bus.up import Up

pytestmark = [
    pytest.mark.bus,
    pytest.mark.full("a story of the whole product for the reader of a release"),
]
NODE_MHZ = 1_000


def job(name: str, cpu: int, *, priority: int = 50, count: int = 1, **more: Any) -> dict[str, Any]:
    """A job of sleeping tasks."""
    resources = {"CPU": cpu, "MemoryMB": 50, **more.pop("resources", {})}
    config = {"command": "/bin/sleep", "args": ["600"]}
    task = {"Name": "t", "Driver": "raw_exec", "Config": config, "Resources": resources}
    group = {"Name": "g", "Count": count, "Tasks": [task]}
    return {"ID": name, "Type": "service", "Priority": priority, "TaskGroups": [group], **more}


class Incident:
    """Two nodes of 1,000 MHz and a GPU each: `shop` fills both, `train` wants two GPUs at once, `urgent` comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        node = {
            "CARAVAN_AGENT_CPU_MHZ": str(NODE_MHZ),
            "CARAVAN_AGENT_FAKE_GPUS": "nvidia/gpu/a100:1",
        }
        self.up = Up(folder, "--agents", "2", one_process=True, **node)
        self.ask("operator", "scheduler", "set", "preemption.service=true")
        self._run(job("shop", 700, count=2))
        until(lambda: len(self.up.allocs("shop", "running")) == 2)
        gpus = {"Devices": [{"Name": "gpu", "Count": 2}]}
        self._run(job("train", 100, Type="batch", resources=gpus))
        until(lambda: "train" in self.waiting(), self.waiting)
        self.before = self.up.ask("cluster")["seq"]
        self._run(job("urgent", 600, priority=90))
        until(lambda: self.up.allocs("urgent", "running"))
        until(lambda: {"shop", "train"} == set(self.waiting()), self.waiting)
        self.after = self.up.ask("cluster")["seq"]
        self.urgent = self.up.allocs("urgent")[0]
        [self.victim] = [one for one in self.up.allocs("shop") if one["desired_status"] == "evict"]

    def _run(self, spec: dict[str, Any]) -> None:
        path = self._folder / f"{spec['ID']}.json"
        path.write_text(json.dumps({"Job": spec}))
        self.ask("job", "run", "--detach", str(path))

    def ask(self, *words: str) -> dict[str, Any]:
        """The answer of a command that succeeds."""
        code, answer = self.up.run(*words)
        assert code == 0, (words, answer)
        return answer

    def waiting(self) -> dict[str, Any]:
        """What waits, by job."""
        return {one["job"]: one for one in self.ask("eval", "list", "--waiting")["waiting"]}


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Incident]:
    """The incident, at the moment of its questions."""
    folder = tmp_path_factory.mktemp("incident")
    one = Incident(folder)
    yield one
    assert one.up.end() == 0
    assert not processes_using(folder)


def test_which_jobs_wait_and_why(incident: Incident) -> None:
    """`shop` for the room of a more important job, `train` for GPUs that no node has, whatever is asked."""
    waiting = incident.waiting()
    assert {name: one["class"] for name, one in waiting.items()} == {
        "shop": "priority",
        "train": "never_fits",
    }
    for name, one in waiting.items():
        told = incident.ask("why-not", name)
        assert (told["class"], told["reasons"]) == (one["class"], one["reasons"])
    shop = incident.ask("why-not", "shop")
    assert shop["exhausted"] == [{"dimension": "cpu_mhz", "nodes": 2}]
    other = next(one["node"] for one in incident.up.allocs("shop", "running"))
    lacks = {one["node"]: one["shortfall"] for one in shop["nearest"]}
    # 600 of 1,000 MHz are taken by `urgent`, 700 by the other allocation; 700 are wanted.
    assert lacks == {incident.urgent["node"]: {"cpu_mhz": 300}, other: {"cpu_mhz": 400}}
    train = incident.ask("why-not", "train")
    assert train["exhausted"] == [{"dimension": "device.gpu", "nodes": 2}]
    assert [one["shortfall"] for one in train["nearest"]] == [{"device.gpu": 1}] * 2


def test_who_evicted_whom(incident: Incident) -> None:
    """`urgent` took the room of an allocation of `shop`: it says so, and so do the timeline of `shop` and SQL."""
    why = incident.ask("why", incident.urgent["id"])
    assert why["victims"] == [f"{incident.victim['id'][:8]} of shop"]
    assert why["node"] == incident.victim["node"]
    stops = [
        one for one in incident.ask("job", "timeline", "shop")["intervals"] if one["lane"] == "stop"
    ]
    assert [(one["state"], one["detail"]) for one in stops] == [("evict", "evicted for urgent")]
    found = incident.ask(
        "sql", "select job_id, client_status from allocations where desired_status = 'evict'"
    )
    assert [one["job_id"] for one in found["rows"]] == ["shop"]


def test_what_changed(incident: Incident) -> None:
    """Between the moments a job and its allocation came, and one allocation was evicted; nothing else changed."""
    answer = incident.ask("replay", "--diff", str(incident.before), str(incident.after))
    found = {(one["kind"], one["id"].split(".")[0], one["what"]) for one in answer["changes"]}
    assert found == {
        ("job", "urgent", "added"),
        ("allocation", "urgent", "added"),
        ("allocation", "shop", "changed"),
    }


def test_what_would_have_helped(incident: Incident) -> None:
    """With a node more nothing is evicted, and `train` alone waits; without preemption `urgent` waits, too."""
    more = incident.ask("what-if", "--from", str(incident.before), "--add-nodes", "1xnode-1")
    assert (more["before"]["evicted"], more["after"]["evicted"]) == (1, 0)
    assert (
        set(more["before"]["waiting"]) - {"queued"},
        set(more["after"]["waiting"]) - {"queued"},
    ) == (
        {"priority", "never_fits"},
        {"never_fits"},
    )
    assert set(more["still_waiting"]) == {"train"}
    kept = incident.ask(
        "what-if", "--from", str(incident.before), "--policy", "preemption.service=false"
    )
    assert kept["after"]["evicted"] == 0
    assert set(kept["still_waiting"]) == {"train", "urgent"}
    assert kept["faithful"]["checked"] == kept["faithful"]["equal"]
