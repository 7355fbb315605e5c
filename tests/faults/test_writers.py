"""Two writers that both believe to lead: the log's fence alone keeps them apart."""

import sys
from collections import Counter
from pathlib import Path

import msgspec

from bench.harness.cluster import ROOT, BenchCluster, wait_until
from bench.harness.fleet_process import n1_standard_8
from schemas.envelope import RECORD_DECODER
from services.cli.local.cluster import LocalClusterSettings
from services.cli.local.processes import SupervisedProcess
from tests.bounds import LONG_S
from tests.faults.city import body_of, play, watched

JOBS = 60
LAWLESS = Path(__file__).with_name("lawless_applier.py")


class LawlessCity(BenchCluster):
    """A cluster whose appliers ignore the lease."""

    def _plan(self) -> list[SupervisedProcess]:
        children = super()._plan()
        for child in children:
            if child.role == "plan_applier":
                child._command = (sys.executable, str(LAWLESS))
                child._env = {**child._env, "PYTHONPATH": str(ROOT)}
        return children


def test_two_appliers_race_and_the_fence_decides(tmp_path: Path) -> None:
    """Two appliers that ignore the lease write one chain: nothing lost, nothing twice, `log verify` proves it."""

    async def story(cluster: BenchCluster) -> None:
        cluster.start_fleet(n1_standard_8(10))
        async with watched(cluster) as city:
            counts = {f"race-{number}": number % 3 + 1 for number in range(JOBS)}
            for name, count in counts.items():
                verdict = await city.submit(body_of(name, count=count))
                assert verdict.status == "accepted", verdict
            await wait_until(
                lambda: all(city.held(name) >= count for name, count in counts.items()),
                "all are placed",
                LONG_S,
            )
            assert {name: city.held(name) for name in counts} == counts
            await city.proven()
            holders: Counter[str] = Counter()
            async for record in city.public.read_log():
                decoded = msgspec.json.decode(record.data, type=dict)
                if decoded.get("kind") == "lease":
                    lease = RECORD_DECODER.decode(record.data).lease
                    assert lease is not None
                    holders[lease.holder] += 1
            assert len(holders) == 2 and min(holders.values()) > 1, holders

    settings = LocalClusterSettings(data_dir=tmp_path / "data", agents=0, schedulers=1, appliers=2)
    with LawlessCity(settings) as cluster:
        play(story(cluster))
