"""The present release on the data folder of an older one: the same state, the same decisions, the tasks adopted."""

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.core.state.state import State
from tests.bus.up import Up

RECORDED = Path(__file__).parents[1] / "golden" / "upgrade" / "data-0.1.0.tar.xz"
NEW_JOB = """
job "new" {
  constraint {
    attribute = "${attr.cpu.arch}"
    value     = "ARCH"
  }
  update {
    min_healthy_time = "1s"
  }
  group "g" {
    ephemeral_disk {
      size = 10
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["3600"]
      }
      resources {
        cpu    = 20
        memory = 15
      }
      logs {
        max_files     = 1
        max_file_size = 5
      }
    }
  }
}
"""


def stat_of(pid: int) -> str:
    """The line by which a process is known again."""
    return Path(f"/proc/{pid}/stat").read_text().strip()


@pytest.fixture
def revived(tmp_path: Path) -> Iterator[dict[str, int]]:
    """The recorded folder in `tmp_path`, with live processes for the tasks that ran; pids of the tasks by allocation.

    Processes cannot be recorded: each run without an end gets a watcher and a task, and the record of it their names.
    """
    with tarfile.open(RECORDED) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        # Python 3.11.2 of Debian 12 has no filters; the archive is our own.
        archive.extractall(tmp_path)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    watchers: list[subprocess.Popen[bytes]] = []
    pids: dict[str, int] = {}
    for record in sorted((tmp_path / "data").glob("agents/*/runs/*/*/*/proc")):
        if record.with_name("exit").exists():
            continue
        watch = subprocess.Popen(
            ["/bin/sh", "-c", "/usr/bin/setsid /bin/sleep 3600 & echo $!; wait"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        watchers.append(watch)
        assert watch.stdout is not None
        task = int(watch.stdout.readline())
        record.write_text(f"{boot}\n{stat_of(watch.pid)}\n{stat_of(task)}\n")
        pids[record.parts[-4]] = task
    yield pids
    for watch in watchers:
        watch.kill()
        watch.wait()
        assert watch.stdout is not None
        watch.stdout.close()


def adopted(up: Up) -> dict[str, int]:
    """Pids that the agent took over, by allocation."""
    lines = (up.data_dir / "logs" / "agent-node-1.log").read_text().splitlines()
    told: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {one["alloc"]: one["pid"] for one in told if one["event"] == "task.adopted"}


def test_a_folder_of_the_first_release_goes_on(tmp_path: Path, revived: dict[str, int]) -> None:
    """Every hash is the recorded one, every live task adopted; old and new names of machines place, and verify."""
    assert len(revived) == 3
    proof = json.loads((tmp_path / "proof.json").read_text())
    up = Up(tmp_path)
    try:
        assert up.said["ready"], up.said
        up.until(lambda: adopted(up) == revived, "the live tasks are adopted")
        then = up.run("operator", "status", "--hashes", "--at", str(proof["last_seq"]))[1]
        # A table that the older release had not is empty.
        assert then["tables"] == {**State().hashes(), **proof["tables"]}
        attributes = up.run("node", "status", "node-1")[1]["attributes"]
        arch = attributes["cpu.arch"]
        assert arch in ("amd64", "arm64")
        job = tmp_path / "new.nomad.hcl"
        for name in (arch, attributes["kernel.arch"]):
            job.write_text(NEW_JOB.replace("ARCH", name).replace('"new"', f'"new-{name}"'))
            code, answer = up.run("job", "run", str(job))
            assert code == 0, answer
        code, now = up.run("log", "verify", "--decisions")
        assert (code, now["problem"]) == (0, "")
        assert now["last_seq"] >= proof["last_seq"]
        decided = now["decisions"]
        assert decided["equal"] == decided["checked"] > 0
        # Another release decides otherwise: its plans are counted, not compared.
        assert decided["other_version"] == proof["decisions"]["checked"] > 0
    finally:
        assert up.end() == 0
