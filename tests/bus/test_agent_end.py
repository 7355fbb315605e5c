"""Ctrl-C of `caravan up`: every task ends as its job says, and what ended meanwhile does not run again."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.local.processes import processes_using
from tests.bounds import until
from tests.bus.up import Up

pytestmark = pytest.mark.bus
SECOND = 1_000_000_000
#: Writes a line to the file of its allocation.
SAY = 'say() { echo "$*" >> "$NOMAD_ALLOC_DIR/data/said"; }; '
#: Until a line is there, without a bound of its own.
AWAIT = 'await() { until grep -qx "$*" "$NOMAD_ALLOC_DIR/data/said"; do sleep 0.05; done; }; '
FOREVER = "while :; do sleep 0.05; done"


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    """A task of /bin/sh."""
    config = {"command": "/bin/sh", "args": ["-c", SAY + AWAIT + script]}
    return {"Name": name, "Driver": "raw_exec", "Config": config, **more}


class Ended:
    """A cluster with one job, ended and begun again in one folder."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self.folder = folder
        self.path = folder / "job.json"
        self.path.write_text(json.dumps({"Job": job}))
        self.job = str(job["ID"])
        self.up = Up(folder, one_process=True)

    def run(self) -> None:
        """Register the job."""
        assert self.up.run("job", "run", "--detach", str(self.path))[0] == 0

    def again(self) -> None:
        """The next life of the same folder."""
        self.up = Up(self.folder, one_process=True)

    def said(self) -> list[str]:
        """Lines of its only allocation."""
        found = list(self.folder.glob("data/agents/node-1/alloc/*/alloc/data/said"))
        assert len(found) <= 1
        return found[0].read_text().splitlines() if found else []

    def until_said(self, line: str, count: int = 1) -> None:
        """Wait until its tasks have written a line so often."""
        until(lambda: self.said().count(line) >= count, self.said)

    def told(self) -> str:
        """What `up` printed for people."""
        return (self.folder / "up.log").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of which nothing runs at the end."""
    yield tmp_path
    assert not processes_using(tmp_path)


def test_tasks_end_with_their_agent_as_their_job_says(folder: Path) -> None:
    """Own signal, time and order: the leader first, then the rest, poststop last; the next life starts them again."""
    web = shell(
        "web",
        "trap 'say web USR1; sleep 7; say web done; exit 0' USR1; trap 'say web wrong' INT TERM; "
        f"say web up; {FOREVER}",
        Leader=True,
        KillSignal="SIGUSR1",
        KillTimeout=60 * SECOND,
    )
    proxy = shell(
        "proxy",
        f"trap 'say proxy QUIT; exit 0' QUIT; trap 'say proxy wrong' INT TERM; say proxy up; {FOREVER}",
        KillSignal="SIGQUIT",
        ShutdownDelay=SECOND // 2,
        Lifecycle={"Hook": "prestart", "Sidecar": True},
    )
    bye = shell("bye", "say bye", Lifecycle={"Hook": "poststop"})
    group = {"Name": "g", "Tasks": [proxy, web, bye]}
    one = Ended(folder, {"ID": "shop", "Type": "service", "TaskGroups": [group]})
    one.run()
    one.until_said("web up")
    one.until_said("proxy up")
    [before] = one.up.allocs("shop")
    assert one.up.end() == 0
    assert one.said()[2:] == ["web USR1", "web done", "proxy QUIT", "bye"]
    assert "shop.g: web has SIGUSR1, at most 60 s" in one.told()

    one.again()
    one.until_said("web up", 2)
    one.until_said("proxy up", 2)
    [after] = one.up.allocs("shop")
    assert (after["id"], after["desired_status"]) == (before["id"], "run")
    assert one.said().count("bye") == 1
    assert one.up.run("job", "stop", "shop")[0] == 0
    one.until_said("bye", 2)
    assert one.up.end() == 0


def test_what_ends_while_its_agent_ends_is_not_run_again(folder: Path) -> None:
    """A task that exits with 0 before its own signal has done its work; the leader before it runs again."""
    lead = shell(
        "lead",
        f"trap 'say lead TERM; await work done; exit 0' TERM; say lead up; {FOREVER}",
        Leader=True,
        KillSignal="SIGTERM",
        KillTimeout=60 * SECOND,
    )
    work = shell("work", "say work up; await lead TERM; say work done", KillTimeout=60 * SECOND)
    group = {"Name": "g", "Tasks": [lead, work]}
    one = Ended(folder, {"ID": "once", "Type": "batch", "TaskGroups": [group]})
    one.run()
    one.until_said("lead up")
    one.until_said("work up")
    assert one.up.end() == 0
    assert one.said()[2:] == ["lead TERM", "work done"]

    one.again()
    one.until_said("lead up", 2)
    assert one.said().count("work up") == 1
    assert one.up.run("job", "stop", "once")[0] == 0
    until(lambda: [a["client_status"] for a in one.up.allocs("once")] == ["complete"])
    assert one.said().count("work up") == 1
    assert one.up.end() == 0


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    """A task that takes its time is killed when Ctrl-C comes again, and `up` says so."""
    slow = shell(
        "slow", f"trap 'say asked' INT; say slow up; {FOREVER}", KillTimeout=10 * 60 * SECOND
    )
    group = {"Name": "g", "Tasks": [slow]}
    one = Ended(folder, {"ID": "slow", "Type": "service", "TaskGroups": [group]})
    one.run()
    one.until_said("slow up")
    one.up.process.send_signal(signal.SIGINT)
    one.until_said("asked")
    until(lambda: "slow.g: slow has SIGINT, at most 600 s" in one.told(), one.told)
    assert one.up.process.poll() is None
    assert one.up.end() == 0
    assert "ending at once: tasks are killed" in one.told()
    one.again()
    one.until_said("slow up", 2)
    one.up.process.send_signal(signal.SIGINT)
    one.until_said("asked", 2)
    assert one.up.end() == 0
