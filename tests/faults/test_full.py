"""No room: a log at its bound, and a disk that is full. What was accepted stays, what was not is said, work resumes."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fleet_process import n1_standard_8
from schemas.jobs import Verdict
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.connection.nats_client import Login, connect
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests import not_tested
from tests.bounds import LONG_S
from tests.bus.up import Up
from tests.faults.city import City, body_of, play, verify, watched
from tests.small_disk import fill as fill_file
from tests.small_disk import small_disk

MIB = 1 << 20
#: A job with so much text that a few of them fill what there is.
TEXT = "x" * 150_000
#: A bus whose disk is full may say nothing: so long is listened.
SILENCE_S = 8.0


class SmallCity(BenchCluster):
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


async def fill(city: City, name: str, answer_s: float) -> tuple[list[str], str, Verdict | None]:
    """Submit big jobs until one is not accepted; returns the accepted ones, the other one, and what was said of it."""
    await city.lives(f"before-{name}")
    accepted: list[str] = []
    for number in range(1000):
        job_id = f"{name}-{number}"
        verdict = await city.ask(big(job_id), timeout_s=answer_s)
        if verdict is None or verdict.status != "accepted":
            # Never a false yes: refused, pending, or no answer at all.
            assert verdict is None or verdict.status in {"pending", "refused"}, verdict
            return accepted, job_id, verdict
        accepted.append(job_id)
    raise AssertionError("it was never full")


async def told_why(city: City, body: bytes) -> Verdict:
    """Ask until the answer carries a reason."""
    async with asyncio.timeout(LONG_S):
        while True:
            said = await city.ask(body)
            if said is not None and said.error is not None:
                return said
            await asyncio.sleep(0.1)


async def noted(cluster: BenchCluster, told: str) -> None:
    """Wait until the supervisor has said this."""
    await wait_until(lambda: any(told in one for one in cluster.notes), told, LONG_S)


async def writes_again(cluster: BenchCluster) -> None:
    """Wait until the bus has seen that there is room, and takes connections: it may have to be restarted for that."""
    await noted(cluster, "has room again")
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                async with cluster.connection():
                    return
            except BusUnavailable:
                await asyncio.sleep(0.1)


async def taken_at_last(city: City, body: bytes) -> None:
    """Ask until it is accepted: roles ask the server only every few seconds how much room there is."""
    async with asyncio.timeout(LONG_S):
        while True:
            said = await city.ask(body)
            if said is not None and said.status == "accepted":
                return
            await asyncio.sleep(0.1)


def test_a_full_log_keeps_what_it_took_and_goes_on_with_room(tmp_path: Path) -> None:
    """Nearly full, the log takes a stop but no new work, and says so; with more room the same one is accepted."""

    async def story(cluster: BenchCluster) -> None:
        cluster.start_fleet(n1_standard_8(5))
        async with watched(cluster) as city:
            accepted, waiting, verdict = await fill(city, "full", LONG_S)
            assert verdict is not None and verdict.error is not None, verdict
            assert verdict.error.code == "log_full" and "% full" in verdict.error.message
            stop = {"JobID": accepted[0], "SubmissionID": "stop-full"}
            assert (await city.submit(json.dumps(stop).encode(), "stop")).status == "accepted"
            await wait_until(lambda: city.held(accepted[0]) == 0, "it stops", LONG_S)
            config = streams.log_config(1, 64 * MIB)
            async with cluster.connection() as admin:
                update = f"$JS.API.STREAM.UPDATE.{subjects.log_stream(1)}"
                done = json.loads(await admin.ask(update, msgspec.json.encode(config)))
                assert "error" not in done, done
            await taken_at_last(city, big(waiting))
            names = [*accepted[1:], waiting]
            await wait_until(lambda: all(city.held(n) == 1 for n in names), "all placed", LONG_S)
            await city.lives("with-room")
            await city.proven()

    settings = LocalClusterSettings(data_dir=tmp_path / "data", agents=0, schedulers=1, appliers=1)
    with SmallCity(settings) as cluster:
        play(story(cluster))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, where this machine lets tests mount one."""
    folder = tmp_path / "disk"
    with small_disk(folder, 24) as is_mounted:
        if not is_mounted:
            not_tested.missing_feature(
                "mounting is not permitted; the bound of the log is tested instead"
            )
        yield folder


@pytest.mark.full("once of about fifty: after the room came back no node was ready within 240 s")
def test_a_full_disk_loses_nothing(disk: Path) -> None:
    """On a full disk nothing is falsely accepted, and the caller gets the reason; with space work continues alone."""

    async def story(cluster: BenchCluster) -> None:
        cluster.start_fleet(n1_standard_8(5))
        async with watched(cluster) as city:
            accepted, waiting, verdict = await fill(city, "disk", answer_s=SILENCE_S)
            if verdict is None or verdict.error is None:
                verdict = await told_why(city, waiting)
            assert verdict.error is not None and "disk is full" in verdict.error.message
            exit_code, proof = await asyncio.to_thread(verify, cluster)
            assert (exit_code, proof["problem"]) == (0, ""), proof
            # The disk stays full until it was seen so: it is looked at once a second.
            await noted(cluster, "is full: free some space")
        size = ["mount", "-o", "remount,size=96m", str(disk)]
        await asyncio.to_thread(subprocess.run, size, check=True)
        await writes_again(cluster)
        async with watched(cluster) as city:
            await taken_at_last(city, big(waiting))
            names = [*accepted[1:], waiting]
            await wait_until(lambda: all(city.held(n) == 1 for n in names), "all placed", LONG_S)
            await city.lives("with-room")
            await city.proven()
        told = " | ".join(cluster.notes)
        assert "is full: free some space" in told, told
        assert "cannot write" in told and "has room again" in told, told

    settings = LocalClusterSettings(data_dir=disk / "data", agents=0, schedulers=1, appliers=1)
    with BenchCluster(settings) as cluster:
        play(story(cluster))


@pytest.mark.full("a minute: the client waits so long for room")
def test_up_and_status_tell_of_a_full_disk(disk: Path, tmp_path: Path) -> None:
    """`operator status` and `up` name the fault within seconds, `job run` its reason; with room all continues alone."""
    up = Up(tmp_path, "--agents", "0", "--data-dir", str(disk / "up"))
    heard = tmp_path / "up.log"
    filler = disk / "filler"

    def alarms() -> list[str]:
        code, answer = up.run("operator", "status")
        return [str(answer)] if code else list(answer["alarms"])

    try:
        up.until(lambda: alarms() == [], "nothing is wrong yet")
        fill_file(filler)
        job = tmp_path / "job.json"
        for number in range(8):
            job.write_bytes(big(f"full-{number}"))
            code, said = up.run("job", "run", "--detach", str(job))
            if code:
                break
        assert code == 1 and "disk is full" in said["error"]["message"], said
        up.until(lambda: any("disk is full" in one for one in alarms()), "status names the fault")
        up.until(lambda: "cannot write the log" in heard.read_text(), "up says it")
        assert up.run("log", "verify")[0] == 0
        filler.unlink()
        up.until(lambda: alarms() == [], "it writes again")
        assert up.run("job", "run", "--detach", str(job))[0] == 0
        assert "has room again" in heard.read_text()
    finally:
        assert up.end() == 0
