"""A cluster on a bus that does not fsync: it runs when a benchmark asks for it, and its log says so."""

import pytest

from bench.harness.cluster import BenchCluster, run_on_cluster, wait_until
from bench.harness.fleet_process import n1_standard_8
from bench.harness.measured_run import log_is_fsynced
from tests.bounds import WAIT_S


def test_a_benchmark_may_ask_for_a_bus_without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier writes there only because of its setting, and the lease in the log names what it found."""
    monkeypatch.setenv("CARAVAN_BENCH_FSYNC", "0")
    said: list[bool] = []

    async def story(cluster: BenchCluster) -> None:
        async with cluster.observer() as observer:
            cluster.start_fleet(n1_standard_8(2))
            await wait_until(lambda: observer.state.fleet.ready().sum() == 2, "two nodes", WAIT_S)
            said.append(await log_is_fsynced(cluster, observer))

    run_on_cluster(story)
    assert said == [False]
