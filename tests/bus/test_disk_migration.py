"""Disks that follow an allocation to another node: a real cluster of two agents, and what others may ask of them."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.disks import DiskAsk
from schemas.node_rpc import Frame
from shared.bus.connection.nats_client import ConnectionCallbacks, Login, connect
from shared.bus.connection.node_stream import new_session_id
from shared.bus.server.accounts import node_user, read_credentials
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, run
from tests.bus.up import Up

pytestmark = pytest.mark.bus

JOB = """job "%s" {
  datacenters = ["*"]
  group "g" {
    ephemeral_disk {
      size    = 300
      sticky  = true
      migrate = true
    }
    task "one" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "%s"]
      }
      kill_timeout = "1s"
      resources {
        cpu = 20
        memory = 20
      }
    }
    task "two" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args = ["1000"]
      }
      resources {
        cpu = 20
        memory = 20
      }
    }
  }
}
"""
#: The first one writes, each later one adds a line to what it finds.
KEEPS = (
    "echo $NOMAD_ALLOC_ID >> $NOMAD_ALLOC_DIR/data/lives; "
    "mkdir -p local/inner; chmod 700 local/inner; echo $NOMAD_ALLOC_ID >> local/inner/lives; "
    "ln -sf inner/lives local/link; exec sleep 1000"
)
#: Much data, and a mark behind it; a later life leaves what it finds.
LARGE_BYTES = 100_000_000
LARGE = (
    f"cd $NOMAD_ALLOC_DIR/data; [ -f end ] || head -c {LARGE_BYTES} /dev/zero > big; "
    "echo $NOMAD_ALLOC_ID >> end; exec sleep 1000"
)
#: A link out of the disk.
LEAVES = "echo x >> $NOMAD_ALLOC_DIR/data/lives; ln -sf /etc/passwd local/link; exec sleep 1000"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two nodes."""
    one = Up(tmp_path_factory.mktemp("disks"), "--agents", "2", one_process=True)
    yield one
    assert one.end() == 0


def begin(up: Up, folder: Path, name: str, script: str) -> dict[str, Any]:
    """Run a job; returns its allocation, which runs."""
    path = folder / f"{name}.nomad.hcl"
    path.write_text(JOB % (name, script))
    up.documented("job", "run", "--detach", str(path))
    up.until(lambda: up.allocs(name, "running") != [], f"{name} runs")
    return up.allocs(name, "running")[0]


def moved(up: Up, name: str, before: dict[str, Any]) -> dict[str, Any]:
    """Drain the node of an allocation; returns the one that replaces it, on the other node, once it runs."""
    assert up.run("node", "drain", before["node"], "--enable", "--yes")[0] == 0

    def found() -> list[dict[str, Any]]:
        return [one for one in up.allocs(name, "running") if one["id"] != before["id"]]

    up.until(lambda: found() != [], f"{name} runs elsewhere")
    assert up.run("node", "drain", before["node"], "--disable")[0] == 0
    after = found()[0]
    assert after["node"] != before["node"]
    assert after["previous"] == before["id"]
    return after


def directory(up: Up, alloc: dict[str, Any]) -> Path:
    """The directory of an allocation on its node."""
    (found,) = up.data_dir.glob(f"**/alloc/{alloc['id']}")
    return found


def events(up: Up, alloc: dict[str, Any], task: str) -> list[str]:
    """What was said of the disk."""
    tasks = up.ask("alloc", id=alloc["id"])["tasks"]
    return [one["message"] for one in tasks[task]["events"] if one["kind"] == "Disk Migration"]


def test_the_data_of_a_drained_allocation_follows_to_another_node(up: Up, tmp_path: Path) -> None:
    """Shared data and local files are there when the new one starts, with modes and links; the event says so."""
    first = begin(up, tmp_path, "keeps", KEEPS)
    up.until((directory(up, first) / "one" / "local" / "link").is_symlink, "it has written")
    second = moved(up, "keeps", first)
    place = directory(up, second)
    wanted = [first["id"], second["id"]]
    up.until(
        lambda: (place / "alloc/data/lives").read_text().split() == wanted, "the data is there"
    )
    assert (place / "one/local/inner/lives").read_text().split() == wanted
    assert (place / "one/local/link").readlink() == Path("inner/lives")
    assert (place / "one/local/inner").stat().st_mode & 0o777 == 0o700
    for task in ("one", "two"):
        (text,) = [one for one in events(up, second, task) if not one.startswith("waits")]
        assert text.startswith(f"data of allocation {first['id']} from node {first['node']}")
    up.documented("job", "stop", "keeps", "--detach")


