"""Devices, licences and ports on a real bus with real processes: asked for, held once, told to tasks, given back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = pytest.mark.bus
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WHOLE = 10_000
POOLS = '[[pools]]\nname = "scratch"\namount = 1.5\n'


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes with fake GPUs and a sum of their own."""
    folder = tmp_path_factory.mktemp("resources")
    (folder / "pools.toml").write_text(POOLS, encoding="utf-8")
    one = Up(
        folder,
        "--agents",
        "2",
        CARAVAN_AGENT_FAKE_GPUS="nvidia/gpu/a100:2,amd/gpu/mi210:1",
        CARAVAN_AGENT_POOLS=str(folder / "pools.toml"),
        # Room for all jobs of this file on any machine: it is not what they are about.
        CARAVAN_AGENT_CPU_MHZ="10000",
        one_process=True,
    )
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def running(up: Up, job_id: str) -> list[dict[str, Any]]:
    return up.allocs(job_id, "running")


def run(up: Up, path: Path, job_id: str, count: int) -> list[dict[str, Any]]:
    """Run a file and wait until so many of it run; return what `alloc status` says of each."""
    up.run("job", "run", "--detach", str(path))
    up.until(lambda: len(running(up, job_id)) >= count, f"{count} of {job_id} run")
    return [up.run("alloc", "status", one["id"])[1] for one in running(up, job_id)]


def says(up: Up, alloc_id: str, text: str) -> None:
    """Wait until an allocation's only task wrote a text."""

    def has_it() -> bool:
        return text in up.run("alloc", "logs", alloc_id)[1].get("text", "")

    up.until(has_it, f"{alloc_id} says {text}")


def pools(up: Up) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in up.documented("operator", "resource", "list")["pools"]}


def test_devices_are_held_once_and_named_to_their_tasks(up: Up, tmp_path: Path) -> None:
    """Two whole ones of a kind, quarters of another: each task gets its own, and no instance is used twice."""
    # A task that ends gives its devices back: none ends before all was looked at.
    job = tmp_path / "gpu.nomad.hcl"
    job.write_text((EXAMPLES / "gpu.nomad.hcl").read_text().replace("sleep 30", "sleep 600"))
    found = run(up, job, "train", 5)
    held: dict[tuple[str, str], int] = {}
    for one in found:
        allocation = one["allocation"]
        parts = one["resources"]
        for part in parts:
            key = (allocation["node"], part["instance"])
            held[key] = held.get(key, 0) + part["amount"]
        names = ",".join(part["instance"] for part in parts)
        says(up, allocation["id"], names)
    assert max(held.values()) <= WHOLE
    assert sorted(held.values(), reverse=True)[:2] == [WHOLE, WHOLE]
    assert sum(held.values()) == pools(up)["device.gpu"]["used"] == 3 * WHOLE
    up.run("job", "stop", "train")
    up.until(lambda: pools(up)["device.gpu"]["used"] == 0, "nothing holds a device")


def test_a_licence_is_the_clusters(up: Up) -> None:
    """Five seats are two allocations of two; more seats wake the third; fewer end no allocation and show as excess."""
    assert up.documented("operator", "resource", "set", "seat", "--amount", "5")["changed"] is True
    run(up, EXAMPLES / "licence.nomad.hcl", "render", 2)
    assert pools(up)["seat"]["free"] == WHOLE
    assert up.run("operator", "resource", "set", "seat", "--amount", "6")[1]["changed"] is True
    up.until(lambda: len(running(up, "render")) == 3, "the third allocation runs")
    up.run("operator", "resource", "set", "seat", "--amount", "4")
    assert pools(up)["seat"]["excess"] == 2 * WHOLE
    assert len(running(up, "render")) == 3
    code, refused = up.run("operator", "resource", "set", "device.gpu", "--amount", "1")
    assert (code, refused["error"]["code"]) == (1, "conflict")


def test_a_port_with_a_number_is_one_allocations_of_a_node(up: Up, tmp_path: Path) -> None:
    """Three allocations want port 18080 of two nodes: the third waits; picked ports lie in the node's range."""
    text = (EXAMPLES / "ports.nomad.hcl").read_text(encoding="utf-8")
    text = text.replace("count = 1", "count = 3").replace("18080", "18081")
    path = tmp_path / "ports.nomad.hcl"
    path.write_text(text.replace('"${NOMAD_PORT_http}"', '"0"'), encoding="utf-8")
    plan = up.run("job", "plan", str(path))[1]
    assert [one["count"] for one in plan["nodes"]] == [1, 1]
    assert plan["unplaced"]["web"]["n"] == 1
    found = run(up, path, "ports", 2)
    assert sorted(one["allocation"]["node"] for one in found) == ["node-1", "node-2"]
    assert {one["ports"]["admin"] for one in found} == {18081}
    assert len({one["ports"]["http"] for one in found}) == 2
    node = up.run("node", "status", found[0]["allocation"]["node"])[1]
    assert [one["port"] for one in node["ports"]] == sorted(found[0]["ports"].values())


def test_a_node_offers_what_its_file_says(up: Up) -> None:
    """The file's sum is there on both nodes, beside the cores that were counted; fakes are called fake."""
    node = up.run("node", "status", "node-1")[1]
    assert node["nodes"][0]["pools"]["scratch"]["capacity"] == 15_000
    assert "FAKE" in node["attributes"]["fake.devices"]
    assert pools(up)["scratch"]["nodes"] == 2
