"""`caravan up` again: nodes that the directory had, a copy of a directory that runs, a bus that restarts."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bounds import WAIT_S
from tests.bus.test_lifecycle import Story, job
from tests.bus.test_restore import SLEEPS, is_alive, pids_below, started, tasks
from tests.bus.up import Up

pytestmark = pytest.mark.bus


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one cluster; no task of it is left behind."""
    yield tmp_path
    for pid in pids_below(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def spread(up: Up, folder: Path) -> tuple[Story, dict[str, int]]:
    """Four tasks, some on each of two nodes."""
    spec = job("spread", SLEEPS, count=4)
    spec["TaskGroups"][0]["Constraints"] = [
        {"Operand": "distinct_property", "LTarget": "${node.unique.id}", "RTarget": "2"}
    ]
    story = Story(up, folder, spec)
    assert story.run()[0] == 0
    found = tasks(story, 4)
    assert {one["node"] for one in story.allocs("running")} == {"node-1", "node-2"}
    return story, found


def kill(up: Up) -> None:
    """End `caravan up` itself without a word, as a crash does."""
    up.process.kill()
    up.process.wait()
    assert up.process.stdout is not None
    up.process.stdout.close()
    up.log.close()


def test_up_runs_the_nodes_that_it_had(folder: Path) -> None:
    """`up --agents 2` is killed, then `up`: both nodes are back with the same tasks, and Ctrl-C ends them all."""
    up = Up(folder, "--agents", "2", one_process=True)
    _, before = spread(up, folder)
    kill(up)
    up = Up(folder, one_process=True)
    try:
        story = Story(up, folder, job("spread", SLEEPS, count=4))
        assert tasks(story, 4) == before
    finally:
        assert up.end() == 0
    assert not any(map(is_alive, before.values()))


def test_up_with_fewer_nodes_ends_the_tasks_of_the_others(folder: Path) -> None:
    """`up --agents 1` behind `--agents 2` ends what ran on node-2, says so, and its work goes to node-1."""
    up = Up(folder, "--agents", "2", one_process=True)
    story, before = spread(up, folder)
    there = [before[one["id"]] for one in story.allocs("running") if one["node"] == "node-2"]
    kill(up)
    up = Up(folder, "--agents", "1", one_process=True)
    try:
        assert not any(map(is_alive, there))
        up.log.flush()
        assert (
            "node-2 is not among the 1 agents: its tasks were ended"
            in (folder / "up.log").read_text()
        )
    finally:
        assert up.end() == 0
    assert not pids_below(folder)


def test_a_copy_of_a_directory_that_runs_is_refused(folder: Path) -> None:
    """A second `up` on a copy says which cluster already runs, and where; so does an agent on a copy of its own."""
    up = Up(folder, one_process=True)
    try:
        shutil.copytree(
            up.data_dir, folder / "copy", symlinks=True, ignore=shutil.ignore_patterns("*.sock")
        )
        words = [*up._command("up"), "--port", "0", "--data-dir", str(folder / "copy")]
        done = subprocess.run(
            words, env=up.env, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode != 0
        assert "already runs on this machine" in done.stderr
        assert str(up.data_dir) in done.stderr
        env = {
            **up.env,
            "CARAVAN_AGENT_NODE_ID": "node-1",
            "CARAVAN_AGENT_DATA_DIR": str(folder / "copy" / "agents" / "node-1"),
        }
        done = subprocess.run(
            up._command("run", "agent"),
            env=env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 1
        assert "another agent on this machine runs as node node-1" in done.stdout + done.stderr
    finally:
        assert up.end() == 0


def test_log_tail_goes_on_behind_a_restart_of_the_bus(folder: Path) -> None:
    """`log tail -f` survives that the bus is killed and started again, and shows what came after."""
    up = Up(folder, one_process=True)
    shown = folder / "tail"
    with shown.open("wb") as out:
        command = up._command("log", "tail", "-f", "--json")
        follow = subprocess.Popen(command, env=up.env, stdout=out)
    try:
        up.until(lambda: "node.registered" in shown.read_text(), "it follows")
        os.kill(up.said["services"]["bus"], signal.SIGKILL)
        up.until(lambda: "log.incarnation_began" in shown.read_text(), "it continues")
        assert follow.poll() is None
    finally:
        follow.terminate()
        follow.wait()
        assert up.end() == 0


def status_of(up: Up, node_id: str) -> str:
    """Status of a node, as the view has it."""
    return str(up.ask("node", id=node_id)["nodes"][0]["status"])


def test_a_killed_agent_costs_no_task_however_late_it_is_back(folder: Path) -> None:
    """The node of an agent that `up` restarts stays ready; a node that is silent for as long is down by then."""
    up = Up(folder, "--agents", "2", one_process=True)
    asleep: list[int] = []

    def agent(node_id: str) -> int:
        record = json.loads((up.data_dir / "up.json").read_text())
        return int(record["services"].get(f"agent-{node_id}", 0))

    try:
        story, before = spread(up, folder)
        mine = {one["id"] for one in story.allocs("running") if one["node"] == "node-1"}
        killed = agent("node-1")
        os.kill(killed, signal.SIGKILL)
        up.until(lambda: agent("node-1") not in (0, killed), "it is started again")
        for node_id in ("node-1", "node-2"):
            asleep.append(agent(node_id))
            os.kill(asleep[-1], signal.SIGSTOP)
        up.until(lambda: status_of(up, "node-2") == "down", "the silent node is down")
        assert status_of(up, "node-1") == "ready"
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
        up.until(lambda: status_of(up, "node-2") == "ready", "both agents are back")
        kept = {one["id"]: one for one in story.allocs("running") if one["id"] in mine}
        assert {one: story.task(kept[one])["pid"] for one in kept} == {
            one: before[one] for one in mine
        }
    finally:
        for pid in asleep:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert up.end() == 0


def test_all_roles_in_one_process_come_back_together(folder: Path) -> None:
    """With --one-process there are the bus, agents and one more process; killed, it continues where it was."""
    up = Up(folder, one_process=True)
    try:
        assert sorted(up.said["services"]) == ["agent-node-1", "bus", "services"]
        kept = tasks(started(up, folder, "kept"), 2)
        os.kill(up.said["services"]["services"], signal.SIGKILL)
        up.until(lambda: "restarted" in (folder / "up.log").read_text(), "it is started again")
        up.until(lambda: up.run("operator", "status")[0] == 0, "its services answer")
        after = started(up, folder, "after")
        assert len(tasks(after, 2)) == 2
        assert tasks(Story(up, folder, job("kept", SLEEPS, count=2)), 2) == kept
        assert up.run("log", "verify")[1]["ok"]
    finally:
        assert up.end() == 0
    assert not pids_below(folder)
