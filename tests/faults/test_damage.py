"""Damage on disk: whatever happens to the log's files, it is named or refused, never applied."""

import asyncio
import http.client
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.harness.cluster import ROOT, BenchCluster, wait_until
from bench.harness.log_observer import LogObserver
from shared.bus.connection.nats_client import Login
from shared.bus.jetstream.streams import BusRefused
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from tests.bounds import LONG_S, WAIT_S
from tests.bus.up import Up
from tests.faults.city import body_of, log_files, play, verify, watched


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


def _lose_beginning(block: Path) -> None:
    """Lose the first ten records, as if they had been the first block. A record begins with its length."""
    data = block.read_bytes()
    at = 0
    for _ in range(10):
        # The highest bit says that it has headers.
        at += int.from_bytes(data[at : at + 4], "little") & 0x7FFF_FFFF
    block.write_bytes(data[at:])


@pytest.fixture(scope="module")
def log_copy(cluster: BenchCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a bus that was stopped gently, with a few dozen records; the cluster goes on afterwards."""

    async def fill() -> None:
        async with watched(cluster) as city:
            # One after the other: together they might become a single record.
            for number in range(30):
                await city.submit(body_of(f"damage-{number}"))
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


async def _once_up(cluster: BenchCluster, then: Callable[[], object]) -> None:
    await wait_until(lambda: cluster.server.pid, "the bus runs again")
    await then()  # type: ignore[misc]


BY_CHANCE = pytest.mark.full("chance decides what stands in the middle of a block; 2 of 4 failed")


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("harm", [pytest.param(_flip, marks=BY_CHANCE), _truncate])
def test_a_damaged_log_is_named(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path, harm: Callable[[Path], None], index: str
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


def test_a_lost_first_block_stays_damage(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """A log without its first block is damaged at every start of the server, not only at the first, and no drop."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (folder / "nats-server.pid").unlink(missing_ok=True)
    block = log_files(folder)[0]
    _forget_index(block)
    _lose_beginning(block)
    for _ in range(2):
        server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)
        server.start()
        try:
            code, found = verify(cluster, server.url)
            assert code == 2 and not found["ok"], found
            assert "LOG_1 begins at" in found["problem"] and "are lost" in found["problem"], found
            ended = _role_on(cluster, server.url)
        finally:
            server.stop()
        assert ended.returncode == 1, ended.stderr
        assert b"`caravan log drop` deletes whole streams only" in ended.stderr, (
            ended.stderr.decode()[-700:]
        )


def test_an_unharmed_copy_is_proven(cluster: BenchCluster, log_copy: Path, tmp_path: Path) -> None:
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
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """Who has replayed more than the server still has after its restart stops, and says both numbers."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (folder / "nats-server.pid").unlink(missing_ok=True)
    server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)

    async def story() -> None:
        server.start()
        user, password = cluster.credentials.login("admin")
        role = LogObserver()
        login = Login(url=server.url, user=user, password=password)
        running = asyncio.create_task(Shell(role, ShellSettings(login=login)).run(asyncio.Event()))
        await wait_until(lambda: role.is_caught_up, "it has replayed")
        seen = role.replica.seq
        await asyncio.to_thread(server.stop)
        block = log_files(folder)[0]
        _flip(block)
        _forget_index(block)
        await asyncio.to_thread(server.start)
        with pytest.raises(BusRefused, match=f"but {seen} was replayed"):
            await asyncio.wait_for(running, LONG_S)

    try:
        play(story())
    finally:
        server.stop()


def _role_on(cluster: BenchCluster, url: str) -> subprocess.CompletedProcess[bytes]:
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
        timeout=WAIT_S,
    )


def test_a_flipped_byte_raises_an_alarm_by_itself(tmp_path: Path) -> None:
    """The byte changes under a running cluster: the view's scrub tells it to status, `/health` and `up`."""
    up = Up(tmp_path, "--agents", "0", CARAVAN_SCRUB_PAUSE_S="1")
    heard = tmp_path / "up.log"

    def alarms() -> list[str]:
        found: list[str] = up.run("operator", "status")[1]["alarms"]
        return found

    def health() -> int:
        port = int((up.data_dir / "logs" / "view.port").read_text())
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        asked.request("GET", "/health")
        return asked.getresponse().status

    try:
        job = tmp_path / "job.json"
        for number in range(5):
            job.write_bytes(body_of(f"scrubbed-{number}"))
            assert up.run("job", "run", "--detach", str(job))[0] == 0
        up.until(lambda: health() == 200, "sound, and said so")
        assert alarms() == []
        _flip(log_files(up.data_dir / "bus")[0])
        up.until(lambda: any("damaged on disk" in one for one in alarms()), "the alarm")
        assert health() == 503
        up.until(lambda: "damaged on disk" in heard.read_text(), "up says it")
    finally:
        assert up.end() == 0


def test_a_missing_stream_ends_a_role_at_once(cluster: BenchCluster, tmp_path: Path) -> None:
    """A role on a bus without a log ends with the reason, however long it may wait for a bus."""
    server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), cluster.credentials)
    server.start()

    async def story() -> None:
        user, password = cluster.credentials.login("admin")
        login = Login(url=server.url, user=user, password=password)
        shell = Shell(LogObserver(), ShellSettings(login=login, start_timeout_s=3600.0))
        with pytest.raises(BusRefused, match="stream JOBS is missing"):
            await asyncio.wait_for(shell.run(asyncio.Event()), LONG_S)

    try:
        play(story())
    finally:
        server.stop()
