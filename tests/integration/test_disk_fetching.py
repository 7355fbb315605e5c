"""Disks fetched from another node, with real helper processes: whole, or empty with the reason, whatever it sends."""

import asyncio
import io
import os
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from schemas.disks import DiskSourceAnswer
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.inputs.disks import handler as module
from services.agent.inputs.disks.handler import DiskHandler
from services.agent.inputs.disks.staging import DiskStaging
from services.agent.inputs.disks.unpack_order import ARCHIVE_END
from services.agent.inputs.input_handler import InputContext
from services.agent.node_rpc.disk_archive import read_disk
from shared.core.runtime.agent_messages import TaskInput, TaskLaunch
from shared.core.runtime.input_specs import DISK, DiskInput
from shared.errors import CommandInvalid
from tests.bounds import level

pytestmark = pytest.mark.asyncio

NEW, OLD = "n" * 36, "o" * 36
ENDED = DiskSourceAnswer(
    node_id="here",
    previous=OLD,
    previous_node="there",
    previous_status="complete",
    previous_node_status="ready",
)


class Peers:
    """What the log says, and what the other node sends: pieces, or a fault."""

    def __init__(self) -> None:
        self.said: list[DiskSourceAnswer | CommandInvalid] = [ENDED]
        self.sent: list[bytes | CommandInvalid] = []
        self.asked = 0
        self.copies = 0
        self.hangs = False

    async def source(self, _alloc_id: str) -> DiskSourceAnswer:
        self.asked += 1
        found = self.said[0] if len(self.said) == 1 else self.said.pop(0)
        if isinstance(found, CommandInvalid):
            raise found
        return found

    async def archive(
        self, _node_id: str, _alloc_id: str, _previous: str, _tasks: tuple[str, ...]
    ) -> AsyncGenerator[bytes, None]:
        self.copies += 1
        for one in list(self.sent):
            if isinstance(one, CommandInvalid):
                raise one
            yield one
        if self.hangs:
            await asyncio.Event().wait()


class Node:
    """A handler on a data directory, with the allocation's directories made."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
        monkeypatch.setattr(module, "GRACE_S", 0.05)
        self.home = DataDir(top, "here")
        self.directories = AllocDirs(top, memory=False)
        self.peers = Peers()
        self.handler = self.another()
        self.events: list[str] = []
        for task in ("main", "side"):
            self.directories.prepare(self.home.places(NEW, task))
        self.alloc = top / "alloc" / NEW

    def another(self) -> DiskHandler:
        """The handler of another life of the agent."""
        return DiskHandler(self.home, self.peers, poll_s=0.01)

    async def prepare(self, task: str = "main", *, size_mib: int = 1) -> str:
        """Prepare the disk for one task; returns how it went."""
        spec = DiskInput(previous=OLD, tasks=("main", "side"), size_mib=size_mib)
        wanted = TaskInput(name=DISK, kind=DISK, spec=msgspec.Raw(msgspec.json.encode(spec)))
        about = InputContext(
            key=7,
            alloc_id=NEW,
            task=task,
            run=1,
            places=self.home.places(NEW, task),
            launch=TaskLaunch(),
            note=lambda _, text: self.events.append(text),
        )
        return (await self.handler.prepare(about, wanted)).decode()

    def files(self) -> list[str]:
        """What is in the directories that may be filled."""
        tops = (self.alloc / "alloc" / "data", self.alloc / "main/local", self.alloc / "side/local")
        return sorted(str(one.relative_to(self.alloc)) for top in tops for one in top.rglob("*"))

    def left(self) -> list[str]:
        """What is left of the copy."""
        place = DiskStaging(self.home.top, NEW).place
        return sorted(one.name for one in place.iterdir()) if place.is_dir() else []


@pytest_asyncio.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    made = Node(tmp_path, monkeypatch)
    yield made
    made.handler.close()
    made.home.close()


Change = Callable[[tarfile.TarInfo], None]


def archive(*entries: tuple[str, bytes] | tuple[str, bytes, Change]) -> bytes:
    """A tar of files; a change makes something else of one."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data, *changes in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for change in changes:
                change(info)
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
        tar.addfile(tarfile.TarInfo(ARCHIVE_END))
    return out.getvalue()


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> Change:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = kind, target

    return change


def device(info: tarfile.TarInfo) -> None:
    info.type = tarfile.CHRTYPE


