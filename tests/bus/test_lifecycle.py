"""What users expect of a job's life, on a real bus with real processes: Nomad's defaults and habits, end to end."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = pytest.mark.bus
SECOND = 1_000_000_000
NODE_MHZ = 1_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One node of 1,000 MHz; tests use jobs of their own and end them."""
    one = Up(tmp_path_factory.mktemp("life"), CARAVAN_AGENT_CPU_MHZ=str(NODE_MHZ), one_process=True)
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def job(job_id: str, script: str, *, count: int = 1, cpu: int = 20, **more: Any) -> dict[str, Any]:
    """A job of one shell script; `task`, `group` and other keys are added where they belong."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": cpu, "MemoryMB": 16},
        **more.pop("task", {}),
    }
    group = {"Name": "g", "Count": count, "Tasks": [task], **more.pop("group", {})}
    spec = {"ID": job_id, "Type": "service", "TaskGroups": [group], **more}
    if spec["Type"] in {"service", "system"}:
        # Health would take ten seconds.
        spec = {"Update": {"MinHealthyTime": SECOND // 2}, **spec}
    return spec


class Story:
    """One job on the cluster."""

    def __init__(self, up: Up, folder: Path, spec: dict[str, Any]) -> None:
        self.up = up
        self.id = spec["ID"]
        self._path = folder / f"{self.id}.json"
        self._path.write_text(json.dumps(spec))

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        return self.up.run("job", "run", *words, str(self._path))

    def allocs(self, status: str = "") -> list[dict[str, Any]]:
        return self.up.allocs(self.id, status)

    def task(self, alloc: dict[str, Any]) -> dict[str, Any]:
        return self.up.run("alloc", "status", alloc["id"])[1]["tasks"]["main"]

    def text(self, alloc: dict[str, Any]) -> str:
        return self.up.run("alloc", "logs", alloc["id"])[1].get("text", "")

    def wait(self, status: str, count: int = 1) -> list[dict[str, Any]]:
        self.up.until(lambda: len(self.allocs(status)) >= count, f"{count} {status} of {self.id}")
        return self.allocs(status)

    def stop(self, *words: str) -> None:
        assert self.up.run("job", "stop", *words, self.id)[1]["stopped"] is True


def test_a_failing_task_is_restarted_then_placed_again_then_left(up: Up, tmp_path: Path) -> None:
    """Restarts in place as its policy says, then one reschedule within the interval, then no more."""
    policy = {"Attempts": 1, "Interval": 60 * SECOND, "Delay": SECOND // 2, "Mode": "fail"}
    again = {
        "Attempts": 1,
        "Interval": 600 * SECOND,
        "Delay": 5 * SECOND,
        "DelayFunction": "constant",
        "Unlimited": False,
    }
    spec = job("fails", "exit 7", group={"RestartPolicy": policy, "ReschedulePolicy": again})
    story = Story(up, tmp_path, spec)
    story.run()
    second, first = sorted(story.wait("failed", 2), key=lambda one: -one["key"])
    assert second["previous"] == first["id"]
    for one in (first, second):
        task = story.task(one)
        assert (task["restarts"], task["exit_code"], task["failed"]) == (1, 7, True)
        kinds = [event["kind"] for event in task["events"]]
        assert kinds == [
            "Started",
            "Terminated",
            "Restarting",
            "Started",
            "Terminated",
            "Not Restarting",
        ]
        wait = float(task["events"][2]["message"].split()[1])
        assert 0.5 <= wait < 0.625
    status = up.run("job", "status", "fails")[1]
    assert (status["job"]["status"], status["groups"]["g"]["failed"]) == ("dead", 2)
    story.stop()


def test_mode_delay_waits_instead_of_failing(up: Up, tmp_path: Path) -> None:
    """With attempts used up the task waits for the end of the interval, and its allocation does not fail."""
    policy = {"Attempts": 1, "Interval": 3600 * SECOND, "Delay": SECOND // 10, "Mode": "delay"}
    story = Story(up, tmp_path, job("delays", "exit 1", group={"RestartPolicy": policy}))
    story.run("--detach")

    def waits() -> bool:
        found = story.allocs()
        events = story.task(found[0])["events"] if found else []
        return any("until the interval ends" in event["message"] for event in events)

    up.until(waits, "the task waits")
    (one,) = story.allocs()
    assert one["client_status"] == "pending"
    assert story.task(one)["failed"] is False
    story.stop()


def test_a_task_is_asked_before_it_is_killed(up: Up, tmp_path: Path) -> None:
    """The kill signal of the job reaches the task; what does not listen is killed after kill_timeout."""
    polite = "trap 'echo asked; exit 3' USR1; echo ready; while :; do sleep 0.1; done"
    deaf = "trap '' INT; echo ready; while :; do sleep 0.1; done"
    nice = Story(up, tmp_path, job("polite", polite, task={"KillSignal": "SIGUSR1"}))
    hard = Story(up, tmp_path, job("deaf", deaf, task={"KillTimeout": SECOND // 2}))
    for story in (nice, hard):
        story.run()
        (one,) = story.wait("running")
        up.until(lambda story=story, one=one: "ready" in story.text(one), "the trap stands")
        story.stop()
    (one,) = nice.allocs()
    assert nice.text(one) == "ready\nasked\n"
    assert nice.task(one)["exit_code"] == 3
    (one,) = hard.allocs()
    task = hard.task(one)
    assert (one["client_status"], task["signal"], task["failed"]) == ("complete", 9, False)
    assert [event["kind"] for event in task["events"]][-3:] == ["Killing", "Terminated", "Killed"]


def test_room_goes_to_the_higher_priority_first(up: Up, tmp_path: Path) -> None:
    """Two jobs wait for the same room; the one of higher priority gets it, though it came later."""
    script = "exec sleep 600"
    big = Story(up, tmp_path, job("big", script, cpu=800))
    low = Story(up, tmp_path, job("low", script, cpu=800, Priority=20))
    high = Story(up, tmp_path, job("high", script, cpu=800, Priority=80))
    assert big.run()[0] == 0
    for story in (low, high):
        code, answer = story.run()
        assert (code, answer["waiting"]["g"]["n"], answer["waiting"]["g"]["class"]) == (
            2,
            1,
            "capacity",
        )
    big.stop()
    high.wait("running")
    assert not low.allocs()
    assert up.run("eval", "list", "--job", "low", "--status", "blocked")[1]["total"] == 1
    high.stop()
    low.wait("running")
    low.stop("--purge")
    up.until(lambda: "error" in up.run("job", "status", "low")[1], "the purged job is forgotten")


def test_a_batch_job_ends_and_is_not_run_again(up: Up, tmp_path: Path) -> None:
    """Complete allocations stay complete: neither an evaluation nor the same text again starts them."""
    story = Story(up, tmp_path, job("once", "echo done", count=2, Type="batch"))
    assert story.run()[0] == 0
    first = story.wait("complete", 2)
    assert up.run("job", "status", "once")[1]["job"]["status"] == "dead"
    assert up.documented("job", "eval", "once")["eval_status"] == "complete"
    assert story.run()[0] == 0
    assert {one["id"] for one in story.allocs()} == {one["id"] for one in first}


def test_a_task_finds_its_environment(up: Up, tmp_path: Path) -> None:
    """Nomad's variables, the job's own, references between them, and directories that exist."""
    script = (
        'echo "$NOMAD_JOB_NAME $NOMAD_GROUP_NAME $NOMAD_TASK_NAME $NOMAD_ALLOC_INDEX $NOMAD_DC $WHO $NOMAD_META_team"; '
        'ls -d "$NOMAD_ALLOC_DIR" "$NOMAD_TASK_DIR" "$NOMAD_SECRETS_DIR" >/dev/null && echo there'
    )
    task = {"Env": {"WHO": "${NOMAD_ALLOC_NAME} on ${node.unique.id}"}}
    spec = job("env", script, Type="batch", task=task, Name="environment", Meta={"team": "blue"})
    story = Story(up, tmp_path, spec)
    story.run()
    (one,) = story.wait("complete")
    assert story.text(one) == "environment g main 0 dc1 env.g[0] on node-1 blue\nthere\n"


def test_logs_stay_small_though_the_agent_dies(up: Up, tmp_path: Path) -> None:
    """A task that writes without end leaves the newest files only, in order, and so does one that was adopted."""
    script = "i=0; while :; do i=$((i+1)); printf '%099d\\n' $i; done"
    logs = {"MaxFiles": 2, "MaxFileSizeMB": 1}
    story = Story(up, tmp_path, job("writes", script, task={"LogConfig": logs}))
    story.run()
    (one,) = story.wait("running")
    (folder,) = up.data_dir.glob(f"agents/*/alloc/{one['id']}/alloc/logs")

    def oldest() -> int:
        tails = [path.name.rpartition(".")[2] for path in folder.glob("main.stdout.*")]
        return min((int(tail) for tail in tails if tail.isdigit() and tail != "0"), default=0)

    up.until(lambda: oldest() >= 1, "a first file is moved")
    agent = json.loads((up.data_dir / "up.json").read_text())["services"]["agent-node-1"]
    os.kill(agent, signal.SIGKILL)
    before = oldest()
    up.until(lambda: oldest() > before + 2, "files of the adopted task are moved")
    story.stop()
    size = up.run("alloc", "logs", one["id"])[1]["size"]
    numbers = [int(line) for line in story.text(one).splitlines()[1:-1]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert size < 64 * 1024 * 1024
    with contextlib.suppress(FileNotFoundError):
        assert len(list(folder.glob("main.stdout.*"))) <= 3


def test_versions_and_what_they_changed(up: Up, tmp_path: Path) -> None:
    """History tells fields, inspect gives back a text that can be submitted again, plan says what would change."""
    Story(up, tmp_path, job("grows", "exec sleep 600")).run()
    path = tmp_path / "grows.json"
    Story(up, tmp_path, job("grows", "exec sleep 600", count=2))
    assert up.run("job", "status", "grow")[1]["job"]["id"] == "grows"
    code, planned = up.run("job", "plan", str(path))
    assert (code, planned["groups"]["g"]["place"], planned["groups"]["g"]["in_place"]) == (1, 1, 1)
    assert planned["unplaced"] == {}
    index = str(planned["modify_index"])
    assert up.run("job", "run", "--check-index", "1", str(path))[1]["error"]["code"] == "conflict"
    assert up.run("job", "run", "--check-index", index, str(path))[0] == 0
    assert up.documented("job", "plan", str(path))["changes"] is False
    history = up.documented("job", "history", "grows")
    assert [one["version"] for one in history["versions"]] == [1, 0]
    (change,) = history["versions"][0]["diff"]
    assert (change["path"], change["old"], change["new"]) == ("TaskGroups[g].Count", 1, 2)
    path.write_text(json.dumps(up.documented("job", "inspect", "--version", "0", "grows")["spec"]))
    assert up.run("job", "run", str(path))[1]["version"] == 2
    up.until(lambda: len(up.run("job", "status", "grows")[1]["allocations"]) == 2, "one stops")
    up.run("job", "stop", "--purge", "grows")


def test_the_file_of_a_version_is_kept(up: Up, tmp_path: Path) -> None:
    """`inspect --hcl` gives the file of any version as it was written, of a revert the file that it went back to."""
    text = (
        'variable "n" { default = 1 }\njob "written" {\r\n  # a comment\n  type = "batch"\n  group "g" {\n'
        '    count = var.n\n    task "t" {\n      driver = "raw_exec"\n      config { command = "true" }\n'
        "    }\n  }\n}\n"
    )
    path = tmp_path / "written.nomad.hcl"
    path.write_bytes(text.encode())
    assert up.run("job", "run", "--detach", "--var", "n=2", str(path))[0] == 0
    answer = up.documented("job", "inspect", "--hcl", "written")
    assert answer["source"].items() >= {"Source": text, "VariableFlags": {"n": "2"}}.items()
    newer = text.replace("a comment", "another").replace("true", "false")
    path.write_bytes(newer.encode())
    assert up.run("job", "run", "--detach", str(path))[0] == 0
    assert up.run("job", "revert", "--detach", "written", "0")[0] == 0
    sources = [
        up.run("job", "inspect", "--hcl", "--version", str(number), "written")[1]["source"][
            "Source"
        ]
        for number in (0, 1, 2)
    ]
    assert sources == [text, newer, text]
    code, answer = up.run("job", "inspect", "--hcl", "--version", "9", "written")
    assert (code, answer["error"]["code"]) == (1, "not_found")
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"Job": job("bare", "true")}))
    assert up.run("job", "run", "--detach", str(bare))[0] == 0
    assert up.run("job", "inspect", "--hcl", "bare")[1]["source"]["Source"] == bare.read_text()
    for name in ("written", "bare"):
        up.run("job", "stop", "--purge", name)


def test_operators_change_the_cluster(up: Up, tmp_path: Path) -> None:
    """Policy, eligibility and forgetting are asked for, answered once they are in the log, and seen at once."""
    got = up.documented("operator", "scheduler", "get")
    assert got["policy"]["algorithm"] == "binpack"
    told = up.documented(
        "operator", "scheduler", "set", "algorithm=spread", "--check-hash", got["policy_hash"]
    )
    assert told["changed"] is True
    assert up.run("operator", "scheduler", "get")[1]["policy"]["algorithm"] == "spread"
    stale = up.run(
        "operator", "scheduler", "set", "algorithm=binpack", "--check-hash", got["policy_hash"]
    )
    assert (stale[0], stale[1]["error"]["code"]) == (1, "conflict")
    assert up.run("operator", "scheduler", "set", "algorithm=binpack")[0] == 0
    pools = up.run("operator", "scheduler", "set", "pool_algorithms=slow:spread")[1]["policy"]
    assert pools["pool_algorithms"] == {"slow": "spread"}
    assert up.run("operator", "scheduler", "set", "pool_algorithms=")[0] == 0
    assert up.documented("node", "eligibility", "--disable", "node-1")["changed"] is True
    story = Story(up, tmp_path, job("later", "exec sleep 600"))
    assert story.run()[0] == 2
    assert up.documented("node", "eligibility", "--enable", "node-1")["node"] == "node-1"
    story.wait("running")
    story.stop()
    # A collection takes jobs whose allocations have ended; those of earlier tests may still be ending.
    collected: list[int] = []

    def all_collected() -> bool:
        collected.append(up.documented("system", "gc")["collected"]["jobs"])
        return bool(up.run("job", "status")[1]["total"] == 0)

    up.until(all_collected, "every stopped job is collected")
    assert sum(collected) >= 1
    assert up.run("log", "verify")[0] == 0


def test_what_is_lost_is_placed_elsewhere(tmp_path: Path) -> None:
    """A node that falls silent is down; what it ran is lost and placed on another, and ends there when it is back."""
    up = Up(tmp_path, "--agents", "2", one_process=True)
    try:
        story = Story(up, tmp_path, job("moves", "exec sleep 600", count=4))
        story.run()
        before = story.wait("running", 4)
        nodes = [one["node"] for one in before]
        victim = max(sorted(set(nodes)), key=nodes.count)
        state = json.loads((up.data_dir / "up.json").read_text())
        pids = [story.task(one)["pid"] for one in before if one["node"] == victim]
        agent = state["services"][f"agent-{victim}"]
        os.kill(agent, signal.SIGSTOP)
        up.until(lambda: len(story.allocs("lost")) == len(pids), "they are lost")
        lost = {one["id"]: one for one in story.allocs("lost")}
        now = story.wait("running", 4)
        assert {one["node"] for one in now if one["previous"]} == {one["node"] for one in now}
        assert {one["previous"] for one in now if one["previous"]} <= set(lost)
        assert victim not in {one["node"] for one in now}
        os.kill(agent, signal.SIGCONT)
        up.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "old tasks end")
        assert len(story.allocs("running")) == 4
    finally:
        up.end()
    assert not processes_using(up.data_dir)
