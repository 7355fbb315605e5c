"""The product in containers on a real engine: one server and three, scaled and broken under load.

Every job is placed exactly once and nothing is lost, whatever is killed meanwhile. Prints a transcript, times included;
no time is a condition.
"""

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.compose.cluster import ContainerCluster
from tests.compose.conftest import say
from tests.compose.page import Reader, blocks

COUNT, RATE = 10, 8
Make = Callable[..., ContainerCluster]


@pytest.mark.timeout(300)
def test_the_page_for_operators_works_from_start_to_restore(reader: Reader) -> None:
    """Every command of docs/operations.md for one server: start, scale, stop, upgrade, back up, bring back."""
    reader.follow("Start")
    _until(reader, "job status two-groups", lambda job: _running(job) == 3)
    say("Start: 3 tasks run in 3 containers")
    before = _asked(reader, "log verify")
    assert (before["ok"], before["placements"]) == (True, 3)
    reader.follow("Scale")
    reader.follow("Stop")
    _until(reader, "job status two-groups", lambda job: _running(job) == 3)
    say("Scale, Stop: the tasks run again")
    reader.follow("Upgrade")
    assert "checked" in reader.type("docker compose -f deploy/compose.yaml logs create")
    after = _asked(reader, "log verify")
    assert after["ok"]
    assert after["last_seq"] > before["last_seq"]
    reader.follow("Back up", slice(0, 1))
    kept = _asked(reader, "log verify")
    reader.type("caravan job stop two-groups")
    say("Upgrade, Back up: then the job is stopped")
    reader.follow("Back up", slice(1, 2))
    told = _until(reader, "job status two-groups", lambda job: _running(job) == 3)
    assert told["job"]["stopped"] is False
    restored = _asked(reader, "log verify")
    assert restored["ok"]
    assert restored["last_seq"] >= kept["last_seq"] - 1
    say("brought back: the job that was stopped after the copy runs; log verify ok")


def _asked(reader: Reader, words: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(reader.type(f"caravan {words} --json").splitlines()[-1])
    return told


def _until(
    reader: Reader, words: str, holds: Callable[[dict[str, Any]], bool], within_s: float = 60.0
) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while not holds(told := _asked(reader, words)):
        assert time.monotonic() < deadline, told
        time.sleep(0.2)
    return told


def _running(job: dict[str, Any]) -> int:
    return sum(one["running"] for one in job["groups"].values())


@pytest.mark.timeout(300)
def test_three_servers_place_every_job_once_while_scaled_and_broken(cluster_of: Make) -> None:
    """1 to 8 to 3 schedulers, the log's leading server killed, the active applier killed, all under load."""
    cluster = cluster_of(3)
    say(f"up in {cluster.up():.1f} s: three servers, R3, every service")
    cluster.until(
        "the view answers", lambda: cluster.caravan("operator", "status")["replicas"] == 3
    )
    held = cluster.load("leader", cluster.url, str(cluster.secrets / "admin.json"))["replicas"]
    assert {"LOG_1", "JOBS", "CMD", "EVAL", "KV_LEADER"} <= set(held)
    assert set(held.values()) == {3}
    cluster.start_fleet(20)
    cluster.until("20 nodes", lambda: len(cluster.caravan("node", "status")["nodes"]) == 20)
    cluster.until("one scheduler", lambda: cluster.workers() == 1)
    load = cluster.start_load("submit", cluster.url, str(COUNT), str(RATE))
    cluster.until("load", lambda: cluster.load("placed", cluster.url)["jobs"])
    phases = [(time.time(), "1 scheduler")]
    time.sleep(2)  # What one scheduler does, for the transcript.

    _scale(cluster, phases, 8)
    _kill_leading_server(cluster, phases)
    _kill_active_applier(cluster, phases)
    _scale(cluster, phases, 3)
    time.sleep(2)  # What three do.

    told = cluster.answer(load, 150)
    phases.append((time.time(), "load done"))
    say(f"load: {told}")
    jobs = told["jobs"]
    assert told["verdicts"] == {"accepted": jobs}
    found = cluster.load("placed", cluster.url)
    _show(phases, {int(second): n for second, n in found["seconds"].items()})
    once = {f"load-{number:04d}": COUNT for number in range(jobs)}
    assert found["jobs"] == once
    assert found["workers"] >= 8
    proof = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (proof["ok"], proof["placements"], proof["foreign"]) == (True, jobs * COUNT, 0)
    say(f"log verify ok: {proof['last_seq']} records, {proof['placements']} placements, each once")
    cluster.until("the killed server has all again", lambda: _behind(cluster) == [])
    say("the killed server is back and has everything")
    _repair(cluster)
    again = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (again["ok"], again["placements"]) == (True, jobs * COUNT)
    say("nats-2 wiped as docs/operations.md says: it has everything again, log verify ok")


def _repair(cluster: ContainerCluster) -> None:
    """Follow the page: the project's name is ours, and the volume is removed by the engine's own API."""
    [block] = blocks("Repair a damaged server")
    for line in block.splitlines():
        words = line.split()
        if words[:2] == ["docker", "compose"]:
            assert words[2:6] == ["-f", "deploy/compose.yaml", "--profile", "cluster"]
            cluster.project.run(*words[6:])
        elif words[:3] == ["docker", "volume", "rm"]:
            volume = words[3].replace("caravan", cluster.project.name, 1)
            cluster.engine.client.volumes.get(volume).remove()
        else:
            assert line == "caravan log verify"
    cluster.until("the wiped server has all again", lambda: _behind(cluster) == [], 60)


def _scale(cluster: ContainerCluster, phases: list[tuple[float, str]], count: int) -> None:
    began = time.time()
    phases.append((began, f"scaling to {count}"))
    took = cluster.up("--scale", f"scheduler={count}", "--no-recreate")
    cluster.until(f"{count} schedulers ready", lambda: cluster.workers() == count)
    phases.append((time.time(), f"{count} schedulers"))
    say(f"--scale scheduler={count}: up in {took:.1f} s, all ready in {time.time() - began:.1f} s")


def _kill_leading_server(cluster: ContainerCluster, phases: list[tuple[float, str]]) -> None:
    admin = str(cluster.secrets / "admin.json")
    name = cluster.load("leader", cluster.url, admin)["leader"]
    seq = cluster.caravan("operator", "status")["seq"]
    began = time.time()
    phases.append((began, f"{name}, which leads the log, killed"))
    cluster.project.crash(name)

    def goes_on() -> bool:
        # The engine starts the killed one again at once, and it may win the election.
        return bool(cluster.caravan("operator", "status")["seq"] > seq + 5)

    cluster.until("the log goes on", goes_on)
    leader = cluster.load("leader", cluster.url, admin)["leader"]
    say(f"{name} killed: the log goes on after {time.time() - began:.1f} s, led by {leader}")


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
    """Placements of each second with what happened in it, and a line for each scaling."""
    first, last = min(seconds), max(seconds)
    lines = []
    for second in range(first, last + 1):
        events = [text for at, text in phases if int(at) == second]
        lines.append(f"  {second - first:3d} s  {seconds.get(second, 0):5d}  {'; '.join(events)}")
    for (began, text), (ended, _) in itertools.pairwise(phases):
        if text.startswith("scaling"):
            during = [seconds.get(at, 0) for at in range(int(began), int(ended) + 1)]
            before, after = seconds.get(int(began) - 1, 0), seconds.get(int(ended) + 1, 0)
            mean = sum(during) / len(during)
            lines.append(f"  {text}: {before} a second before, {mean:.0f} during, {after} after")
    say("placements a second\n" + "\n".join(lines))
