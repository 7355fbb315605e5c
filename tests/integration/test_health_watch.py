"""What `up` says of its disk and its services, and when it starts the bus again."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.health_watch import HealthWatch
from shared.bus.process.health_server import Health, HealthServer

MIB = 1 << 20


class Disk:
    """A disk with so much room, and a service with such problems."""

    def __init__(self, folder: Path) -> None:
        self.free = 100 * MIB
        self.problems: dict[str, str] = {}
        self.alarms: tuple[str, ...] = ()
        (folder / "logs").mkdir()
        #: the disk is full from the moment at which a service is asked.
        self.fills_when_asked = False
        self.watch = HealthWatch(folder, ["intake", "agent-node-1"], lambda _: self.free)
        self._s = 0.0

    def after(self, seconds: float) -> list[str]:
        """What is said so much later."""
        self._s += seconds
        return self.watch.look(self._s)

    def health(self) -> Health:
        """Body of `/health`."""
        if self.fills_when_asked:
            self.free = 0
        ready = not self.problems
        return Health(
            role="intake",
            instance="i",
            ready=ready,
            seq=1,
            lag=0,
            problems=self.problems,
            alarms=self.alarms,
        )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A service that answers on a real port."""
    told = Disk(tmp_path)
    loop = asyncio.new_event_loop()
    server = HealthServer(told.health, dict)
    loop.run_until_complete(server.start(port_file=str(tmp_path / "logs" / "intake.port")))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield told
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_full_disk_and_a_problem_are_said_once(disk: Disk) -> None:
    """Each change is one line; nothing is said while all is well."""
    assert disk.after(1) == []
    disk.free, disk.problems = 0, {"storage": "cannot write"}
    full, problem = disk.after(2)
    assert "is full" in full and problem == "cannot write"
    assert disk.after(2) == []
    disk.free, disk.problems = 9 * MIB, {}
    assert [line[:12] for line in disk.after(2)] == ["the disk of ", "ended: canno"]


def test_the_bus_starts_again_when_there_is_room(disk: Disk) -> None:
    """Not on a full disk; with room once, and after a growing pause while it does not help."""
    disk.free, disk.problems = 0, {"storage": "cannot write"}
    disk.after(1)
    assert not disk.watch.is_restart_due
    disk.free = 9 * MIB
    disk.after(2)
    assert disk.watch.is_restart_due
    disk.after(2)
    assert not disk.watch.is_restart_due
    disk.after(10)
    assert disk.watch.is_restart_due
    disk.after(11)
    assert not disk.watch.is_restart_due


def test_a_disk_that_fills_during_the_look_starts_no_bus(disk: Disk) -> None:
    """The room is read after the problems: a failed write of which one hears had no room."""
    disk.problems, disk.fills_when_asked = {"storage": "cannot write"}, True
    full, problem = disk.after(1)
    assert "is full" in full and problem == "cannot write"
    assert not disk.watch.is_restart_due


def test_other_problems_do_not_start_the_bus_again(disk: Disk) -> None:
    """A damaged log is shown, not restarted away."""
    disk.problems = {"log": "damaged"}
    assert disk.after(1) == ["damaged"]
    assert not disk.watch.is_restart_due


def test_an_alarm_is_said_like_a_problem(disk: Disk) -> None:
    """A service that works may have seen what an operator should know."""
    disk.alarms = ("the log was rolled back",)
    assert disk.after(1) == ["the log was rolled back"]
    disk.alarms = ()
    assert disk.after(2) == ["ended: the log was rolled back"]