def test_a_link_out_of_the_disk_gives_an_empty_disk_and_no_failure(up: Up, tmp_path: Path) -> None:
    """The replacement runs with nothing of the old data, and its event names the link."""
    first = begin(up, tmp_path, "leaves", LEAVES)
    up.until((directory(up, first) / "one" / "local" / "link").is_symlink, "it has written")
    second = moved(up, "leaves", first)
    lives = directory(up, second) / "alloc/data/lives"
    up.until(lambda: lives.exists() and lives.read_text() == "x\n", "it began with nothing")
    said = [one for one in events(up, second, "one") if not one.startswith("waits")]
    assert len(said) == 1
    assert said[0].startswith("starts with an empty disk: ")
    assert "/etc/passwd" in said[0]
    assert not list(up.data_dir.glob(f"**/moves/{second['id']}/w*"))
    up.documented("job", "stop", "leaves", "--detach")


def test_a_node_gets_no_data_of_an_allocation_that_is_not_replaced_on_it(
    up: Up, tmp_path: Path
) -> None:
    """A node asks another with its own login for what the log does not give it: nothing but refusals."""
    alloc = begin(up, tmp_path, "foreign", KEEPS)
    known = read_credentials(up.data_dir / "credentials.json")
    (other,) = [one for one in known.nodes if one != alloc["node"]]
    own = begin(up, tmp_path, "another", KEEPS)

    async def ask(body: DiskAsk) -> Frame:
        address = up.said["url"].rpartition("@")[2].removeprefix("nats://")
        login = Login(url=f"nats://{address}", user=node_user(other), password=known.nodes[other])
        bus = await connect(login, ConnectionCallbacks())
        try:
            subject = subjects.node_disk(alloc["node"], other, "snapshot")
            _, data = await bus.request_raw(subject, msgspec.json.encode(body), timeout_s=WAIT_S)
            return msgspec.json.decode(data, type=Frame)
        finally:
            await bus.end()

    for mine in (alloc["id"], own["id"], "0" * 36):
        body = DiskAsk(
            alloc_id=mine, previous=alloc["id"], tasks=("one",), session=new_session_id()
        )
        frame = asyncio.run(ask(body))
        assert frame.is_end
        assert not frame.data
        assert frame.error is not None
        assert frame.error.code in ("forbidden", "unavailable")
    for name in ("foreign", "another"):
        up.documented("job", "stop", name, "--detach")


def test_an_agent_that_is_killed_while_it_copies_leaves_no_half_disk(tmp_path: Path) -> None:
    """Killed in the middle, its next life has the whole data before the first task starts, and nothing beside it."""
    up = Up(tmp_path, "--agents", "2")
    try:
        first = begin(up, tmp_path, "large", LARGE)
        up.until((directory(up, first) / "alloc/data/end").exists, "it has written")
        (other,) = {"node-1", "node-2"} - {first["node"]}
        assert up.run("node", "drain", first["node"], "--enable", "--yes")[0] == 0

        def copies() -> bool:
            return any((one / "out").is_dir() for one in up.data_dir.glob("**/moves/*/work"))

        up.until(copies, "it copies")
        os.kill(up.said["services"][f"agent-{other}"], signal.SIGKILL)

        def found() -> list[dict[str, Any]]:
            return [one for one in up.allocs("large", "running") if one["id"] != first["id"]]

        up.until(lambda: found() != [], "the replacement runs")
        (second,) = found()
        place = directory(up, second) / "alloc/data"
        wanted = [first["id"], second["id"]]
        up.until(lambda: (place / "end").read_text().split() == wanted, "the data is there")
        assert (place / "big").stat().st_size == LARGE_BYTES
        assert not list(up.data_dir.glob("**/moves/*/w*"))
    finally:
        assert up.end() == 0


def test_a_node_asks_for_disks_under_its_own_name_alone(bus: Bus) -> None:
    """n2 reaches n1 as n2, never as n3; it hears no requests to n1, and clients reach no node this way."""

    async def story() -> None:
        errors: list[str] = []
        heard: list[bytes] = []
        async with (
            bus.client(bus.node_login("n1")) as n1,
            bus.client(bus.node_login("n2"), errors) as n2,
            bus.client("public", errors) as anyone,
        ):
            await n1.listen(
                subjects.node_disk("n1", "*", "*"), lambda subject, *_: heard.append(subject)
            )
            await n1.flush()
            await n2.listen(subjects.node_disk("n1", "*", "*"), lambda *_: heard.append(b"n2"))
            for asker in ("n3", "n1", "n2"):
                n2.send(subjects.node_disk("n1", asker, "snapshot"), b"{}", b"_INBOX.node-n2.x")
            anyone.send(subjects.node_disk("n1", "n2", "snapshot"), b"{}")
            await n2.flush()
            await anyone.flush()
            await n1.flush()
            assert heard == [b"disk.n1.n2.snapshot"]
            assert len(errors) == 4

    run(story())
