"""Damage on disk: whatever happens to the log's files, it is named or refused, never applied."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness import ROOT, Harness, until
from bench.observer import Observer
from shared.bus.connect import Login
from shared.bus.server import NatsServer, ServerSettings
from shared.bus.shell import Shell, ShellSettings
from shared.bus.streams import BusRefused
from tests.faults.city import PATIENCE_S, body_of, log_files, play, verify, watched


def _flip(block: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(block.read_bytes())
    data[len(data) // 2] ^= 0x10
    block.write_bytes(data)


def _truncate(block: Path) -> None:
    """Lose the last third."""
    data = block.read_bytes()
    block.write_bytes(data[: len(data) * 2 // 3])


def _forget_index(block: Path) -> None:
    """As after an unclean end: the server reads the block itself when it starts."""
    block.with_name("index.db").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def log_copy(cluster: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a bus that was stopped gently, with a few dozen records; the cluster goes on afterwards."""

    async def fill() -> None:
        async with watched(cluster) as city:
            await asyncio.gather(*(city.submit(body_of(f"damage-{n}")) for n in range(30)))
            await city.proven()

    play(fill())
    cluster.hold_bus()
    copy = tmp_path_factory.mktemp("damage") / "bus"
    shutil.copytree(cluster.data_dir / "bus", copy)
    cluster.release_bus()

    async def back() -> None:
        async with watched(cluster) as city:
            await city.lives("after-copy")

    play(_once_up(cluster, back))
    return copy


async def _once_up(cluster: Harness, then: Callable[[], object]) -> None:
    await until(lambda: cluster.server.pid, "the bus runs again")
    await then()  # type: ignore[misc]


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("harm", [_flip, _truncate])
def test_a_damaged_log_is_named(
    cluster: Harness, log_copy: Path, tmp_path: Path, harm: Callable[[Path], None], index: str
) -> None:
    """A flipped bit or a truncated block: `log verify` exits with 2 and says where, and a role does not start on it."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (folder / "nats-server.pid").unlink(missing_ok=True)
    blocks = log_files(folder)
    assert blocks
    harm(blocks[0])
    if index == "lost":
        _forget_index(blocks[0])
    server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)
    server.start()
    try:
        code, found = verify(cluster, server.url)
        assert code == 2 and not found["ok"] and found["problem"], found
        ended = _role_on(cluster, server.url)
    finally:
        server.stop()
    assert ended.returncode == 1, ended.stderr
    named = b"LOG_1" in ended.stderr or b"log record" in ended.stderr
    assert named and b"service.stopped" in ended.stderr, ended.stderr


def test_an_unharmed_copy_is_proven(cluster: Harness, log_copy: Path, tmp_path: Path) -> None:
    """The same copy without damage, index or not, is proven whole: the tests above see damage, not copying."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (folder / "nats-server.pid").unlink(missing_ok=True)
    _forget_index(log_files(folder)[0])
    server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)
    server.start()
    try:
        code, found = verify(cluster, server.url)
    finally:
        server.stop()
    assert (code, found["ok"], found["problem"]) == (0, True, ""), found


def test_a_log_that_shrank_stops_who_knew_more(
    cluster: Harness, log_copy: Path, tmp_path: Path
) -> None:
    """Who has replayed more than the server still has after its restart stops, and says both numbers."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (folder / "nats-server.pid").unlink(missing_ok=True)
    server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)

    async def story() -> None:
        server.start()
        user, password = cluster.credentials.login("admin")
        role = Observer()
        login = Login(url=server.url, user=user, password=password)
        running = asyncio.create_task(Shell(role, ShellSettings(login=login)).run(asyncio.Event()))
        await until(lambda: role.is_caught_up, "it has replayed")
        seen = role.replica.seq
        await asyncio.to_thread(server.stop)
        block = log_files(folder)[0]
        _flip(block)
        _forget_index(block)
        await asyncio.to_thread(server.start)
        with pytest.raises(BusRefused, match=f"but {seen} was replayed"):
            await asyncio.wait_for(running, PATIENCE_S)

    try:
        play(story())
    finally:
        server.stop()


def _role_on(cluster: Harness, url: str) -> subprocess.CompletedProcess[bytes]:
    """Run a fresh applier on a damaged bus until it gives up."""
    env = {
        "PATH": "/usr/bin:/bin",
        "CARAVAN_NATS_URL": url,
        "CARAVAN_CREDENTIALS": str(cluster.data_dir / "credentials.json"),
        "CARAVAN_CLUSTER_ID": cluster.identity.cluster_id,
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", "services.cli", "run", "plan_applier"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=30,
    )
