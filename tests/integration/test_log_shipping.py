"""Output of tasks on its way to the bus: files, rotation, kept positions, and a bus that fails."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.base import MIB
from schemas.shipped_logs import ShippedLogs
from services.agent.drivers.driver import DriverRun
from services.agent.executor import shipped_output
from services.agent.executor.data_dir import DataDir
from services.agent.executor.log_shipper import LogShipper
from services.agent.executor.shipped_output import PART_S, KeptOutput, ShippedOutput
from services.cli.alloc.shipped_text import ShippedText
from shared.core.runtime.agent_messages import LogLimits, TaskNames
from shared.errors import BusUnavailable
from tests.integration.task_log import rotate

SHIPS = LogLimits(files=100, file_bytes=64 * 1024, ship=True)
TASK = ("a1", "web")


class Stream:
    """Stands for LOGS: keeps what it is sent, and fails where a test wants it."""

    def __init__(self) -> None:
        self.messages: list[ShippedLogs] = []
        #: messages that are taken before the next one fails; None: none fails.
        self.takes: int | None = None
        #: the failing message is stored, and its acknowledgement is lost.
        self.stores = False

    async def request_raw(
        self, subject: str, data: bytes, *, timeout_s: float = 2.0
    ) -> tuple[bytes, bytes]:
        """Publish."""
        del timeout_s
        message = msgspec.json.decode(data, type=ShippedLogs)
        assert subject == f"logs.n1.{message.alloc_id}.{message.task}"
        fails = self.takes == 0
        if self.takes:
            self.takes -= 1
        if not fails or self.stores:
            self.messages.append(message)
        if fails:
            raise BusUnavailable("the bus is away")
        return b"", b'{"stream":"LOGS","seq":%d}' % len(self.messages)

    def text(self, stream: str = "stdout") -> str:
        """What a reader sees."""
        shown = ShippedText(stream)
        return "".join(text for one in self.messages for text in shown.add(one))


class Node:
    """The data directory of an agent, and its lives."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.live: set[tuple[str, str]] = {TASK}
        self.home = DataDir(top, "n1")
        self.shipper = self._shipper()
        places = self.home.places(*TASK)
        self.run = DriverRun(alloc_id="a1", task="web", number=1, places=places)
        places.stdout.parent.mkdir(parents=True)
        self.out, self.err = places.stdout, places.stderr

    def _shipper(self) -> LogShipper:
        shipper = LogShipper(self.home, "n1")
        shipper.live = lambda: self.live
        return shipper

    def dies(self) -> None:
        """The next life of the agent."""
        self.home.close()
        self.home = DataDir(self.top, "n1")
        self.shipper = self._shipper()

    def begin(self) -> None:
        """The task starts."""
        asyncio.run(self.shipper.begin(self.run, SHIPS, TaskNames(job="shop", group="g")))

    def ship(self, stream: Stream, passes: int = 1) -> None:
        """Make passes."""

        async def work() -> None:
            for _ in range(passes):
                await self.shipper.ship(stream)

        asyncio.run(work())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One node with one task."""
    one = Node(tmp_path / "data")
    one.begin()
    yield one
    one.home.close()


def write(active: Path, numbers: range) -> str:
    text = "".join(f"line {number:08d}\n" for number in numbers)
    with active.open("a") as file:
        file.write(text)
    return text


def test_both_outputs_are_sent_with_whose_they_are(node: Node) -> None:
    """Each message names job, task and stream; a line without an end waits until the task has ended."""
    bus = Stream()
    node.out.write_bytes(b"one\ntwo \xff\nthr")
    node.err.write_text("bad\n")
    node.ship(bus, 2)
    assert (bus.text(), bus.text("stderr")) == ("one\ntwo \ufffd\n", "bad\n")
    first = next(one for one in bus.messages if one.stream == "stdout")
    assert (first.node_id, first.job_id, first.group, first.sizes) == ("n1", "shop", "g", (4, 6))
    node.live.clear()
    node.ship(bus, 2)
    assert bus.text() == "one\ntwo \ufffd\nthr"


def test_a_line_without_an_end_is_sent_after_a_while(tmp_path: Path) -> None:
    """A prompt of a task that runs on is seen, and what follows is not a second line."""
    logs = tmp_path / "a"
    logs.mkdir()
    (logs / "t.stdout.0").write_text("ready? ")
    kept = KeptOutput(alloc_id="a", task="t", stream="stdout")
    output = ShippedOutput(kept, node_id="n", top=tmp_path, path=logs / "t.stdout.0")
    assert output.batches(9, is_live=True, now_s=100.0) == []
    assert output.batches(9, is_live=True, now_s=100.0 + PART_S / 2) == []
    (batch,) = output.batches(9, is_live=True, now_s=100.0 + PART_S)
    assert (batch.message.lines, batch.after.offset) == (("ready? ",), 7)
    (logs / "t.stdout.0").write_text("ready? yes\n")
    (batch,) = output.batches(9, is_live=True, now_s=101.0 + PART_S)
    assert (batch.message.offset, batch.message.lines) == (7, ("yes\n",))


@pytest.mark.parametrize("stores", [False, True])
def test_nothing_is_lost_over_failures_deaths_and_rotation(node: Node, *, stores: bool) -> None:
    """Wherever the bus fails and the agent is killed, a reader sees every line once, in order."""
    bus, wrote, at = Stream(), "", 0
    bus.stores = stores
    for turn in range(12):
        wrote += write(node.out, range(at, at + 20_000))
        at += 20_000
        bus.takes = turn % 4
        node.ship(bus)
        if turn % 3 == 0:
            rotate(node.out, SHIPS)
        if turn % 2:
            node.dies()
            node.begin()
        bus.takes = None
        node.ship(bus)
    node.live.clear()
    node.dies()
    node.ship(bus, 8)
    assert bus.text() == wrote
    sent = sum(sum(one.sizes) for one in bus.messages)
    assert (sent > len(wrote)) is stores


def test_what_is_too_far_behind_is_given_up_with_a_mark(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest lines are sent, after a mark with the number of missing bytes; the sum is what was written."""
    monkeypatch.setattr(shipped_output, "BEHIND_MAX", MIB)
    monkeypatch.setattr(shipped_output, "BEHIND_LEFT", MIB // 2)
    bus = Stream()
    wrote = write(node.out, range(10))
    node.ship(bus)
    wrote += write(node.out, range(10, 200_000))
    rotate(node.out, SHIPS)
    bus.takes = 0
    node.ship(bus)
    node.dies()
    bus.takes = None
    node.ship(bus, 4)
    shown = ShippedText("stdout")
    text = "".join(part for one in bus.messages for part in shown.add(one))
    begin, _, rest = text.partition("[")
    mark, _, end = rest.partition("]\n")
    assert wrote.startswith(begin)
    assert mark == f"{shown.lost} bytes lost"
    assert wrote.endswith(end)
    assert len(end) > MIB // 4
    assert abs(shown.lost + shown.size - len(wrote)) < 64 * 1024


def test_what_rotation_removed_unsent_is_a_mark(node: Node) -> None:
    """Files that left while the bus was away are counted, about; what is still there follows whole."""
    bus = Stream()
    wrote = write(node.out, range(100))
    node.ship(bus)
    wrote += write(node.out, range(100, 30_000))
    rotate(node.out, LogLimits(files=3, file_bytes=64 * 1024))
    node.ship(bus, 4)
    shown = ShippedText("stdout")
    text = "".join(part for one in bus.messages for part in shown.add(one))
    assert text.startswith(wrote[:1300])
    assert wrote.endswith(text.rpartition("bytes lost]\n")[2])
    assert shown.lost > 0
    assert abs(shown.lost + shown.size - len(wrote)) < 8 * 1024


def test_a_task_that_ended_while_the_agent_was_away_is_sent(node: Node) -> None:
    """What is entered before the start is enough: the next life sends all, and asks no more for it."""
    node.err.write_text("last words")
    node.live.clear()
    node.dies()
    bus = Stream()
    node.ship(bus, 3)
    assert bus.text("stderr") == "last words"
    assert len(bus.messages) == 1


def test_an_allocation_that_is_removed_is_forgotten(node: Node) -> None:
    """Its entries leave the file, and an output that is no file any more disturbs nothing else."""
    bus = Stream()
    node.out.unlink(missing_ok=True)
    node.out.symlink_to("/etc/passwd")
    node.err.write_text("x\n")
    node.ship(bus, 2)
    assert (bus.text(), bus.text("stderr")) == ("", "x\n")
    node.live.clear()
    node.out.unlink()
    node.err.unlink()
    node.out.parent.rmdir()
    node.dies()
    node.ship(bus)
    assert msgspec.json.decode((node.top / "shipping.json").read_bytes()) == []


def test_only_tasks_whose_job_says_so_are_sent(node: Node) -> None:
    """Others are not entered, nor those whose output is kept nowhere."""
    other = msgspec.structs.replace(node.run, alloc_id="a2", places=node.home.places("a2", "web"))
    asyncio.run(node.shipper.begin(other, LogLimits()))
    asyncio.run(node.shipper.begin(other, LogLimits(ship=True, disabled=True)))
    kept = msgspec.json.decode((node.top / "shipping.json").read_bytes())
    assert {one["alloc_id"] for one in kept} == {"a1"}
