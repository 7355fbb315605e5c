"""A cluster on a bus that does not fsync: it runs when a benchmark asks for it, and its log says so."""

import pytest

from bench.fleet import n1_standard_8
from bench.harness import Harness, run_in, until
from bench.p1 import fsyncs


def test_a_benchmark_may_ask_for_a_bus_without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier writes there only because it was told to, and the lease in the log names what it found."""
    monkeypatch.setenv("CARAVAN_BENCH_FSYNC", "0")
    said: list[bool] = []

    async def story(cluster: Harness) -> None:
        async with cluster.observer() as observer:
            cluster.start_fleet(n1_standard_8(2))
            await until(lambda: observer.state.fleet.ready().sum() == 2, "two nodes", 30)
            said.append(await fsyncs(cluster, observer))

    run_in(story)
    assert said == [False]
