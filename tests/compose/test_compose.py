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

from tests import not_tested
from tests.bounds import until
from tests.clients.conftest import ALL, ten_lines
from tests.clients.languages import LANGUAGES, STEP_S, Language, NotHere, workshop
from tests.compose.cluster import ContainerCluster
from tests.compose.conftest import say
from tests.compose.page import Reader, blocks

COUNT, RATE = 10, 8
Make = Callable[..., ContainerCluster]


@pytest.mark.timeout(2 * STEP_S)
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
    reader.type("caravan job stop two-groups")
    say("Upgrade, Back up: then the job is stopped")
    reader.follow("Back up", slice(1, 2))
    told = _until(reader, "job status two-groups", lambda job: _running(job) == 3)
    assert told["job"]["stopped"] is False
    restored = _asked(reader, "log verify")
    assert restored["ok"]
    # The copy was made while leases were still written.
    assert after["last_seq"] <= restored["last_seq"]
    say("brought back: the job that was stopped after the copy runs; log verify ok")


def _asked(reader: Reader, words: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(reader.type(f"caravan {words} --json").splitlines()[-1])
    return told


def _until(reader: Reader, words: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    told: dict[str, Any] = {}

    def is_so() -> bool:
        nonlocal told
        told = _asked(reader, words)
        return holds(told)

    until(is_so, lambda: told)
    return told


def _running(job: dict[str, Any]) -> int:
    return sum(one["running"] for one in job["groups"].values())


#: What a task in a container reads of a login: the mounted file, and what the agent holds.
THIEF = """
import glob
found = []
for path in [*glob.glob("/run/secrets/*"), *glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/mem")]:
    try:
        found.append(open(path, "rb").read(1 << 20))
    except OSError as err:
        print(path, err.strerror)
print("read", len(found), b"nodes" in b"".join(found), flush=True)
"""


@pytest.mark.timeout(2 * STEP_S)
def test_clients_use_the_exported_url_and_tasks_find_no_login(cluster_of: Make) -> None:
    """Clients in all languages work with the URL of the page; a task of an agent's container reads no password."""
    cluster = cluster_of(1, "agents")
    say(f"up in {cluster.up():.1f} s: one server, every service, three agents")
    there = lambda: len(cluster.caravan("node", "status")["nodes"]) == 3  # noqa: E731
    cluster.until("three nodes", there)
    tried = [one for one in LANGUAGES if _speaks(cluster, one)]
    assert {"bash", "python"} <= {one.name for one in tried}
    assert len(tried) == len(LANGUAGES) or not ALL

    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "python3", "args": ["-Ic", THIEF]},
    }
    group = {"Name": "g", "RestartPolicy": {"Attempts": 0, "Mode": "fail"}, "Tasks": [task]}
    job = {"Job": {"ID": "thief", "Type": "batch", "TaskGroups": [group]}}
    path = cluster.secrets / "thief.json"
    path.write_text(json.dumps(job))
    cluster.caravan("job", "run", str(path))

    def said() -> str:
        one = cluster.caravan("job", "status", "thief")["allocations"][0]
        return str(cluster.caravan("alloc", "logs", one["id"])["text"])

    told = cluster.until(
        "the thief has looked", lambda: found if "read" in (found := said()) else ""
    )
    assert "/run/secrets/login Permission denied" in told, told
    assert "/mem" in told and told.splitlines()[-1].endswith("False"), told
    say("a task read neither the login of its agent nor its memory")


def _speaks(cluster: ContainerCluster, language: Language) -> bool:
    """Run the ten lines and the client of a language; False: its toolchain is not here."""
    env = {"CARAVAN_NATS_URL": cluster.url}
    job = {"ID": f"ten-{language.name}", "Type": "batch", "TaskGroups": [TEN_GROUP]}
    try:
        with workshop(language, ten_lines(language.name)) as shop:
            ten = shop.run((*cluster.engine.inside, *language.ten), {**env, "JOB": json.dumps(job)})
            lived = json.loads(shop.run((*cluster.engine.inside, *language.client), env))
    except NotHere as fault:
        say(f"{language.name} NOT TESTED: {fault}")
        not_tested.fail_in_full(f"the client in {language.name}: {fault}")
        return False
    assert "accepted" in ten, ten
    assert lived["submitted"] < lived["running"] < lived["stopped"]
    say(f"{language.name}: submitted at {lived['submitted']}, stopped at {lived['stopped']}")
    return True


TEN_TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["0"]}}
TEN_GROUP = {"Name": "g", "Tasks": [TEN_TASK]}


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
    # Which of the idle schedulers gets a lease is the broker's choice: under this load a few do all the work.
    cluster.until("another scheduler placed something", lambda: _placers(cluster) >= 2)
    _kill_leading_server(cluster, phases)
    _kill_active_applier(cluster, phases)
    _scale(cluster, phases, 3)
    time.sleep(2)  # What three do.

    told = cluster.answer(load)
    phases.append((time.time(), "load done"))
    say(f"load: {told}")
    jobs = told["jobs"]
    assert told["verdicts"] == {"accepted": jobs}
    found = cluster.load("placed", cluster.url)
    _show(phases, {int(second): n for second, n in found["seconds"].items()})
    once = {f"load-{number:04d}": COUNT for number in range(jobs)}
    assert found["jobs"] == once
    assert found["workers"] >= 2
    proof = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (proof["ok"], proof["placements"], proof["foreign"]) == (True, jobs * COUNT, 0)
    say(f"log verify ok: {proof['last_seq']} records, {proof['placements']} placements, each once")
    cluster.until("the killed server has all again", lambda: _behind(cluster) == [])
    say("the killed server is back and has everything")
    _repair(cluster)
    again = cluster.until("proof", lambda: cluster.caravan("log", "verify"))
    assert (again["ok"], again["placements"]) == (True, jobs * COUNT)
    say("nats-2 wiped as docs/operations.md says: it has everything again, log verify ok")


def _placers(cluster: ContainerCluster) -> int:
    """Schedulers whose plans stand in the log."""
    return int(cluster.load("placed", cluster.url)["workers"])


def _repair(cluster: ContainerCluster) -> None:
    """Follow the page: the project's name is ours, and the volume is removed by the engine's own API."""
    [block] = blocks("Repair a damaged server")
    for line in block.splitlines():
        words = line.removesuffix(" &&").split()
        if words[:2] == ["docker", "compose"]:
            assert words[2:4] == ["-f", "deploy/compose.yaml"]
            cluster.project.run(*words[4:])
        elif words[:3] == ["docker", "volume", "rm"]:
            volume = words[3].replace("caravan", cluster.project.name, 1)
            cluster.engine.client.volumes.get(volume).remove()
        else:
            assert words[0] == "caravan"
            cluster.caravan(*words[1:])
            if "--wait" in words:
                assert _behind(cluster) == []


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

    cluster.until("the log continues", goes_on)
    leader = cluster.load("leader", cluster.url, admin)["leader"]
    say(f"{name} killed: the log continues after {time.time() - began:.1f} s, led by {leader}")


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
