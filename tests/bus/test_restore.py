"""The documented restore: the copy of a data folder takes its place while tasks of a later time still run."""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus.test_lifecycle import Story, job
from tests.bus.up import Up

pytestmark = pytest.mark.bus
SLEEPS = "exec sleep 600"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one cluster; no task of it is left behind."""
    yield tmp_path
    for pid in pids_below(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_below(folder: Path) -> set[int]:
    """Tasks and watchers whose environment names a directory below."""
    found = set()
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with contextlib.suppress(OSError):
                if f"NOMAD_ALLOC_DIR={folder}".encode() in (one / "environ").read_bytes():
                    found.add(int(one.name))
    return found


def tasks(story: Story, count: int) -> dict[str, int]:
    """Allocations of a job, all running: id -> pid of the task."""
    return {one["id"]: int(story.task(one)["pid"]) for one in story.wait("running", count)}


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def started(up: Up, folder: Path, job_id: str, count: int = 2) -> Story:
    """Run a job of `count` sleeping tasks."""
    story = Story(up, folder, job(job_id, SLEEPS, count=count))
    assert story.run()[0] == 0
    return story


def test_a_restore_under_running_tasks_leaves_no_orphan_and_doubles_no_id(folder: Path) -> None:
    """What the older log knows is adopted, what it does not know is ended; new ids are new."""
    up = Up(folder, "--keep-tasks", one_process=True)
    kept = tasks(started(up, folder, "kept"), 2)
    assert up.end() == 0
    shutil.copytree(up.data_dir, folder / "backup", symlinks=True)
    up = Up(folder, "--keep-tasks", one_process=True)
    assert tasks(Story(up, folder, job("kept", SLEEPS, count=2)), 2) == kept
    lost = {
        name: tasks(started(up, folder, name, count), count)
        for name, count in (("lost", 3), ("lost-too", 2))
    }
    assert up.end() == 0
    shutil.rmtree(up.data_dir)
    shutil.copytree(folder / "backup", up.data_dir, symlinks=True)

    up = Up(folder, one_process=True)
    try:
        # What both know was found again, by its process.
        assert tasks(Story(up, folder, job("kept", SLEEPS, count=2)), 2) == kept
        gone = [pid for some in lost.values() for pid in some.values()]
        up.until(lambda: not any(map(is_alive, gone)), "orphans are ended")
        assert "orphans.ended" in (up.data_dir / "logs" / "agent-node-1.log").read_text()
        # The same jobs, registered again at the same seqs, get ids that the lost history did not have.
        again = [tasks(started(up, folder, name, 2), 2) for name in lost]
        old = {one for some in lost.values() for one in some}
        assert not old & {one for some in again for one in some}
        began = up.run("log", "tail", "-n", "1000")[1]["events"]
        assert [one for one in began if one["type"] == "log.incarnation_began"]
        assert up.run("log", "verify")[0] == 0
    finally:
        assert up.end() == 0
    assert not pids_below(folder)


def test_a_restored_store_under_newer_nodes_is_an_alarm_in_words(folder: Path) -> None:
    """The bus is restored, the node's journal is not: status names what is lost, and each task is ended or known."""
    up = Up(folder, "--keep-tasks", one_process=True)
    kept = tasks(started(up, folder, "kept"), 2)
    assert up.end() == 0
    shutil.copytree(up.data_dir / "bus", folder / "backup", symlinks=True)
    up = Up(folder, "--keep-tasks", one_process=True)
    lost = tasks(started(up, folder, "lost", 3), 3)
    assert up.documented("operator", "status")["alarms"] == []
    assert up.end() == 0
    shutil.rmtree(up.data_dir / "bus")
    shutil.copytree(folder / "backup", up.data_dir / "bus", symlinks=True)

    up = Up(folder, one_process=True)
    try:
        up.until(lambda: bool(up.ask("cluster")["alarms"]), "the loss is an alarm")
        (alarm,) = up.documented("operator", "status")["alarms"]
        assert "node node-1 has seen seq" in alarm and "it was restored from an older copy" in alarm
        first, last = map(int, re.findall(r"records (\d+) to (\d+)", alarm)[0])
        assert first <= last and f"the log continues at {first} with new ids" in alarm
        up.until(lambda: not any(map(is_alive, lost.values())), "unknown tasks are ended")
        assert tasks(Story(up, folder, job("kept", SLEEPS, count=2)), 2) == kept
    finally:
        assert up.end() == 0
