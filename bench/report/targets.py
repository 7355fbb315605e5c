"""The text of docs/benchmarks.md beside the figures of each benchmark: targets, goals and published figures of others.

Targets are the project's own; a figure of others has its source. A benchmark without an entry is shown without targets.
Next: `build.py`.
"""

from fnmatch import fnmatchcase
from typing import Final

import msgspec

from bench.harness.runner import BenchResult


class Target(msgspec.Struct, frozen=True):
    """A figure to reach. `key`: path in the result, with dots and `*`; `least`: higher is better."""

    key: str
    #: the target of this release; None: only the goal is known.
    closes: float | None
    goal: float | None = None
    least: bool = False
    #: shown instead of the key.
    label: str = ""
    #: a key that `*` does not match.
    but: str = ""

    def means(self, key: str) -> bool:
        """Whether it matches this key; an exact target before it wins."""
        return key == self.key or (fnmatchcase(key, self.key) and key != self.but)

    @property
    def wanted(self) -> float:
        """The target, else the goal."""
        return self.closes if self.closes is not None else self.goal or 0.0


class PublishedFigure(msgspec.Struct, frozen=True):
    """The best published figure of another product. `value` in the unit of `key`; None: not comparable as a number."""

    text: str
    source: str
    key: str = ""
    value: float | None = None


class ReportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark."""

    bars: tuple[Target, ...] = ()
    peers: tuple[PublishedFigure, ...] = ()
    #: keys shown as a picture, in this order; or one key that holds figures by name.
    picture: tuple[str, ...] = ()
    #: options beside the name.
    options: str = ""
    #: text below its tables.
    note: str = ""


class ReportedBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of the page. `refused` says why there is no figure; then `result` is None."""

    name: str
    title: str
    about: str
    entry: ReportEntry
    result: BenchResult | None = None
    refused: str = ""


_C1M: Final = "HashiCorp, The Million Container Challenge (hashicorp.com/c1m), 2016"
_C2M: Final = "HashiCorp, Two Million Container Challenge (hashicorp.com/c2m), 2020"
_SAME: Final = "Nomad built and run on a machine of this kind: 5,000 nodes, 100 jobs of 1,000"
_K8S: Final = "Kubernetes, test/integration/scheduler_perf, thresholds of its CI"
_TIMES: Final = ("t_first_s", "t50_s", "t99_s", "t_all_s")
_RUNNING: Final = ("t_first_s", "t_all_s", "running_t99_s", "running_t_all_s")

