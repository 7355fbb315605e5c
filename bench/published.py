"""What docs/benchmarks.md says of each benchmark beside its figures: what closes it, where it shall go, who is best.

Decides the bars, in the project's own numbers, and names for every figure of somebody else where it was published. A
benchmark that is not here is shown without bars. Next: `report.py`.
"""

from fnmatch import fnmatchcase
from typing import Final

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """A figure to reach. `key`: of the result, dots lead into it, `*` is anything; `least`: more is better."""

    key: str
    #: what this release was built to reach; None: only the goal is known.
    closes: float | None
    goal: float | None = None
    least: bool = False
    #: what is shown of a key that says too little by itself.
    label: str = ""
    #: a key that the stars do not mean.
    but: str = ""

    def means(self, key: str) -> bool:
        """Whether it could be about this key; an exact one before goes first."""
        return key == self.key or (fnmatchcase(key, self.key) and key != self.but)

    @property
    def wanted(self) -> float:
        """What closes it, else the goal."""
        return self.closes if self.closes is not None else self.goal or 0.0


class Peer(msgspec.Struct, frozen=True):
    """The best figure of somebody else. `value` in the unit of `key`; None: not comparable as a number."""

    text: str
    source: str
    key: str = ""
    value: float | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark."""

    bars: tuple[Bar, ...] = ()
    peers: tuple[Peer, ...] = ()
    #: keys shown as a picture, in this order; or one key that holds figures by name.
    picture: tuple[str, ...] = ()
    #: options beside the name.
    options: str = ""
    #: said below its tables.
    note: str = ""


_C1M: Final = "HashiCorp, The Million Container Challenge (hashicorp.com/c1m), 2016"
_C2M: Final = "HashiCorp, Two Million Container Challenge (hashicorp.com/c2m), 2020"
_SAME: Final = "Nomad built and run on a machine of this kind: 5,000 nodes, 100 jobs of 1,000"
_K8S: Final = "Kubernetes, test/integration/scheduler_perf, thresholds of its CI"
_TIMES: Final = ("t_first_s", "t50_s", "t99_s", "t_all_s")
_RUNNING: Final = ("t_first_s", "t_all_s", "running_t99_s", "running_t_all_s")

ENTRIES: Final[dict[str, Entry]] = {
    "p1": Entry(
        bars=(Bar("t_all_s", 3.0, 1.0), Bar("t_first_s", None, 0.01)),
        peers=(
            Peer("Nomad 0.3: 266 s on 160 server vCPU", _C1M, "t_all_s", 266.0),
            Peer("Nomad 1.1.2: 1,904 placements/s, 2.0.5: 770/s", _SAME, "rate_per_s", 1904.0),
        ),
        picture=_TIMES,
    ),
    "p2": Entry(
        bars=(Bar("running_t_all_s", 10.0, 5.0),),
        peers=(
            Peer("Nomad 0.3: below 5 minutes on 160 server vCPU", _C1M, "running_t_all_s", 300.0),
        ),
        picture=_RUNNING,
    ),
    "p3": Entry(
        bars=(Bar("t_all_s", 6.0, 2.0), Bar("running_t_all_s", 25.0, 10.0)),
        peers=(Peer("Nomad 1.0: 1,334 s on 192 server vCPU", _C2M, "t_all_s", 1334.0),),
        picture=_RUNNING,
    ),
    "p4": Entry(
        bars=(Bar("slope", 0.95, 0.95, least=True),),
        peers=(Peer("Nomad 2.0.5: 0.58, 1.1.2: 0.36, already at 100,000", _SAME, "slope", 0.58),),
    ),
    "p5": Entry(
        bars=(Bar("jobs_per_s", 6_000, 15_000, least=True),),
        peers=(
            Peer("kube-scheduler: 810 pods/s, 5,000 nodes, 50,000 pods", _K8S, "jobs_per_s", 810.0),
        ),
    ),
    "p6": Entry(
        bars=(
            Bar("singles_per_s", 4_000, 4_000, least=True),
            Bar("group_per_s", 300_000, 300_000, least=True),
        ),
        peers=(
            Peer("kube-scheduler: 460 pods/s with required spread", _K8S, "singles_per_s", 460.0),
        ),
    ),
    "p7": Entry(
        bars=(Bar("jobs_per_s", 4_000, 10_000, least=True), Bar("p99_ms", 250.0, 250.0)),
        peers=(
            Peer(
                "Nomad: 160 jobs/s (1.11), 780 (2.0.5, patched)",
                "hashicorp/nomad#28444",
                "jobs_per_s",
                780.0,
            ),
        ),
    ),
    "p8": Entry(
        bars=(Bar("p50_ms", 3.0, 2.0), Bar("p99_ms", 8.0, 5.0)),
        peers=(Peer("Protean: a few ms a request", "Hadary et al., Protean, OSDI 2020"),),
    ),
    "p9": Entry(bars=(Bar("worst_ms", 10.0, 10.0),)),
    "p10": Entry(
        bars=(
            Bar("binpack_us", 200.0, 200.0),
            Bar("binpack_affinity_us", 1_000.0, 1_000.0),
            Bar("spread_us", 700.0, 700.0),
        ),
        picture=("binpack_us", "binpack_affinity_us", "spread_us"),
    ),
    "p11": Entry(
        bars=(Bar("tasks_per_s", 20_000, 50_000, least=True),),
        peers=(
            Peer(
                "HyperQueue: below 0.1 ms a task, so 10,000/s",
                "HyperQueue, docs/faq",
                "tasks_per_s",
                10_000.0,
            ),
            Peer(
                "Slurm: 500 simple jobs/s sustained", "Slurm, High Throughput Computing guide 24.11"
            ),
        ),
    ),
    "p12": Entry(
        bars=(
            Bar("ready_s", 0.5, 0.5),
            Bar("single_events_per_s", None, 100_000, least=True),
            Bar("tail_per_s", None, 45_000, least=True),
        ),
        peers=(
            Peer(
                "LMAX: 6 million orders/s a thread, in memory",
                "Fowler, The LMAX Architecture, 2011",
            ),
        ),
    ),
    "p13": Entry(
        bars=(
            Bar("recover_s.applier", 3.0, 3.0),
            Bar("recover_s.bus", 3.0, 3.0),
            Bar("recover_s.r3_leader", 10.0, 10.0),
            Bar("recover_s.r3_all", 10.0, 10.0),
            Bar("recover_s.*", 1.0, 1.0, label="slowest other process"),
            Bar("lost", 0, 0),
            Bar("doubled", 0, 0),
        ),
        peers=(
            Peer(
                "Nomad: a new leader waits 5 minutes before it calls clients dead",
                "hashicorp/nomad#10341",
            ),
        ),
        picture=("recover_s",),
    ),
    "p14": Entry(
        bars=(
            Bar("events_per_s", 50_000, 100_000, least=True),
            Bar("placements_per_s", None, 250_000, least=True),
        ),
        picture=(
            "events_per_s_r1",
            "events_per_s_r3",
            "placements_per_s_r1",
            "placements_per_s_r3",
        ),
        note="Everything here hangs on `disk_fsync_ms`, the time that this disk takes for one flush.",
    ),
    "p15": Entry(
        bars=(Bar("detect_p99_s", 3.5, 3.5), Bar("cores", 0.5, 0.5), Bar("false_positives", 0, 0)),
        peers=(
            Peer(
                "Nomad: 110 to 210 s at 5,000 nodes, by its own rule for the time between heartbeats",
                "Nomad, nomad/heartbeat.go and nomad/config.go",
                "detect_p99_s",
                210.0,
            ),
        ),
    ),
    "p16": Entry(
        bars=(Bar("one_node_s", 4.0, 4.0), Bar("fifty_nodes_s", 5.0, 5.0)),
        peers=(
            Peer(
                "Kubernetes: 340 to 350 s with its defaults",
                "kubernetes/kubernetes#127352",
                "one_node_s",
                345.0,
            ),
        ),
        picture=("one_node_s", "fifty_nodes_s"),
    ),
    "p17": Entry(
        bars=(
            Bar("workers.4.conflict_pct", 1.0, 1.0, label="conflicts at 4 workers"),
            Bar("workers_full.4.conflict_pct", 5.0, 5.0, label="conflicts at 4, 95 % full"),
        ),
        peers=(
            Peer(
                "Omega, Protean: negligible conflicts",
                "Schwarzkopf et al., EuroSys 2013; OSDI 2020",
            ),
        ),
        note="Two cores cannot show the speed of eight workers: what is shown is that they do not get in each "
        "other's way.",
    ),
    "p18": Entry(
        bars=(
            Bar("log_bytes_per_alloc", 100, 10),
            Bar(
                "rss_bytes_per_alloc.*",
                200,
                200,
                label="largest role",
                but="rss_bytes_per_alloc.bus",
            ),
        ),
        peers=(
            Peer(
                "Nomad: 24 to 36 KB of memory, 1.9 to 2.9 KB of disk",
                _SAME,
                "log_bytes_per_alloc",
                1900.0,
            ),
        ),
        picture=("rss_bytes_per_alloc",),
    ),
    "p19": Entry(
        bars=(Bar("nodes", 967, 967),),
        peers=(Peer("Nomad, at 100,000 allocations: 1,841 nodes where 513 suffice", _SAME),),
    ),
    "p20": Entry(bars=(Bar("wall_s", 10.0, 10.0), Bar("divergent", 0, 0))),
    "p21": Entry(
        note="By variant and policy, with all seeds: [packing](packing.md).", options="--data DIR"
    ),
    "p22": Entry(note="See [packing](packing.md).", options="--data DIR"),
    "moments": Entry(
        bars=(Bar("state_s", 2.0, 2.0), Bar("slowest_s", 2.0, 2.0)),
        picture=("fastest_s", "state_s", "slowest_s"),
    ),
    "memory": Entry(
        bars=(
            Bar("log_b", 100, 10),
            Bar("*_b", 200, 200, label="largest role", but="log_b"),
            Bar("soak_grown_pct", 10, 10),
        )
    ),
    "archive": Entry(
        bars=(
            Bar("events_per_s", 500_000, 500_000, least=True),
            Bar("allocations_at_ms", 200.0, 200.0),
            Bar("usage_at_ms", 200.0, 200.0),
        ),
        note="Placements are counted one by one, a report of 2,000 status changes as one event.",
    ),
}