async def test_what_one_node_reads_is_what_the_other_has(node: Node, tmp_path: Path) -> None:
    """Data, modes, links and owners arrive; sockets and pipes stay behind, and so do secrets and logs."""
    there = tmp_path / "there" / "alloc" / OLD
    for name in ("alloc/data/db", "alloc/logs", "main/local", "main/secrets", "side/local"):
        (there / name).mkdir(parents=True)
    (there / "alloc/data/db").chmod(0o700)
    (there / "alloc/data/db/table").write_bytes(b"x" * 100_000)
    (there / "alloc/data/run").write_text("#!")
    (there / "alloc/data/run").chmod(0o6755)
    (there / "main/local/link").symlink_to("file")
    (there / "main/local/file").write_text("text")
    os.mkfifo(there / "main/local/pipe")
    for name in ("alloc/logs/log", "main/secrets/key"):
        (there / name).write_text("secret")
    if os.geteuid() == 0:
        os.chown(there / "alloc/data/db", 1234, 1235)
        os.chown(there / "main/local/link", 1234, 1235, follow_symlinks=False)
    node.peers.sent = list(read_disk(tmp_path / "there", OLD, ("main", "side")))
    text = await node.prepare()
    assert text.startswith(f"data of allocation {OLD} from node there: 100006 bytes")
    assert node.files() == [
        "alloc/data/db",
        "alloc/data/db/table",
        "alloc/data/run",
        "main/local/file",
        "main/local/link",
    ]
    db, run = (node.alloc / "alloc/data/db").stat(), (node.alloc / "alloc/data/run").stat()
    assert stat.S_IMODE(db.st_mode) == 0o700
    assert stat.S_IMODE(run.st_mode) == 0o755
    assert (node.alloc / "main/local/link").readlink() == Path("file")
    if os.geteuid() == 0:
        found = (node.alloc / "main/local/link").lstat()
        assert {(db.st_uid, db.st_gid), (found.st_uid, found.st_gid)} == {(1234, 1235)}
        assert run.st_uid == 0
    assert node.left() == ["mark"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (archive(("../alloc/data/x", b"1")), "leads out of the archive"),
        (archive(("/etc/x", b"1")), "is not a relative name"),
        (archive(("alloc/data/a", b"", link("/etc/passwd"))), "leads out"),
        (archive(("alloc/data/a", b"", link("../../main/secrets"))), "leads out"),
        (
            archive(("main/local/a", b"", link("b")), ("main/local/a/x", b"1")),
            "occurs twice in the archive",
        ),
        (archive(("side", b"", link("main")), ("main/local/x", b"1")), "symbolic link"),
        (archive(("alloc/data/a", b"", link("/etc/x", tarfile.LNKTYPE))), "not a relative name"),
        (archive(("alloc/data/a", b"", link("b", tarfile.LNKTYPE))), "outside the archive"),
        (archive(("alloc/data/null", b"", device)), "is a device"),
        (archive(("alloc/data/a", b"1"), ("alloc/data/a", b"2")), "occurs twice"),
        (archive(("alloc/data/big", b"x" * ((1 << 20) + 1))), "more than 1048576 bytes"),
        (archive(("alloc/data/a", b"x" * 3_000))[:2_000], "cannot be unpacked"),
        (b"no archive" * 1_000, "not complete"),
        (b"", "cannot be unpacked"),
    ],
)
async def test_what_an_evil_node_sends_leaves_an_empty_disk(
    node: Node, sent: bytes, reason: str
) -> None:
    """Names, links, devices, sizes and damage refuse the archive whole; the task starts, and the event says why."""
    before = archive(("alloc/data/first", b"1"))[:1024]
    node.peers.sent = [before + sent] if sent else []
    text = await node.prepare()
    assert text.startswith("starts with an empty disk: ")
    assert reason in text
    assert node.events == [text]
    assert node.files() == []
    assert node.left() == ["mark"]
    assert node.peers.copies == 1


async def test_names_beside_the_disk_of_a_task_are_not_moved_in(node: Node) -> None:
    """What an archive has beside data and local directories stays out, secrets among it."""
    node.peers.sent = [
        archive(
            ("main/secrets/x", b"1"),
            ("other/local/x", b"1"),
            ("alloc/logs/x", b"1"),
            ("main/local/x", b"1"),
        )
    ]
    await node.prepare()
    assert node.files() == ["main/local/x"]
    assert not list(node.alloc.glob("main/secrets/*"))
    assert not (node.alloc / "other").exists()


async def test_an_error_in_the_middle_leaves_nothing(node: Node) -> None:
    """An error frame ends the copy; what had come is removed."""
    half = archive(("alloc/data/a", b"1"))[:1024]
    node.peers.sent = [half, CommandInvalid("failed", "disk error")]
    assert await node.prepare() == "starts with an empty disk: node there: disk error"
    assert (node.files(), node.left()) == ([], ["mark"])


