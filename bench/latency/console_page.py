"""P27, the page: the console with the whole fleet in Debian's chromium, software rendering, at one gateway.

The fleet is placed first; then the cluster page is opened again and again (`first_picture_ms`: from the navigation to
the drawn canvas). While jobs come that change a thousand nodes a second, each record's time to pixel is the time from
its instant in the log until the begin of the frame behind the one that drew it, and a frame's time is that of the main
thread from its begin until it is free again, of frames that drew. At last the page goes to moments spread over the log
(`moment_ms`: until that moment is drawn), and the gateway's state there must be the replayed one. The figures to reach:
a first picture within 1 s, 95 of 100 frames within 16 ms, 95 of 100 records on the page within 250 ms, any moment
within 300 ms.
"""

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import quantile
from bench.harness.measured_run import (
    Measurement,
    job_body,
    on_fresh_clusters,
    start_settled_fleet,
    verify_run,
)
from bench.harness.outcome import BenchOutcome, BenchRun
from bench.harness.sample_jobs import sample_job
from bench.harness.submit import submit_accepted, submit_all
from bench.throughput.million_placements import COUNT, GROUPS, c1m_job
from schemas.envelope import RECORD_DECODER
from schemas.plans import PlanCommitted
from services.cli.runtime.output import CliError
from shared.bus.connection.nats_client import BusClient
from shared.bus.server.accounts import PUBLIC
from shared.core.runtime.chain import is_framed
from shared.core.runtime.replica import Replica

NODES, JOBS = 50_000, 500
#: Nodes that change a second while the page is live, by so many jobs, and for how long.
ROWS_PER_S, JOBS_PER_S, WINDOW_S = 1_000, 10, 10.0
LOADS, MOMENTS = 5, 20
RUNS = 3
NEEDS = HostRequirements(memory_mib=8_192, programs=("chromium",))
_WAIT_S = 120.0
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
#: Times frames and notes when which seq was drawn. Runs in the page before its own scripts.
_PROBE = """(() => {
  const probe = (window.benchProbe = { frames: [], seen: [], first: 0, drawn: 0, total: 0 });
  const { port1, port2 } = new MessageChannel();
  let began = 0, seq = "", drew = false;
  port1.onmessage = () => {
    if (drew) probe.frames.push(performance.now() - began);
  };
  const ask = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (work) => ask((at) => { drew = true; work(at); });
  const frame = () => {
    began = performance.now();
    const canvas = document.querySelector("canvas.fleet");
    if (drew && canvas && canvas.dataset.seq) {
      probe.drawn = Number(canvas.dataset.drawn);
      if (canvas.dataset.seq !== seq) {
        seq = canvas.dataset.seq;
        probe.seen.push([Number(seq), performance.timeOrigin + began]);
      }
      if (!probe.first && probe.drawn >= NODES) probe.first = began;
    }
    drew = false;
    port2.postMessage(0);
    ask(frame);
  };
  ask(frame);
})();"""
#: Waits until the probe knows of the whole fleet, or of a seq; its policy refuses a text that is evaluated.
_UNTIL = """async (seq) => {
  const { benchProbe: probe } = window;
  while (seq ? !probe.seen.length || probe.seen.at(-1)[0] < seq : !probe.first) {
    if (performance.now() > 120000) throw new Error("the page shows nothing new");
    await new Promise(requestAnimationFrame);
  }
  return probe;
}"""
#: Goes to a moment; the time until a frame behind the one that drew it.
_GO = """async (seq) => {
  const began = performance.now(), { seen } = window.benchProbe;
  location.hash = `#/cluster?at=${seq}`;
  while (!seen.length || seen.at(-1)[0] !== seq) {
    if (performance.now() - began > 60000) throw new Error(`moment ${seq} is not drawn`);
    await new Promise(requestAnimationFrame);
  }
  return seen.at(-1)[1] - performance.timeOrigin - began;
}"""


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run it `runs` times on a fresh cluster each; `size` scales nodes, jobs and the window."""
    wanted = {
        "nodes": max(int(NODES * size), 200),
        "placements": max(int(JOBS * size), 1) * GROUPS * COUNT,
        "rows_per_s": max(int(ROWS_PER_S * size), 2 * JOBS_PER_S),
        "window_ms": max(int(WINDOW_S * size * 1000), 2_000),
    }

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, wanted)

    return on_fresh_clusters(once, runs, wanted, workers)


async def _once(cluster: BenchCluster, wanted: Mapping[str, int]) -> BenchRun:
    try:
        from playwright.async_api import async_playwright
    except ImportError as err:
        text = "p27-page requires playwright; `python3 deploy/bootstrap.py setup` installs it"
        raise CliError("machine", text) from err
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, wanted["nodes"])
        counts = {f"c1m-{at}": GROUPS * COUNT for at in range(wanted["placements"] // 1_000)}
        bodies = [job_body(c1m_job(at)) for at in range(len(counts))]
        verdicts = await submit_all(public.bus, bodies)
        await wait_until(lambda: observer.placed >= sum(counts.values()), "the fleet is filled")
        await wait_until((cluster.data_dir / "logs" / "gateway.url").exists, "the gateway listens")
        async with async_playwright() as driver:
            browser = await driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=list(_ARGUMENTS)
            )
            page = await _Page.open(cluster, browser, wanted["nodes"])
            measured = Measurement(cluster)
            await measured.start()
            result = await page.first_picture()
            more = await page.live(public.bus, wanted)
            verdicts += more
            per_job = wanted["rows_per_s"] // JOBS_PER_S
            counts |= {f"live-{number}": per_job for number in range(len(more))}
            await wait_until(lambda: observer.placed >= sum(counts.values()), "all placements")
            seqs = _spread(sorted(await _placed_at(cluster, "")))
            result |= await page.figures(cluster)
            result |= await page.moments(seqs)
            told = [await page.hashes(seq) for seq in seqs]
            await measured.stop()
            await browser.close()
        checks = await verify_run(cluster, observer, verdicts, counts)
        checks["moments_equal_replay"] = told == await _replayed(cluster, seqs)
        checks["the_page_has_no_error"] = not page.faults
        return await measured.make_run(observer, result, checks)


class _Page:
    """The cluster page in a browser, with the probe in it."""

    def __init__(self, page: Any, url: str, token: str) -> None:
        self._page = page
        self._url = url
        self._token = token
        self.faults: list[str] = []
        page.on("pageerror", lambda err: self.faults.append(str(err)))

    @classmethod
    async def open(cls, cluster: BenchCluster, browser: Any, nodes: int) -> "_Page":
        """Sign in as the public login, as the page does."""
        url = (cluster.data_dir / "logs" / "gateway.url").read_text(encoding="utf-8").strip()
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(_WAIT_S * 1000)
        await page.add_init_script(_PROBE.replace("NODES", str(nodes)))
        token = ":".join(cluster.credentials.login(PUBLIC))
        await page.goto(f"{url}/ui/style.css")
        keep = "(token) => sessionStorage.setItem('caravan.token', token)"
        await page.evaluate(keep, token)
        return cls(page, url, token)

    async def first_picture(self) -> dict[str, float]:
        """Open the page anew and anew; times from the navigation to the drawn fleet, ms."""
        times = []
        for _ in range(LOADS):
            await self._page.goto("about:blank")
            await self._page.goto(f"{self._url}/ui/#/cluster")
            times.append(float((await self._page.evaluate(_UNTIL, 0))["first"]))
        times.sort()
        return {"first_picture_ms": quantile(times, 0.5), "first_picture_max_ms": times[-1]}

    async def live(self, bus: BusClient, wanted: Mapping[str, int]) -> list[Any]:
        """Submit jobs whose allocations are each on another node, at the rate. Returns the verdicts."""
        await self._page.evaluate("window.benchProbe.frames.length = 0")
        verdicts, jobs = [], max(JOBS_PER_S * wanted["window_ms"] // 1000, 1)
        begin_s = time.perf_counter()
        for number in range(jobs):
            await asyncio.sleep(max(begin_s + number / JOBS_PER_S - time.perf_counter(), 0))
            job = sample_job(
                f"live-{number}",
                count=wanted["rows_per_s"] // JOBS_PER_S,
                cpu_mhz=5,
                memory_mib=10,
                Constraints=[{"Operand": "distinct_hosts", "RTarget": "true"}],
            )
            verdicts.append(await submit_accepted(bus, job_body(job)))
        return verdicts

    async def figures(self, cluster: BenchCluster) -> dict[str, float]:
        """Frames that drew, and the way of each plan's record from the log to the page. Times: ms."""
        times = await _placed_at(cluster, "live-")
        probe = await self._page.evaluate(_UNTIL, max(times))
        seen: list[tuple[int, float]] = [(int(seq), float(at)) for seq, at in probe["seen"]]
        lags = sorted(_first_shown(seen, seq) - t_ms for seq, t_ms in times.items())
        frames = sorted(map(float, probe["frames"]))
        return {
            "frames": len(frames),
            "frame_p50_ms": quantile(frames, 0.5),
            "frame_p95_ms": quantile(frames, 0.95),
            "to_pixel_p50_ms": quantile(lags, 0.5),
            "to_pixel_p95_ms": quantile(lags, 0.95),
        }

    async def moments(self, seqs: Sequence[int]) -> dict[str, float]:
        """Go to each moment; times until it is drawn, ms."""
        times = sorted([float(await self._page.evaluate(_GO, seq)) for seq in seqs])
        return {"moment_p50_ms": quantile(times, 0.5), "moment_ms": times[-1]}

    async def hashes(self, seq: int) -> dict[str, str]:
        """Hashes of the tables at a seq, as the gateway tells them."""
        headers = {"X-Nomad-Token": self._token}
        answer = await self._page.request.get(
            f"{self._url}/v1/caravan/state?at={seq}", headers=headers
        )
        found: dict[str, str] = (await answer.json())["tables"]
        return found


