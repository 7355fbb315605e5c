"""The product in containers on a real engine: one server and three, scaled and broken under load.

Every job is placed exactly once and nothing is lost, whatever is killed meanwhile. Prints a transcript, times included;
no time is a condition.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.cluster import ContainerCluster
from tests.compose.conftest import say

JOBS, COUNT, RATE = 240, 10, 8
Make = Callable[..., ContainerCluster]

HELLO = {
    "ID": "hello",
    "TaskGroups": [
        {
            "Name": "greeter",
            "Count": 3,
            "Tasks": [
                {
                    "Name": "hello",
                    "Driver": "raw_exec",
                    "Config": {"command": "/bin/sh", "args": ["-c", "echo hello; exec sleep 600"]},
                    "Resources": {"CPU": 20, "MemoryMB": 16},
                }
            ],
        }
    ],
}


def running(cluster: ContainerCluster, job: str) -> int:
    """How many allocations of a job run."""
    told = cluster.caravan("job", "status", job)
    return sum(one["running"] for one in told["groups"].values())


@pytest.mark.timeout(240)
def test_one_server_runs_a_job_and_keeps_it_through_a_restart(
    cluster_of: Make, tmp_path: Path
) -> None:
    """The default: up, a job on three agents, everything restarted, and the log still proves itself."""
    cluster = cluster_of(1, "agents")
    cluster.project.run("build")
    say("image built from deploy/Dockerfile")
    say(f"up in {cluster.up():.1f} s: one server, every service, three agents")
    cluster.until("three nodes", lambda: len(cluster.caravan("node", "status")["nodes"]) == 3)
    file = tmp_path / "hello.json"
    file.write_text(json.dumps({"Job": HELLO}))
    ran = cluster.caravan("job", "run", str(file))
    assert ran["placed"] == {"greeter": 3}
    cluster.until("three tasks run", lambda: running(cluster, "hello") == 3)
    say("job run: 3 tasks run in 3 containers")
    cluster.project.run("restart", "--timeout", "5", "nats-1", "plan_applier", "view")
    told = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (told["ok"], told["placements"]) == (True, 3)
    cluster.until("the view is back", lambda: running(cluster, "hello") == 3)
    say(f"bus, applier and view restarted: log verify ok, {told['last_seq']} records")
    again = cluster.up()
    assert "checked" in cluster.project.run("logs", "create")
    say(f"up again in {again:.1f} s: streams are checked, not made")


@pytest.mark.timeout(300)
def test_three_servers_place_every_job_once_while_scaled_and_broken(cluster_of: Make) -> None:
    """1 to 8 to 3 schedulers, the log's leading server killed, the active applier killed, all under load."""
    cluster = cluster_of(3)
    say(f"up in {cluster.up():.1f} s: three servers, R3, every service")
    cluster.until(
        "the view answers", lambda: cluster.caravan("operator", "status")["replicas"] == 3
    )
    cluster.start_fleet(20)
    cluster.until("20 nodes", lambda: len(cluster.caravan("node", "status")["nodes"]) == 20)
    assert cluster.ready("scheduler") == 1
    phases = [(time.time(), "1 scheduler")]
    load = cluster.start_load("submit", cluster.url, str(JOBS), str(COUNT), str(RATE))
    cluster.until("load", lambda: cluster.load("placed", cluster.url)["jobs"])

    _scale(cluster, phases, 8)
    _kill_leading_server(cluster, phases)
    _kill_active_applier(cluster, phases)
    _scale(cluster, phases, 3)

    told = cluster.answer(load, 150)
    phases.append((time.time(), "load done"))
    say(f"load: {told}")
    assert told["verdicts"] == {"accepted": JOBS}
    found = cluster.load("placed", cluster.url)
    _show(phases, {int(second): n for second, n in found["seconds"].items()})
    once = {f"load-{number:04d}": COUNT for number in range(JOBS)}
    assert found["jobs"] == once
    assert found["workers"] >= 8
    proof = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (proof["ok"], proof["placements"], proof["foreign"]) == (True, JOBS * COUNT, 0)
    say(f"log verify ok: {proof['last_seq']} records, {proof['placements']} placements, each once")
    cluster.until("the killed server has all again", lambda: _behind(cluster) == [])
    say("the killed server is back and has everything")


def _scale(cluster: ContainerCluster, phases: list[tuple[float, str]], count: int) -> None:
    began = time.time()
    phases.append((began, f"scaling to {count}"))
    took = cluster.up("--scale", f"scheduler={count}")
    cluster.until(f"{count} schedulers ready", lambda: cluster.ready("scheduler") == count)
    phases.append((time.time(), f"{count} schedulers"))
    say(f"--scale scheduler={count}: up in {took:.1f} s, all ready in {time.time() - began:.1f} s")


def _kill_leading_server(cluster: ContainerCluster, phases: list[tuple[float, str]]) -> None:
    admin = str(cluster.secrets / "admin.json")
    name = cluster.load("leader", cluster.url, admin)["leader"]
    began = time.time()
    phases.append((began, f"{name}, which leads the log, killed"))
    cluster.project.crash(name)

    def another() -> bool:
        return bool(cluster.load("leader", cluster.url, admin)["leader"] not in ("", name))

    cluster.until("another server leads the log", another)
    say(f"{name} killed: another server leads the log after {time.time() - began:.1f} s")


def _kill_active_applier(cluster: ContainerCluster, phases: list[tuple[float, str]]) -> None:
    status = cluster.until("the view", lambda: cluster.caravan("operator", "status"))
    holder, epoch = status["holder"], status["epoch"]
    began = time.time()
    phases.append((began, f"{holder}, the active applier, killed"))
    cluster.project.crash("plan_applier", holding=holder)
    cluster.until("another applier", lambda: cluster.caravan("operator", "status")["epoch"] > epoch)
    say(f"{holder} killed: another one writes after {time.time() - began:.1f} s")


def _behind(cluster: ContainerCluster) -> list[str]:
    """Servers that do not hold the whole log; a killed one is started again where the engine does not do it."""
    if not cluster.engine.is_ours:
        cluster.up("--no-recreate", "--scale", "scheduler=3")
    told = cluster.load("leader", cluster.url, str(cluster.secrets / "admin.json"))
    return list(told["behind"])


def _show(phases: list[tuple[float, str]], seconds: dict[int, int]) -> None:
    """Placements of each second, with what happened in it."""
    first, last = min(seconds), max(seconds)
    lines = []
    for second in range(first, last + 1):
        events = [text for at, text in phases if int(at) == second]
        lines.append(f"  {second - first:3d} s  {seconds.get(second, 0):5d}  {'; '.join(events)}")
    say("placements a second\n" + "\n".join(lines))
