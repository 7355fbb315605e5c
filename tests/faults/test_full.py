"""No room: a log at its bound, and a disk that is full. What was accepted stays, what was not is said, work resumes."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.fleet import n1_standard_8
from bench.harness import Harness, until
from schemas.jobs import Verdict
from services.cli.cluster import ClusterSettings
from shared.bus import accounts, streams, subjects
from shared.bus.connect import Login, connect
from tests.faults.city import PATIENCE_S, City, body_of, play, watched

MIB = 1 << 20
#: A job with so much text that a few of them fill what there is.
TEXT = "x" * 150_000


class SmallCity(Harness):
    """A cluster whose log takes two MiB."""

    async def _bootstrap(self, credentials: accounts.Credentials) -> None:
        user, password = credentials.login(accounts.ADMIN)
        client = await connect(Login(url=self.url, user=user, password=password))
        try:
            await streams.bootstrap(client, log_bytes_max=2 * MIB)
        finally:
            await client.end()


def big(name: str) -> bytes:
    """A submission of 150 KB."""
    body = json.loads(body_of(name))
    body["Job"]["Meta"] = {"text": TEXT}
    return json.dumps(body).encode()


async def fill(city: City, name: str) -> tuple[list[str], str, Verdict | None]:
    """Submit big jobs until one is not accepted; returns the accepted ones, the other one, and what was said of it."""
    await city.lives(f"before-{name}")
    accepted: list[str] = []
    for number in range(1000):
        job_id = f"{name}-{number}"
        verdict = await city.ask(big(job_id), timeout_s=8.0)
        if verdict is None or verdict.status != "accepted":
            # Never a false yes: refused, pending, or no answer at all.
            assert verdict is None or verdict.status in {"pending", "refused"}, verdict
            return accepted, job_id, verdict
        accepted.append(job_id)
    raise AssertionError("it was never full")


async def taken_at_last(city: City, body: bytes) -> None:
    """Ask until it is accepted: roles ask the server only every few seconds how much room there is."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            said = await city.ask(body)
            if said is not None and said.status == "accepted":
                return
            await asyncio.sleep(0.1)


def test_a_full_log_keeps_what_it_took_and_goes_on_with_room(tmp_path: Path) -> None:
    """Nearly full, the log takes a stop but no new work, and says so; with more room the same one is accepted."""

    async def story(cluster: Harness) -> None:
        cluster.start_fleet(n1_standard_8(5))
        async with watched(cluster) as city:
            accepted, waiting, verdict = await fill(city, "full")
            assert verdict is not None and verdict.error is not None, verdict
            assert verdict.error.code == "log_full" and "% full" in verdict.error.message
            stop = {"JobID": accepted[0], "SubmissionID": "stop-full"}
            assert (await city.submit(json.dumps(stop).encode(), "stop")).status == "accepted"
            await until(lambda: city.held(accepted[0]) == 0, "it stops", PATIENCE_S)
            config = streams.log_config(1, 64 * MIB)
            async with cluster.connection() as admin:
                update = f"$JS.API.STREAM.UPDATE.{subjects.log_stream(1)}"
                done = json.loads(await admin.ask(update, msgspec.json.encode(config)))
                assert "error" not in done, done
            await taken_at_last(city, big(waiting))
            names = [*accepted[1:], waiting]
            await until(lambda: all(city.held(n) == 1 for n in names), "all placed", PATIENCE_S)
            await city.lives("with-room")
            await city.proven()

    settings = ClusterSettings(data_dir=tmp_path / "data", agents=0, schedulers=1, appliers=1)
    with SmallCity(settings) as cluster:
        play(story(cluster))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, where this machine lets tests mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("tests may not mount here; the bound of the log is tested instead")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    """On a full disk nothing is falsely accepted; with room and a restart of the bus all that was accepted is there."""

    async def story(cluster: Harness) -> None:
        cluster.start_fleet(n1_standard_8(5))
        async with watched(cluster) as city:
            accepted, waiting, _ = await fill(city, "disk")
        size = ["mount", "-o", "remount,size=96m", str(small_disk)]
        await asyncio.to_thread(subprocess.run, size, check=True)
        # The server has switched its storage off; it comes back with a restart only.
        await asyncio.to_thread(cluster.server.kill)
        await until(lambda: cluster.server.pid, "the bus runs again", PATIENCE_S)
        async with watched(cluster) as city:
            await taken_at_last(city, big(waiting))
            names = [*accepted[1:], waiting]
            await until(lambda: all(city.held(n) == 1 for n in names), "all placed", PATIENCE_S)
            await city.lives("with-room")
            await city.proven()

    settings = ClusterSettings(data_dir=small_disk / "data", agents=0, schedulers=1, appliers=1)
    with Harness(settings) as cluster:
        play(story(cluster))
