"""P27, doors: reads of a job over HTTP, blocked queries that wait, and viewers of the fleet, at one gateway.

Reads come over eight kept connections, one after the other on each. Blocked queries all wait for one job; the CPU of
the gateway is measured while nothing changes, then the job is evaluated and each of them must be answered. Viewers
follow the live feed while jobs are placed. The figures to reach: 2,000 reads a second; blocked queries below 5 %, and
viewers below 20 % of a core. Next: `console_page.py`, the page in a browser.
"""

import asyncio
import resource
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from bench.harness.cluster import BenchCluster, process_usage, wait_until
from bench.harness.host_info import HostRequirements
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.sample_jobs import sample_job
from bench.harness.submit import submit_accepted
from bench.throughput.single_pods import pod
from shared.bus.server.accounts import PUBLIC

NODES, READS, BLOCKED, VIEWERS = 50_000, 40_000, 10_000, 100
#: Connections of the reads, and seconds of the two other parts.
READERS, WINDOW_S = 8, 10.0
#: Jobs submitted each second while viewers look.
JOBS_PER_S = 50
RUNS = 3
NEEDS = HostRequirements(memory_mib=4_096)
_JOB = "read"
_ANSWER_S = 60.0


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales all four numbers, and the windows."""
    wanted = {
        "nodes": max(int(NODES * size), 10),
        "reads": max(int(READS * size), 8 * READERS),
        "blocked": max(int(BLOCKED * size), 10),
        "viewers": max(int(VIEWERS * size), 2),
        "window_ms": max(int(WINDOW_S * size * 1000), 1000),
    }

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, wanted)

    return on_fresh_clusters(once, runs, wanted, workers)


class _Door:
    """The gateway's address and login, and raw HTTP over kept connections."""

    def __init__(self, cluster: BenchCluster) -> None:
        url = (cluster.data_dir / "logs" / "gateway.url").read_text(encoding="utf-8").strip()
        self._parts = urlsplit(url)
        user, password = cluster.credentials.login(PUBLIC)
        self._head = (
            f"Host: {self._parts.netloc}\r\nX-Nomad-Token: {user}:{password}\r\n"
            "Accept-Encoding: gzip\r\n\r\n"
        )

    async def connect(self) -> "_Link":
        host, port = self._parts.hostname or "", self._parts.port or 0
        pair = await asyncio.open_connection(host, port)
        return _Link(*pair, self._head)


class _Link:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str
    ) -> None:
        self.reader, self._writer, self._head = reader, writer, head

    def send(self, path: str) -> None:
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}".encode())

    async def answer(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer whose body was read to its end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers

    def close(self) -> None:
        self._writer.close()


async def _once(cluster: BenchCluster, wanted: dict[str, int]) -> BenchRun:
    _allow_connections(2 * wanted["blocked"])
    window_s = wanted["window_ms"] / 1000
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, wanted["nodes"])
        job = sample_job(_JOB, count=1, cpu_mhz=5, memory_mib=10, command="/bin/true")
        verdicts = [await submit_accepted(public.bus, job_body(job))]
        await wait_until(lambda: observer.placed >= 1, "the job that is read")
        await wait_until((cluster.data_dir / "logs" / "gateway.url").exists, "the gateway listens")
        door = _Door(cluster)
        index = await _settled_index(door)
        measured = Measurement(cluster)
        await measured.start()
        result = await _reads(cluster, door, wanted["reads"])
        blocked_pct, woken = await _blocked(
            cluster, door, wanted["blocked"], index, window_s, public
        )
        viewers_pct, shown, more = await _viewers(
            cluster, door, wanted["viewers"], window_s, public
        )
        verdicts += more
        await wait_until(lambda: observer.placed >= len(verdicts), "all placements")
        await measured.stop()
        counts = {_JOB: 1, **{f"seen-{number}": 1 for number in range(len(more))}}
        checks = await verify_run(cluster, observer, verdicts, counts)
        checks["every_blocked_query_was_answered"] = woken == wanted["blocked"]
        checks["every_viewer_saw_changes"] = shown == wanted["viewers"]
        result |= {"blocked_cpu_pct": blocked_pct, "viewers_cpu_pct": viewers_pct}
        return await measured.make_run(observer, result, checks)