def _first_shown(seen: Sequence[tuple[int, float]], seq: int) -> float:
    """When the page first showed a seq or a later one; ms since 1970."""
    return next(at for shown, at in seen if shown >= seq)


def _spread(plans: Sequence[int]) -> list[int]:
    """Moments over all plans, in an order that goes back and forth."""
    step = 7
    return [plans[len(plans) * (number * step % MOMENTS) // MOMENTS] for number in range(MOMENTS)]


async def _placed_at(cluster: BenchCluster, prefix: str) -> dict[int, float]:
    """Seq of each plan for a job by the begin of its name, and its time in the log, ms since 1970."""
    found: dict[int, float] = {}
    async with cluster.client() as client:
        async for record in client.read_log():
            if not is_framed(record.data):
                continue
            decoded = RECORD_DECODER.decode(record.data)
            plans = [event for event in decoded.events if isinstance(event, PlanCommitted)]
            if any(event.job_id.startswith(prefix) for event in plans):
                found[record.seq] = decoded.t_ns / 1e6
    return found


async def _replayed(cluster: BenchCluster, seqs: Sequence[int]) -> list[dict[str, str]]:
    """Hashes of the tables at these seqs, from a replay of the log's beginning."""
    replica, found, wanted = Replica(), {}, set(seqs)
    async with cluster.client() as client:
        async for record in client.read_log():
            replica.apply(record)
            if record.seq in wanted:
                found[record.seq] = replica.state.hashes()
    return [found[seq] for seq in seqs]
