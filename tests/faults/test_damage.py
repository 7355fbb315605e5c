"""Damage on disk: whatever happens to the log's files, it is named or refused, never applied."""

import asyncio
import contextlib
import http.client
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.harness.cluster import ROOT, BenchCluster, wait_until
from bench.harness.log_observer import LogObserver
from shared.bus.connection.nats_client import Login, connect, header_block
from shared.bus.jetstream import streams
from shared.bus.jetstream.streams import BusRefused
from shared.bus.log.snapshots import restore_newest
from shared.bus.log.stored_records import read_batch
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.bus.shell.shell import Shell
from shared.bus.shell.shell_settings import ShellSettings
from shared.core.runtime.replica import Replica
from shared.core.runtime.snapshots import SnapshotExtras, SnapshotSetWriter, encode_manifest
from shared.core.state.state import TABLES
from shared.protocol import subjects
from tests.bounds import LONG_S, WAIT_S
from tests.bus.up import Up
from tests.faults.block_files import (
    PLACES,
    flip_middle,
    flip_place,
    forget_index,
    lose_beginning,
    lose_end,
    truncate,
)
from tests.faults.city import body_of, log_files, play, verify, watched


@pytest.fixture(scope="module")
def log_copy(cluster: BenchCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a bus that was stopped gently, with a few dozen records; the cluster continues afterwards."""

    async def fill() -> None:
        async with watched(cluster) as city:
            # One after the other: together they might become a single record.
            for number in range(30):
                await city.submit(body_of(f"damage-{number}"))
            # A snapshot is stored at a checkpoint, which follows an idle second.
            replica, first_seq = city.observer.replica, city.observer.next_seq
            await wait_until(lambda: replica.checked_seq >= first_seq, "a checkpoint is written")
            await city.proven()

    play(fill())
    cluster.hold_bus()
    copy = tmp_path_factory.mktemp("damage") / "bus"
    shutil.copytree(cluster.data_dir / "bus", copy)
    cluster.release_bus()
    (copy / "nats-server.pid").unlink(missing_ok=True)
    for snapshots in copy.rglob("streams/SNAP"):
        # A test that needs one makes it, at a seq that it knows.
        shutil.rmtree(snapshots)

    async def back() -> None:
        async with watched(cluster) as city:
            await city.lives("after-copy")

    play(_once_up(cluster, back))
    return copy


async def _once_up(cluster: BenchCluster, then: Callable[[], object]) -> None:
    await wait_until(lambda: cluster.server.pid, "the bus runs again")
    await then()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("place", "index"),
    [
        *((place, "kept") for place in PLACES),
        ("length", "lost"),
        ("headers_length", "lost"),
        ("payload", "lost"),
    ],
)
def test_a_damaged_record_is_named(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path, place: str, index: str
) -> None:
    """A flipped bit anywhere in a record: `log verify` proves what is before it, and a role does not start on it."""
    folder, block = _copied(log_copy, tmp_path)
    seq = flip_place(block, place)
    if index == "lost":
        forget_index(block)
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert code == 2 and not found["ok"] and found["problem"], found
        assert (found["first_seq"], found["last_seq"]) == (1, seq - 1), found
        _assert_refuses(_role_on(cluster, url))


@pytest.mark.parametrize("place", ["length", "headers_length", "payload", "checksum"])
def test_a_damaged_last_record_is_named(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path, place: str
) -> None:
    """No later record links to the last one: it is missed all the same, and is not taken for a failed write."""
    folder, block = _copied(log_copy, tmp_path)
    seq = flip_place(block, place, last=True)
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert code == 2 and not found["ok"] and found["problem"], found
        assert found["last_seq"] == seq - 1, found
        _assert_refuses(_role_on(cluster, url))


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_truncated_block_is_named(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path, index: str
) -> None:
    """A block that ends within a record: `log verify` exits with 2, and a role does not start on it."""
    folder, block = _copied(log_copy, tmp_path)
    truncate(block)
    if index == "lost":
        forget_index(block)
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert code == 2 and not found["ok"] and found["problem"], found
        _assert_refuses(_role_on(cluster, url))


def test_a_snapshot_knows_of_a_lost_end(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """Whole records are gone from the end, the server says nothing: a later snapshot proves that they were there."""
    folder, block = _copied(log_copy, tmp_path)
    with _served(cluster, folder) as url:
        known = asyncio.run(_store_snapshot(cluster, url))
    left = lose_end(block)
    assert left < known
    named = f"the log ends at {left}, but a snapshot at {known} was made of it"
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert (code, found["ok"], found["last_seq"]) == (2, False, left), found
        assert named in found["problem"], found
        ended = _role_on(cluster, url)
    assert ended.returncode == 1 and named.encode() in ended.stderr, ended.stderr


def test_a_role_starts_from_a_snapshot_behind_the_damage(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """A service whose snapshot leads over a damaged record needs it no more; `log verify` still names it."""
    folder, block = _copied(log_copy, tmp_path)
    with _served(cluster, folder) as url:
        known = asyncio.run(_store_snapshot(cluster, url))
    seq = flip_place(block, "payload")
    assert seq < known
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert (code, found["ok"], found["last_seq"]) == (2, False, seq - 1), found
        restored = asyncio.run(_restored_seq(_login(cluster, url, "admin")))
    assert restored == known


def test_damaged_files_of_the_server_itself(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """The index is made again from the blocks; without its settings the server has no log, and a snapshot tells."""
    folder, block = _copied(log_copy, tmp_path)
    flip_middle(block.with_name("index.db"))
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert (code, found["ok"], found["problem"]) == (0, True, ""), found
        known = asyncio.run(_store_snapshot(cluster, url))
    flip_middle(block.parent.with_name("meta.inf"))
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
        assert code == 2 and "LOG_1 is missing" in found["problem"], found
        assert f"a snapshot at {known}" in found["problem"], found
        _assert_refuses(_role_on(cluster, url))


def test_a_lost_first_block_stays_damage(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """A log without its first block is damaged at every start of the server, not only at the first, and no drop."""
    folder, block = _copied(log_copy, tmp_path)
    forget_index(block)
    lose_beginning(block)
    for _ in range(2):
        with _served(cluster, folder) as url:
            code, found = verify(cluster, url)
            assert code == 2 and not found["ok"], found
            assert "LOG_1 begins at" in found["problem"] and "are lost" in found["problem"], found
            ended = _role_on(cluster, url)
        assert ended.returncode == 1, ended.stderr
        assert b"`caravan log drop` deletes whole streams only" in ended.stderr, (
            ended.stderr.decode()[-700:]
        )


def test_an_unharmed_copy_is_proven(cluster: BenchCluster, log_copy: Path, tmp_path: Path) -> None:
    """The same copy without damage, index or not, is proven whole: the tests above see damage, not copying."""
    folder, block = _copied(log_copy, tmp_path)
    forget_index(block)
    with _served(cluster, folder) as url:
        code, found = verify(cluster, url)
    assert (code, found["ok"], found["problem"]) == (0, True, ""), found


def test_a_log_that_shrank_stops_who_knew_more(
    cluster: BenchCluster, log_copy: Path, tmp_path: Path
) -> None:
    """Who has replayed more than the server still has after its restart stops, and says both numbers."""
    folder, block = _copied(log_copy, tmp_path)
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
        flip_place(block, "payload")
        forget_index(block)
        await asyncio.to_thread(server.start)
        with pytest.raises(BusRefused, match=f"but {seen} was replayed"):
            await asyncio.wait_for(running, LONG_S)

    try:
        play(story())
    finally:
        server.stop()


def _copied(log_copy: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copy the files for one test; the only block of the log is the second."""
    folder = tmp_path / "bus"
    shutil.copytree(log_copy, folder)
    (block,) = log_files(folder)
    return folder, block


@contextlib.contextmanager
def _served(cluster: BenchCluster, folder: Path) -> Iterator[str]:
    """Run a server on the files; yields its URL."""
    server = NatsServer(ServerSettings(data_dir=folder), cluster.credentials)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def _login(cluster: BenchCluster, url: str, name: str) -> Login:
    user, password = cluster.credentials.login(name)
    return Login(url=url, user=user, password=password)


async def _store_snapshot(cluster: BenchCluster, url: str) -> int:
    """Store a snapshot at the last checkpoint of the log, as a view does; returns its seq."""
    replica, lease, newest = Replica(), None, None
    admin = await connect(_login(cluster, url, "admin"))
    await streams.ensure(admin)
    for record in await read_batch(admin, "LOG_1", 1):
        decoded = replica.apply(record)
        if decoded is None:
            # Of an applier that had lost its lease: other tests of the same cluster kill some.
            continue
        lease = decoded.lease or lease
        if decoded.kind == "checkpoint":
            assert lease is not None
            newest = SnapshotSetWriter(replica, decoded, lease=lease, asides=SnapshotExtras())
            while not newest.write_chunks(1):
                pass
    await admin.end()
    assert newest is not None
    manifest = newest.manifest()
    view = await connect(_login(cluster, url, "view"))
    marked = header_block(nats_expected_stream="SNAP")
    for part in manifest.parts:
        subject = subjects.snapshot_chunk(manifest.seq, part.table, part.hash, 0)
        await view.request_raw(subject, b"".join(newest.parts[part.table]), headers=marked)
    subject = subjects.snapshot_set(manifest.seq)
    _, body = await view.request_raw(subject, encode_manifest(manifest), headers=marked)
    assert b'"error"' not in body, body
    await view.end()
    return manifest.seq


async def _restored_seq(login: Login) -> int:
    """The seq of the snapshot that a service would start from; 0: none."""
    bus = await connect(login)
    try:
        found = await restore_newest(bus, TABLES)
    finally:
        await bus.end()
    return found.replica.seq if found is not None else 0


def _assert_refuses(ended: subprocess.CompletedProcess[bytes]) -> None:
    """It gave up, and said that it was for the log."""
    assert ended.returncode == 1, ended.stderr
    named = b"LOG_1" in ended.stderr or b"log record" in ended.stderr
    assert named and b"service.stopped" in ended.stderr, ended.stderr


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
        timeout=LONG_S,
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
        flip_place(log_files(up.data_dir / "bus")[0], "payload")
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