async def test_a_node_that_does_not_answer_is_asked_again_and_given_up(node: Node) -> None:
    """Both by the copy; a later answer of the log that the node is down ends it at once."""
    node.peers.sent = [CommandInvalid("unavailable", "no answer")]
    assert await node.prepare() == "starts with an empty disk: node there: no answer"
    assert node.peers.copies > 1
    assert node.events[0] == "waits: node there: no answer"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"previous_node_status": "down"}, "node there is down"),
        ({"previous_status": "lost"}, f"allocation {OLD} on node there is lost"),
        ({"previous_status": "unknown"}, "is unknown"),
        ({"previous_node": ""}, "has no record of allocation"),
        ({"previous": NEW}, "has no record of allocation"),
        ({"previous_node": "here"}, "its directory is gone"),
    ],
)
async def test_data_that_cannot_come_is_not_waited_for(
    node: Node, change: dict[str, str], reason: str
) -> None:
    """A node that is away, an allocation that is lost or forgotten: the disk is empty, without a copy."""
    node.peers.said = [msgspec.structs.replace(ENDED, **change)]
    text = await node.prepare()
    assert reason in text
    assert node.peers.copies == 0
    assert node.files() == []


async def test_the_end_of_the_replaced_allocation_is_waited_for(node: Node) -> None:
    """As long as it runs nothing is copied; a log that cannot be asked is waited for, too."""
    runs = msgspec.structs.replace(ENDED, previous_status="running")
    away = CommandInvalid("unavailable", "the bus is away")
    node.peers.said = [away, runs, runs, ENDED]
    node.peers.sent = [archive(("alloc/data/a", b"1"))]
    await node.prepare()
    assert node.files() == ["alloc/data/a"]
    assert [one for one in node.events if one.startswith("waits")] == [
        "waits: the log cannot be asked: the bus is away",
        f"waits: allocation {OLD} on node there has not ended",
    ]
    assert node.peers.copies == 1


async def test_all_tasks_of_an_allocation_get_one_copy(node: Node) -> None:
    """Tasks that are prepared together, and one of a later life, find the disk filled; nothing is fetched twice."""
    node.peers.sent = [archive(("alloc/data/a", b"1"), ("side/local/b", b"2"))]
    first, second = await asyncio.gather(node.prepare("main"), node.prepare("side"))
    assert first == second
    assert node.files() == ["alloc/data/a", "side/local/b"]
    node.handler.close()
    node.handler = node.another()
    assert await node.prepare("side") == first
    assert node.peers.copies == 1


async def test_a_life_that_was_killed_leaves_no_half_data(node: Node) -> None:
    """Unfinished data of an earlier life is removed and fetched anew; complete data is moved in without asking."""
    staging = DiskStaging(node.home.top, NEW)
    staging.begin()
    (staging.work / "out" / "alloc" / "data").mkdir(parents=True)
    (staging.work / "out" / "alloc" / "data" / "half").write_text("1")
    node.peers.sent = [archive(("alloc/data/a", b"1"), ("side/local/b", b"2"))]
    await node.prepare()
    assert node.files() == ["alloc/data/a", "side/local/b"]

    (staging.place / "mark").unlink()
    # Killed between the two moves: one part is in its place, with what came later; the other is not.
    (staging.place / "whole" / "side" / "local").mkdir(parents=True)
    (staging.place / "whole" / "side" / "local" / "c").write_text("3")
    (node.alloc / "side" / "local" / "b").unlink()
    await node.prepare()
    assert node.files() == ["alloc/data/a", "side/local/c"]
    assert node.peers.copies == 1
    assert node.left() == ["mark"]


async def test_a_task_that_is_stopped_leaves_no_copy_behind(node: Node) -> None:
    """A cancelled copy ends its helper and removes what had come; another try begins anew."""
    node.peers.sent = [archive(("alloc/data/a", b"1"))[:512]]
    node.peers.hangs = True
    work = asyncio.ensure_future(node.prepare())
    await level(lambda: "work" in node.left(), "it copies")
    await level(lambda: node.peers.copies == 1, "the other node sends")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (node.files(), node.left()) == ([], [])
    node.peers.hangs = False
    node.peers.sent = [archive(("alloc/data/a", b"1"))]
    await node.prepare()
    assert node.files() == ["alloc/data/a"]


async def test_data_of_this_node_is_not_asked_for(node: Node) -> None:
    """The directory of the replaced allocation is here: it was moved with the directories, and nothing is said."""
    (node.home.top / "alloc" / OLD).mkdir()
    assert await node.prepare() == ""
    assert (node.peers.asked, node.events) == (0, [])


async def test_what_is_left_of_a_copy_goes_with_its_allocation(node: Node) -> None:
    """Removal and sweep take the staging place along."""
    node.peers.sent = [archive(("alloc/data/a", b"1"))]
    await node.prepare()
    assert node.directories.strangers((OLD,)) == [NEW]
    node.directories.remove(NEW)
    assert node.left() == []
    DiskStaging(node.home.top, NEW).begin()
    assert node.directories.strangers((OLD,)) == [NEW]
    node.directories.sweep([NEW])
    assert node.left() == []
