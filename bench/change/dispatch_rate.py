"""P25, dispatch: children of one parameterized job on a fixed schedule, each with 1 KiB of payload and a token.

The rate climbs step by step until the 99th percentile from due to placed of a step passes a second;
between steps the cluster becomes idle. The figure is the highest rate of a step below a second, with no failed
step before it. Afterwards a part is dispatched again under the same idempotency tokens: each is the child that it was.
Through the whole product, as p1. The figure to reach: 4,000 a second.
"""

from base64 import b64encode
from typing import Any

from bench.harness.cluster import BenchCluster
from bench.harness.host_info import HostRequirements
from bench.harness.load_generator import Body, LoadGenerator, numbered
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
from bench.latency.latency_under_rate import (
    FAR_S,
    STEP_S,
    highest_rate,
    run_ramp,
)

NODES = 100
RUNS = 3
PAYLOAD_BYTES = 1_024
#: One of so many is dispatched again.
AGAIN_PART = 20
AGAIN_AT_ONCE = 64
_PARENT = "render"
NEEDS = HostRequirements(memory_mib=2_048)


def run(size: float, runs: int, workers: int = 1) -> BenchOutcome:
    """Run the ramp `runs` times on a fresh cluster each; `size` scales the length of a step and the nodes."""
    nodes, step_s = max(int(NODES * size), 10), max(STEP_S * size, 0.2)

    async def once(cluster: BenchCluster) -> BenchRun:
        return await _once(cluster, nodes, step_s)

    wanted = {"nodes": nodes, "step_ms": round(step_s * 1000), "payload_bytes": PAYLOAD_BYTES}
    return on_fresh_clusters(once, runs, {**wanted, "workers": max(workers, 1)}, workers)


def _dispatch(name: str) -> Body:
    """One dispatch; `@@` is its number, and of its token, so that two names of one number are one child."""
    request: dict[str, Any] = {
        "JobID": _PARENT,
        "SubmissionID": f"{name}-@@",
        "IdempotencyToken": "token-@@",
        "Payload": b64encode(bytes(at % 251 for at in range(PAYLOAD_BYTES))).decode(),
        "Meta": {"frame": "@@"},
    }
    return numbered(request)


async def _once(cluster: BenchCluster, nodes: int, step_s: float) -> BenchRun:
    # So small that capacity never limits placement.
    job = sample_job(
        _PARENT, count=1, cpu_mhz=5, memory_mib=10, command="/bin/true", Type="batch"
    ) | {"ParameterizedJob": {"Payload": "required", "MetaRequired": ["frame"]}}
    async with cluster.observer() as observer, cluster.client() as public:
        await start_settled_fleet(cluster, observer, nodes)
        await submit_accepted(public.bus, job_body(job))
        measured = Measurement(cluster)
        await measured.start()
        arrivals = LoadGenerator(public.bus, _dispatch("first"), "dispatch")
        steps = await run_ramp(observer, arrivals, step_s)
        await measured.stop()
        again = LoadGenerator(public.bus, _dispatch("again"), "dispatch")
        await again.closed(range(0, len(arrivals.due), AGAIN_PART), AGAIN_AT_ONCE)
        children = arrivals.job_of
        checks = await verify_run(
            cluster, observer, arrivals.verdicts, dict.fromkeys(children.values(), 1)
        )
        payloads = observer.state.launches.payloads
        checks["same_token_same_child"] = bool(again.verdicts) and all(
            children[number] == child for number, child in again.job_of.items()
        )
        checks["payloads_kept"] = all(
            len(payloads.get(child, b"")) == PAYLOAD_BYTES for child in children.values()
        )
        checks["nobody_restarted"] = measured.same_processes
        held = highest_rate(steps, FAR_S)
        result = {
            "dispatches_per_s": held.rate,
            "p50_ms": held.p50_s * 1000,
            "p99_ms": held.p99_s * 1000,
            "children": len(children),
        }
        return await measured.make_run(observer, result, checks)