REPORT_ENTRIES: Final[dict[str, ReportEntry]] = {
    "p1": ReportEntry(
        bars=(Target("t_all_s", 3.0, 1.0), Target("t_first_s", None, 0.01)),
        peers=(
            PublishedFigure("Nomad 0.3: 266 s on 160 server vCPU", _C1M, "t_all_s", 266.0),
            PublishedFigure(
                "Nomad 1.1.2: 1,904 placements/s, 2.0.5: 770/s", _SAME, "rate_per_s", 1904.0
            ),
        ),
        picture=_TIMES,
    ),
    "p2": ReportEntry(
        bars=(Target("running_t_all_s", 10.0, 5.0),),
        peers=(
            PublishedFigure(
                "Nomad 0.3: below 5 minutes on 160 server vCPU", _C1M, "running_t_all_s", 300.0
            ),
        ),
        picture=_RUNNING,
    ),
    "p3": ReportEntry(
        bars=(Target("t_all_s", 6.0, 2.0), Target("running_t_all_s", 25.0, 10.0)),
        peers=(PublishedFigure("Nomad 1.0: 1,334 s on 192 server vCPU", _C2M, "t_all_s", 1334.0),),
        picture=_RUNNING,
    ),
    "p4": ReportEntry(
        bars=(Target("slope", 0.95, 0.95, least=True),),
        peers=(
            PublishedFigure(
                "Nomad 2.0.5: 0.58, 1.1.2: 0.36, already at 100,000", _SAME, "slope", 0.58
            ),
        ),
    ),
    "p5": ReportEntry(
        bars=(Target("jobs_per_s", 6_000, 15_000, least=True),),
        peers=(
            PublishedFigure(
                "kube-scheduler: 810 pods/s, 5,000 nodes, 50,000 pods", _K8S, "jobs_per_s", 810.0
            ),
        ),
    ),
    "p6": ReportEntry(
        bars=(
            Target("singles_per_s", 4_000, 4_000, least=True),
            Target("group_per_s", 300_000, 300_000, least=True),
        ),
        peers=(
            PublishedFigure(
                "kube-scheduler: 460 pods/s with required spread", _K8S, "singles_per_s", 460.0
            ),
        ),
    ),
    "p7": ReportEntry(
        bars=(Target("jobs_per_s", 4_000, 10_000, least=True), Target("p99_ms", 250.0, 250.0)),
        peers=(
            PublishedFigure(
                "Nomad: 160 jobs/s (1.11), 780 (2.0.5, patched)",
                "hashicorp/nomad#28444",
                "jobs_per_s",
                780.0,
            ),
        ),
    ),
    "p8": ReportEntry(
        bars=(Target("p50_ms", 3.0, 2.0), Target("p99_ms", 8.0, 5.0)),
        peers=(
            PublishedFigure("Protean: a few ms a request", "Hadary et al., Protean, OSDI 2020"),
        ),
    ),
    "p9": ReportEntry(bars=(Target("worst_ms", 10.0, 10.0),)),
    "p10": ReportEntry(
        bars=(
            Target("binpack_us", 200.0, 200.0),
            Target("binpack_affinity_us", 1_000.0, 1_000.0),
            Target("spread_us", 700.0, 700.0),
        ),
        picture=("binpack_us", "binpack_affinity_us", "spread_us"),
    ),
    "p11": ReportEntry(
        bars=(Target("tasks_per_s", 20_000, 50_000, least=True),),
        peers=(
            PublishedFigure(
                "HyperQueue: below 0.1 ms a task, so 10,000/s",
                "HyperQueue, docs/faq",
                "tasks_per_s",
                10_000.0,
            ),
            PublishedFigure(
                "Slurm: 500 simple jobs/s sustained", "Slurm, High Throughput Computing guide 24.11"
            ),
        ),
    ),
    "p12": ReportEntry(
        bars=(
            Target("ready_s", 0.5, 0.5),
            Target("single_events_per_s", None, 100_000, least=True),
            Target("tail_per_s", None, 45_000, least=True),
        ),
        peers=(
            PublishedFigure(
                "LMAX: 6 million orders/s a thread, in memory",
                "Fowler, The LMAX Architecture, 2011",
            ),
        ),
    ),
    "p13": ReportEntry(
        bars=(
            Target("recover_s.applier", 3.0, 3.0),
            Target("recover_s.bus", 3.0, 3.0),
            Target("recover_s.r3_leader", 10.0, 10.0),
            Target("recover_s.r3_all", 10.0, 10.0),
            Target("recover_s.*", 1.0, 1.0, label="slowest other process"),
            Target("lost", 0, 0),
            Target("doubled", 0, 0),
        ),
        peers=(
            PublishedFigure(
                "Nomad: a new leader waits 5 minutes before it calls clients dead",
                "hashicorp/nomad#10341",
            ),
        ),
        picture=("recover_s",),
    ),
    "p14": ReportEntry(
        bars=(
            Target("events_per_s", 50_000, 100_000, least=True),
            Target("placements_per_s", None, 250_000, least=True),
        ),
        picture=(
            "events_per_s_r1",
            "events_per_s_r3",
            "placements_per_s_r1",
            "placements_per_s_r3",
        ),
        note="All figures depend on `disk_fsync_ms`, the time that this disk takes for one flush.",
    ),
    "p15": ReportEntry(
        bars=(
            Target("detect_p99_s", 3.5, 3.5),
            Target("cores", 0.5, 0.5),
            Target("false_positives", 0, 0),
        ),
        peers=(
            PublishedFigure(
                "Nomad: 110 to 210 s at 5,000 nodes, by its own rule for the time between heartbeats",
                "Nomad, nomad/heartbeat.go and nomad/config.go",
                "detect_p99_s",
                210.0,
            ),
        ),
    ),
    "p16": ReportEntry(
        bars=(Target("one_node_s", 4.0, 4.0), Target("fifty_nodes_s", 5.0, 5.0)),
        peers=(
            PublishedFigure(
                "Kubernetes: 340 to 350 s with its defaults",
                "kubernetes/kubernetes#127352",
                "one_node_s",
                345.0,
            ),
        ),
        picture=("one_node_s", "fifty_nodes_s"),
    ),
    "p17": ReportEntry(
        bars=(
            Target("workers.4.conflict_pct", 1.0, 1.0, label="conflicts at 4 workers"),
            Target("workers_full.4.conflict_pct", 5.0, 5.0, label="conflicts at 4, 95 % full"),
        ),
        peers=(
            PublishedFigure(
                "Omega, Protean: negligible conflicts",
                "Schwarzkopf et al., EuroSys 2013; OSDI 2020",
            ),
        ),
        note="Two cores cannot show the speed of eight workers; the figures show that workers do not conflict.",
    ),
    "p18": ReportEntry(
        bars=(
            Target("log_bytes_per_alloc", 100, 10),
            Target(
                "rss_bytes_per_alloc.*",
                200,
                200,
                label="largest role",
                but="rss_bytes_per_alloc.bus",
            ),
        ),
        peers=(
            PublishedFigure(
                "Nomad: 24 to 36 KB of memory, 1.9 to 2.9 KB of disk",
                _SAME,
                "log_bytes_per_alloc",
                1900.0,
            ),
        ),
        picture=("rss_bytes_per_alloc",),
    ),
    "p19": ReportEntry(
        bars=(Target("nodes", 967, 967),),
        peers=(
            PublishedFigure("Nomad, at 100,000 allocations: 1,841 nodes where 513 suffice", _SAME),
        ),
    ),
    "p20": ReportEntry(bars=(Target("wall_s", 10.0, 10.0), Target("divergent", 0, 0))),
    "p21": ReportEntry(
        note="By variant and policy, with all seeds: [packing](packing.md).", options="--data DIR"
    ),
    "p22": ReportEntry(note="See [packing](packing.md).", options="--data DIR"),
    "p23": ReportEntry(bars=(Target("over_ideal", 1.2, 1.05),)),
    "p24": ReportEntry(
        bars=(
            Target("p99_ms", 250.0, 250.0),
            Target("burst_p99_ms", 250.0, 250.0, label="p99 of the one instant, ms"),
        ),
        picture=("p50_ms", "p99_ms", "burst_p50_ms", "burst_p99_ms"),
    ),
    "p25": ReportEntry(
        bars=(Target("dispatches_per_s", 4_000, 4_000, least=True),),
        peers=(
            PublishedFigure(
                "Nomad: 160 jobs/s registered (1.11), 780 (2.0.5, patched)",
                "hashicorp/nomad#28444",
                "dispatches_per_s",
                780.0,
            ),
        ),
    ),
    "p27": ReportEntry(
        bars=(
            Target("reads_per_s", 2_000, 2_000, least=True),
            Target("blocked_cpu_pct", 5.0, 5.0),
            Target("viewers_cpu_pct", 20.0, 20.0),
        ),
    ),
    "p27-page": ReportEntry(
        bars=(
            Target("first_picture_ms", 1_000.0, 1_000.0),
            Target("frame_p95_ms", 16.0, 16.0),
            Target("to_pixel_p95_ms", 250.0, 250.0),
            Target("moment_ms", 300.0, 300.0, label="slowest moment, ms"),
        ),
        note="Debian's chromium without a GPU: pixels are drawn by the CPU, on the cores that the cluster uses.",
    ),
    "p28": ReportEntry(
        bars=(
            Target("start_p50_ms", 40.0, 40.0, label="a start with inputs over a bare one, ms"),
            Target("change_s", 2.0, 2.0, label="a change for 1,000 templates, s"),
            Target("change_own_s", None, 2.0, label="the same, each with its own text, s"),
            Target("checks_cpu_pct", 5.0, 5.0, label="1,000 checks, % of a core"),
        ),
    ),
    "moments": ReportEntry(
        bars=(Target("state_s", 2.0, 2.0), Target("slowest_s", 2.0, 2.0)),
        picture=("fastest_s", "state_s", "slowest_s"),
    ),
    "memory": ReportEntry(
        bars=(
            Target("log_b", 100, 10),
            Target("*_b", 200, 200, label="largest role", but="log_b"),
            Target("soak_grown_pct", 10, 10),
        )
    ),
    "archive": ReportEntry(
        bars=(
            Target("events_per_s", 500_000, 500_000, least=True),
            Target("allocations_at_ms", 200.0, 200.0),
            Target("usage_at_ms", 200.0, 200.0),
        ),
        note="Placements are counted one by one, a report of 2,000 status changes as one event.",
    ),
}