async def _settled_index(door: _Door) -> int:
    """The index of the job that is read, once the gateway has it and nothing changes it any more."""
    link, last, same = await door.connect(), -1, 0
    end = time.monotonic() + _ANSWER_S
    while same < 5:
        assert time.monotonic() < end, "the job does not settle"
        link.send(f"/v1/job/{_JOB}")
        status, headers = await link.answer()
        index = int(headers.get("x-nomad-index", "0")) if status == 200 else -1
        same = same + 1 if index == last > 0 else 0
        last = index
        await asyncio.sleep(0.1)
    link.close()
    return last


def _cpu_s(cluster: BenchCluster) -> float:
    """CPU seconds of the gateway."""
    return process_usage({"gateway": cluster.pids()["gateway"]}).cpu_s["gateway"]


async def _reads(cluster: BenchCluster, door: _Door, count: int) -> dict[str, float]:
    links = [await door.connect() for _ in range(READERS)]

    async def read(link: _Link) -> None:
        for _ in range(count // READERS):
            link.send(f"/v1/job/{_JOB}")
            status, _ = await link.answer()
            assert status == 200, status

    used_s, began_s = _cpu_s(cluster), time.perf_counter()
    await asyncio.gather(*map(read, links))
    wall_s = time.perf_counter() - began_s
    spent_s = max(_cpu_s(cluster) - used_s, 0.01)
    _close(links)
    done = count // READERS * READERS
    return {"reads_per_s": done / wall_s, "reads_per_cpu_s": done / spent_s}


async def _blocked(
    cluster: BenchCluster, door: _Door, count: int, index: int, window_s: float, public: Any
) -> tuple[float, int]:
    """Percent of a core while all wait, and how many were answered at the change."""
    links = [await door.connect() for _ in range(count)]
    for link in links:
        link.send(f"/v1/job/{_JOB}?index={index}&wait=300s")
    # What was sent is read before the clock starts: another request is answered behind it.
    probe = await door.connect()
    probe.send("/v1/regions")
    await probe.answer()
    pct = await _percent(cluster, window_s)
    body = {"JobID": _JOB, "SubmissionID": "wake"}
    await public.request("api.jobs.evaluate", body, timeout_s=_ANSWER_S)
    answers = await asyncio.wait_for(asyncio.gather(*(link.answer() for link in links)), _ANSWER_S)
    woken = sum(status == 200 and int(found["x-nomad-index"]) > index for status, found in answers)
    _close([*links, probe])
    return pct, woken


async def _viewers(
    cluster: BenchCluster, door: _Door, count: int, window_s: float, public: Any
) -> tuple[float, int, list[Any]]:
    """Percent of a core while jobs are placed, how many viewers saw it, and the verdicts."""
    links = [await door.connect() for _ in range(count)]
    for link in links:
        link.send("/v1/caravan/live")
        await link.reader.readuntil(b"\r\n\r\n")
    sizes = [0] * count

    async def look(at: int) -> None:
        while part := await links[at].reader.read(65_536):
            sizes[at] += len(part)

    looking = [asyncio.create_task(look(at)) for at in range(count)]
    verdicts: list[Any] = []

    async def submit() -> None:
        for number in range(max(int(JOBS_PER_S * window_s), 1)):
            body = job_body(pod(f"seen-{number}", cpu_mhz=5, memory_mib=10))
            verdicts.append(await submit_accepted(public.bus, body))
            await asyncio.sleep(1 / JOBS_PER_S)

    before = list(sizes)
    used_s, began_s = _cpu_s(cluster), time.perf_counter()
    await submit()
    await wait_until(
        lambda: all(now > was for now, was in zip(sizes, before, strict=True)), "changes are seen"
    )
    pct = 100 * (_cpu_s(cluster) - used_s) / (time.perf_counter() - began_s)
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
    _close(links)
    return pct, sum(now > was for now, was in zip(sizes, before, strict=True)), verdicts


async def _percent(cluster: BenchCluster, window_s: float) -> float:
    """Percent of a core that the gateway uses in a window."""
    used_s, began_s = _cpu_s(cluster), time.perf_counter()
    await asyncio.sleep(window_s)
    return 100 * (_cpu_s(cluster) - used_s) / (time.perf_counter() - began_s)


def _close(links: Iterable[_Link]) -> None:
    for link in links:
        link.close()


def _allow_connections(count: int) -> None:
    """Raise the limit of open files of this process. The gateway's own is that of its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(count + 1_000, hard) if hard != resource.RLIM_INFINITY else count + 1_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
