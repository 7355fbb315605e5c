"""Every command against a real cluster of `caravan up`: JSON keys as in docs/cli.md, and the right exit code."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.command_table import COMMANDS
from services.cli.local.processes import processes_using
from shared.bus.connection.public_client import Client
from shared.protocol import subjects
from tests.bounds import LONG_S, WAIT_S, until
from tests.bus.up import Up

pytestmark = pytest.mark.bus
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "two-groups.nomad.json"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One cluster for the whole file; tests use jobs of their own."""
    one = Up(tmp_path_factory.mktemp("up"))
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def job_file(folder: Path, job_id: str, **changes: Any) -> str:
    """The example under another id, with changes to its first group."""
    body = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    body["Job"]["ID"] = job_id
    body["Job"]["TaskGroups"][0] |= changes
    path = folder / f"{job_id}.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    return str(path)


def test_a_job_from_run_to_stop(up: Up, tmp_path: Path) -> None:
    """A job runs, is shown by every status command under the documented keys, writes output, and stops."""
    ran = up.documented("job", "run", job_file(tmp_path, "life"))
    assert (ran["eval_status"], ran["placed"], ran["waiting"]) == (
        "complete",
        {"clock": 2, "greeter": 1},
        {},
    )
    up.until(lambda: _running(up, "life") == 3, "three allocations run")
    job = up.documented("job", "status", "life")
    assert job["job"]["status"] == "running"
    first = job["allocations"][0]
    contract = {"id", "group", "index", "node", "desired_status", "client_status", "version"}
    assert contract <= set(first)
    alloc = up.documented("alloc", "status", first["id"][:13])
    assert {"state", "restarts", "events"} <= set(alloc["tasks"]["tick"])
    up.until(lambda: bool(up.run("alloc", "logs", first["id"], "tick")[1].get("text")), "output")
    assert "tick 1" in up.documented("alloc", "logs", first["id"])["text"]
    assert up.documented("eval", "status", ran["eval_id"])["evaluation"]["job_id"] == "life"
    assert up.documented("eval", "list")["total"] >= 1
    nodes = up.documented("node", "status")["nodes"]
    assert {"id", "name", "datacenter", "pool", "class", "status", "eligibility"} <= set(nodes[0])
    assert {"capacity", "used", "allocations"} <= set(nodes[0])
    stopped = up.documented("job", "stop", "life")
    assert stopped["stopped"] is True
    assert up.run("job", "status", "life")[1]["job"]["status"] == "dead"


def _running(up: Up, job_id: str) -> int:
    return len(up.allocs(job_id, "running"))


def test_what_finds_no_place_waits(up: Up, tmp_path: Path) -> None:
    """A job too large is accepted, says what waits and why, and ends with exit 2."""
    constraint = [{"LTarget": "${node.datacenter}", "Operand": "=", "RTarget": "mars"}]
    code, answer = up.run("job", "run", job_file(tmp_path, "mars", Constraints=constraint))
    assert code == 2
    assert answer["placed"] == {"clock": 0, "greeter": 1}
    assert answer["waiting"]["clock"]["n"] == 2
    assert answer["waiting"]["clock"]["reasons"]
    up.documented("job", "stop", "mars", "--purge")


@pytest.mark.parametrize(
    ("name", "job_type", "task"),
    [
        ("fails", "batch", {"Config": {"command": "/bin/false"}}),
        ("missing", "service", {"Config": {"command": "/no/such/command"}}),
        (
            "crashes",
            "service",
            {"Config": {"command": "/bin/sh", "args": ["-c", "sleep 0.3; exit 3"]}},
        ),
        (
            "crashes-later",
            "batch",
            {"Config": {"command": "/bin/sh", "args": ["-c", "sleep 3; exit 3"]}},
        ),
        (
            "all-at-once",
            "service",
            {"Config": {"command": "/bin/sh", "args": ["-c", "sleep 3; exit 3"]}},
        ),
    ],
)
def test_what_does_not_run_is_no_success(
    up: Up, tmp_path: Path, name: str, job_type: str, task: dict[str, Any]
) -> None:
    """A task that fails, has no command, or ends again and again: exit 1, with the reason; the status says it too."""
    text = {"Name": "t", "Driver": "raw_exec", **task}
    job = {"ID": name, "Type": job_type, "TaskGroups": [{"Name": "g", "Tasks": [text]}]}
    has_deployment = job_type == "service" and name != "all-at-once"
    if job_type == "service":
        # The first allocation that is not healthy in time fails the deployment.
        job["Update"] = {
            "MinHealthyTime": 10**9,
            "HealthyDeadline": 2 * 10**9,
            "ProgressDeadline": 0,
            "MaxParallel": int(has_deployment),
        }
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"Job": job}), encoding="utf-8")
    code, answer = up.run("job", "run", str(path))
    wanted = "deployment" if has_deployment else "rollout"
    assert (code, answer["error"]["code"]) == (1, wanted), answer
    assert re.search(r"task '?t'? ", answer["error"]["message"]), answer
    assert answer["rollout"]["status"] in {"failed", "progressing"}
    assert answer["rollout"]["retry_at_ns"] > 0 or has_deployment
    shown = up.run("job", "status", name)[1]["rollout"]
    assert shown["status"] in {"failed", "progressing", "running"}
    up.documented("job", "stop", name, "--purge")


