"""One cluster for all stories that leave it whole: two appliers, two workers, twenty nodes without agents."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.cluster import BenchCluster
from bench.harness.fleet_process import n1_standard_8
from services.cli.local.cluster import LocalClusterSettings
from tests.faults.city import watched

NODES = 20


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchCluster]:
    """A running cluster with users for the nodes `n1` and `n2`, which have no agent."""
    folder: Path = tmp_path_factory.mktemp("faults")
    settings = LocalClusterSettings(data_dir=folder / "data", agents=0, schedulers=2, appliers=2)
    with BenchCluster(settings) as running:
        running.add_nodes("n1", "n2")
        running.start_fleet(n1_standard_8(NODES))

        async def ready() -> None:
            async with watched(running) as city:
                await city.lives("first")

        asyncio.run(ready())
        yield running
