"""The benchmarks by the short name that `caravan bench NAME` takes; each module is named for its question."""

from collections.abc import Mapping
from types import MappingProxyType

#: Short name to module, those with a number first. A module has `run(size, …)`; `NEEDS` and `RUNS` are optional.
BENCHMARKS: Mapping[str, str] = MappingProxyType(
    {
        "p1": "bench.throughput.million_placements",
        "p2": "bench.throughput.million_running",
        "p3": "bench.throughput.two_million_running",
        "p4": "bench.throughput.fill_slope",
        "p5": "bench.throughput.single_pods",
        "p6": "bench.scheduler.zone_spread",
        "p7": "bench.latency.latency_under_rate",
        "p8": "bench.latency.idle_latency",
        "p9": "bench.scheduler.nomad_matrix",
        "p10": "bench.scheduler.rank_kernel",
        "p11": "bench.throughput.batch_storm",
        "p12": "bench.log.replay_speed",
        "p13": "bench.resilience.crash_recovery",
        "p14": "bench.log.fsync_throughput",
        "p15": "bench.resilience.node_liveness",
        "p16": "bench.resilience.node_loss",
        "p17": "bench.throughput.worker_scaling",
        "p18": "bench.footprint.bytes_per_alloc",
        "p19": "bench.packing.packed_nodes",
        "p20": "bench.log.what_if",
        "p21": "bench.packing.gpu_trace_packing",
        "p22": "bench.packing.fewest_nodes",
        "p23": "bench.change.rolling_update",
        "p24": "bench.change.cron_minute",
        "p25": "bench.change.dispatch_rate",
        "p27": "bench.throughput.gateway_load",
        "p27-page": "bench.latency.console_page",
        "p28": "bench.latency.task_inputs",
        "archive": "bench.log.archive_export",
        "curve": "bench.throughput.worker_scaling_simulated",
        "memory": "bench.footprint.ten_million_allocs",
        "moments": "bench.log.point_in_time",
        "overload": "bench.resilience.overload",
    }
)