def test_a_job_sent_again_unchanged_says_so(up: Up, tmp_path: Path) -> None:
    """A complete batch job that is submitted as it is does not run again; a plan of it, or in place, is exit 0."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    job = {"ID": "again", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    path = tmp_path / "again.json"
    path.write_text(json.dumps({"Job": job}), encoding="utf-8")
    up.run("job", "run", str(path))
    up.until(
        lambda: up.run("job", "status", "again")[1]["rollout"]["status"] == "complete", "its end"
    )
    again = up.documented("job", "run", str(path))
    assert (again["rollout"]["status"], again["rollout"]["changed"]) == ("complete", False)
    assert up.run("job", "plan", str(path))[0] == 0
    job["TaskGroups"][0]["Tasks"][0]["Config"]["command"] = "/bin/echo"
    path.write_text(json.dumps({"Job": job}), encoding="utf-8")
    code, plan = up.run("job", "plan", str(path))
    assert (code, plan["touches_allocations"]) == (1, True)


def test_a_job_runs_without_what_is_not_built_only_by_consent(up: Up, tmp_path: Path) -> None:
    """An unbuilt block is refused; accepted, the job runs, and its status names the block as long as it is there."""
    path = job_file(tmp_path, "consent", Consul={"Namespace": "x"})
    code, answer = up.run("job", "run", path)
    assert (code, answer["error"]["path"]) == (1, "Job.TaskGroups[0].Consul")
    assert "not built yet" in answer["error"]["message"]
    assert up.run("job", "plan", path)[0] == 255
    code, plan = up.run("job", "plan", "--accept-unbuilt", path)
    assert (code, plan["changes"]) == (1, True)
    ran = up.documented("job", "run", "--accept-unbuilt", path)
    assert "Job.TaskGroups[0].Consul" in ran["warnings"][0]
    up.until(lambda: _running(up, "consent") == 3, "three allocations run")
    assert up.run("job", "status", "consent")[1]["unbuilt"] == ["Job.TaskGroups[0].Consul"]
    up.documented("job", "stop", "consent", "--purge")


def test_a_periodic_or_stopped_job_never_runs_at_registration(up: Up, tmp_path: Path) -> None:
    """Both are kept, and have no allocation."""
    for name, is_stopped, change in (
        ("cron", False, {"Type": "batch", "Update": None, "Periodic": {"Specs": ["@daily"]}}),
        ("halted", True, {"Stop": True}),
    ):
        path = job_file(tmp_path, name)
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        body["Job"] |= change
        Path(path).write_text(json.dumps(body), encoding="utf-8")
        placed = up.documented("job", "run", path)["placed"]
        assert not any(placed.values())
        found = up.run("job", "status", name)[1]
        assert (found["job"]["stopped"], found["allocations_total"]) == (is_stopped, 0)
        up.documented("job", "stop", name, "--purge")


def test_refusals_have_stable_codes(up: Up, tmp_path: Path) -> None:
    """Unknown things, taken indexes and ambiguous words are errors with exit 1 and a code."""
    for code, words in (
        ("not_found", ("job", "status", "nobody")),
        ("not_found", ("job", "stop", "nobody")),
        ("not_found", ("node", "status", "nobody")),
        ("not_found", ("alloc", "status", "ffffffffffff")),
        ("invalid", ("eval", "status", "zz")),
        ("conflict", ("job", "run", job_file(tmp_path, "cas"), "--check-index", "7")),
    ):
        exit_code, answer = up.run(*words)
        assert (exit_code, answer["error"]["code"]) == (1, code), words
        assert answer["error"]["message"]


def test_the_log_is_proven_and_replayed(up: Up) -> None:
    """The log of a living cluster verifies, tails, and replays to the state that the view hashes."""
    proof = up.run("log", "verify")[1]
    assert proof["ok"], proof["problem"]
    assert set(next(c.keys() for c in COMMANDS if c.words == ("log", "verify"))) <= set(proof)
    tail = up.documented("log", "tail", "-n", "3")
    assert len(tail["events"]) <= 3
    live = up.documented("operator", "status", "--hashes")
    assert live["fsync"] is True
    again = up.documented("replay", "--to", str(live["seq"]))
    assert again["tables"] == live["tables"]
    assert up.run("replay", "--to", "999999")[1]["error"]["code"] == "not_found"


async def _publish(url: str, subject: str, body: bytes) -> None:
    async with Client(url) as client:
        client.publish(subject, body)
        await client.bus.flush()


def test_dead_letters_are_listed(up: Up) -> None:
    """An undecodable message in the drop box becomes a dead letter that `dead list` shows."""
    import asyncio

    asyncio.run(_publish(up.client_url, subjects.jobs("submit"), b"{no json"))
    up.until(lambda: up.run("dead", "list")[1]["total"] > 0, "a dead letter")
    message = up.documented("dead", "list")["messages"][0]
    assert set(message) == {"id", "subject", "reason", "at", "at_text", "size"}
    assert message["subject"] == subjects.jobs("submit")


def test_killed_services_come_back(up: Up, tmp_path: Path) -> None:
    """After kill -9 of both appliers and of the bus, a job runs again, and the log is sound."""
    state = json.loads((up.data_dir / "up.json").read_text())
    for name in ("plan_applier-1", "plan_applier-2", "bus"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["services"][name], signal.SIGKILL)

    def placed() -> bool:
        code, answer = up.run(
            "job", "run", job_file(tmp_path, "after"), "--submission-id", "after-1"
        )
        return code == 0 and answer["placed"] == {"clock": 2, "greeter": 1}

    up.until(placed, "a job is placed again")
    assert up.run("log", "verify")[1]["ok"]


def test_one_up_a_directory_and_a_port(up: Up, tmp_path: Path) -> None:
    """A second `up` on the directory, or on the port, is refused in one line."""
    code, answer = up.run("up", "--port", "0", "--data-dir", str(up.data_dir))
    assert (code, answer["error"]["code"]) == (1, "config")
    port = up.said["url"].rpartition(":")[2]
    code, answer = up.run("up", "--port", port, "--data-dir", str(tmp_path / "other"))
    assert (code, "in use" in answer["error"]["message"]) == (1, True)


def test_ctrl_c_leaves_nothing(up: Up) -> None:
    """SIGINT ends tasks, services and bus, and says so; nothing of the directory runs any more."""
    assert up.end() == 0
    assert not processes_using(up.data_dir)
    said = (up.data_dir.parent / "up.log").read_text()
    assert said.splitlines()[-1] == "stopped"


def test_ctrl_c_after_the_end_changes_nothing(tmp_path: Path) -> None:
    """Who has pressed it once more meets a process that has stopped and is about to exit: with 0, not by the signal."""
    one = Up(tmp_path, "--agents", "0", one_process=True)
    one.process.send_signal(signal.SIGINT)
    log = tmp_path / "up.log"
    until(lambda: log.read_text().splitlines()[-1:] == ["stopped"], log.read_text)
    while one.process.poll() is None:
        one.process.send_signal(signal.SIGINT)
    assert one.end() == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.full("README's first command is the demo, which CI runs before the gate")
def test_demo(tmp_path: Path) -> None:
    """The demo comes to its end: ran, restarted, stopped, nothing left; one object on stdout."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "services.cli", "demo", "--json"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    story = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert set(story) == set(next(c.keys() for c in COMMANDS if c.words == ("demo",)))
    assert (story["ran"], story["restarted"], story["stopped"]) == (True, True, True)
    assert (story["left_running"], story["ok"]) == (0, True)
    assert {one["status"] for one in story["allocations"]} == {"complete"}
    assert not list(tmp_path.glob("caravan-demo-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """A closed terminal or a plain kill takes everything down too: no process, no directory."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "services.cli", "demo"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            # Services are running when the bus is known.
            assert any("bus at nats://" in line for line in process.stdout)
            (folder,) = tmp_path.glob("caravan-demo-*")
            process.send_signal(number)
            process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert not processes_using(folder)
    assert not folder.exists()
