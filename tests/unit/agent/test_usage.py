"""What tasks use: files of cgroups of both versions, series of samples, and the suggestions made of them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.base import MIB
from schemas.node_rpc import StatsAnswer, TaskHistory, TaskUse
from schemas.projections import AllocSummary
from schemas.usage import UsageMinute
from services.agent.drivers.driver import TaskUsage
from services.agent.drivers.isolation.group_usage import (
    GroupUsage,
    group_usage,
    places_of_process,
    second_version,
)
from services.agent.executor.usage_minutes import UsageMinutes
from services.agent.executor.usage_sampler import SAMPLES_MAX, UsageSampler, UsageSeries
from services.cli.job.usage import usage_lines
from shared.usage_histogram import histogram, percentile, to_wire

EXPECTED = GroupUsage(
    cpu_ns=5_000,
    memory_bytes=700,
    memory_peak_bytes=1_500,
    throttled_ns=2_000,
    oom_kills=3,
    pids=4,
    read_bytes=30,
    written_bytes=12,
)
FIRST = {
    "memory/memory.usage_in_bytes": "1000\n",
    "memory/memory.max_usage_in_bytes": "1500\n",
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "cpu/cpu.stat": "nr_periods 9\nthrottled_time 2000\n",
    "cpuacct/cpuacct.usage": "5000\n",
    "pids/pids.current": "4\n",
    "blkio/blkio.throttle.io_service_bytes": "8:0 Read 10\n8:0 Write 12\n8:1 Read 20\nTotal 42\n",
}
SECOND = {
    "cgroup.controllers": "cpu io memory pids\n",
    "memory.current": "1000\n",
    "memory.peak": "1500\n",
    "memory.stat": "anon 5\ninactive_file 300\n",
    "memory.events": "oom 4\noom_kill 3\n",
    "cpu.stat": "usage_usec 5\nthrottled_usec 2\n",
    "pids.current": "4\n",
    "io.stat": "8:0 rbytes=10 wbytes=12 rios=1\n8:1 rbytes=20 wbytes=0\n",
}


def write(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def test_both_versions_say_the_same(tmp_path: Path) -> None:
    """Memory without the inactive cache, its peak, time, throttling, kills, processes, bytes; what lacks is 0."""
    write(tmp_path / "one", FIRST)
    names = ("memory", "cpu", "cpuacct", "pids", "blkio")
    assert group_usage({one: tmp_path / "one" / one for one in names}, ()) == EXPECTED
    write(tmp_path / "two", SECOND)
    second = ("cpu", "io", "memory", "pids")
    assert group_usage(dict.fromkeys(second, tmp_path / "two"), second) == EXPECTED
    assert group_usage({"memory": tmp_path / "none"}, ()) == GroupUsage()


@pytest.mark.parametrize("version", [1, 2])
def test_the_groups_of_a_container_are_found(tmp_path: Path, version: int) -> None:
    """From its process and the mounts of the node, for both versions."""
    proc = tmp_path / "proc" / "7"
    proc.mkdir(parents=True)
    if version == 1:
        names = ("memory", "cpu", "cpuacct", "pids", "blkio")
        for one in names:
            write(tmp_path / "sys" / one, {f"docker/abc/{name.partition('/')[2]}": text
                                            for name, text in FIRST.items()
                                            if name.startswith(f"{one}/")})  # fmt: skip
        lines = [f"{at}:{one}:/docker/abc" for at, one in enumerate(names)]
        mounts = "\n".join(f"cgroup /sys/{one} cgroup rw,{one} 0 0" for one in names)
    else:
        write(tmp_path / "sys" / "docker" / "abc", SECOND)
        lines, mounts = ["0::/docker/abc"], "cgroup2 /sys cgroup2 rw 0 0"
    (proc / "cgroup").write_text("\n".join(lines) + "\n")
    places = places_of_process(7, mounts, str(tmp_path))
    assert group_usage(places, second_version(places)) == EXPECTED


def used(cpu_ms: int, memory: int, **more: Any) -> TaskUsage:
    return TaskUsage(cpu_ns=cpu_ms * 1_000_000, memory_bytes=memory, **more)


def test_a_series_counts_over_runs() -> None:
    """The first measurement of a run gives no processor use; counters begin again with it, and are added."""
    series = UsageSeries()
    series.take(1, 0.0, used(0, 5, throttled_ns=1, oom_kills=1))
    series.take(1, 10.0, used(5_000, 6, throttled_ns=3, oom_kills=1))
    series.take(2, 20.0, used(10, 99, throttled_ns=4))
    series.take(2, 30.0, used(1_010, 7, throttled_ns=4))
    found = series.history("a", "t")
    assert (
        found.cpu_millicores == to_wire(histogram([500, 100])) and found.cpu_peak_millicores == 500
    )
    assert found.memory_bytes == to_wire(histogram([6, 7])) and found.memory_peak_bytes == 99
    assert (found.throttled_ns, found.oom_kills, found.samples) == (7, 1, 2)
    assert (found.from_ns, found.to_ns) == (10_000_000_000, 30_000_000_000)


def test_a_series_is_an_hour() -> None:
    """Older samples make room for newer ones."""
    series = UsageSeries()
    for at in range(SAMPLES_MAX + 11):
        series.take(1, at * 10.0, used(at * 1_000, at))
    found = series.history("a", "t")
    assert found.samples == SAMPLES_MAX == sum(found.memory_bytes.values())
    assert found.from_ns == 11 * 10_000_000_000


def answer(task: str, memory: list[int], *, kills: int = 0) -> tuple[AllocSummary, StatsAnswer]:
    history = TaskHistory(
        alloc_id="a",
        task=task,
        samples=len(memory),
        cpu_millicores=to_wire(histogram([100] * 19 + [1_000])),
        memory_bytes=to_wire(histogram(one * MIB for one in memory)),
        cpu_peak_millicores=1_000,
        oom_kills=kills,
    )
    use = TaskUse(alloc_id="a", task=task, driver="exec", asked_cpu_mhz=500, asked_memory_mib=300)
    summary = AllocSummary(id="a", key=1, group="g")
    return summary, StatsAnswer(tasks=(use,), core_mhz=2_000, history=(history,))


def test_a_suggestion_leaves_headroom() -> None:
    """15 % above the 95th percentile of CPU, 20 % above the peak of memory; never less than asked after a kill."""
    (line,) = usage_lines([answer("main", [10, 20]), answer("main", [60])])
    assert (line.group, line.task, line.allocations, line.samples) == ("g", "main", 2, 3)
    cpu, memory = line.cpu_mhz, line.memory_mib
    assert (cpu.asked, cpu.p50, cpu.peak) == (500, cpu.p95, 2_000)
    assert 200 <= cpu.p95 <= 225 and cpu.p95 * 115 // 100 <= cpu.suggested <= 270
    assert 60 <= memory.peak <= 68 and memory.peak * 12 // 10 <= memory.suggested <= 88
    (killed,) = usage_lines([answer("main", [60], kills=2)])
    assert killed.memory_mib.suggested == 360 and killed.oom_kills == 2


def test_percentiles_of_one_value_are_that_value() -> None:
    """A task that always uses the same is suggested the same, with headroom."""
    assert percentile(histogram([8] * 100), 50) == 8


def test_a_minute_is_handed_over_when_it_is_over() -> None:
    """Each task has its mean, its peaks and its counts; those from before the first measurement are left out."""
    minutes = UsageMinutes("n1")
    assert minutes.begin(121.0) is None

    def add(task: str, memory: int, **more: Any) -> None:
        counted = {"cpu_ns": 0, "passed_s": 0.0, "throttled_ns": 0, "oom_kills": 0, **more}
        minutes.add(("a", task), memory, **counted)

    add("web", 50, cpu_ns=9 * 10**12)
    add("web", 90, cpu_ns=5_000_000_000, passed_s=10.0, throttled_ns=7_900_000, oom_kills=1)
    add("db", 5)
    assert minutes.begin(179.9) is None
    add("web", 70, cpu_ns=1_000_000_000, passed_s=10.0, throttled_ns=2_000_000)
    found = minutes.begin(180.0)
    assert found == UsageMinute(
        node_id="n1",
        at_s=120,
        allocs=("a", "a"),
        tasks=("db", "web"),
        samples=(1, 3),
        cpu_millicores=(0, 300),
        cpu_peak_millicores=(0, 500),
        memory_bytes=(5, 90),
        throttled_ms=(0, 9),
        oom_kills=(0, 1),
    )
    assert minutes.begin(240.0) is None and minutes.end() is None
    add("web", 1)
    back = minutes.begin(60.0)
    assert back is not None and back.at_s == 240


def test_a_sampler_hands_over_its_last_minute_when_nothing_runs() -> None:
    """The minute that has begun is not lost with the last task."""
    runs: list[Any] = []
    sampler, found = UsageSampler(lambda: runs), list[UsageMinute]()
    sampler.publish_minutes("n1", found.append)
    driver, run = _Steady(), SimpleNamespace(alloc_id="a", task="t", number=1)
    runs.append((driver, None, run))

    async def story() -> None:
        await sampler.measure()
        runs.clear()
        await sampler.run()

    asyncio.run(story())
    assert sum(one.samples[0] for one in found) == 1
    assert {(one.allocs, one.tasks, one.memory_bytes) for one in found} == {(("a",), ("t",), (7,))}


class _Steady:
    """A driver whose tasks use the same all the time."""

    async def stats(self, _handle: object) -> TaskUsage:
        return used(1, 7)
